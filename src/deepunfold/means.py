"""Power means, plain and of logarithms (Appendix ``sec:mean`` of the paper), for any exponent, through zero.

With weights p that sum to one, values x and their logarithms z, the mean with exponent a is M = (sum p x^a)^(1/a), and

    L = log M = (1/a) log sum p exp(a z).

Both are smooth in a, also at 0, but the formula is not: it divides what vanishes by what vanishes. With the mean
m = sum p z and d = z - m it is L = m + log1p(sum p expm1(a d)) / a, which loses nothing where a d is small. The
derivatives follow from y = a (z - L), for which sum p exp(y) = 1:

    dL/dz = p exp(y),    dL/dp = expm1(y) / a,    dL/da = sum p (y exp(y) - exp(y) + 1) / a^2.

The last two are products of z - L with functions of y that have a Taylor series at 0, where quotients would fail.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["log_power_mean", "power_mean"]

_SMALL = 0.5
"""Below this size of a (z - L) series are used, above it quotients."""


def power_mean(
    values: Tensor, exponent: Tensor | float, weights: Tensor | None = None, dim: int = -1, keepdim: bool = False
) -> Tensor:
    """M_a(w, x) along a dimension, for values >= 0; the weights, >= 0, are divided by their sum, or are all equal.

    The exponent is a number from -inf (the minimum) over -1 (harmonic), 0 (geometric) and 1 (arithmetic) to inf (the
    maximum), or a tensor of them that can be broadcast against the result with ``keepdim=True``.
    """
    weights = values.new_ones(()) if weights is None else weights
    _check(values, weights, dim)
    if isinstance(exponent, float | int) and exponent == 1:
        return (values * weights).sum(dim, keepdim) / weights.expand_as(values).sum(dim, keepdim)
    logarithm = _mean_of_logarithms(values.log(), weights, exponent, dim, logarithmic=False)
    mean = logarithm.exp()
    return mean if keepdim else mean.squeeze(dim)


def log_power_mean(
    values: Tensor, exponent: Tensor | float, log_weights: Tensor | None = None, dim: int = -1, keepdim: bool = False
) -> Tensor:
    """L_a(w, z) along a dimension, the logarithm of the power mean of exp(values), with logarithms of the weights.

    Values and log-weights may be -inf: then x or w is zero. The exponent is as for `power_mean`.
    """
    log_weights = values.new_zeros(()) if log_weights is None else log_weights
    _check(values, log_weights, dim)
    if isinstance(exponent, float | int) and exponent == 1:
        total = torch.logsumexp(values + log_weights, dim, keepdim)
        return total - torch.logsumexp(log_weights.expand_as(values), dim, keepdim)
    mean = _mean_of_logarithms(values, log_weights, exponent, dim, logarithmic=True)
    return mean if keepdim else mean.squeeze(dim)


def _check(values: Tensor, weights: Tensor, dim: int) -> None:
    if not -values.dim() <= dim < values.dim() or values.shape[dim] == 0:
        raise ValueError(f"there is nothing to average along dim={dim} of values of shape {tuple(values.shape)}")
    if not _fits(weights, values.shape):
        raise ValueError(
            f"weights of shape {tuple(weights.shape)} cannot be broadcast to values of {tuple(values.shape)}"
        )


def _fits(tensor: Tensor, shape: Sequence[int]) -> bool:
    """Whether a tensor can be broadcast to a shape."""
    own = (1,) * (len(shape) - tensor.dim()) + tuple(tensor.shape)
    return len(own) == len(shape) and all(size in (1, wanted) for size, wanted in zip(own, shape, strict=True))


def _mean_of_logarithms(z: Tensor, weights: Tensor, exponent: Tensor | float, dim: int, logarithmic: bool) -> Tensor:
    """L with the dimension kept, from weights or from their logarithms."""
    a = torch.as_tensor(exponent, dtype=z.dtype, device=z.device)
    result = [1 if i == dim % z.dim() else size for i, size in enumerate(z.shape)]
    if a.dim() and not _fits(a, result):
        raise ValueError(f"an exponent of shape {tuple(a.shape)} cannot be broadcast to the result, {tuple(result)}")
    apply: Callable[..., Tensor] = _LogPowerMean.apply
    return apply(z, weights.expand_as(z), a, dim, logarithmic)


class _LogPowerMean(torch.autograd.Function):
    """L, with derivatives that are finite and continuous wherever L is."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weights: Tensor, a: Tensor, dim: int, logarithmic: bool) -> Tensor:
        ctx.dim, ctx.logarithmic = dim, logarithmic
        mean = _forward(z, _log_shares(weights, dim, logarithmic), a, dim)
        ctx.save_for_backward(z, weights, a, mean)
        return mean

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, weights, a, mean = ctx.saved_tensors
        shares = _log_shares(weights, ctx.dim, ctx.logarithmic)
        gap, y = _gaps(z, shares, a, mean)
        for_z = gradient * _in_values(z, shares, a, mean, y, ctx.dim) if ctx.needs_input_grad[0] else None
        for_weights = for_a = None
        if ctx.needs_input_grad[1]:
            slope = _in_weights(shares, a, gap, y, ctx.logarithmic)
            for_weights = gradient * (slope if ctx.logarithmic else slope / weights.sum(ctx.dim, keepdim=True))
        if ctx.needs_input_grad[2]:
            curve = _in_exponent(shares, a, gap, y).sum(ctx.dim, keepdim=True)
            for_a = (gradient * curve).sum_to_size(a.shape)
        return for_z, for_weights, for_a, None, None


def _log_shares(weights: Tensor, dim: int, logarithmic: bool) -> Tensor:
    """The logarithms of the weights divided by their sum."""
    logarithms = weights if logarithmic else weights.log()
    return logarithms - logarithms.logsumexp(dim, keepdim=True)


def _forward(z: Tensor, shares: Tensor, a: Tensor, dim: int) -> Tensor:
    """L from values and the logarithms of weights that sum to one; the dimension is kept."""
    present = shares > -torch.inf
    top = torch.where(present, z, -torch.inf).amax(dim, keepdim=True)
    bottom = torch.where(present, z, torch.inf).amin(dim, keepdim=True)
    origin = torch.where(torch.isfinite(top), top, 0.0)  # so that only differences are rounded
    values, p = torch.where(present, z - origin, 0.0), shares.exp()
    mean = torch.where(p > 0, p * values, 0.0).sum(dim, keepdim=True)
    finite = _divisor(a)
    small = finite.abs() * (top - bottom) < 1
    deviation = torch.where(small, finite * (values - torch.where(torch.isfinite(mean), mean, 0.0)), 0.0)
    near = mean + torch.log1p((p * torch.expm1(deviation)).sum(dim, keepdim=True)) / finite
    far = torch.logsumexp(shares + finite * values, dim, keepdim=True) / finite
    result = torch.where(a == 0, mean, torch.where(small, near, far)) + origin
    return torch.where(a == torch.inf, top, torch.where(a == -torch.inf, bottom, result))


# The derivatives. Where L is -inf, or the exponent infinite, only that in the values is not zero.


def _gaps(z: Tensor, shares: Tensor, a: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """z - L, and y = a (z - L); zero where there is no such number."""
    known = torch.isfinite(mean) & torch.isfinite(a) & ((shares > -torch.inf) | torch.isfinite(z))
    gap = torch.where(known, z - mean, 0.0)
    return gap, torch.where(torch.isinf(a) | (a == 0) | (gap == 0), 0.0, a * gap)


def _in_values(z: Tensor, shares: Tensor, a: Tensor, mean: Tensor, y: Tensor, dim: int) -> Tensor:
    """p exp(y); where L is not smooth, the shares of those values that make it."""
    smooth = torch.isfinite(mean) & torch.isfinite(a)
    chosen = shares.exp() * torch.where(torch.isinf(a), z == mean, (z == -torch.inf) | (a >= 0))
    return torch.where(smooth, (shares + y).exp(), chosen / torch.where(smooth, 1.0, chosen.sum(dim, keepdim=True)))


def _in_weights(shares: Tensor, a: Tensor, gap: Tensor, y: Tensor, logarithmic: bool) -> Tensor:
    """expm1(y) / a, and p times it where the weights are logarithms."""
    near, p, divisor = y.abs() < _SMALL, shares.exp(), _divisor(a)
    small = torch.where(near & (y != 0), y, 1.0)
    slope = torch.where(near & (gap > -torch.inf), gap, 0.0) * torch.where(y == 0, 1.0, torch.expm1(small) / small)
    if logarithmic:
        return torch.where(near, p * slope, ((shares + y).exp() - p) / divisor)
    return torch.where(near, slope, torch.expm1(y) / divisor)


def _in_exponent(shares: Tensor, a: Tensor, gap: Tensor, y: Tensor) -> Tensor:
    """p (y exp(y) - exp(y) + 1) / a^2, to be summed."""
    near, p, tilted = y.abs() < _SMALL, shares.exp(), (shares + y).exp()
    close = torch.where(near & (gap > -torch.inf), gap, 0.0)
    bounded = torch.where(y > -torch.inf, y, 0.0)
    curved = (tilted * bounded - tilted + p) / _divisor(a).square()
    return torch.where(near, p * close.square() * _series(torch.where(near, y, 0.0)), curved)


def _divisor(a: Tensor) -> Tensor:
    """The exponent, or 1 where nothing is divided by it."""
    return torch.where(torch.isinf(a) | (a == 0), 1.0, a)


_SERIES = tuple((n + 1) / math.factorial(n + 2) for n in range(16))
"""Coefficients of (y exp(y) - exp(y) + 1) / y^2 in powers of y."""


def _series(y: Tensor) -> Tensor:
    """(y exp(y) - exp(y) + 1) / y^2 for small y."""
    result = torch.zeros_like(y)
    for coefficient in reversed(_SERIES):
        result = result * y + coefficient
    return result
