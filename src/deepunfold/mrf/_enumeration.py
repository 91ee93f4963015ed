"""Exact inference by going through all joint states: for teaching, and to check everything else against."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepunfold.mrf._exact import check_potentials
from deepunfold.mrf._graph import Graph

MOST = 1 << 22
"""The most joint states that are gone through."""
BLOCK = 1 << 12
"""How many of them at once."""


class Enumeration(NamedTuple):
    """What `enumeration` finds: log_partition (batch), marginals (batch, nodes, states), pair_marginals
    (batch, E, states, states), most_probable (batch, nodes), and the score (batch) of these states.
    """

    log_partition: Tensor
    marginals: Tensor
    pair_marginals: Tensor
    most_probable: Tensor
    score: Tensor


@torch.no_grad()
def enumeration(graph: Graph, fields: Tensor, pairwise: Tensor) -> Enumeration:
    """All sums and the maximum over the joint states of ``eq:mrf_model_hv``, as they are written, for 2^22 at most.

    Shapes: fields (batch, nodes, states), pairwise (E, states, states) or (batch, E, states, states).
    """
    check_potentials(graph, fields, pairwise)
    total = math.prod(graph.counts)
    if total > MOST:
        raise ValueError(f"{total} joint states are too many to go through, at most {MOST}; use elimination instead")
    batch, size = len(fields), graph.states
    tables = pairwise.expand(batch, *pairwise.shape[-3:]).flatten(1)
    # Sums are relative to the largest score so far.
    best = fields.new_full((batch,), -torch.inf)
    most = torch.zeros(batch, graph.nodes, dtype=torch.int64, device=fields.device)
    sums = fields.new_zeros(batch, 1 + graph.nodes * size + tables.shape[1])
    for states in _blocks(graph):
        pairs = states[:, graph.edges[:, 0]] * size + states[:, graph.edges[:, 1]]
        own = states + size * torch.arange(graph.nodes, device=states.device)
        joint = pairs + size**2 * torch.arange(len(graph.edges), device=states.device)
        scores = fields.flatten(1)[:, own].sum(-1) + tables[:, joint].sum(-1)
        top, place = scores.max(1)
        most = torch.where((top > best)[:, None], states[place], most)
        higher = torch.maximum(top, best)
        origin = torch.where(higher > -torch.inf, higher, 0.0)
        chosen = [_one_hot(states, size), _one_hot(pairs, size**2)]
        marks = torch.cat([torch.ones(len(states), 1, device=fields.device), *chosen], 1).to(fields)
        sums = sums * (best - origin).exp()[:, None] + (scores - origin[:, None]).exp() @ marks
        best = higher
    shares = sums[:, 1:] / torch.where(sums[:, :1] > 0, sums[:, :1], 1.0)
    nodes, edges = shares.split([graph.nodes * size, tables.shape[1]], 1)
    return Enumeration(
        sums[:, 0].log() + torch.where(best > -torch.inf, best, 0.0),
        nodes.reshape(fields.shape),
        edges.reshape(batch, -1, size, size),
        most,
        best,
    )


def _blocks(graph: Graph) -> Iterator[Tensor]:
    """All joint states, (block, nodes), some at a time; the last node changes fastest."""
    counts = torch.tensor(graph.counts, device=graph.padding.device)
    later = counts.flip(0).cumprod(0).flip(0)  # the states of each node and all after it
    for numbers in torch.arange(int(later[0]), device=counts.device).split(BLOCK):
        yield numbers[:, None] % later // (later // counts)


def _one_hot(states: Tensor, size: int) -> Tensor:
    return nn.functional.one_hot(states, size).flatten(1)
