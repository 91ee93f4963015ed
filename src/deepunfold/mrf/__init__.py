"""Markov random fields (Section 3 and Appendices A, B and C of the paper)."""

from deepunfold.mrf._appearances import edge_appearances
from deepunfold.mrf._binary import BinaryMRF, BinaryPotentials
from deepunfold.mrf._convert import from_networkx, from_pgmpy, to_networkx, to_pgmpy
from deepunfold.mrf._dial import set_lambda
from deepunfold.mrf._energies import energy_estimate
from deepunfold.mrf._enumeration import Enumeration, enumeration
from deepunfold.mrf._evidence import DiscreteEvidence, RealEvidence
from deepunfold.mrf._exact import log_partition, log_score, marginals, most_probable, pair_marginals
from deepunfold.mrf._factors import FactorGraph, from_factors, to_factors
from deepunfold.mrf._graph import Graph, grid
from deepunfold.mrf._infer import infer
from deepunfold.mrf._layers import BeliefSigmoid, BeliefSoftmax
from deepunfold.mrf._log_layers import LogMaxProduct, LogSumProduct, Maxout, SoftMaxout
from deepunfold.mrf._losses import label_loss, marginal_loss
from deepunfold.mrf._mean_field import MeanField
from deepunfold.mrf._model import PairwiseMRF, Potentials, clamp
from deepunfold.mrf._passing import BeliefPropagation, Fractional, MaxProduct, MessagePassing, TreeReweighted
from deepunfold.mrf._schedules import Residual, Turns, checkerboard, layered, random_turns, sequential
from deepunfold.mrf._settings import Grouped, per_degree
from deepunfold.mrf._sigmoid import from_sigmoid_network, to_sigmoid_network
from deepunfold.mrf._uai import read_evidence, read_marginals, read_uai, write_evidence, write_marginals, write_uai

__all__ = [
    "BeliefPropagation",
    "BeliefSigmoid",
    "BeliefSoftmax",
    "BinaryMRF",
    "BinaryPotentials",
    "DiscreteEvidence",
    "Enumeration",
    "FactorGraph",
    "Fractional",
    "Graph",
    "Grouped",
    "LogMaxProduct",
    "LogSumProduct",
    "MaxProduct",
    "Maxout",
    "MeanField",
    "MessagePassing",
    "PairwiseMRF",
    "Potentials",
    "RealEvidence",
    "Residual",
    "SoftMaxout",
    "TreeReweighted",
    "Turns",
    "checkerboard",
    "clamp",
    "edge_appearances",
    "energy_estimate",
    "enumeration",
    "from_factors",
    "from_networkx",
    "from_pgmpy",
    "from_sigmoid_network",
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
    "read_evidence",
    "read_marginals",
    "read_uai",
    "sequential",
    "set_lambda",
    "to_factors",
    "to_networkx",
    "to_pgmpy",
    "to_sigmoid_network",
    "write_evidence",
    "write_marginals",
    "write_uai",
]
