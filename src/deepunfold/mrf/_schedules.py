"""Schedules: which nodes send at which iteration. All others keep the messages that they sent before (alpha = 0)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepunfold.mrf._graph import Graph


class Turns(nn.Module):
    """Groups of nodes that send in turn, over and over.

    Args:
        groups: the number of the group of each node, (nodes).
        order: the groups in the order of their turns.
    """

    groups: Tensor
    order: Tensor

    def __init__(self, groups: Tensor, order: Sequence[int] | Tensor) -> None:
        super().__init__()
        order = torch.as_tensor(order)
        if groups.is_floating_point() or groups.dim() != 1 or order.is_floating_point() or order.dim() != 1:
            raise ValueError("groups and order must be whole numbers: the group of each node, and groups in turn")
        if not len(order) or not bool(torch.isin(groups, order).all()):
            raise ValueError("some nodes would never send: each group must have a turn")
        self.register_buffer("groups", groups.clone())
        self.register_buffer("order", order.clone())

    @property
    def period(self) -> int:
        """After how many iterations it begins again."""
        return len(self.order)

    def forward(self, step: Tensor) -> Tensor:
        """Which nodes send at an iteration, counted from 0: (nodes)."""
        return self.groups == self.order.gather(0, (step % self.period).reshape(1))


def sequential(graph: Graph, order: Sequence[int] | None = None) -> Turns:
    """One node after the other, in the given order or by number."""
    nodes = torch.arange(graph.nodes, device=graph.directed.device)
    return Turns(nodes, nodes if order is None else order)


def checkerboard(graph: Graph) -> Turns:
    """Groups without neighbours among themselves: two where the graph allows it, as on grids; few everywhere.

    Colours are given greedily, along a breadth-first walk.
    """
    around: list[list[int]] = [[] for _ in range(graph.nodes)]
    for one, other in graph.edges.tolist():
        around[one].append(other)
        around[other].append(one)
    colours = [-1] * graph.nodes
    for root in range(graph.nodes):
        queue = [root] if colours[root] < 0 else []
        for node in queue:  # it grows while it is walked through
            if colours[node] >= 0:
                continue
            taken = {colours[each] for each in around[node]}
            colours[node] = next(colour for colour in range(len(taken) + 1) if colour not in taken)
            queue += [each for each in around[node] if colours[each] < 0]
    groups = torch.tensor(colours, device=graph.directed.device)
    return Turns(groups, range(int(groups.max()) + 1))


def layered(layers: Tensor) -> Turns:
    """Forward through the layers and back: 0, 1, ..., L, L-1, ..., 1, for the layer number of each node."""
    last = int(layers.max())
    return Turns(layers, [*range(last + 1), *range(last - 1, 0, -1)])


def random_turns(graph: Graph, groups: int, rounds: int = 100, seed: int = 0) -> Turns:
    """Nodes in random groups, which send in a new random order in each of some rounds."""
    if not 1 <= groups <= graph.nodes:
        raise ValueError(f"groups={groups} is out of range: {graph.nodes} nodes allow 1 to {graph.nodes}")
    generator = torch.Generator().manual_seed(seed)
    members = torch.randperm(graph.nodes, generator=generator) % groups
    order = torch.cat([torch.randperm(groups, generator=generator) for _ in range(rounds)])
    device = graph.directed.device
    return Turns(members.to(device), order.to(device))


class Residual(nn.Module):
    """In each sample, renew the share of messages that would change the most.

    Args:
        share: of all messages, above 0 and up to 1.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 < share <= 1:
            raise ValueError(f"share={share} must be above 0 and at most 1")
        self.share = share

    def forward(self, old: Tensor, new: Tensor) -> Tensor:
        """Which messages are renewed, (batch, 1, 2 E)."""
        change = (new - old).detach().abs().amax(1, keepdim=True)
        count = max(1, round(self.share * change.shape[-1]))
        return change >= change.topk(count, dim=-1).values[..., -1:]


def with_count(state: Tensor) -> tuple[Tensor, Tensor]:
    """A state that says how many steps were taken; all samples share it."""
    return state, torch.zeros((), dtype=torch.int64, device=state.device)


def check_turns(turns: nn.Module, nodes: int) -> None:
    """Raise where turns are those of another graph."""
    if isinstance(turns, Turns) and len(turns.groups) != nodes:
        raise ValueError(f"the turns are those of {len(turns.groups)} nodes, the graph has {nodes}")
