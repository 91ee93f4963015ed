"""Exact inference by variable elimination, for checking and for small graphs.

Variables are summed out one after the other, those with the fewest neighbours first. The cost grows with the number of
states to the power of the largest clique that arises: 2 for trees, the shorter side plus one for grids.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from deepunfold.mrf._graph import Graph

Factor = tuple[tuple[int, ...], Tensor]
"""The nodes of a table, in rising order, and the table: (batch, states, states, ...)."""
LARGEST = 1 << 24
"""The most entries that a table may have."""


def log_partition(graph: Graph, fields: Tensor, pairwise: Tensor) -> Tensor:
    """log sum_h exp(sum_i fields_i(h_i) + sum_(i,j) Psi(h_i, h_j)), for each sample (equation ``eq:mrf_model_hv``).

    Shapes: fields (batch, nodes, states), pairwise (E, states, states) or (batch, E, states, states), result (batch).
    """
    return _eliminate(graph, fields, pairwise, _log_sum)


def marginals(graph: Graph, fields: Tensor, pairwise: Tensor) -> Tensor:
    """The posterior probabilities of the states of each node, (batch, nodes, states).

    They are the gradient of log Z in the fields.
    """
    with torch.enable_grad():
        given = fields.detach().requires_grad_()
        return torch.autograd.grad(log_partition(graph, given, pairwise.detach()).sum(), given)[0]


def most_probable(graph: Graph, fields: Tensor, pairwise: Tensor) -> tuple[Tensor, Tensor]:
    """The states (batch, nodes) of largest score, and that score (batch); of equal ones any."""
    with torch.enable_grad():
        given = fields.detach().requires_grad_()
        score = _eliminate(graph, given, pairwise.detach(), lambda table: table.max(-1).values)
        chosen = torch.autograd.grad(score.sum(), given)[0]
    return chosen.argmax(-1), score.detach()


def log_score(graph: Graph, fields: Tensor, pairwise: Tensor, states: Tensor) -> Tensor:
    """The logarithm of the unnormalised probability of states (..., nodes).

    Potentials are one set for all, without a batch, or as many as there are states.
    """
    own = fields.expand(*states.shape, -1).gather(-1, states[..., None])
    first, second = (states[..., graph.edges[:, end]] for end in (0, 1))
    tables = pairwise.flatten(-2).expand(*first.shape, -1)
    return own.sum((-2, -1)) + tables.gather(-1, (first * graph.states + second)[..., None]).sum((-2, -1))


def _log_sum(table: Tensor) -> Tensor:
    """log sum exp over the last dimension, with gradients of zero where every entry is -inf."""
    top = table.amax(-1, keepdim=True).detach()
    top = torch.where(torch.isfinite(top), top, 0.0)
    total = (table - top).exp().sum(-1)
    return torch.where(total > 0, torch.where(total > 0, total, 1.0).log() + top.squeeze(-1), -torch.inf)


def _eliminate(graph: Graph, fields: Tensor, pairwise: Tensor, out: Callable[[Tensor], Tensor]) -> Tensor:
    """Remove the nodes, each by ``out`` over the last dimension of the product of the tables that it is in."""
    _check(graph, fields, pairwise)
    tables = fields + graph.padding.to(fields)
    factors: list[Factor] = [((node,), tables[:, node]) for node in range(graph.nodes)]
    shared = pairwise.expand(len(fields), *pairwise.shape[-3:])
    for number, (one, other) in enumerate(graph.edges.tolist()):
        table = shared[:, number]
        factors.append(((one, other), table) if one < other else ((other, one), table.mT))
    neighbours: dict[int, set[int]] = {node: set() for node in range(graph.nodes)}
    for nodes, _ in factors:
        for node in nodes:
            neighbours[node].update(set(nodes) - {node})
    while neighbours:
        node = min(neighbours, key=lambda each: len(neighbours[each]))
        around = neighbours.pop(node)
        inside = [factor for factor in factors if node in factor[0]]
        factors = [factor for factor in factors if node not in factor[0]]
        kept = tuple(sorted(around))
        if graph.states ** (len(kept) + 1) > LARGEST:
            raise ValueError(f"exact inference would need a table over {len(kept) + 1} nodes; the graph is too dense")
        # Sample, then the neighbours, then the node that goes.
        total = sum((_spread(factor, (*kept, node)) for factor in inside), start=torch.zeros((), dtype=fields.dtype))
        factors.append((kept, out(total)))
        for each in around:
            neighbours[each].update(around - {each})
            neighbours[each].discard(node)
    return torch.stack([table for _, table in factors]).sum(0)


def _spread(factor: Factor, nodes: tuple[int, ...]) -> Tensor:
    """A table with a dimension for each of the given nodes, of size 1 where it does not depend on one."""
    own, table = factor
    order = [nodes.index(node) for node in own]
    ranked = sorted(range(len(own)), key=order.__getitem__)
    table = table.permute(0, *(1 + place for place in ranked))
    shape = [table.shape[0]] + [1] * len(nodes)
    for place, position in enumerate(sorted(order)):
        shape[1 + position] = table.shape[1 + place]
    return table.reshape(shape)


def _check(graph: Graph, fields: Tensor, pairwise: Tensor) -> None:
    nodes = (graph.nodes, graph.states)
    if fields.dim() != 3 or fields.shape[1:] != nodes:
        raise ValueError(f"fields have the shape {tuple(fields.shape)}; give (batch, {nodes[0]}, {nodes[1]})")
    table = (len(graph.edges), graph.states, graph.states)
    if pairwise.shape not in (table, (len(fields), *table)):
        raise ValueError(f"pairwise has the shape {tuple(pairwise.shape)}; give {table}, or these for each sample")
