"""Exact inference by variable elimination, for checking, for teaching, and to make data to train with.

Feasible are trees of any size, narrow grids of any length, and square binary grids up to 20x20 or so. On one core in
float32, marginals of 100 binary grids of 10x10 take about 0.05 s, and those of one 20x20 grid about 1 s and 1 GB. Two
more rows and columns take four times as much, and float64 twice. Samples of large graphs are taken one by one.
"""

import torch
from torch import Tensor

from deepunfold.mrf._elimination import best_order, eliminate
from deepunfold.mrf._graph import Graph

TOGETHER = 1 << 24
"""How many entries the tables of the samples that are worked on at once may have in all."""


def log_partition(graph: Graph, fields: Tensor, pairwise: Tensor) -> Tensor:
    """log sum_h exp(sum_i fields_i(h_i) + sum_(i,j) Psi(h_i, h_j)), for each sample (equation ``eq:mrf_model_hv``).

    Shapes: fields (batch, nodes, states), pairwise (E, states, states) or (batch, E, states, states), result (batch).
    It can be differentiated, also twice.
    """
    check_potentials(graph, fields, pairwise)
    return eliminate(graph, best_order(graph)[0], fields, pairwise)


def marginals(graph: Graph, fields: Tensor, pairwise: Tensor) -> Tensor:
    """The posterior probabilities of the states of each node, (batch, nodes, states); zeros where Z is zero.

    They are the gradient of log Z in the fields.
    """
    return _slopes(graph, fields, pairwise)[1]


def pair_marginals(graph: Graph, fields: Tensor, pairwise: Tensor) -> Tensor:
    """The joint posterior probabilities of the states of both nodes of each edge, (batch, E, states, states).

    They are the gradient of log Z in the pairwise potentials.
    """
    return _slopes(graph, fields, pairwise, pairs=True)[1]


def most_probable(graph: Graph, fields: Tensor, pairwise: Tensor) -> tuple[Tensor, Tensor]:
    """The states (batch, nodes) of largest score, and that score (batch); of equal ones any."""
    score, chosen = _slopes(graph, fields, pairwise, largest=True)
    return chosen.argmax(-1), score


def log_score(graph: Graph, fields: Tensor, pairwise: Tensor, states: Tensor) -> Tensor:
    """The logarithm of the unnormalised probability of states (..., nodes).

    Potentials are one set for all, without a batch, or as many as there are states.
    """
    own = fields.expand(*states.shape, -1).gather(-1, states[..., None])
    first, second = (states[..., graph.edges[:, end]] for end in (0, 1))
    tables = pairwise.flatten(-2).expand(*first.shape, -1)
    return own.sum((-2, -1)) + tables.gather(-1, (first * graph.states + second)[..., None]).sum((-2, -1))


def _slopes(
    graph: Graph, fields: Tensor, pairwise: Tensor, *, pairs: bool = False, largest: bool = False
) -> tuple[Tensor, Tensor]:
    """log Z or the largest score, and its gradient in the fields or the pairwise potentials of each sample.

    The gradient needs all tables of a sample, so that only some samples are worked on at once.
    """
    check_potentials(graph, fields, pairwise)
    order, entries = best_order(graph)
    samples = max(1, TOGETHER // entries)
    tables = pairwise.expand(len(fields), *pairwise.shape[-3:])
    values, slopes = [], []
    for some in zip(fields.detach().split(samples), tables.detach().split(samples), strict=True):
        wanted = some[pairs].requires_grad_()
        with torch.enable_grad():
            value = eliminate(graph, order, *some, largest)
            nothing = wanted[:, :0].sum()  # so that it has a slope in pairwise potentials even where there are no edges
            slopes += torch.autograd.grad(value.sum() + nothing, wanted)
        values.append(value.detach())
    return torch.cat(values), torch.cat(slopes)


def check_potentials(graph: Graph, fields: Tensor, pairwise: Tensor) -> None:
    """Raise where their shapes do not fit the graph."""
    nodes = (graph.nodes, graph.states)
    if fields.dim() != 3 or fields.shape[1:] != nodes:
        raise ValueError(f"fields have the shape {tuple(fields.shape)}; give (batch, {nodes[0]}, {nodes[1]})")
    table = (len(graph.edges), graph.states, graph.states)
    if pairwise.shape not in (table, (len(fields), *table)):
        raise ValueError(f"pairwise has the shape {tuple(pairwise.shape)}; give {table}, or these for each sample")
