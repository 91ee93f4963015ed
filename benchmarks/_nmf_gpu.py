"""Candidates for inference on a GPU, measured by `benchmarks.nmf` where there is one; the library uses none of them.

The fused kernel keeps the activations of a tile of frames in registers through all updates: of each update only the
basis and the mixture are read, and nothing is written. It is for bases of few components.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOOR = 1e-12
WIDEST = 256
"""The most components whose activations and sums fit into the registers of a block of threads."""


@triton.jit
def _updates(
    mixture: Any,
    basis: Any,
    scale: Any,
    floor: Any,
    activations: Any,
    frames: Any,
    rows: Any,
    components: Any,
    steps: Any,
    FRAMES: tl.constexpr,
    ROWS: tl.constexpr,
    COMPONENTS: tl.constexpr,
) -> None:
    """All updates of a tile of frames, in place; the scale is 1 / (sums of the columns + sparsity)."""
    t = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    r = tl.arange(0, COMPONENTS)
    known, used = t[:, None] < frames, r[None, :] < components
    place = activations + t[:, None] * components + r[None, :]
    state = tl.load(place, mask=known & used, other=0.0)
    shrink = tl.load(scale + r, mask=r < components, other=0.0)
    least = tl.load(floor + t, mask=t < frames, other=1.0)
    for _step in range(steps):
        pulled = tl.zeros((FRAMES, COMPONENTS), dtype=tl.float32)
        for start in range(0, rows, ROWS):
            f = start + tl.arange(0, ROWS)
            columns = tl.load(basis + f[:, None] * components + r[None, :], mask=(f[:, None] < rows) & used, other=0.0)
            data = tl.load(mixture + t[:, None] * rows + f[None, :], mask=known & (f[None, :] < rows), other=0.0)
            model = tl.dot(state, tl.trans(columns)) + least[:, None]
            pulled = tl.dot(data / model, columns, pulled)
        state = state * pulled * shrink[None, :]
    tl.store(place, state, mask=known & used)


def fused(
    basis: Tensor, mixture: Tensor, sparsity: float, steps: int, frames: int = 32, rows: int = 32, warps: int = 8
) -> Tensor:
    """Inference by the fused kernel, with tiles of the given sizes."""
    mean = mixture.mean(1, keepdim=True)
    activations = mean.expand(-1, basis.shape[1]).contiguous()
    _updates[(triton.cdiv(len(mixture), frames),)](
        mixture.contiguous(),
        basis.contiguous(),
        1 / (basis.sum(0) + sparsity),
        torch.where(mean > 1e-18, FLOOR * mean, 1.0).contiguous(),
        activations,
        len(mixture),
        mixture.shape[1],
        basis.shape[1],
        steps,
        FRAMES=frames,
        ROWS=rows,
        COMPONENTS=max(16, triton.next_power_of_2(basis.shape[1])),
        num_warps=warps,
    )
    return activations


def candidates(
    one_line: Callable[[Tensor, Tensor, int], Tensor], basis: Tensor, mixture: Tensor, sparsity: float, steps: int
) -> dict[str, Callable[[], object]]:
    """The one-line version compiled, and the fused kernel with several sizes of its tiles."""
    ways: dict[str, Callable[[], object]] = {"torch.compile": partial(torch.compile(one_line), basis, mixture, steps)}
    if basis.shape[1] <= WIDEST:
        for frames, rows, warps in itertools.product((16, 32, 64), (32, 64), (4, 8)):
            name = f"fused, tiles of {frames} x {rows}, {warps} warps"
            ways[name] = partial(fused, basis, mixture, sparsity, steps, frames, rows, warps)
    return ways
