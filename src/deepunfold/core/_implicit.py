"""Implicit differentiation of a fixed point phi = f_theta(x, phi).

With J = df/dphi at the fixed point, a gradient g on phi becomes v = (I - J^T)^{-1} g on one last step of f, which then
carries it on to theta and x. The backward pass costs as many products with J^T as the solver needs, and its memory
does not depend on the number of steps.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepunfold.core import _tree
from deepunfold.core._backward import Span, detached, without_graph
from deepunfold.core._errors import ConvergenceWarning
from deepunfold.core._loop import Step
from deepunfold.core._residual import change, relative
from deepunfold.core._solvers import Solver, gmres, neumann
from deepunfold.core._tree import State

SOLVERS: dict[str, Solver] = {"gmres": gmres, "neumann": neumann}


@dataclass(frozen=True)
class Report:
    """What a pass with `Implicit` found. Residuals are relative, the worst of the batch."""

    forward_residual: float
    backward_residual: float | None = None
    backward_steps: int | None = None


class Implicit:
    """Implicit differentiation as a backward mode.

    Args:
        solver: "gmres", "neumann" (the damped fixed-point iteration), or a function like those in `_solvers`.
        tolerance: relative residual at which forward and backward count as converged; a pass that stops short of it
            gives a `ConvergenceWarning`.
        max_steps: products with J^T per backward pass.
        damping: in (0, 1]; how much of each Neumann step is taken (GMRES needs none).
        warm_start: start from the solution of the last backward pass if the shapes agree.

    ``report`` holds the residuals of the latest pass.
    """

    fixed_point = True

    def __init__(
        self,
        solver: str | Solver = "gmres",
        tolerance: float = 1e-5,
        max_steps: int = 100,
        damping: float = 1.0,
        warm_start: bool = False,
    ) -> None:
        if isinstance(solver, str) and solver not in SOLVERS:
            raise ValueError(f"solver={solver!r} is unknown; use one of {', '.join(SOLVERS)} or a function")
        if not 0 < damping <= 1:
            raise ValueError(f"damping={damping} must lie in (0, 1]")
        self.solver, self.tolerance, self.max_steps = solver, tolerance, max_steps
        self.damping, self.warm_start = damping, warm_start
        self.report: Report | None = None
        self._last: Tensor | None = None

    def __repr__(self) -> str:
        return f"Implicit(solver={self.solver!r}, tolerance={self.tolerance}, max_steps={self.max_steps})"

    def plan(self, start: int, stop: int) -> list[Span]:
        return [Span(start, stop - 1, without_graph), Span(stop - 1, stop, self._attach)]

    def _attach(self, steps: Sequence[Step], x: Any, state: State) -> State:
        """The last step, with the gradient on its result solved for before it goes on."""
        new = detached(steps, x, state)
        with torch.no_grad():
            forward = float(relative(*change(state, new, _tree.shares_batch(new))).max())
        self.report = Report(forward)
        if not forward <= self.tolerance:
            warnings.warn(
                f"implicit differentiation at a state that still moves by {forward:.1e} a step (tolerance "
                f"{self.tolerance:.1e}): the gradient is inexact; run more layers or raise the tolerance",
                ConvergenceWarning,
                stacklevel=2,
            )
        leaves, rebuild = _tree.flatten(new)
        moving = [i for i, leaf in enumerate(leaves) if _tree.is_continuous(leaf)]
        if not any(leaves[i].requires_grad for i in moving):
            return new
        adjoint = _Adjoint(self, steps[-1], _tree.detach(x), _tree.detach(new), moving)
        attach: Any = _FixedPoint.apply
        for i, leaf in zip(moving, attach(adjoint, *(leaves[i] for i in moving)), strict=True):
            leaves[i] = leaf
        return rebuild(leaves)

    def solve(self, transposed: Callable[[Tensor], Tensor], gradient: Tensor) -> Tensor:
        """v = g + J^T v for a gradient of shape (batch, n)."""
        start = self._last if self._last is not None and self._last.shape == gradient.shape else None
        solver = SOLVERS[self.solver] if isinstance(self.solver, str) else self.solver
        solution = solver(transposed, gradient, start, self.tolerance, self.max_steps, self.damping)
        if self.warm_start:
            self._last = solution.value
        forward = self.report.forward_residual if self.report else float("nan")
        self.report = Report(forward, solution.residual, solution.steps)
        if not solution.residual <= self.tolerance:
            warnings.warn(
                f"the adjoint of the fixed point stopped at a residual of {solution.residual:.1e} after "
                f"{solution.steps} products (tolerance {self.tolerance:.1e}): the gradient is inexact; raise max_steps",
                ConvergenceWarning,
                stacklevel=2,
            )
        return solution.value


@dataclass
class _Adjoint:
    """What the backward pass needs: the step at the fixed point, as a function of the moving leaves alone."""

    mode: Implicit
    step: Step
    x: Any
    state: State
    moving: Sequence[int]

    def __call__(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        leaves, rebuild = _tree.flatten(self.state)
        with torch.enable_grad():
            inputs = [leaves[i].detach().requires_grad_() for i in self.moving]
            for i, leaf in zip(self.moving, inputs, strict=True):
                leaves[i] = leaf
            after = _tree.leaves(self.step(self.x, rebuild(leaves)))
        # A variable whose update does not depend on the state has no part in J.
        dependent = [place for place, i in enumerate(self.moving) if after[i].requires_grad]
        outputs = [after[self.moving[place]] for place in dependent]

        def transposed(vector: Tensor) -> Tensor:
            if not outputs:
                return torch.zeros_like(vector)
            parts = _split(vector, inputs)
            given = [parts[place] for place in dependent]
            return _join(torch.autograd.grad(outputs, inputs, given, retain_graph=True, materialize_grads=True))

        return _split(self.mode.solve(transposed, _join(gradients)), inputs)


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Tensors side by side as one real matrix with a row per sample (or one row, where they share no batch)."""
    rows = parts[0].shape[0] if _tree.shares_batch(list(parts)) else 1
    reals = [torch.view_as_real(part) if part.is_complex() else part for part in parts]
    return torch.cat([real.reshape(rows, -1) for real in reals], dim=1)


def _split(matrix: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `_join`, with the shapes and dtypes of the given tensors."""
    rows = matrix.shape[0]
    widths = [leaf.numel() // rows * (2 if leaf.is_complex() else 1) for leaf in like]
    parts = []
    for part, leaf in zip(matrix.split(widths, dim=1), like, strict=True):
        if leaf.is_complex():
            part = torch.view_as_complex(part.reshape(*leaf.shape, 2).contiguous())
        parts.append(part.reshape(leaf.shape).to(leaf.dtype))
    return parts


class _FixedPoint(torch.autograd.Function):
    """The identity, whose backward pass replaces the gradient by the adjoint's solution."""

    @staticmethod
    def forward(ctx: Any, adjoint: _Adjoint, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.adjoint = adjoint
        return tuple(leaf.view_as(leaf) for leaf in leaves)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.adjoint(gradients))
