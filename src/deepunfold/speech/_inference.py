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
        activations = self._updates[0].run(mixture)
        for updates in self._updates[1:]:
            activations = updates.run(mixture[:, -updates.rows :], activations)
        models = np.empty((len(mixture), len(self._readouts), self.frontend.features), self._dtype)
        for source, (columns, readout) in enumerate(zip(self._columns, self._readouts, strict=True)):
            models[:, source] = activations[:, columns] @ readout
        models += _floor_of(mixture[:, -self.frontend.features :].mean(-1, keepdims=True))[..., None]
        models /= models.sum(1, keepdims=True)
        return models


class _Updates:
    """Some updates of activations with one basis (equation ``eq:nmf_updates``)."""

    def __init__(self, basis: Array, steps: int, model: Model) -> None:
        self.rows, self.components = basis.shape
        self.steps, self.sparsity, self.beta = steps, model.sparsity, model.beta
        self._push = basis.sum(0) + model.sparsity + basis.dtype.type(TINY)
        self._columns = basis.T
        scaled = np.concatenate([basis / self._push, np.ones((self.rows, 1), basis.dtype)], axis=1)
        self._parts = [_aligned(part.T) for part in np.array_split(scaled, -(-basis.nbytes // PART))]
        self._sums = basis.sum(1)  # the model of equal activations

    def run(self, mixture: Array, activations: Array | None = None) -> Array:
        """The updated activations (frames, components) of a mixture (frames, rows), or those from the start."""
        level, fresh = mixture.mean(-1, keepdims=True), activations is None
        if activations is None:
            activations = np.repeat(level, self.components, -1)
        if self.beta != 1:
            return self._other(mixture, activations)
        # One more component, all ones, stays at the floor and so adds it to the model.
        floor = _floor_of(level)
        current = np.concatenate([activations * self._push, floor], axis=1)
        model = level * self._sums + floor if fresh else np.empty(mixture.shape, mixture.dtype)
        if len(mixture) == 1:  # vectors, which take less time to call
            mixture, current, model = mixture[0], current[0], model[0]
        work, start = [], 0
        for part in self._parts:
            place = slice(start, start + part.shape[1])
            work.append((part, part.T, mixture[..., place], np.array(model[..., place]), np.empty_like(current)))
            start = place.stop
        found, pulls = current[..., :-1], [pull[..., :-1] for *_, pull in work]
        dot, divide, multiply = np.dot, np.divide, np.multiply
        for step in range(self.steps):
            for part, back, data, model, pull in work:
                if step or not fresh:
                    dot(current, part, out=model)
                divide(data, model, out=model)
                dot(model, back, out=pull)
            for other in pulls[1:]:
                np.add(pulls[0], other, out=pulls[0])
            multiply(found, pulls[0], out=found)
            work.reverse()
        result: Array = found.reshape(activations.shape) / self._push
        return result

    def _other(self, mixture: Array, activations: Array) -> Array:
        """For a beta for which the terms do not cancel as above."""
        beta, columns, floor = self.beta, self._columns, _floor_of(mixture.mean(-1, keepdims=True))
        exponent = 1 / (2 - beta) if beta < 1 else 1 if beta <= 2 else 1 / (beta - 1)
        data = mixture + floor if beta < 1 else mixture
        for _ in range(self.steps):
            model = activations @ columns + floor
            pull = (model ** (beta - 2) * data) @ columns.T
            push = model ** (beta - 1) @ columns.T + self.sparsity
            factor = pull / (push + TINY)
            activations = activations * (factor if exponent == 1 else (factor + TINY) ** exponent)
        return activations


def _floor_of(level: Array) -> Array:
    """What is added to the models of frames of this level: as in `deepunfold.nmf`, and 1 in silence."""
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
