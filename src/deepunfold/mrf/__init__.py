"""Markov random fields (Section 3 and Appendices A and C of the paper): so far their structure, and exact inference."""

from deepunfold.mrf._exact import log_partition, log_score, marginals, most_probable
from deepunfold.mrf._graph import Graph, grid

__all__ = ["Graph", "grid", "log_partition", "log_score", "marginals", "most_probable"]
