"""Networks of message passing for Ising grids whose parameters fit a grid of any size.

Layer k has theta^k = {Psi^k, alpha^k, lambda^k}, and Psi^k is a function of the potentials that come with the input,
shared by all edges and nodes: fields times a number, couplings times a factor. The factor is one number for all edges,
or also a small function of what is known around an edge.
"""

from typing import Any

import torch
from torch import Tensor, nn

from deepunfold import Interval, Unfolded, constrain, unfold
from deepunfold.mrf import Graph, MessagePassing, PairwiseMRF
from recipes._ising_problem import Potentials

FEATURES = 7


class Scaled(nn.Module):
    """All values times one learnt number."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor


class ScaledPotentials(PairwiseMRF):
    """The given potentials, fields times one number and couplings times another: Psi^k of a layer.

    Input: fields (batch, nodes, 2) and pairwise potentials (batch, E, 2, 2).
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, evidence=Scaled())
        self.scale = nn.Parameter(torch.ones(()))

    def tables(self, x: Any) -> Tensor:
        pairwise: Tensor = self.scale * x[1]
        return pairwise


class LocalPotentials(ScaledPotentials):
    """Couplings times a number, and times a function of each edge's surroundings that all edges share.

    The function, a network of one hidden layer, sees `features`; it begins as the constant 1.
    """

    squares: Tensor

    def __init__(self, graph: Graph, hidden: int = 16) -> None:
        super().__init__(graph)
        self.function = nn.Sequential(nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        for parameter in self.function[-1].parameters():
            nn.init.zeros_(parameter)
        self.register_buffer("squares", squares(graph))

    def tables(self, x: Any) -> Tensor:
        factors: Tensor = self.function(self.features(x)).exp()
        return super().tables(x) * factors[..., None]

    def features(self, x: Potentials) -> Tensor:
        """What is known around each edge, (batch, E, 7).

        The size of its coupling, plain and saturated; the sum and the difference of the sizes of the fields at its
        ends; how well they agree with the coupling; and the same of the squares that it is in, where going round the
        other way is worth the product of tanh(J) over three edges: their sum, with the sign of the coupling, and the
        sum of their sizes. Flipping what a spin's states mean, with its fields and couplings, changes none of these.
        """
        fields, couplings = x[0][..., 1], x[1][..., 1, 1]
        first, second = (fields[:, ends] for ends in self.graph.edges.T)
        sign, size = couplings.sign(), couplings.abs()
        known = nn.functional.pad(couplings.tanh(), (0, 1))  # 0 where there is no square
        around = known[:, self.squares].prod(-1)
        ends = (first.abs() + second.abs(), (first.abs() - second.abs()).abs(), sign * first * second)
        return torch.stack([size, size.tanh(), *ends, sign * around.sum(-1), around.abs().sum(-1)], -1)


def squares(graph: Graph) -> Tensor:
    """For each edge, the other three edges of every square that it is in, (E, squares, 3); filled up with number E."""
    pairs: list[tuple[int, int]] = [(one, other) for one, other in graph.edges.tolist()]
    numbers = {pair: edge for edge, (one, other) in enumerate(pairs) for pair in ((one, other), (other, one))}
    around: list[list[int]] = [[] for _ in range(graph.nodes)]
    for one, other in numbers:
        around[one].append(other)
    found = [
        [
            (numbers[one, beside], numbers[beside, opposite], numbers[opposite, other])
            for beside in around[one]
            for opposite in around[other]
            if beside != other and opposite != one and (beside, opposite) in numbers
        ]
        for one, other in pairs
    ]
    most, none = max(map(len, found)), (len(pairs),) * 3
    return torch.tensor([ways + [none] * (most - len(ways)) for ways in found])


def network(potentials: PairwiseMRF, layers: int, tie: str) -> Unfolded:
    """Message passing unfolded, before training: belief propagation whose messages are half new."""
    algorithm = MessagePassing(
        potentials, lambda_=nn.Parameter(torch.tensor(1.0)), alpha=nn.Parameter(torch.tensor(0.5))
    )
    return unfold(constrain(algorithm, alpha=Interval()), layers, tie=tie)


def carried_over(net: Unfolded, to: Unfolded) -> Unfolded:
    """A network of another grid, with the parameters of a trained one."""
    with torch.no_grad():
        for own, trained in zip(to.parameters(), net.parameters(), strict=True):
            own.copy_(trained)
    return to
