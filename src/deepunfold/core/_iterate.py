"""The classic algorithm on the same object: iterate until each sample has converged."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import repeat
from typing import Any, TypeAlias

import torch
from torch import Tensor

from deepunfold.core import _loop, _tree
from deepunfold.core._algorithm import as_algorithm, read_out
from deepunfold.core._residual import change, relative
from deepunfold.core._tree import State


class Status(IntEnum):
    """Why a sample's iteration ended."""

    CONVERGED = 0
    MAX_STEPS = 1
    DIVERGED = 2
    NON_FINITE = 3
    STOPPED = 4  # by the callback


@dataclass(frozen=True)
class Event:
    """What a callback sees after each step. The samples that still run are those at ``active`` of the batch."""

    step: int
    active: Tensor
    x: Any
    state: State
    residual: Tensor


Until: TypeAlias = float | Callable[[Event], Tensor] | None


@dataclass(frozen=True)
class Result:
    """The outcome of `iterate`; nothing that is run later changes it.

    Attributes:
        value: y, the readout of the final state.
        state: phi; for a sample that met a value that is not finite, the last finite one.
        steps: steps taken, per sample.
        residual: the last residual, per sample.
        status: a `Status` as an integer, per sample.
        history: residuals as (steps, batch), NaN after a sample's end.
    """

    value: Any
    state: State
    steps: Tensor
    residual: Tensor
    status: Tensor
    history: Tensor

    @property
    def converged(self) -> Tensor:
        """Which samples converged."""
        return self.status == Status.CONVERGED

    def summary(self) -> str:
        """One line, such as ``61 of 64 converged (12 to 340 steps), 3 max_steps``."""
        total = len(self.status)
        parts = []
        for status in Status:
            chosen = self.status == status
            count = int(chosen.sum())
            if count or status is Status.CONVERGED:
                steps = self.steps[chosen]
                span = f" ({int(steps.min())} to {int(steps.max())} steps)" if count else ""
                parts.append(f"{count} of {total} {status.name.lower()}{span}")
        return ", ".join(parts)


def iterate(
    algorithm: Any,
    x: Any,
    *,
    until: Until = 1e-6,
    max_steps: int = 1000,
    state: State | None = None,
    callback: Callable[[Event], object] | None = None,
    batched: bool = True,
    divergence: float = 1e8,
) -> Result:
    """Run an algorithm's steps, each sample until it has converged, without a graph.

    Args:
        algorithm: as for `unfold`; also ``net.layers[0]`` of a tied network.
        x: the input, with the batch as the leading dimension of its tensors. Tensors of another leading dimension than
            the first one's are taken to be shared by all samples.
        until: converged when ||phi^k - phi^{k-1}|| <= until * max(||phi^k||, ||phi^{k-1}||); or a function of an
            `Event` that says so per active sample; or None to take all the steps. An algorithm may define
            ``residual(x, old, new)``, of shape (batch,), in place of that relative change; of one problem that is not
            batched, its largest value counts.
        max_steps: the most steps that are taken.
        state: a state to start from instead of ``init(x)``, such as that of an earlier result.
        callback: called with an `Event` after each step; a result that is true stops the run.
        batched: False takes x and the state as one problem, whatever their dimensions.
        divergence: a sample has diverged when one step moves it this many times as far as its first step did.
    """
    algorithm = as_algorithm(algorithm)
    if max_steps < 1:
        raise ValueError(f"max_steps={max_steps} allows no step; give at least 1")
    with torch.no_grad():
        start = algorithm.init(x) if state is None else _tree.map_tensors(torch.clone, state)
        run = _Run(algorithm, x, start, until, callback, batched, divergence)
        _loop.run(run.steps(max_steps), run.x, run.start, run.observe)
        return run.result(algorithm, x)


class _Run:
    """The samples that still run, and what is known of those that have ended."""

    def __init__(
        self,
        algorithm: Any,
        x: Any,
        start: State,
        until: Until,
        callback: Callable[[Event], object] | None,
        batched: bool,
        divergence: float,
    ) -> None:
        self.algorithm, self.until, self.callback = algorithm, until, callback
        self.batched, self.divergence = batched, divergence
        self.x, self.start = x, start
        size = _tree.batch_size(x) if batched else 1
        device = next((leaf.device for leaf in _tree.leaves(start) if isinstance(leaf, Tensor)), torch.device("cpu"))
        if batched:
            _check_batch(start, size)
        self.final = _tree.map_tensors(torch.clone, start)
        self.active = torch.arange(size, device=device)
        self.count = 0
        self.taken = torch.zeros(size, dtype=torch.int64, device=device)
        self.status = torch.full((size,), int(Status.MAX_STEPS), dtype=torch.int64, device=device)
        self.first: Tensor | None = None
        self.history: list[Tensor] = []

    def steps(self, limit: int) -> Iterator[_loop.Step]:
        yield _loop.guarded(self.algorithm)
        yield from repeat(self.algorithm.step, limit - 1)

    def observe(self, x: Any, old: State, new: State) -> tuple[Any, State, bool]:
        self.count += 1
        moved, residual = self._measure(x, old, new)
        self.first = moved if self.first is None else self.first
        row = torch.full((len(self.taken),), torch.nan, dtype=residual.dtype, device=residual.device)
        row[self.active] = residual
        self.history.append(row)
        self.taken[self.active] = self.count
        event = Event(self.count, self.active, x, new, residual)
        status = self._judge(event, moved)
        stop = self.callback is not None and bool(self.callback(event))
        if stop:
            status = torch.where(status < 0, int(Status.STOPPED), status)
        ended = status >= 0
        # A sample that is no longer finite keeps the state before.
        last = _tree.map_tensors(lambda a, b: _where_rows(status == Status.NON_FINITE, a, b), old, new)
        if not bool(ended.any()):
            self._keep(last)
            return x, new, False
        self.status[self.active[ended]] = status[ended]
        self._keep(last)
        return self._compact(x, new, ~ended)

    def _measure(self, x: Any, old: State, new: State) -> tuple[Tensor, Tensor]:
        """How far each active sample moved, and its residual."""
        moved, size = change(old, new, self.batched)
        own = getattr(self.algorithm, "residual", None)
        if own is None:
            return moved, relative(moved, size)
        found = own(x, old, new)
        return moved, (found if self.batched else found.amax()).reshape(moved.shape)

    def _judge(self, event: Event, moved: Tensor) -> Tensor:
        """A `Status` for each active sample that ends with this step, and -1 for the others."""
        assert self.first is not None
        running = torch.full_like(event.active, -1)
        if self.until is None:
            done = torch.zeros_like(running, dtype=torch.bool)
        elif callable(self.until):
            done = self.until(event).reshape(running.shape)
        else:
            done = event.residual <= self.until
        status = torch.where(done, int(Status.CONVERGED), running)
        diverged = (moved > self.divergence * self.first) & (self.first > 0) & ~done
        status = torch.where(diverged, int(Status.DIVERGED), status)
        return torch.where(torch.isfinite(event.residual), status, int(Status.NON_FINITE))

    def _keep(self, state: State) -> None:
        """Remember the state of the active samples, without a copy while all of them run."""
        if len(self.active) == len(self.taken):
            self.final = state
        else:
            _tree.write(self.final, self.active, state)

    def _compact(self, x: Any, state: State, going: Tensor) -> tuple[Any, State, bool]:
        """Go on with the samples that still run, and only with them."""
        if not bool(going.any()):
            return x, state, True
        size, rows = len(self.active), going.nonzero().squeeze(1)
        self.final = _tree.map_tensors(torch.clone, self.final) if size == len(self.taken) else self.final
        self.active = self.active[rows]
        self.first = self.first[rows] if self.first is not None else None
        return _tree.select(x, rows, size), _tree.select(state, rows, size), False

    def result(self, algorithm: Any, x: Any) -> Result:
        history = torch.stack(self.history)
        final = _tree.map_tensors(torch.clone, self.final)
        last = history[self.taken - 1, torch.arange(len(self.taken), device=history.device)]
        return Result(read_out(algorithm, x, final), final, self.taken, last, self.status, history)


def _where_rows(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """``yes`` in the chosen rows; a counter is always the new one."""
    if no.dim() == 0 or not bool(chosen.any()):
        return no
    if chosen.numel() == 1:
        return yes
    return torch.where(chosen.reshape(-1, *[1] * (no.dim() - 1)), yes, no)


def _check_batch(state: State, size: int) -> None:
    for leaf in _tree.leaves(state):
        if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] != size:
            raise ValueError(
                f"x has a batch of {size}, but a tensor of the state has the shape {tuple(leaf.shape)}; give every "
                "tensor of the state the batch as its leading dimension, or pass batched=False to take x as one problem"
            )
