"""Ising grids with random couplings, and their exact marginals.

p(s) is proportional to exp(sum_i b_i s_i + sum_(i,j) J_ij s_i s_j) over spins s of -1 and 1, states 0 and 1 of a node.
Fields b are uniform in [-1, 1] and couplings J in [-strength, strength]: about half of the squares are frustrated, that
is, no configuration satisfies all of their couplings. A strength is that of a whole graph.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from deepunfold.mrf import Graph, marginals

SPINS = torch.tensor([-1.0, 1.0])
Potentials = tuple[Tensor, Tensor]
"""Fields (batch, nodes, 2) and pairwise potentials (batch, E, 2, 2), the input of a `PairwiseMRF` that has none."""


class Solved(NamedTuple):
    """Graphs, and the exact probability that each spin is 1, (batch, nodes)."""

    x: Potentials
    up: Tensor


def draw(graph: Graph, strengths: Tensor, generator: torch.Generator) -> Potentials:
    """A graph for each of the strengths (batch)."""
    count = len(strengths)
    couplings = strengths[:, None] * (2 * torch.rand(count, len(graph.edges), generator=generator) - 1)
    fields = 2 * torch.rand(count, graph.nodes, generator=generator) - 1
    return fields[..., None] * SPINS, couplings[..., None, None] * SPINS[:, None] * SPINS


def solve(graph: Graph, x: Potentials) -> Solved:
    """The marginals by variable elimination, in float64."""
    fields, pairwise = (part.double() for part in x)
    return Solved(x, marginals(graph, fields, pairwise)[..., 1].float())


def by_strength(graph: Graph, strengths: Sequence[float], count: int, seed: int) -> dict[float, Solved]:
    """Some graphs of each strength."""
    generator = torch.Generator().manual_seed(seed)
    return {each: solve(graph, draw(graph, torch.full((count,), each), generator)) for each in strengths}


@dataclass(frozen=True)
class Training:
    """Graphs of all strengths between two, to draw batches from."""

    solved: Solved

    @classmethod
    def of(cls, graph: Graph, least: float, most: float, count: int, seed: int) -> "Training":
        """Fresh graphs, with strengths uniform between the least and the most."""
        generator = torch.Generator().manual_seed(seed)
        strengths = least + (most - least) * torch.rand(count, generator=generator)
        return cls(solve(graph, draw(graph, strengths, generator)))

    def batches(self, updates: int, size: int, seed: int) -> Iterator[tuple[Potentials, Tensor]]:
        """Random ones of the graphs, with their exact marginals."""
        (fields, pairwise), up = self.solved
        generator = torch.Generator().manual_seed(seed)
        for _ in range(updates):
            chosen = torch.randint(len(up), (size,), generator=generator)
            yield (fields[chosen], pairwise[chosen]), up[chosen]
