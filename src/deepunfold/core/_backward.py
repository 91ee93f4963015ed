"""How gradients are taken through the layers. Every mode gives the same forward values.

A mode plans spans of steps; each span has a runner. The loop itself is `_loop.run`, also inside a runner.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch.utils.checkpoint import checkpoint

from deepunfold.core import _loop, _tree
from deepunfold.core._tree import State

Runner: TypeAlias = Callable[[Sequence[_loop.Step], Any, State], State]


class Span(NamedTuple):
    """Steps ``start`` to ``stop`` (exclusive) and the function that runs them."""

    start: int
    stop: int
    runner: Runner


class Backward(Protocol):
    """A backward mode. ``fixed_point`` says that it needs steps that are all the same."""

    fixed_point: bool

    def plan(self, start: int, stop: int) -> list[Span]: ...


def without_graph(steps: Sequence[_loop.Step], x: Any, state: State) -> State:
    """Run steps that no gradient passes."""
    with torch.no_grad():
        return _loop.run(steps, x, state)


def in_checkpoint(steps: Sequence[_loop.Step], x: Any, state: State) -> State:
    """Run steps that are run again in the backward pass instead of being remembered."""
    return checkpoint(_loop.run, steps, x, state, use_reentrant=False)


@dataclass(frozen=True)
class Unroll:
    """Back-propagation through every step; memory grows with their number."""

    fixed_point = False

    def plan(self, start: int, stop: int) -> list[Span]:
        return [Span(start, stop, _loop.run)]


@dataclass(frozen=True)
class Checkpoint:
    """Back-propagation that keeps one state per segment and runs each segment twice.

    With the default, about sqrt(K) segments, memory grows with sqrt(K).
    """

    segments: int | None = None
    fixed_point = False

    def __post_init__(self) -> None:
        if self.segments is not None and self.segments < 1:
            raise ValueError(f"Checkpoint(segments={self.segments}) needs at least one segment")

    def plan(self, start: int, stop: int) -> list[Span]:
        steps = stop - start
        if steps <= 0:
            return []
        segments = min(steps, self.segments or math.isqrt(steps - 1) + 1)
        bounds = [start + round(i * steps / segments) for i in range(segments + 1)]
        return [Span(a, b, in_checkpoint) for a, b in itertools.pairwise(bounds)]


@dataclass(frozen=True)
class Truncated:
    """Back-propagation through the last steps only."""

    last: int = 5
    fixed_point = False

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ValueError(f"Truncated(last={self.last}) must keep at least one step")

    def plan(self, start: int, stop: int) -> list[Span]:
        middle = max(start, stop - self.last)
        return [Span(start, middle, without_graph), Span(middle, stop, _loop.run)]


@dataclass(frozen=True)
class JacobianFree:
    """The gradient of the last step alone, at what is taken to be a fixed point."""

    fixed_point = True

    def plan(self, start: int, stop: int) -> list[Span]:
        return Truncated(last=1).plan(start, stop)


def detached(steps: Sequence[_loop.Step], x: Any, state: State) -> State:
    """One step with a graph to x and theta, but none to the state it starts from."""
    with torch.enable_grad():
        return _loop.run(steps, x, _tree.detach(state))
