"""Linear solvers for v = g + J^T v, batched: each row is a system of its own."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor


class Solution(NamedTuple):
    """A solution (batch, n), its worst relative residual ||v - g - J^T v|| / ||g||, and the products it took."""

    value: Tensor
    residual: float
    steps: int


Product: TypeAlias = Callable[[Tensor], Tensor]
Solver: TypeAlias = Callable[[Product, Tensor, Tensor | None, float, int, float], Solution]
"""(transposed, gradient, start, tolerance, max_steps, damping) -> Solution"""


def neumann(
    transposed: Product, gradient: Tensor, start: Tensor | None, tolerance: float, max_steps: int, damping: float
) -> Solution:
    """v <- v + damping (g + J^T v - v): converges where f is a contraction, and a little beyond with damping."""
    value = gradient if start is None else start
    defect = gradient + transposed(value) - value
    steps = 1
    while _relative(defect, gradient) > tolerance and steps < max_steps:
        value = value + damping * defect
        defect = gradient + transposed(value) - value
        steps += 1
    return Solution(value, _relative(defect, gradient), steps)


def gmres(
    transposed: Product, gradient: Tensor, start: Tensor | None, tolerance: float, max_steps: int, _damping: float
) -> Solution:
    """Restarted GMRES on I - J^T: the smallest residual in a growing Krylov space, for every row at once."""
    restart = min(20, max_steps)
    value = torch.zeros_like(gradient) if start is None else start
    defect = gradient if start is None else gradient + transposed(value) - value
    steps = 0 if start is None else 1
    while _relative(defect, gradient) > tolerance and steps < max_steps:
        basis, images = [_unit(defect)], []
        for _ in range(min(restart, max_steps - steps)):
            images.append(basis[-1] - transposed(basis[-1]))
            steps += 1
            basis.append(_unit(_orthogonal(images[-1], basis)))
            space = torch.stack(images, dim=2)
            # The pseudo-inverse of the small factor: rows that are solved already have columns of zeros.
            frame, triangle = torch.linalg.qr(space)
            weights = torch.linalg.pinv(triangle) @ (frame.mT @ defect.unsqueeze(2))
            if _relative(defect - (space @ weights).squeeze(2), gradient) <= tolerance:
                break
        value = value + (torch.stack(basis[: len(images)], dim=2) @ weights).squeeze(2)
        defect = gradient + transposed(value) - value
        steps += 1
    return Solution(value, _relative(defect, gradient), steps)


def _orthogonal(vector: Tensor, basis: list[Tensor]) -> Tensor:
    """Gram and Schmidt, twice, which is enough for full precision."""
    frame = torch.stack(basis, dim=2)
    for _ in range(2):
        vector = vector - (frame @ (frame.mT @ vector.unsqueeze(2))).squeeze(2)
    return vector


def _unit(rows: Tensor) -> Tensor:
    """Rows of length one; rows that are zero stay zero, since their systems are solved."""
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(length > 0, rows / length, torch.zeros_like(rows))


def _relative(defect: Tensor, gradient: Tensor) -> float:
    size = torch.linalg.vector_norm(gradient, dim=1)
    error = torch.linalg.vector_norm(defect, dim=1)
    return float(torch.where(size > 0, error / size, error).max())
