"""The loop over layers. It is written here, once; networks and classic algorithms both run through it."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

from deepunfold.core import _tree
from deepunfold.core._algorithm import describe_call, name_of
from deepunfold.core._errors import StepError
from deepunfold.core._tree import State

Step: TypeAlias = Callable[[Any, State], State]
Observer: TypeAlias = Callable[[Any, State, State], tuple[Any, State, bool]]
"""Sees x, the old and the new state; returns x and the state to go on with, and whether to stop."""


def run(steps: Iterable[Step], x: Any, state: State, observer: Observer | None = None) -> State:
    """phi^k = f_{theta^{k-1}}(x, phi^{k-1}) for one step after the other (equation ``eq:general:update1``)."""
    for step in steps:
        new = step(x, state)
        if observer is None:
            state = new
            continue
        x, state, stop = observer(x, state, new)
        if stop:
            break
    return state


def guarded(algorithm: Any) -> Step:
    """The algorithm's step with its errors put in words, and its result compared with what it was given.

    Used where a state first meets an algorithm; the steps that follow are the plain ones.
    """
    if torch.compiler.is_compiling():  # a traced graph has nothing to catch
        return algorithm.step  # type: ignore[no-any-return]

    def step(x: Any, state: State) -> State:
        try:
            new = algorithm.step(x, state)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, KeyError, AttributeError) as error:
            raise StepError(
                f"{describe_call(algorithm, x, state)} failed: {type(error).__name__}: {_first_line(error)}; "
                "init (or the algorithm before it) must give a state that step can take"
            ) from error
        if not _tree.same_form(state, new):
            raise StepError(
                f"{name_of(algorithm)}.step was given the state {_tree.describe(state)} and returned "
                f"{_tree.describe(new)}; it must return the same structure, shapes and dtypes"
            )
        return new

    return step


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
