"""deepunfold: iterative model-based inference as trainable networks.

The public names are listed below; each is imported when it is first used: the command line starts without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from deepunfold import means as means
    from deepunfold import mrf as mrf
    from deepunfold import nmf as nmf
    from deepunfold import speech as speech
    from deepunfold import testing as testing
    from deepunfold.core import *
    from deepunfold.core import algorithms as algorithms

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
    "algorithms",
    "constrain",
    "deep_supervision",
    "fit",
    "fit_layerwise",
    "from_functions",
    "iterate",
    "load",
    "means",
    "mrf",
    "nmf",
    "notes",
    "save",
    "speech",
    "testing",
    "unfold",
]


def __getattr__(name: str) -> Any:
    if name in ("means", "mrf", "nmf", "speech", "testing"):
        return importlib.import_module(f"deepunfold.{name}")
    if name == "algorithms":
        return importlib.import_module("deepunfold.core.algorithms")
    if name in __all__:
        return getattr(importlib.import_module("deepunfold.core"), name)
    raise AttributeError(f"module 'deepunfold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
