"""Markov random fields (Section 3 and Appendices A and C of the paper)."""

from deepunfold.mrf._exact import log_partition, log_score, marginals, most_probable
from deepunfold.mrf._graph import Graph, grid
from deepunfold.mrf._infer import infer
from deepunfold.mrf._mean_field import MeanField
from deepunfold.mrf._model import PairwiseMRF, Potentials, clamp
from deepunfold.mrf._passing import BeliefPropagation, Fractional, MaxProduct, MessagePassing
from deepunfold.mrf._schedules import Residual, Turns, checkerboard, layered, random_turns, sequential
from deepunfold.mrf._settings import Grouped, per_degree

__all__ = [
    "BeliefPropagation",
    "Fractional",
    "Graph",
    "Grouped",
    "MaxProduct",
    "MeanField",
    "MessagePassing",
    "PairwiseMRF",
    "Potentials",
    "Residual",
    "Turns",
    "checkerboard",
    "clamp",
    "grid",
    "infer",
    "layered",
    "log_partition",
    "log_score",
    "marginals",
    "most_probable",
    "per_degree",
    "random_turns",
    "sequential",
]
