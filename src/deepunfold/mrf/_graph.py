"""The structure of a pairwise Markov random field: which variables there are, and which of them touch.

Structure and numbers are apart: potentials are parameters of algorithms, or come with each input. Nodes may have
different numbers of states. Tables are padded to the largest one, and what is padded has the logarithm -inf.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Graph(nn.Module):
    """Nodes with states, and edges between them; buffers alone, no parameters.

    Messages go along each edge both ways: number e from the first node of edge e to the second, number E + e back.
    ``directed`` (2, 2 E) has the nodes that send them and those that receive them; ``padding`` (nodes, states) is 0
    where a node has that state and -inf where it has not.

    Args:
        edges: pairs of nodes, as a list or a tensor (E, 2); each pair once, in either order.
        states: how many states each node has: one number for all, or one per node.
        nodes: how many nodes there are, where ``states`` is one number.
        names: what the nodes are called where they come from, in their order; none unless told.
    """

    directed: Tensor
    padding: Tensor

    def __init__(
        self,
        edges: Sequence[tuple[int, int]] | Tensor,
        states: int | Sequence[int],
        nodes: int = 0,
        names: Sequence[str] = (),
    ) -> None:
        super().__init__()
        counts = [states] * nodes if isinstance(states, int) else list(states)
        if not counts or min(counts) < 1:
            raise ValueError(f"states={states!r}, nodes={nodes}: give at least one node, each with at least one state")
        pairs = torch.as_tensor(edges)
        if pairs.numel() == 0:
            pairs = torch.zeros(0, 2, dtype=torch.int64)
        if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
            raise ValueError(f"edges must be pairs of node numbers, (edges, 2), not {tuple(pairs.shape)} {pairs.dtype}")
        if names and (len(names) != len(counts) or len(set(names)) < len(names)):
            raise ValueError(f"{len(set(names))} different names were given for {len(counts)} nodes; give one for each")
        pairs = pairs.to(torch.int64, copy=True)
        _check_edges(pairs, len(counts))
        self.names = [str(name) for name in names]
        self.mixed = min(counts) < max(counts)
        sizes = torch.tensor(counts)
        padding = torch.zeros(len(counts), max(counts))
        self.register_buffer("directed", torch.cat([pairs, pairs.flip(1)]).T.contiguous())
        self.register_buffer("padding", padding.masked_fill(torch.arange(max(counts)) >= sizes[:, None], -torch.inf))

    @property
    def edges(self) -> Tensor:
        """The pairs of nodes as they were given, (E, 2)."""
        return self.directed[:, : self.directed.shape[1] // 2].T

    @property
    def sources(self) -> Tensor:
        """The node that sends each message, (2 E)."""
        return self.directed[0]

    @property
    def targets(self) -> Tensor:
        """The node that receives each message, (2 E)."""
        return self.directed[1]

    @property
    def absent(self) -> Tensor | None:
        """The states that the receiver of each message does not have, (states, 2 E); None where all have all."""
        return (self.padding < 0).T[:, self.targets] if self.mixed else None

    @property
    def degrees(self) -> Tensor:
        """The number of neighbours of each node, (nodes)."""
        return torch.bincount(self.targets, minlength=self.nodes)

    @property
    def nodes(self) -> int:
        """N, the number of nodes."""
        return int(self.padding.shape[0])

    @property
    def states(self) -> int:
        """S, the largest number of states of a node."""
        return int(self.padding.shape[1])

    @property
    def counts(self) -> list[int]:
        """The number of states of each node."""
        return [int(count) for count in (self.padding == 0).sum(1)]

    def extra_repr(self) -> str:
        return f"{self.nodes} nodes, {len(self.edges)} edges, up to {self.states} states"


def grid(height: int, width: int, states: int = 2) -> Graph:
    """A grid whose node (row, column) is number row * width + column; horizontal edges come first."""
    numbers = torch.arange(height * width).reshape(height, width)
    across = torch.stack([numbers[:, :-1].flatten(), numbers[:, 1:].flatten()], 1)
    down = torch.stack([numbers[:-1].flatten(), numbers[1:].flatten()], 1)
    return Graph(torch.cat([across, down]), states, height * width)


def _check_edges(pairs: Tensor, nodes: int) -> None:
    """Each mistake by the first pair that makes it."""
    low, high = pairs.amin(1), pairs.amax(1)
    for wrong, what in (
        ((low < 0) | (high >= nodes), f"leads to a node that does not exist; there are 0 to {nodes - 1}"),
        (low == high, "leads from a node to itself"),
        (_repeats(low * nodes + high), "is there twice, in this order or the other"),
    ):
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0])
            raise ValueError(f"edge {first}, {tuple(pairs[first].tolist())}, {what}")


def _repeats(keys: Tensor) -> Tensor:
    """Which entries have stood before."""
    order = keys.argsort(stable=True)
    again = torch.zeros_like(keys, dtype=torch.bool)
    again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return again
