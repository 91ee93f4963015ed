"""Section 2 of the paper: any iterative algorithm as a network. The names here are those of `deepunfold` itself."""

from deepunfold.core._algorithm import Algorithm, Schedule, from_functions
from deepunfold.core._backward import Backward, Checkpoint, JacobianFree, Truncated, Unroll
from deepunfold.core._constraints import (
    Constraint,
    Interval,
    NonNegative,
    Positive,
    Simplex,
    Symmetric,
    constrain,
)
from deepunfold.core._errors import AlgorithmError, ConvergenceWarning, FileFormatError, StepError, TieError
from deepunfold.core._implicit import Implicit
from deepunfold.core._iterate import Event, Result, Status, iterate
from deepunfold.core._objectives import Objective, deep_supervision
from deepunfold.core._saving import load, notes, save
from deepunfold.core._training import Epoch, Training, fit, fit_layerwise
from deepunfold.core._unfolded import Unfolded, unfold

__all__ = [
    "Algorithm",
    "AlgorithmError",
    "Backward",
    "Checkpoint",
    "Constraint",
    "ConvergenceWarning",
    "Epoch",
    "Event",
    "FileFormatError",
    "Implicit",
    "Interval",
    "JacobianFree",
    "NonNegative",
    "Objective",
    "Positive",
    "Result",
    "Schedule",
    "Simplex",
    "Status",
    "StepError",
    "Symmetric",
    "TieError",
    "Training",
    "Truncated",
    "Unfolded",
    "Unroll",
    "constrain",
    "deep_supervision",
    "fit",
    "fit_layerwise",
    "from_functions",
    "iterate",
    "load",
    "notes",
    "save",
    "unfold",
]
