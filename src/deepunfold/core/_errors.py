"""The errors of this floor. Each says what was wrong, what was given, and what to do."""


class AlgorithmError(TypeError):
    """What was given as an algorithm is none."""


class StepError(RuntimeError):
    """A step failed, or gave a state that the next step cannot take."""


class TieError(ValueError):
    """A tying pattern does not fit the network."""


class ConvergenceWarning(UserWarning):
    """An iteration stopped before it had converged, where the result relies on convergence."""


class FileFormatError(ValueError):
    """A file is not one of ours, is damaged, or holds what cannot be rebuilt."""
