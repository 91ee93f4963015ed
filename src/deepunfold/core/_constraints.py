"""Constraints on parameters, kept through tying, training, saving and loading.

A constraint is a parametrisation (``torch.nn.utils.parametrize``): training moves an unconstrained tensor, and the
parameter that the algorithm sees is its image. Each constraint is a module without state of its own.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Constrained = TypeVar("Constrained", bound=nn.Module)


class Constraint(nn.Module):
    """``forward`` maps any tensor into the set; ``right_inverse`` finds a tensor that is mapped to a given one."""

    def right_inverse(self, value: Tensor) -> Tensor:
        raise NotImplementedError

    def check(self, name: str, value: Tensor) -> None:
        """Raise where a value lies outside of the set."""
        inside = self(self.right_inverse(value))
        scale = value.abs().max().clamp(min=1) if value.numel() else value.new_ones(())
        if not bool(((inside - value).abs() <= 1e-4 * scale).all()):
            raise ValueError(
                f"{name} lies outside of {self!r}: its values range from {value.min():g} to {value.max():g}"
            )


class NonNegative(Constraint):
    """Values >= 0, as softplus of a free tensor. A value of exactly zero starts as the smallest positive number."""

    def forward(self, free: Tensor) -> Tensor:
        return nn.functional.softplus(free, threshold=50.0)

    def right_inverse(self, value: Tensor) -> Tensor:
        positive = value.clamp(min=torch.finfo(value.dtype).tiny)
        return positive + torch.log(-torch.expm1(-positive))


class Positive(Constraint):
    """Values > 0, as the exponential of a free tensor: a step is relative to the value, as in multiplicative ones."""

    def forward(self, free: Tensor) -> Tensor:
        return free.exp()

    def right_inverse(self, value: Tensor) -> Tensor:
        return value.clamp(min=torch.finfo(value.dtype).tiny).log()


class Interval(Constraint):
    """Values in (low, high), as a logistic function of a free tensor; (0, 1) unless told."""

    def __init__(self, low: float = 0.0, high: float = 1.0) -> None:
        super().__init__()
        if not low < high:
            raise ValueError(f"Interval({low}, {high}) is empty; give low < high")
        self.low, self.high = low, high

    def forward(self, free: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * free.sigmoid()

    def right_inverse(self, value: Tensor) -> Tensor:
        share = (value - self.low) / (self.high - self.low)
        return torch.logit(share, eps=torch.finfo(value.dtype).eps)

    def extra_repr(self) -> str:
        return f"{self.low}, {self.high}"


class Simplex(Constraint):
    """Non-negative values that sum to one along a dimension, as a softmax of a free tensor."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, free: Tensor) -> Tensor:
        return free.softmax(self.dim)

    def right_inverse(self, value: Tensor) -> Tensor:
        return value.clamp(min=torch.finfo(value.dtype).tiny).log()

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Symmetric(Constraint):
    """Symmetric matrices, from the upper triangle of a free one."""

    def forward(self, free: Tensor) -> Tensor:
        upper = free.triu()
        return upper + free.triu(1).mT

    def right_inverse(self, value: Tensor) -> Tensor:
        return value.triu()


def constrain(algorithm: Constrained, /, **constraints: Constraint) -> Constrained:
    """Keep parameters of an algorithm in a set: ``constrain(ista, threshold=NonNegative())``.

    Changes the algorithm in place, before it is unfolded, and returns it. A value outside of the set is an error.
    """
    for name, constraint in constraints.items():
        parameter = getattr(algorithm, name, None)
        if not isinstance(parameter, nn.Parameter):
            names = ", ".join(own for own, _ in algorithm.named_parameters(recurse=False)) or "none"
            raise ValueError(
                f"{type(algorithm).__name__} has no free parameter {name!r} of its own; there are: {names}"
            )
        if isinstance(constraint, Symmetric) and parameter.shape[-1:] != parameter.shape[-2:-1]:
            raise ValueError(f"{name} of shape {tuple(parameter.shape)} cannot be symmetric; give a square matrix")
        constraint.check(name, parameter.detach())
        trained = parameter.requires_grad
        parametrize.register_parametrization(algorithm, name, constraint)
        algorithm.parametrizations[name].original.requires_grad_(trained)  # type: ignore[index, union-attr]
    return algorithm
