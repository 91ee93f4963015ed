"""What a model computes, in numpy: `deepunfold.nmf.separate` without torch, for files and for single frames.

The update for beta = 1, with push = W^T 1 + sparsity, is H <- H * (W^T (M / (W H))) / push. With columns divided by
their push, and activations multiplied by it, it is H <- H * (W^T (M / (W H))): one array serves both products, and
nothing else depends on it.

Many frames at once take the time of the matrix products. A single frame takes that of reading the basis, twice in each
update. Therefore the rows are taken in parts that fit into a processor's second cache: what a part gives to the
activations is computed while it is still there, and the next update begins with the part that came last.
"""

from itertools import pairwise

import numpy as np

from deepunfold.speech._frontend import Array
from deepunfold.speech._model import Model

FLOOR, SILENT, TINY = 1e-12, 1e-18, 1e-30
"""As in `deepunfold.nmf`: what is added to models, relative to the level, the level of silence, and what to 0 / 0."""

BLOCK = 256
"""Frames at once: enough for the products to be efficient, few enough for the processor's caches."""

FEW = 6
"""Up to so many frames it is faster to take them one by one."""

PART = 800_000
"""Bytes of a basis that are used together: less than the second cache of a processor."""


class Separator:
    """A model's masks for mixtures of any number of frames. It keeps nothing from one call to the next."""

    def __init__(self, model: Model, dtype: type[np.floating] = np.float32) -> None:
        self.frontend, self.names = model.frontend, tuple(model.sources)
        self._dtype = np.dtype(dtype)
        own = [basis.astype(dtype) for basis in model.bases]
        wide = model.context_basis.astype(dtype)
        first = model.layers - len(own) + 1 if own else model.layers
        self._updates = [_Updates(wide, first, model), *(_Updates(basis, 1, model) for basis in own[:-1])]
        last = own[-1] if own else wide[-self.frontend.features :]
        stops = [0, *np.cumsum(list(model.sources.values()))]
        self._columns = [slice(start, stop) for start, stop in pairwise(stops)]
        self._readouts = [np.ascontiguousarray(last[:, columns].T) for columns in self._columns]

    def separate(self, magnitudes: Array, before: Array | None = None) -> Array:
        """The magnitudes of each source (..., frames, sources, F); they sum to those of the mixture."""
        sources: Array = self.masks(magnitudes, before) * magnitudes.astype(self._dtype, copy=False)[..., None, :]
        return sources

    def masks(self, magnitudes: Array, before: Array | None = None) -> Array:
        """The share of each source in each bin (..., frames, sources, F), by equation ``eq:wiener``; they sum to one.

        Magnitudes are (frames, F) or (channels, frames, F); ``before`` are those of the T-1 frames before the first,
        silence unless they are given.
        """
        rows = self.frontend.in_context(magnitudes.astype(self._dtype, copy=False), before)
        *lead, count, _ = rows.shape
        result = np.empty((*lead, count, len(self.names), self.frontend.features), self._dtype)
        size = 1 if count <= FEW else BLOCK
        for channel in np.ndindex(*lead):
            for start in range(0, count, size):
                place = slice(start, start + size)
                result[channel][place] = self._masks(rows[channel][place])
        return result

    def _masks(self, mixture: Array) -> Array:
        """Those of a block of frames in context (frames, T * F)."""
        activations = np.repeat(mixture.mean(-1, keepdims=True), self._updates[0].components, -1)
        for updates in self._updates:
            activations = updates.run(mixture[:, -updates.rows :], activations)
        models = np.empty((len(mixture), len(self._readouts), self.frontend.features), self._dtype)
        for source, (columns, readout) in enumerate(zip(self._columns, self._readouts, strict=True)):
            models[:, source] = activations[:, columns] @ readout
        models += _floor(mixture[:, -self.frontend.features :])[..., None]
        models /= models.sum(1, keepdims=True)
        return models


class _Updates:
    """Some updates of activations with one basis (equation ``eq:nmf_updates``)."""

    def __init__(self, basis: Array, steps: int, model: Model) -> None:
        self.rows, self.components = basis.shape
        self.steps, self.sparsity, self.beta = steps, model.sparsity, model.beta
        self._push = basis.sum(0) + model.sparsity + basis.dtype.type(TINY)
        self._columns = basis.T
        scaled = np.array_split(basis / self._push, -(-basis.nbytes // PART))
        self._parts = [_aligned(part.T) for part in scaled]

    def run(self, mixture: Array, activations: Array) -> Array:
        """The updated activations (frames, components) of a mixture (frames, rows)."""
        if self.beta != 1:
            return self._other(mixture, activations)
        current = activations * self._push
        if len(mixture) == 1:  # vectors, which take less time to call
            mixture, current = mixture[0], current[0]
        floor, work, start = _floor(mixture), [], 0
        for part in self._parts:
            data = mixture[..., start : start + part.shape[1]]
            work.append((part, data, np.empty(data.shape, data.dtype), np.empty_like(current)))
            start += part.shape[1]
        for _ in range(self.steps):
            for part, data, model, pull in work:
                np.dot(current, part, out=model)
                np.add(model, floor, out=model)
                np.divide(data, model, out=model)
                np.dot(model, part.T, out=pull)
            total = work[0][3]
            for *_, pull in work[1:]:
                np.add(total, pull, out=total)
            np.multiply(current, total, out=current)
            work.reverse()
        result: Array = current.reshape(activations.shape) / self._push
        return result

    def _other(self, mixture: Array, activations: Array) -> Array:
        """For a beta for which the terms do not cancel as above."""
        beta, columns, floor = self.beta, self._columns, _floor(mixture)
        exponent = 1 / (2 - beta) if beta < 1 else 1 if beta <= 2 else 1 / (beta - 1)
        data = mixture + floor if beta < 1 else mixture
        for _ in range(self.steps):
            model = activations @ columns + floor
            pull = (model ** (beta - 2) * data) @ columns.T
            push = model ** (beta - 1) @ columns.T + self.sparsity
            factor = pull / (push + TINY)
            activations = activations * (factor if exponent == 1 else (factor + TINY) ** exponent)
        return activations


def _floor(mixture: Array) -> Array:
    """What is added to the models of each frame: as in `deepunfold.nmf`, and 1 in silence."""
    level = mixture.mean(-1, keepdims=True)
    floor: Array = np.where(level > SILENT, FLOOR * level, level.dtype.type(1))
    return floor


def _aligned(array: Array) -> Array:
    """A copy that begins at a line of the cache."""
    line = 64
    memory = np.empty(array.nbytes + line, np.uint8)
    start = -memory.ctypes.data % line
    result: Array = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result
