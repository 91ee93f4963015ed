"""The beta-divergence, its gradient in two non-negative parts, and the exponents with which updates descend.

d(x | y) = (x^beta + (beta - 1) y^beta - beta x y^(beta-1)) / (beta (beta - 1)); in the limit beta -> 1 the generalised
Kullback-Leibler divergence x log(x/y) - x + y, for beta -> 0 that of Itakura and Saito, x/y - log(x/y) - 1, and for
beta = 2 half the squared error.
"""

import torch
from torch import Tensor

FLOOR = 1e-12
"""Added to what is divided by, relative to the level of the data: no quotient exceeds 1e12 times that level."""


def check_beta(beta: float) -> None:
    """Raise where beta is no number >= 0."""
    if not 0 <= beta < float("inf"):
        raise ValueError(f"beta={beta} must be a number >= 0, such as 1 (Kullback-Leibler) or 2 (squared error)")


def beta_divergence(target: Tensor, estimate: Tensor, beta: float = 1.0, floor: float = FLOOR) -> Tensor:
    """The divergence of each entry, of the shape that target and estimate have together.

    Zeros: ``floor`` is added to both, whatever beta is, so that d(0 | 0) = 0 and every value and gradient is finite.
    The squared error does not depend on it.
    """
    check_beta(beta)
    if beta == 2:
        return (target - estimate).square() / 2
    return divergence(target + floor, estimate + floor, beta)


def divergence(x: Tensor, y: Tensor, beta: float) -> Tensor:
    """d(x | y) as it stands, for y > 0; x may be zero where beta > 0."""
    if beta == 1:
        return torch.xlogy(x, x / y) - x + y
    if beta == 2:
        return (x - y).square() / 2
    if beta == 0:
        ratio = x / y
        return ratio - ratio.log() - 1
    return (x.pow(beta) + (beta - 1) * y.pow(beta) - beta * x * y.pow(beta - 1)) / (beta * (beta - 1))


def divergence_split(
    target: Tensor, estimate: Tensor, beta: float = 2.0, floor: float = FLOOR
) -> tuple[Tensor, Tensor]:
    """The positive and the negative part of the gradient in the estimate y: y^(beta-1) and x y^(beta-2).

    Their difference is the gradient of the sum of `beta_divergence`.
    """
    check_beta(beta)
    return slopes(target, estimate, beta) if beta == 2 else slopes(target + floor, estimate + floor, beta)


def slopes(x: Tensor, y: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """y^(beta-1) and x y^(beta-2) as they stand, for y > 0."""
    if beta == 1:
        return y.new_ones(()).expand_as(y), x / y
    if beta == 2:
        return y, x
    return y.pow(beta - 1), x * y.pow(beta - 2)


def descent_exponent(beta: float) -> float:
    """The exponent with which multiplicative updates never increase the divergence (Fevotte and Idier, 2011).

    It is 1 for beta between 1 and 2. A penalty linear in the activations leaves it as it is: it is majorised by a power
    of the same degree.
    """
    if beta < 1:
        return 1 / (2 - beta)
    return 1.0 if beta <= 2 else 1 / (beta - 1)
