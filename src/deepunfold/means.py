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
    _check(values, weights, dim)
    if isinstance(exponent, float | int) and exponent == 1:
        return _average(values, weights, dim, keepdim)
    logarithm = _mean_of_logarithms(values.log(), weights, exponent, dim, logarithmic=False)
    mean = logarithm.exp()
    return mean if keepdim else mean.squeeze(dim)


def log_power_mean(
    values: Tensor, exponent: Tensor | float, log_weights: Tensor | None = None, dim: int = -1, keepdim: bool = False
) -> Tensor:
    """L_a(w, z) along a dimension, the logarithm of the power mean of exp(values), with logarithms of the weights.

    Values and log-weights may be -inf: then x or w is zero. The exponent is as for `power_mean`.
    """
    _check(values, log_weights, dim)
    if isinstance(exponent, float | int) and exponent == 1 and log_weights is not None:
        total = torch.logsumexp(values + log_weights, dim, keepdim)
        return total - torch.logsumexp(log_weights.expand_as(values), dim, keepdim)
    mean = _mean_of_logarithms(values, log_weights, exponent, dim, logarithmic=True)
    return mean if keepdim else mean.squeeze(dim)


def _check(values: Tensor, weights: Tensor | None, dim: int) -> None:
    if not -values.dim() <= dim < values.dim() or values.shape[dim] == 0:
        raise ValueError(f"there is nothing to average along dim={dim} of values of shape {tuple(values.shape)}")
    if weights is not None and not _fits(weights, values.shape):
        raise ValueError(
            f"weights of shape {tuple(weights.shape)} cannot be broadcast to values of {tuple(values.shape)}"
        )


def _fits(tensor: Tensor, shape: Sequence[int]) -> bool:
    """Whether a tensor can be broadcast to a shape."""
    own = (1,) * (len(shape) - tensor.dim()) + tuple(tensor.shape)
    return len(own) == len(shape) and all(size in (1, wanted) for size, wanted in zip(own, shape, strict=True))


def _average(values: Tensor, weights: Tensor | None, dim: int, keepdim: bool) -> Tensor:
    if weights is None:
        return values.mean(dim, keepdim)
    return (values * weights).sum(dim, keepdim) / weights.expand_as(values).sum(dim, keepdim)


def _mean_of_logarithms(
    z: Tensor, weights: Tensor | None, exponent: Tensor | float, dim: int, logarithmic: bool
) -> Tensor:
    """L with the dimension kept, from weights or from their logarithms."""
    a = torch.as_tensor(exponent, dtype=z.dtype, device=z.device)
    result = [1 if i == dim % z.dim() else size for i, size in enumerate(z.shape)]
    if a.dim() and not _fits(a, result):
        raise ValueError(f"an exponent of shape {tuple(a.shape)} cannot be broadcast to the result, {tuple(result)}")
    given = (z.new_zeros(()) if logarithmic else z.new_ones(())) if weights is None else weights
    apply: Callable[..., Tensor] = _LogPowerMean.apply
    return apply(z, given.expand_as(z), a, dim, logarithmic)


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
        for_z, for_logarithms, for_shares, for_a = _derivatives(z, shares, a, mean, ctx.dim)
        for_w = for_logarithms if ctx.logarithmic else for_shares / weights.sum(ctx.dim, keepdim=True)
        return gradient * for_z, gradient * for_w, (gradient * for_a).sum_to_size(a.shape), None, None


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
    finite = torch.where(torch.isinf(a) | (a == 0), 1.0, a)
    small = finite.abs() * (top - bottom) < 1
    deviation = torch.where(small, finite * (values - torch.where(torch.isfinite(mean), mean, 0.0)), 0.0)
    near = mean + torch.log1p((p * torch.expm1(deviation)).sum(dim, keepdim=True)) / finite
    far = torch.logsumexp(shares + finite * values, dim, keepdim=True) / finite
    result = torch.where(a == 0, mean, torch.where(small, near, far)) + origin
    return torch.where(a == torch.inf, top, torch.where(a == -torch.inf, bottom, result))


def _derivatives(z: Tensor, shares: Tensor, a: Tensor, mean: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of L in the values, in the logarithms of the weights, in the weights, and in the exponent.

    Where L is -inf, or the exponent infinite, only that in the values is not zero: it goes to those that make L.
    """
    p, finite = shares.exp(), torch.where(torch.isinf(a), 0.0, a)
    smooth = torch.isfinite(mean) & torch.isfinite(a)
    gap = torch.where(smooth & ((shares > -torch.inf) | torch.isfinite(z)), z - mean, 0.0)
    y = torch.where((finite == 0) | (gap == 0), 0.0, finite * gap)
    tilted = (shares + y).exp()
    chosen = p * torch.where(torch.isinf(a), z == mean, (z == -torch.inf) | (a >= 0))
    in_values = torch.where(smooth, tilted, chosen / torch.where(smooth, 1.0, chosen.sum(dim, keepdim=True)))

    near, divisor = y.abs() < _SMALL, torch.where(finite == 0, 1.0, finite)
    small, bounded = torch.where(near, y, 0.0), torch.where(y > -torch.inf, y, 0.0)
    close = torch.where(near & (gap > -torch.inf), gap, 0.0)
    slope = close * torch.where(small == 0, 1.0, torch.expm1(small) / torch.where(small == 0, 1.0, small))
    in_logarithms = torch.where(near, p * slope, (tilted - p) / divisor)
    in_weights = torch.where(near, slope, torch.expm1(y) / divisor)
    curved = (tilted * bounded - tilted + p) / divisor.square()
    in_exponent = torch.where(near, p * close.square() * _series(small), curved)
    return in_values, in_logarithms, in_weights, in_exponent.sum(dim, keepdim=True)


_SERIES = tuple((n + 1) / math.factorial(n + 2) for n in range(16))
"""Coefficients of (y exp(y) - exp(y) + 1) / y^2 in powers of y."""


def _series(y: Tensor) -> Tensor:
    """(y exp(y) - exp(y) + 1) / y^2 for small y."""
    result = torch.zeros_like(y)
    for coefficient in reversed(_SERIES):
        result = result * y + coefficient
    return result
