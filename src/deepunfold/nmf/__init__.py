"""Non-negative matrix factorisation, unfolded (Section 4 and Appendix D of the paper)."""

from deepunfold.nmf._blocks import infer
from deepunfold.nmf._closed_form import DeepNMFLoss
from deepunfold.nmf._continuity import Continuous
from deepunfold.nmf._deep import Count, context, count, deep_nmf, separate
from deepunfold.nmf._divergence import beta_divergence, descent_exponent, divergence_split
from deepunfold.nmf._inference import NMFInference, wiener
from deepunfold.nmf._loss import MultiplicativeLoss, with_split
from deepunfold.nmf._optimizer import MultiplicativeUpdate, sum_over_processes
from deepunfold.nmf._sparse import SparseNMF
from deepunfold.nmf._split import Split, split_gradients

__all__ = [
    "Continuous",
    "Count",
    "DeepNMFLoss",
    "MultiplicativeLoss",
    "MultiplicativeUpdate",
    "NMFInference",
    "SparseNMF",
    "Split",
    "beta_divergence",
    "context",
    "count",
    "deep_nmf",
    "descent_exponent",
    "divergence_split",
    "infer",
    "separate",
    "split_gradients",
    "sum_over_processes",
    "wiener",
    "with_split",
]
