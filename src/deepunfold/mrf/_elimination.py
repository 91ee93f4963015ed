"""Variable elimination: nodes are summed out, or maximised out, one after the other.

Each node that goes leaves a table over its neighbours, so the cost grows with the number of states to the power of the
largest set of nodes that meet in a table: 2 for trees, the shorter side plus one for grids. Along a grid this is the
transfer from row to row, whose tables are those over a boundary of one row.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from deepunfold.mrf._graph import Graph
from deepunfold.mrf._traversal import levels, neighbours

Factor = tuple[tuple[int, ...], Tensor]
"""The nodes of a table, and the table: (batch, states, states, ...)."""
LARGEST = 1 << 24
"""The most entries that a table may have for one sample."""


def eliminate(graph: Graph, order: Sequence[int], fields: Tensor, pairwise: Tensor, largest: bool = False) -> Tensor:
    """log Z of each sample, or the largest score, (batch); the nodes go in the given order."""
    own = (fields + graph.padding.to(fields)).unbind(1)
    tables = pairwise.expand(len(fields), *pairwise.shape[-3:]).unbind(1)
    factors: list[Factor] = [((node,), table) for node, table in enumerate(own)]
    factors += [((one, other), table) for (one, other), table in zip(graph.edges.tolist(), tables, strict=True)]
    holds: list[dict[int, Factor]] = [{} for _ in own]  # the factors that each node is in, by their numbers
    for number, factor in enumerate(factors):
        for node in factor[0]:
            holds[node][number] = factor
    total = fields.new_zeros(len(fields))
    for number, node in enumerate(order, len(factors)):
        inside = sorted(holds[node].items(), key=lambda item: len(item[1][0]))
        for used, factor in inside:
            for each in factor[0]:
                del holds[each][used]
        left = _without(node, [factor for _, factor in inside], largest)
        for each in left[0]:
            holds[each][number] = left
        if not left[0]:
            total = total + left[1]
    return total


def best_order(graph: Graph) -> tuple[list[int], int]:
    """An order of the nodes with little work, and how many entries the tables that they leave have for one sample.

    The best of three: those with the fewest neighbours first, which suits trees and sparse graphs, and two sweeps from
    one end to the other, which suit grids: as the nodes are numbered, and by their distance from a node at an end.
    """
    around = neighbours(graph)
    places = {
        node: place for place, node in enumerate(node for part in levels(around) for level in part for node in level)
    }
    rules: tuple[Callable[[int, int], int], ...] = (
        lambda _, degree: degree,
        lambda node, _: node,
        lambda node, _: places[node],
    )
    plans = [plan for plan in (_plan(around, graph.states, rule) for rule in rules) if plan is not None]
    if not plans:
        raise ValueError(
            f"exact inference would need a table of more than {LARGEST} entries: the graph is too dense for it, "
            "or too wide a grid"
        )
    return min(plans, key=lambda plan: plan[1])


def _plan(around: list[set[int]], states: int, rule: Callable[[int, int], int]) -> tuple[list[int], int] | None:
    """Always remove the node that the rule, of its number and degree, puts first; None where a table gets too large."""
    left = {node: set(others) for node, others in enumerate(around)}
    queue = [(rule(node, len(others)), node) for node, others in left.items()]
    heapq.heapify(queue)
    order, entries = [], 0
    while left:
        rank, node = heapq.heappop(queue)
        if node not in left or rank != rule(node, len(left[node])):
            continue  # it has gone, or its present degree has an entry of its own
        kept = left.pop(node)
        if states ** (len(kept) + 1) > LARGEST:
            return None
        order.append(node)
        entries += states ** len(kept)
        for each in kept:
            left[each] |= kept
            left[each] -= {each, node}
            heapq.heappush(queue, (rule(each, len(left[each])), each))
    return order, entries


def _without(node: int, factors: list[Factor], largest: bool) -> Factor:
    """The product of tables, the largest one last, with their common node summed or maximised out.

    Its first dimensions are of the nodes that the largest table does not have, so that work runs along contiguous
    memory whatever the order.
    """
    *small, (own, big) = factors
    new = dict.fromkeys(each for nodes, _ in small for each in nodes if each not in own)
    around = (node, *new, *(each for each in own if each != node))
    rest = sum((_spread(factor, around) for factor in small), start=big.new_zeros([1] * (len(around) + 1)))
    table: Tensor = _Out.apply(_spread((own, big), around), rest, largest)  # type: ignore[no-untyped-call]
    return around[1:], table


def _spread(factor: Factor, nodes: tuple[int, ...]) -> Tensor:
    """A view of a table with a dimension for each of the given nodes, of size 1 where it does not depend on one."""
    own, table = factor
    places = {each: place for place, each in enumerate(own, 1)}
    table = table.permute(0, *(places[each] for each in nodes if each in places))
    return table[(slice(None), *(slice(None) if each in places else None for each in nodes))]


class _Out(torch.autograd.Function):
    """log sum exp, or the maximum, of the sum of two tables over dimension 1.

    It keeps its inputs and its result, not the table that has all dimensions, nor a step on the way.
    """

    @staticmethod
    def forward(ctx: Any, big: Tensor, rest: Tensor, largest: bool) -> Tensor:
        total = big.contiguous() + rest
        if largest:
            out = total.amax(1)
        elif total.shape[1] == 2:
            out = torch.logaddexp(total[:, 0], total[:, 1])  # several times as fast as the general form
        else:
            out = total.logsumexp(1)
        ctx.save_for_backward(big, rest, out)
        ctx.largest = largest
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        big, rest, out = ctx.saved_tensors
        total = big.contiguous() + rest
        if ctx.largest:
            slope = _first((total == out[:, None]).unbind(1)).to(total)
        else:
            # Where the sum is zero, so is each term, and its slope.
            slope = (total - torch.where(out > -torch.inf, out, 0.0)[:, None]).exp()
        slope = slope * grads[0].contiguous()[:, None]
        return slope.sum_to_size(big.shape), slope.sum_to_size(rest.shape), None


def _first(hits: tuple[Tensor, ...]) -> Tensor:
    """Only the first that is true, along dimension 1."""
    found, before = [hits[0]], hits[0]
    for hit in hits[1:]:
        found.append(hit & ~before)
        before = before | hit
    return torch.stack(found, 1)
