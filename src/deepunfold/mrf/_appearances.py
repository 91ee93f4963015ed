"""How probable it is that a random spanning tree has an edge: the weights of tree-reweighted belief propagation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from deepunfold.mrf._graph import Graph
from deepunfold.mrf._traversal import levels, neighbours

WIDEST = 4096
"""The most nodes that a level may have; the work grows with their cube."""


def edge_appearances(graph: Graph) -> Tensor:
    """The probability of each edge in a uniformly random spanning tree, (E), in float64; of each part, if several.

    It is the effective resistance between the edge's nodes, where all edges are resistors of 1 ohm. The result is
    exact: 1 on trees, and in sum the number of nodes minus that of parts. The equations are solved level by level, a
    level being the nodes at the same distance from an end of the graph, which takes seconds for a grid of 200x200.
    """
    around = neighbours(graph)
    _cut_branches(around)
    parts = [part for part in levels(around) if len(part) > 1]
    rows = [torch.tensor(nodes) for part in parts for nodes in part]
    if (widest := max(map(len, rows), default=0)) > WIDEST:
        raise ValueError(
            f"{widest} nodes are at the same distance from an end of the graph; the exact probabilities of its edges "
            f"would take too long with more than {WIDEST}"
        )
    level, place = torch.zeros(2, graph.nodes, dtype=torch.int64)
    for number, nodes in enumerate(rows):
        level[nodes], place[nodes] = number, torch.arange(len(nodes))
    pairs = graph.edges.cpu()
    result = torch.ones(len(pairs), dtype=torch.float64)  # edges of branches are in every tree
    cycled = torch.tensor([other in around[one] for one, other in pairs.tolist()], dtype=torch.bool).nonzero()[:, 0]
    ends = pairs[cycled]
    ends = torch.where((level[ends[:, 0]] > level[ends[:, 1]])[:, None], ends.flip(1), ends)  # the earlier level first
    # A way to the ground from one node of each part carries no current, but makes the equations solvable.
    own = torch.bincount(ends.flatten(), minlength=graph.nodes).double()
    own[[part[0][0] for part in parts]] += 1
    order = level[ends[:, 0]].argsort(stable=True)
    counts = torch.bincount(level[ends[:, 0]], minlength=len(rows)).tolist()
    within = level[ends[:, 0]] == level[ends[:, 1]]
    groups = [(place[ends[some]].T, within[some]) for some in order.split(counts)]
    if rows:
        result[cycled[order]] = _resistances([own[nodes] for nodes in rows], groups).clamp(max=1.0)  # but for rounding
    return result.to(graph.edges.device)


def _cut_branches(around: list[set[int]]) -> None:
    """Remove nodes with one neighbour until there are none; cycles, and what joins them, are left."""
    leaves = [node for node, others in enumerate(around) if len(others) == 1]
    while leaves:
        node = leaves.pop()
        for other in around[node]:  # none if the other end has gone by now
            around[other].discard(node)
            if len(around[other]) == 1:
                leaves.append(other)
        around[node].clear()


def _resistances(diagonals: Sequence[Tensor], groups: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """X_aa + X_bb - 2 X_ab of each edge, where X is the inverse of the matrix of conductances.

    That matrix has a block for each level and one beside it for the next. First come, from the last level to the
    first, the inverses for a level and those after it alone; then, from the first level on, the blocks of X. A group
    has the edges that start in a level: their places in it and in their other level, and whether that is the same.
    """
    inverses: list[Tensor] = []
    steps: list[Tensor] = []  # a step leads from potentials of a level to those of the next
    for diagonal, (ends, within) in zip(reversed(diagonals), reversed(groups), strict=True):
        matrix = diagonal.diag()
        matrix[*ends[:, within]] = matrix[*ends[:, within].flip(0)] = -1.0
        if inverses:
            beside = matrix.new_zeros(len(matrix), len(inverses[-1]))
            beside[*ends[:, ~within]] = -1.0
            steps.append(-inverses[-1] @ beside.T)
            matrix = matrix + beside @ steps[-1]
        inverses.append(torch.cholesky_inverse(torch.linalg.cholesky(matrix)))
    found, block = list[Tensor](), inverses.pop()
    for (first, second), within in groups:
        known, size = block, len(block)
        if steps:
            step = steps.pop()
            between = block @ step.T
            block = inverses.pop() + step @ between
            known = torch.cat([torch.cat([known, between], 1), torch.cat([between.T, block], 1)])
        second = torch.where(within, second, second + size)  # its place in both levels
        found.append(known.diag()[first] + known.diag()[second] - 2 * known[first, second])
    return torch.cat(found)
