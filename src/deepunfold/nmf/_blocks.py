"""The same inference without a graph, in blocks of frames that stay in the processor's cache.

A block's buffers are allocated once and reused by every layer; what depends on the basis alone is prepared once for
all blocks. An update then takes the time of its matrix products and little more, and memory beyond input and output
does not grow with the number of frames.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from deepunfold.core import _loop
from deepunfold.nmf._check import check_frames
from deepunfold.nmf._inference import TINY, NMFInference, floor_of, start_of

CPU_BLOCK, GPU_BLOCK = 1024, 1 << 16
"""Frames per block: on a processor what its cache holds, on an accelerator what keeps it busy."""


class Frames:
    """The frames of one block, and a buffer of the same shape."""

    def __init__(self, mixture: Tensor, buffer: Tensor) -> None:
        self.mixture, self.buffer = mixture, buffer[: len(mixture)]
        self._floors: dict[int, Tensor] = {}

    def last(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """The last rows of each frame, what is added to their model, and the buffer for it."""
        mixture = self.mixture[:, -rows:]
        if rows not in self._floors:
            self._floors[rows] = floor_of(mixture)
        return mixture, self._floors[rows], self.buffer[:, -rows:]


class Prepared:
    """A layer ready to update blocks in place; its ``step`` takes the place of the layer's own in the loop."""

    def __init__(self, layer: NMFInference) -> None:
        basis = layer.basis.detach()
        self.beta, self.exponent, self.rows = layer.beta, layer.exponent, basis.shape[0]
        self.to_model = basis.mT
        self.sparsity = layer.sparsity.detach()
        self.from_ratio = basis
        if self.beta == 1:  # the denominator is the same for all frames: it goes into the second product
            self.from_ratio = basis / (basis.sum(0) + self.sparsity + TINY)

    def step(self, frames: Frames, activations: Tensor) -> Tensor:
        """Update the activations in place."""
        mixture, floor, buffer = frames.last(self.rows)
        model = torch.mm(activations, self.to_model, out=buffer).add_(floor)
        if self.beta == 1:
            return activations.mul_(torch.div(mixture, model, out=model) @ self.from_ratio)
        data = mixture + floor if self.beta < 1 else mixture
        power = model.pow(self.beta - 1)
        factor = (data if self.beta == 2 else model.pow_(self.beta - 2).mul_(data)) @ self.from_ratio
        factor.div_((power @ self.from_ratio).add_(self.sparsity).add_(TINY))
        return activations.mul_(factor if self.exponent == 1 else factor.add_(TINY).pow_(self.exponent))


def block_of(frames: Tensor) -> int:
    """Frames per block where these are."""
    return CPU_BLOCK if frames.device.type == "cpu" else GPU_BLOCK


def blocks(count: int, size: int) -> Iterator[slice]:
    """0 to count in slices of at most ``size``."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def run(
    layers: Sequence[NMFInference],
    count: int,
    mixture: Tensor,
    activations: Tensor | None = None,
    block: int | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """For each block, which frames it has, and their activations after the first ``count`` layers."""
    prepared = {id(layer): Prepared(layer) for layer in layers[:count]}
    steps: list[_loop.Step] = [prepared[id(layer)].step for layer in layers[:count]]
    size = min(block or block_of(mixture), len(mixture))
    buffer = mixture.new_empty(size, mixture.shape[-1])
    for place in blocks(len(mixture), size):
        part = mixture[place].contiguous()
        start = start_of(part, layers[0].components) if activations is None else activations[place]
        yield place, _loop.run(steps, Frames(part, buffer), start.clone(memory_format=torch.contiguous_format))


@torch.no_grad()
def infer(algorithm: NMFInference, mixture: Tensor, steps: int, activations: Tensor | None = None) -> Tensor:
    """The activations after some steps of inference: what ``iterate`` gives, for many frames at the speed of products.

    Shapes: mixture (frames, rows), activations to start from and result (frames, components).
    """
    check_frames("the mixture", mixture, algorithm.basis.shape[0])
    result = mixture.new_empty(len(mixture), algorithm.components)
    for place, found in run([algorithm] * steps, steps, mixture, activations):
        result[place] = found
    return result
