"""Binary images of discs, rings, rectangles, bars and triangles, made of numbers alone, and two kinds of noise."""

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from deepunfold.mrf import DiscreteEvidence, Graph, RealEvidence

SHAPES = 5
"""How many shapes an image has; later ones are drawn over earlier ones, some of them in the colour of the ground."""
ERASING = 0.3
"""The share of shapes that are drawn in the colour of the ground."""


def draw(count: int, size: int, seed: int) -> Tensor:
    """Images (count, size, size) of 0, the ground, and 1; sizes of shapes are in pixels, whatever the image's size."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.arange(size, dtype=torch.float32) + 0.5
    images = torch.zeros(count, size, size, dtype=torch.bool)
    for number in range(SHAPES):
        inside = _shapes(count, size, pixels, generator)
        erased = torch.rand(count, 1, 1, generator=generator) < (ERASING if number else 0.0)
        images = torch.where(erased, images & ~inside, images | inside)
    return images.long()


def _shapes(count: int, size: int, pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Which pixels have their centre in a random shape, one shape per image."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=generator)

    angle, radius = uniform(0, 2 * math.pi), uniform(5, 11)
    x, y = pixels[None, None, :] - uniform(0, size), pixels[None, :, None] - uniform(0, size)
    along, across = angle.cos() * x + angle.sin() * y, angle.cos() * y - angle.sin() * x
    distance = (x.square() + y.square()).sqrt()
    corners = [2 * math.pi * corner / 3 for corner in range(3)]
    kinds = torch.stack(
        [
            distance < radius,
            (distance - radius).abs() < uniform(1, 2),
            (along.abs() < radius) & (across.abs() < radius * uniform(0.4, 1)),
            (along.abs() < 2 * radius) & (across.abs() < uniform(0.8, 1.8)),
            torch.stack([math.cos(a) * along + math.sin(a) * across < radius / 1.6 for a in corners]).all(0),
        ]
    )
    chosen = torch.randint(len(kinds), (1, count, 1, 1), generator=generator)
    return kinds.gather(0, chosen.expand(1, *kinds.shape[1:]))[0]


# -- how they are seen -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flips:
    """Pixels whose value is the other one, each with the same probability."""

    share: float = 0.2

    def see(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """What is observed, 0 or 1, (images, pixels)."""
        return labels ^ (torch.rand(labels.shape, generator=generator) < self.share).long()

    def evidence(self, graph: Graph) -> nn.Module:
        """The logarithms of the probabilities of what is observed, one table for all pixels."""
        right, wrong = math.log(1 - self.share), math.log(self.share)
        table = torch.tensor([[[right, wrong], [wrong, right]]])
        return DiscreteEvidence(graph, pixel_by_pixel(graph), table, groups=one_for_all(graph))


@dataclass(frozen=True)
class Gaussian:
    """Pixels of -1 and 1 with Gaussian noise."""

    deviation: float = 2.0

    def see(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """What is observed, (images, pixels)."""
        return 2.0 * labels - 1 + self.deviation * torch.randn(labels.shape, generator=generator)

    def evidence(self, graph: Graph) -> nn.Module:
        """The logarithm of the density of what is observed, but for a constant; one weight for all pixels."""
        weights = torch.tensor([[-1.0, 1.0]]) / self.deviation**2
        return RealEvidence(graph, pixel_by_pixel(graph), weights, groups=one_for_all(graph))


Noise: TypeAlias = Flips | Gaussian


def pixel_by_pixel(graph: Graph) -> Tensor:
    """Edges from each hidden node to the observed one of the same number."""
    return torch.arange(graph.nodes)[:, None].expand(-1, 2)


def one_for_all(graph: Graph) -> Tensor:
    """Groups that let all of these edges share their potentials."""
    return torch.zeros(graph.nodes, dtype=torch.int64)
