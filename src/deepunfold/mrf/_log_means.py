"""Sums of log power means, which every feed-forward layer of message passing is made of, without a table of the terms.

    z_o = sum_j (1/a) log sum_h q_j(h) exp(a w_oj(h))

with beliefs q_j of J inputs that have S states and sum to one, potentials w and an exponent a, which may differ between
outputs o. There are batch * O * J terms, each a product of q_j with exp(a w_oj); they are never there all at once.

A few inputs together are one input with as many states as they have jointly. Its terms come out of one matrix product,
and one logarithm takes the place of several. With the potentials measured from the smallest a w, all of

    y = sum_h q(h) expm1(a w(h)),    z = sum log1p(y) / a

is sums of positive numbers, which lose nothing, also for small a: there expm1, y and log1p are as small as a is, and
the quotient has the limit sum_h q(h) w(h). At a = 0 a number takes its place that is too small to tell apart.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

BLOCK = 1 << 18
"""Numbers per table of (batch, O): what the cache of a processor holds."""

JOINT = 16
"""The most states that inputs have together."""

REACH = {torch.float32: 60.0, torch.float64: 600.0}
"""The largest a w whose exponential, times its square, is a number."""

NEAR = 0.05
"""Below this a w, the derivative in a is a series; above it, a difference that does not cancel."""


def sum_of_means(beliefs: Tensor, potentials: Tensor, exponent: Tensor, logarithms: Tensor | None = None) -> Tensor:
    """z, (batch, O), from beliefs (batch, J, S), potentials (O, J, S) and an exponent () or (O), finite.

    The logarithms of the beliefs can be given, where they are known beyond what exp keeps.
    """
    if not exponent.requires_grad and not bool(exponent.any()):
        return functional.linear(beliefs.flatten(1), potentials.flatten(1))
    low, reach = _measure(potentials, exponent)
    farthest = float(reach.max())
    if not math.isfinite(farthest):
        raise ValueError("the exponent or a potential is NaN or infinite, or their product is; give finite ones")
    if farthest > REACH[torch.float64]:
        return sum_in_blocks(_logarithm(beliefs) if logarithms is None else logarithms, potentials, exponent)
    dtype = beliefs.dtype
    if farthest > REACH[dtype]:
        beliefs = _wide(beliefs) if logarithms is None else logarithms.double().exp()
        potentials, exponent, low = potentials.double(), exponent.double(), low.double()
    size = _together(reach, potentials.shape[-1], REACH[beliefs.dtype])
    # As (groups, size, batch, S) and (groups, size, S, O); what is padded has terms of zero.
    missing = (0, 0, 0, 0, 0, -potentials.shape[1] % size)
    shares = functional.pad(beliefs.movedim(1, 0), missing, value=1 / beliefs.shape[-1]).unflatten(0, (-1, size))
    values = functional.pad((potentials - low).permute(1, 2, 0), missing).contiguous().unflatten(0, (-1, size))
    apply: Callable[..., Tensor] = _SumOfMeans.apply
    parts = shares.split(max(1, BLOCK // len(potentials)), 2)
    total = torch.cat([apply(part, values, exponent.reshape(-1)) for part in parts])
    return (total + low.sum((1, 2))).to(dtype)


def sum_in_blocks(logarithms: Tensor, potentials: Tensor, exponent: Tensor) -> Tensor:
    """sum_j (1/a) log sum_h exp(t_j(h) + a w_oj(h)) of any size, a not 0, for t (batch, J, S); slower.

    With a = inf, sum_j max_h (t_j(h) + w_oj(h)). A few inputs at a time; backward goes through them once more.
    """
    infinite = bool(exponent.isinf().all())
    scaled = potentials if infinite else potentials * exponent.reshape(-1, 1, 1)
    inside, outside = logarithms.permute(2, 1, 0)[..., None], scaled.permute(2, 1, 0)[:, :, None]
    size = max(1, 4 * BLOCK // max(1, len(logarithms) * len(potentials) * potentials.shape[2]))
    total = logarithms.new_zeros(len(logarithms), len(potentials))
    for one, other in zip(inside.split(size, 1), outside.split(size, 1), strict=True):
        total = total + checkpoint(_block, one, other, infinite, use_reentrant=False)
    return total if infinite else total / exponent


def _block(inside: Tensor, outside: Tensor, infinite: bool) -> Tensor:
    """The sum over some inputs, from tables (S, J, batch, 1) and (S, J, 1, O)."""
    terms = inside + outside
    return (functools.reduce(torch.maximum, terms) if infinite else terms.logsumexp(0)).sum(0)


def _wide(beliefs: Tensor) -> Tensor:
    """In double precision, with gradients that are finite in single: those of beliefs near 0 are as large as exp."""
    wide, limit = beliefs.double(), torch.finfo(beliefs.dtype).max
    if wide.requires_grad:
        wide.register_hook(lambda gradient: gradient.clamp(-limit, limit))
    return wide


def _logarithm(beliefs: Tensor) -> Tensor:
    """log q, -inf with a gradient of zero where a state is impossible."""
    possible = beliefs > 0
    return torch.where(possible, torch.where(possible, beliefs, 1.0).log(), -torch.inf)


@torch.no_grad()
def _measure(potentials: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """The potential w of smallest a w, (O, J, 1), and how far a w goes from there, (O, J)."""
    a = exponent.reshape(-1, 1, 1)
    least, most = potentials.amin(-1, keepdim=True), potentials.amax(-1, keepdim=True)
    return torch.where(a < 0, most, least), (a.abs() * (most - least)).squeeze(-1)


def _together(reach: Tensor, states: int, limit: float) -> int:
    """How many inputs are taken together: 1, 2 or 4, so that neither their states nor their reach are too large."""
    size = 1
    while size < min(reach.shape[1], 4) and states ** (2 * size) <= JOINT:
        reach = functional.pad(reach, (0, reach.shape[1] % 2)).unflatten(1, (-1, 2)).sum(-1)
        if float(reach.max()) > limit:
            break
        size *= 2
    return size


class _SumOfMeans(torch.autograd.Function):
    """z from beliefs (groups, size, batch, S), potentials (groups, size, S, O) with a w >= 0, exponents (O) or (1)."""

    @staticmethod
    def forward(ctx: Any, shares: Tensor, values: Tensor, exponent: Tensor) -> Tensor:
        a = _nonzero(exponent)
        total = shares.new_zeros(shares.shape[2], values.shape[3])
        slope = torch.zeros_like(total) if ctx.needs_input_grad[2] else None
        for place in _places(shares, values):
            joint, x = _joint(shares[place]), a * _sums(values[place])
            y = joint @ x.expm1()
            if slope is not None:
                slope += _slopes(joint, x, y).sum(0)
            total += y.log1p_().sum(0)
        ctx.save_for_backward(shares, values, exponent, None if slope is None else slope / a.square())
        return total / a

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        shares, values, exponent, slope = ctx.saved_tensors
        for_shares, for_values = (
            torch.empty_like(each) if wanted else None
            for each, wanted in zip((shares, values), ctx.needs_input_grad, strict=False)
        )
        a = _nonzero(exponent)
        for place in _places(shares, values):
            with torch.enable_grad():
                share, value = shares[place].detach().requires_grad_(), values[place].detach().requires_grad_()
                joint, sums = _joint(share), _sums(value)
            beliefs, x = joint.detach(), a * sums.detach()
            tilted = x.exp()
            ratio = gradient / (beliefs @ tilted)  # the sum of q exp(a w) is 1 + y
            if for_values is not None:
                for_values[place] = torch.autograd.grad(sums, value, (beliefs.mT @ ratio).mul_(tilted))[0]
            if for_shares is not None:
                for_shares[place] = torch.autograd.grad(joint, share, ratio @ x.expm1_().div_(a).mT)[0]
        for_exponent = None if slope is None else (gradient * slope).sum_to_size(exponent.shape)
        return for_shares, for_values, for_exponent


def _nonzero(exponent: Tensor) -> Tensor:
    """The exponent, or in place of zero a number that has no effect, and whose square is a number."""
    least = torch.finfo(exponent.dtype).tiny ** (1 / 3)
    return torch.where(exponent.abs() < least, least, exponent)


def _places(shares: Tensor, values: Tensor) -> Iterator[slice]:
    """Which groups of inputs are worked on at a time."""
    size = max(1, BLOCK // max(1, shares.shape[2] * values.shape[3]))
    return (slice(start, start + size) for start in range(0, len(shares), size))


def _joint(shares: Tensor) -> Tensor:
    """The products of the beliefs of each group, (groups, batch, S^size)."""
    joint = shares[:, 0]
    for k in range(1, shares.shape[1]):
        joint = (joint[..., None] * shares[:, k, :, None]).flatten(2)
    return joint


def _sums(values: Tensor) -> Tensor:
    """The sums of the potentials of each group, (groups, S^size, O)."""
    sums = values[:, 0]
    for k in range(1, values.shape[1]):
        sums = (sums[:, :, None] + values[:, k, None]).flatten(1, 2)
    return sums


def _slopes(joint: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """a^2 times the derivative of log1p(y) / a in a: sum q x exp(x) / (1 + y) - log1p(y), of order x^2."""
    near = x.amax((0, 1)) < NEAR  # of each output, or of all where they have one exponent
    some, every = bool(near.any()), bool(near.all())
    far = y if every else joint @ (x * x.exp()) / (1 + y) - y.log1p()
    return torch.where(near, _slopes_near_zero(joint, x, y), far) if some else far


def _slopes_near_zero(joint: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The same as sum q (x exp(x) - expm1(x)) / (1 + y), minus log1p(y) - y / (1 + y), both as series."""
    share = y / (1 + y)
    curve = x.square() * _polynomial(x, [(n + 1) / math.factorial(n + 2) for n in range(9)])
    return joint @ curve / (1 + y) - share.square() * _polynomial(share, [1 / (n + 2) for n in range(12)])


def _polynomial(x: Tensor, coefficients: list[float]) -> Tensor:
    """The sum of c_n x^n."""
    result = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result
