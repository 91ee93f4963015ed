"""What a model did with a signal: each layer's estimate, what its bases explain and when, and how they sound."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from deepunfold.speech._audio import open_audio, read
from deepunfold.speech._enhancer import Enhancer
from deepunfold.speech._frontend import Array, Frontend
from deepunfold.speech._inference import FLOOR, SILENT, TINY
from deepunfold.speech._model import Model

LOUDNESS, FADE = 0.08, 0.02
"""Of the sound of a basis: its root mean square, and the seconds in which it begins and ends."""


@dataclass(eq=False)
class Explanation:
    """A signal on its way through the layers of a model.

    Args:
        model: the one that is explained.
        signal: (samples,) at the model's rate.
        start: where it begins in its recording, in seconds.
        sources: the signal of each source, as the enhancer gives it.
        magnitudes: of the signal (frames, F).
        states: the activations (K + 1, frames, R) before the first update and after each.
    """

    model: Model
    signal: Array
    start: float
    sources: dict[str, Array]
    magnitudes: Array
    states: Array

    @property
    def target(self) -> str:
        """The first source, which an enhancer keeps."""
        return next(iter(self.model.sources))

    @property
    def seconds(self) -> float:
        """The duration."""
        return len(self.signal) / self.model.frontend.rate

    @property
    def columns(self) -> dict[str, slice]:
        """Where each source's columns of a basis are."""
        stops = np.cumsum([0, *self.model.sources.values()]).tolist()
        return {name: slice(stops[i], stops[i + 1]) for i, name in enumerate(self.model.sources)}

    @property
    def readout(self) -> Array:
        """The basis of the reconstruction (F, R)."""
        return self.model.bases[-1] if self.model.bases else self.model.context_basis[-self.model.frontend.features :]

    def masks(self, layer: int) -> Array:
        """The share of each source (frames, sources, F) if the network ended after so many updates (``eq:wiener``)."""
        state = self.states[layer]
        models = np.stack([state[:, part] @ self.readout[:, part].T for part in self.columns.values()], axis=1)
        models += _floor(self.magnitudes)[..., None]
        models /= models.sum(1, keepdims=True)
        return models

    def estimate(self, layer: int) -> Array:
        """The magnitudes of the target (frames, F) after so many updates, by the basis of the reconstruction."""
        found: Array = self.masks(layer)[:, 0] * self.magnitudes
        return found

    @cached_property
    def distances(self) -> Array:
        """How far the estimate after each of 0 to K updates is from the last, relative to the last."""
        last = self.estimate(self.model.layers)
        size = np.linalg.norm(last)
        return np.array([np.linalg.norm(self.estimate(k) - last) / (size or 1) for k in range(len(self.states))])

    def layers(self) -> list[int]:
        """Some numbers of updates to look at: the first few, the last with context, and all."""
        depth, trained = self.model.layers, self.model.trained
        return sorted({0, min(1, depth), min(3, depth), min(10, depth), depth - max(trained - 1, 0), depth})

    def firing(self, name: str) -> Array:
        """How much each basis of a source adds to the frames (frames, R): its column's sum times its activation."""
        part = self.columns[name]
        found: Array = self.states[-1][:, part] * self.readout[:, part].sum(0)
        return found

    def by_pitch(self, name: str) -> Array:
        """The numbers of a source's bases, from the lowest mean frequency to the highest."""
        basis = self.readout[:, self.columns[name]]
        return np.argsort(np.arange(len(basis)) @ basis / np.maximum(basis.sum(0), np.finfo(np.float32).tiny))

    def strongest(self, name: str, count: int) -> list[int]:
        """The numbers of those of a source's bases that explain most, the first most of all."""
        total = self.firing(name).sum(0)
        return [int(number) for number in np.argsort(-total, kind="stable")[:count] if total[number] > 0]

    def patch(self, name: str, number: int) -> Array:
        """The spectra (T, F) that a basis looks for, oldest first."""
        column = self.model.context_basis[:, self.columns[name]][:, number]
        return column.reshape(self.model.frontend.context, -1)

    def sound(self, name: str, number: int, seconds: float = 0.6) -> Array:
        """How a basis sounds: its spectrum of the reconstruction, held for a while."""
        return held(self.readout[:, self.columns[name]][:, number], self.model.frontend, seconds)


def explain(model: Model, signal: Array, start: float = 0.0) -> Explanation:
    """What the model does with a signal (samples,) of its rate, each layer kept."""
    if signal.ndim != 1 or not len(signal):
        raise ValueError(f"a signal of shape {signal.shape}: give (samples,), at least one")
    front, own = model.frontend, model.bases
    magnitudes = np.abs(front.analyse(signal.astype(np.float32, copy=False)))
    rows = front.in_context(magnitudes)
    states = [np.repeat(rows.mean(-1, keepdims=True), model.context_basis.shape[1], -1)]
    for basis in [model.context_basis] * (model.layers - max(len(own) - 1, 0)) + own[:-1]:
        states.append(_updated(states[-1], rows[:, -len(basis) :], basis, model))
    sources = Enhancer(model).separate(signal, front.rate)
    return Explanation(model, signal, start, sources, magnitudes, np.stack(states))


def explain_file(path: Path, model: Path | None = None, start: float = 0.0, seconds: float = 10.0) -> Explanation:
    """What the model in a file, or the one shipped, does with a part of a recording, the mean of its channels."""
    info = open_audio(path)
    first = round(start * info.rate)
    if first >= info.frames:
        raise ValueError(f"{path} has {info.seconds:.2f} s; start={start:g} must be less")
    chosen = Enhancer().model if model is None else Model.load(model)
    signal, _ = read(path, chosen.frontend.rate, mono=True, start=first, frames=max(round(seconds * info.rate), 1))
    if not len(signal):
        raise ValueError(f"{path} is too short from {start:g} s on: there is no sample at the model's rate")
    return explain(chosen, signal, start)


def _updated(activations: Array, mixture: Array, basis: Array, model: Model) -> Array:
    """One update of activations (frames, R) for frames (frames, rows) (``eq:nmf_updates``), as it is written."""
    beta, floor = model.beta, _floor(mixture)
    exponent = 1 / (2 - beta) if beta < 1 else 1 if beta <= 2 else 1 / (beta - 1)
    data = mixture + floor if beta < 1 else mixture
    models = activations @ basis.T + floor
    pull = (models ** (beta - 2) * data) @ basis
    push = models ** (beta - 1) @ basis + model.sparsity
    factor = pull / (push + TINY)
    updated: Array = activations * (factor if exponent == 1 else (factor + TINY) ** exponent)
    return updated


def _floor(frames: Array) -> Array:
    """What is added to the model of each frame, so that silence is no division by zero."""
    level = frames.mean(-1, keepdims=True)
    floor: Array = np.where(level > SILENT, FLOOR * level, level.dtype.type(1))
    return floor


def held(spectrum: Array, frontend: Frontend, seconds: float = 0.6, seed: int = 0) -> Array:
    """A sound with this spectrum (F,) all along, its phases drawn for each frame, faded in and out."""
    length = round(seconds * frontend.rate)
    phases = np.random.default_rng(seed).uniform(0, 2 * np.pi, (frontend.count(length), len(spectrum)))
    signal = frontend.synthesise((spectrum * np.exp(1j * phases)).astype(np.complex64), length)
    level = float(np.sqrt(np.mean(signal**2)))
    near = np.minimum(np.arange(length) + 0.5, length - np.arange(length) - 0.5) / (FADE * frontend.rate)
    found: Array = (signal * (LOUDNESS / level if level else 0.0) * np.minimum(near, 1)).astype(np.float32)
    return np.clip(found, -1, 1)
