"""Markov random fields (Section 3 and Appendices A and C of the paper)."""

from deepunfold.mrf._exact import log_partition, log_score, marginals, most_probable
from deepunfold.mrf._graph import Graph, grid
from deepunfold.mrf._model import PairwiseMRF, Potentials, clamp

__all__ = [
    "Graph",
    "PairwiseMRF",
    "Potentials",
    "clamp",
    "grid",
    "log_partition",
    "log_score",
    "marginals",
    "most_probable",
]
