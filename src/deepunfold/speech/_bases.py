"""The bases of the sources that a training starts from: sparse NMF of each (Section 5.3 of the paper)."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from deepunfold.nmf import SparseNMF
from deepunfold.speech._frontend import Array
from deepunfold.speech._mixing import Mixer
from deepunfold.speech._settings import Settings

CHUNK = 10
"""Steps of sparse NMF between two times that its state is kept."""


def frames_of(mixer: Mixer, source: int, settings: Settings) -> Tensor:
    """Frames in context of one source as it is in mixtures, from twice as much material as is asked for."""
    front = settings.frontend
    samples = round(settings.seconds * front.rate)
    found: list[Array] = []
    wanted, drawn = 2 * settings.basis_frames, 0
    while drawn < wanted:
        seed = (settings.seed, 1, source, len(found))
        signal = mixer.draw_target(seed).image if source == 0 else mixer.draw_others(seed, samples)[0][source - 1]
        found.append(np.abs(front.analyse(signal.astype(np.float32))))
        drawn += len(found[-1])
    generator = np.random.default_rng((settings.seed, 2, source))
    chosen = np.sort(generator.permutation(drawn)[: settings.basis_frames])
    edges = np.cumsum([0, *map(len, found)])
    parts = [
        front.in_context(part)[chosen[(chosen >= start) & (chosen < end)] - start]
        for part, start, end in zip(found, edges[:-1], edges[1:], strict=True)
    ]
    return torch.from_numpy(np.concatenate(parts)).to(settings.device)


def learn(
    frames: Tensor,
    settings: Settings,
    fitting: dict[str, Tensor],
    steps: int,
    after: Callable[[Tensor, Tensor, int], None],
) -> Tensor:
    """The basis (T * F, R) of frames, from where it stopped; ``after`` some steps gets basis, activations, steps."""
    nmf = SparseNMF(settings.components, sparsity=settings.sparsity, seed=settings.seed)
    activations = None
    if fitting:
        nmf.basis, activations = fitting["basis"], fitting["activations"]
    while True:
        more = min(CHUNK, settings.basis_steps - steps)
        nmf.fit(frames, steps=more, tolerance=-1.0, activations=activations, progress=False)
        assert nmf.basis is not None
        assert nmf.activations is not None
        activations, steps = nmf.activations, steps + more
        if steps >= settings.basis_steps:
            return nmf.basis
        after(nmf.basis, activations, steps)
