"""The message kernel, in the log domain: what each node sends to each neighbour, for every exponent.

Messages are kept as (batch, states, 2 E), as in `Graph`: those along the edges, then those back. With the edges in the
last dimension, which is long, sums over states are a few passes over memory. All that is sent or received is a
logarithm. With the belief b_j of the sender, what it last heard from the receiver, r, and the potential Psi, the
message of exponents lambda and kappa is

    m(h_i) = 1 / (lambda kappa) log sum_(h_j) exp(lambda kappa Psi(h_i, h_j) + kappa b_j(h_j) - lambda kappa r(h_j)),

which is equation ``eq:generalized-combo`` (with its exponent mended) up to a constant that normalisation removes. For
kappa = 1 it is ``eq:unified_msg``, for lambda = 1 ``eq:generalized-sumprod-maxprod``, and for both the sum-product
``eq:bpmsg``; kappa -> inf takes the maximum, and lambda -> 0 the mean, ``eq:mfmsg``.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from deepunfold.means import log_power_mean
from deepunfold.mrf._graph import Graph

Exponent: TypeAlias = float | Tensor
"""A number, or a tensor without dimensions or with one number per message (2 E)."""

Tables: TypeAlias = tuple[Tensor, Tensor]
"""A table for each edge, (batch or 1, first node's states, second node's states, E): for the messages along the edges,
and for those back, mostly one and the same."""

Rule: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]
"""Beliefs of the senders and what they heard, to messages."""

FLOOR = -1000.0
"""The least logarithm of a message: what is impossible is so for all purposes, and differences stay finite."""

NEAR = 0.05
"""Below this size of lambda kappa its own limit is in the formula, above it a quotient."""


# -- between nodes and messages --------------------------------------------------------------------------------------


def at_nodes(graph: Graph, messages: Tensor) -> Tensor:
    """What each node receives in sum, (batch, states, nodes)."""
    total = messages.new_zeros(*messages.shape[:2], graph.nodes)
    return total.scatter_add(2, graph.targets.expand_as(messages), messages)


def at_senders(graph: Graph, values: Tensor) -> Tensor:
    """The values of the node that sends each message: (batch, states, nodes) to (batch, states, 2 E)."""
    return values.gather(2, graph.sources.expand(*values.shape[:2], -1))


def reverse(messages: Tensor) -> Tensor:
    """For each message the one that goes the other way."""
    forth, back = messages.chunk(2, -1)
    return torch.cat([back, forth], -1)


def both_ways(graph: Graph, pairwise: Tensor) -> Tables:
    """Tables (E, states, states), also with a batch in front, as those of the messages; 0 where there is no state."""
    if graph.mixed:
        absent = graph.padding < 0
        first, second = (absent[graph.edges[:, end]] for end in (0, 1))
        pairwise = pairwise.masked_fill(first[:, :, None] | second[:, None], 0.0)
    tables = (pairwise if pairwise.dim() == 4 else pairwise[None]).permute(0, 2, 3, 1).contiguous()
    return tables, tables


# -- sums over the states of the sender ------------------------------------------------------------------------------


def product(tables: Tables, values: Tensor) -> Tensor:
    """sum over h_j of table(h_i, h_j) value(h_j) for each message; values and result (batch, states, 2 E)."""
    if torch.compiler.is_compiling():  # what is traced is fused later, and can have no functions of our own
        (forth, back), (sent, sent_back) = tables, values.chunk(2, -1)
        return torch.cat([(forth * sent[:, :, None]).sum(1), (back * sent_back[:, None]).sum(2)], -1)
    if not torch.is_grad_enabled():
        return _products(tables, values)
    found: Tensor = _Product.apply(*tables, values)  # type: ignore[no-untyped-call]
    return found


class _Product(torch.autograd.Function):
    """Its derivative in the values is the product itself, the other way round."""

    @staticmethod
    def forward(ctx: Any, forth: Tensor, back: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(forth, back, values)
        return _products((forth, back), values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        forth, back, values = ctx.saved_tensors
        (sent, sent_back), (pulled, pulled_back) = values.chunk(2, -1), gradient.chunk(2, -1)
        for_forth = for_back = for_values = None
        if ctx.needs_input_grad[0]:
            for_forth = _outer(sent, pulled, forth)
        if ctx.needs_input_grad[1]:
            for_back = _outer(pulled_back, sent_back, back)
        if ctx.needs_input_grad[2]:
            for_values = reverse(_products((back, forth), reverse(gradient)))
        return for_forth, for_back, for_values


def _outer(first: Tensor, second: Tensor, like: Tensor) -> Tensor:
    """The product of both, summed over the batch where the tables have none."""
    if len(like) < len(first):
        return torch.einsum("bfe,bse->fse", first, second)[None]
    return first[:, :, None] * second[:, None]


def _products(tables: Tables, values: Tensor) -> Tensor:
    """State by state of the sender: a pass over memory each, without a tensor of both states."""
    found = []
    for table, value, sender in zip(tables, values.chunk(2, -1), (1, 2), strict=True):
        slices, parts = table.unbind(sender), value.split(1, 1)
        result = slices[0] * parts[0]
        for own, part in zip(slices[1:], parts[1:], strict=True):
            result.addcmul_(own, part)
        found.append(result)
    return torch.cat(found, -1)


def log_product(tables: Tables, values: Tensor) -> Tensor:
    """log sum over h_j of exp(table(h_i, h_j) + value(h_j)); like `product`, for numbers of any size."""
    if torch.compiler.is_compiling():
        return torch.stack([_log_sum(row) for row in _rows(tables, values)], 1)
    found: Tensor = _LogProduct.apply(*tables, values)  # type: ignore[no-untyped-call]
    return found


class _LogProduct(torch.autograd.Function):
    """Receiver's state by receiver's state, forward and again backward, so that no tensor has both states."""

    @staticmethod
    def forward(ctx: Any, forth: Tensor, back: Tensor, values: Tensor) -> Tensor:
        found = torch.stack([_log_sum(row) for row in _rows((forth, back), values)], 1)
        ctx.save_for_backward(forth, back, values, found)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        forth, back, values, found = ctx.saved_tensors
        for_values, for_forth, for_back = (torch.zeros_like(each) for each in (values, forth, back))
        for state, row in enumerate(_rows((forth, back), values)):
            own = found[:, state, None]
            share = torch.where(own > -torch.inf, (row - own).exp(), 0.0) * gradient[:, state, None]
            for_values += share
            along, against = share.chunk(2, -1)
            for_forth[:, :, state] += along.sum_to_size(len(forth), *along.shape[1:])
            for_back[:, state] += against.sum_to_size(len(back), *against.shape[1:])
        return for_forth, for_back, for_values


def max_product(tables: Tables, values: Tensor) -> Tensor:
    """max over h_j of table(h_i, h_j) + value(h_j); equal ones share the gradient."""
    return torch.stack([row.amax(1) for row in _rows(tables, values)], 1)


def _rows(tables: Tables, values: Tensor) -> Iterator[Tensor]:
    """For each state of the receiver, what is summed or maximised over the states of the sender."""
    forth, back = tables
    return (values + torch.cat([forth[:, :, state], back[:, state]], -1) for state in range(forth.shape[1]))


def _log_sum(row: Tensor) -> Tensor:
    """log sum exp over the states; -inf where all of them are."""
    top = row.amax(1)
    safe = torch.where(top > -torch.inf, top, 0.0)
    return (row - safe[:, None]).exp().sum(1).log() + safe


# -- the message -----------------------------------------------------------------------------------------------------


def rule(graph: Graph, tables: Tables, lambda_: Exponent, kappa: Exponent, normalised: bool) -> Rule:
    """How messages are computed: a function of the senders' beliefs and of what they heard, with the rest prepared.

    It takes and gives logarithms (batch, states, 2 E). What it is given may lack constants that are the same for all
    states; what was heard, the reverse messages, may also be None, to leave them out.

    Args:
        graph: who sends to whom.
        tables: the potentials Psi.
        lambda_: 0 for mean field, 1 for belief propagation, or any real number.
        kappa: 1 to sum over states, inf for the maximum, or any number above 0.
        normalised: whether messages sum to one; else they lack a constant.
    """
    absent = graph.absent
    if isinstance(lambda_, float) and lambda_ == 0:
        means = _each(tables, lambda table: table.clamp(min=FLOOR))
        return _finished(lambda beliefs, _: product(means, times(kappa, beliefs).softmax(1)), absent, normalised)
    if isinstance(kappa, float) and kappa == math.inf:
        return _finished(
            lambda beliefs, heard: max_product(tables, _minus(times(1 / lambda_, beliefs), heard)), absent, normalised
        )
    both = lambda_ * kappa
    if near_zero(both):
        return _finished(_through_zero(tables, both, kappa), absent, normalised)

    def values(beliefs: Tensor, heard: Tensor | None) -> Tensor:
        return _minus(times(kappa, beliefs), heard if heard is None else times(both, heard))

    powers = scaled(tables, both)
    if torch.compiler.is_compiling() or not is_moderate(powers):
        return _finished(lambda beliefs, heard: log_product(powers, values(beliefs, heard)) / both, absent, normalised)
    factors = _each(powers, lambda table: (table - _largest(table)).exp())
    plain = isinstance(both, float) and both == 1

    def by_products(beliefs: Tensor, heard: Tensor | None) -> Tensor:
        """Several times as fast as by logarithms; `is_moderate` tables let no message underflow."""
        weights = values(beliefs, heard)
        found = product(factors, (weights - weights.amax(1, keepdim=True).detach()).exp())
        if not (plain and normalised):
            return normalise(found.log() / both, absent) if normalised else found.log() / both
        if absent is not None:
            found = found.masked_fill(absent, 0.0)
        found = found / found.sum(1, keepdim=True)
        return (found if absent is None else found.masked_fill(absent, 1.0)).log()

    return by_products


def near_zero(exponent: Exponent) -> bool:
    """Whether a quotient by it could lose digits; what is traced has no value yet, and takes the way that is safe."""
    if isinstance(exponent, float):
        return abs(exponent) < NEAR
    return torch.compiler.is_compiling() or (bool(exponent.numel()) and bool(exponent.detach().abs().min() < NEAR))


def _finished(raw: Rule, absent: Tensor | None, normalised: bool) -> Rule:
    return (lambda beliefs, heard: normalise(raw(beliefs, heard), absent)) if normalised else raw


def normalise(messages: Tensor, absent: Tensor | None) -> Tensor:
    """Messages that sum to one, none below `FLOOR`; 0 for states that the receiver does not have."""
    if absent is None:
        return messages.log_softmax(1).clamp(min=FLOOR)
    return messages.masked_fill(absent, -torch.inf).log_softmax(1).clamp(min=FLOOR).masked_fill(absent, 0.0)


def _through_zero(tables: Tables, both: Exponent, kappa: Exponent) -> Rule:
    """The power mean, whose value and derivatives are continuous at 0; it takes a tensor of both states."""
    forth, back = tables
    potentials = torch.cat([forth.transpose(1, 2), back], -1).clamp(min=FLOOR)

    def mean(beliefs: Tensor, heard: Tensor | None) -> Tensor:
        values = potentials if heard is None else potentials - heard[:, None]
        values = values.expand(beliefs.shape[0], *potentials.shape[1:])
        return log_power_mean(values, both, times(kappa, beliefs).log_softmax(1)[:, None], dim=2)

    return mean


def _largest(table: Tensor) -> Tensor:
    return table.detach().amax((1, 2), keepdim=True)


def is_moderate(tables: Tables, most: float | None = None) -> bool:
    """Whether the smallest factor of each table is large enough beside its largest, to all digits."""
    most = -0.8 * math.log(torch.finfo(tables[0].dtype).tiny) if most is None else most
    spans = _each(tables, lambda table: _largest(table) - table.detach().amin((1, 2), keepdim=True))
    return all(span.numel() == 0 or bool(span.max() < most) for span in spans)


def times(factor: Exponent, logarithms: Tensor) -> Tensor:
    """The product; -inf stays what it is, also where the factor is trained."""
    if isinstance(factor, float) and factor == 1:
        return logarithms
    possible = logarithms > -torch.inf
    return torch.where(possible, factor * torch.where(possible, logarithms, 0.0), -torch.inf)


def _minus(values: Tensor, other: Tensor | None) -> Tensor:
    return values if other is None else values - other


def scaled(tables: Tables, factor: Exponent) -> Tables:
    """The tables times the exponent of each message."""
    if isinstance(factor, Tensor) and factor.dim():
        along, against = factor.chunk(2)
        return times(along, tables[0]), times(against, tables[1])
    return _each(tables, lambda table: times(factor, table))


def _each(tables: Tables, function: Callable[[Tensor], Tensor]) -> Tables:
    """A function of both tables, computed once where they are the same."""
    forth = function(tables[0])
    return forth, forth if tables[1] is tables[0] else function(tables[1])
