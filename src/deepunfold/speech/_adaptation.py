"""A model for a noise of one's own: the columns of one source learnt again, all others as they are."""

from collections.abc import Sequence

import numpy as np
import torch

from deepunfold.nmf import SparseNMF
from deepunfold.speech._audio import File
from deepunfold.speech._corpus import Clips
from deepunfold.speech._frontend import Array
from deepunfold.speech._model import Model


def adapted(
    model: Model,
    places: Sequence[File],
    *,
    name: str | None = None,
    steps: int = 40,
    frames: int = 6000,
    seed: int = 0,
) -> Model:
    """A model whose source ``name``, the last unless told, sounds as the recordings in files and folders do.

    The columns of the context basis are learnt by sparse NMF. It starts from the present ones, so that each column
    becomes what is most like it. The trained bases take its last rows, at the level that training gave to those before.
    """
    names = list(model.sources)
    name = names[-1] if name is None else name
    if name not in names:
        raise ValueError(f"the model has no source {name!r}; there are {', '.join(names)}")
    start = sum(list(model.sources.values())[: names.index(name)])
    columns = slice(start, start + model.sources[name])
    data, seconds = _frames(model, places, frames, seed)
    old = model.context_basis[:, columns]
    nmf = SparseNMF(old.shape[1], sparsity=model.sparsity, beta=model.beta, start=_positive(old))
    nmf.fit(torch.from_numpy(data), steps=steps, progress=False)
    assert nmf.basis is not None
    new = nmf.basis.numpy()
    features = model.frontend.features
    bases = [
        _with(basis, columns, _follow(basis[:, columns], old[-features:], new[-features:])) for basis in model.bases
    ]
    record = {**model.record, "adapted": {"source": name, "seconds": round(seconds), "steps": steps, "seed": seed}}
    return Model(
        model.frontend,
        dict(model.sources),
        model.layers,
        _with(model.context_basis, columns, new),
        bases,
        model.sparsity,
        model.beta,
        record,
    )


def _frames(model: Model, places: Sequence[File], count: int, seed: int) -> tuple[Array, float]:
    """Frames in context, at most so many, and how long the recordings are."""
    front = model.frontend
    clips = Clips(*places, rate=front.rate)
    found = []
    for index in np.random.default_rng((seed, 0)).permutation(len(clips)):
        found.append(front.in_context(np.abs(front.analyse(clips[int(index)]))))
        if sum(map(len, found)) >= 4 * count:
            break
    total = sum(map(len, found))
    chosen = np.sort(np.random.default_rng((seed, 1)).permutation(total)[:count])
    edges = np.cumsum([0, *map(len, found)])
    parts = [
        part[chosen[(chosen >= low) & (chosen < high)] - low]
        for part, low, high in zip(found, edges[:-1], edges[1:], strict=True)
    ]
    frames = np.concatenate(parts)
    if not frames.any():
        raise ValueError(f"{', '.join(map(str, places))}: there is nothing but silence to learn from")
    return frames, clips.seconds


def _positive(basis: Array) -> torch.Tensor:
    """Without zeros, which could not grow."""
    return torch.from_numpy(np.maximum(basis, 1e-3 * basis.mean()))


def _follow(basis: Array, old: Array, new: Array) -> Array:
    """The new columns with the level that training gave to those in their place."""
    level = np.linalg.norm(basis, axis=0) / np.maximum(np.linalg.norm(old, axis=0), 1e-12)
    followed: Array = new * np.clip(level, 0.1, 10.0)
    return followed


def _with(basis: Array, columns: slice, values: Array) -> Array:
    changed = basis.copy()
    changed[:, columns] = values
    return changed
