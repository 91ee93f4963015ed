"""Markov random fields (Section 3 and Appendices A, B and C of the paper)."""

from deepunfold.mrf._appearances import edge_appearances
from deepunfold.mrf._energies import energy_estimate
from deepunfold.mrf._enumeration import Enumeration, enumeration
from deepunfold.mrf._evidence import DiscreteEvidence, RealEvidence
from deepunfold.mrf._exact import log_partition, log_score, marginals, most_probable, pair_marginals
from deepunfold.mrf._graph import Graph, grid
from deepunfold.mrf._infer import infer
from deepunfold.mrf._losses import label_loss, marginal_loss
from deepunfold.mrf._mean_field import MeanField
from deepunfold.mrf._model import PairwiseMRF, Potentials, clamp
from deepunfold.mrf._passing import BeliefPropagation, Fractional, MaxProduct, MessagePassing, TreeReweighted
from deepunfold.mrf._schedules import Residual, Turns, checkerboard, layered, random_turns, sequential
from deepunfold.mrf._settings import Grouped, per_degree

__all__ = [
    "BeliefPropagation",
    "DiscreteEvidence",
    "Enumeration",
    "Fractional",
    "Graph",
    "Grouped",
    "MaxProduct",
    "MeanField",
    "MessagePassing",
    "PairwiseMRF",
    "Potentials",
    "RealEvidence",
    "Residual",
    "TreeReweighted",
    "Turns",
    "checkerboard",
    "clamp",
    "edge_appearances",
    "energy_estimate",
    "enumeration",
    "grid",
    "infer",
    "label_loss",
    "layered",
    "log_partition",
    "log_score",
    "marginal_loss",
    "marginals",
    "most_probable",
    "pair_marginals",
    "per_degree",
    "random_turns",
    "sequential",
]
