"""From a signal to short-time spectra and back (Section 5.1 of the paper), whole or in chunks.

The window is the square root of Hann's on both sides. What the overlapping windows add up to has the hop as its period;
the second window is divided by it, so that spectra that are left as they are give back the signal.
"""

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Frontend:
    """How a signal becomes frames.

    Shapes: a signal (samples,) has spectra (frames, features); (samples, channels) has (channels, frames, features).
    Precision is that of the signal. Frames are placed so that every sample lies in as many as any other: the first
    begin before the start, the last end after the end, where the signal is zero.

    Args:
        rate: samples per second.
        window: samples of a frame, and length of its Fourier transform.
        hop: samples from one frame to the next.
        features: F, how many bins of the transform are kept; on the way back the others are zero.
        context: T, how many frames a basis sees, the present one last.
    """

    rate: int = 16000
    window: int = 400
    hop: int = 160
    features: int = 200
    context: int = 9

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r} of a front end must be a whole number, at least 1")
        if self.hop >= self.window:
            raise ValueError(f"hop={self.hop} must be less than window={self.window}: frames overlap")
        if self.features > self.window // 2 + 1:
            raise ValueError(
                f"features={self.features} are too many: a window of {self.window} has {self.window // 2 + 1} bins"
            )

    @property
    def overlap(self) -> int:
        """How many samples a frame shares with the one before: so far before the start the first one begins."""
        return self.window - self.hop

    def count(self, length: int) -> int:
        """How many frames a signal of so many samples has."""
        return (length + self.overlap - 1) // self.hop + 1 if length else 0

    def analyse(self, signal: Array) -> Array:
        """The complex spectra of a whole signal."""
        analysis = Analysis(self)
        return np.concatenate([analysis.process(signal), analysis.flush()], axis=-2)

    def synthesise(self, spectra: Array, length: int) -> Array:
        """The signal of so many samples that spectra belong to."""
        signal = Synthesis(self).process(spectra)
        missing = length - len(signal)
        if missing > 0:
            raise ValueError(
                f"{spectra.shape[-2]} frames are too few for {length} samples; give {self.count(length)} frames"
            )
        return signal[:length]

    def in_context(self, magnitudes: Array, before: Array | None = None) -> Array:
        """Each frame after the T-1 before it, oldest first: (..., frames, F) to (..., frames, T * F).

        Before the first there is silence, or ``before`` (..., T-1, F). What `deepunfold.nmf.context` gives, as a view
        whose rows overlap.
        """
        *lead, count, features = magnitudes.shape
        if before is None:
            before = np.zeros((*lead, self.context - 1, features), magnitudes.dtype)
        if not count:
            return np.zeros((*lead, 0, self.context * features), magnitudes.dtype)
        flat = np.concatenate([before, magnitudes], axis=-2).reshape(*lead, -1)
        return _cut(flat, self.context * features, features, count)


class Analysis:
    """The spectra of a signal that comes in chunks: those of the whole signal, wherever it is cut."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._length, self._frames = 0, 0
        self._pending: Array | None = None  # (channels, samples) or (samples,), from the start of the next frame

    def process(self, signal: Array) -> Array:
        """The frames that are complete with this chunk, (samples,) or (samples, channels)."""
        if self._pending is None:
            self._pending = np.zeros((*signal.shape[1:], self._frontend.overlap), signal.dtype)
        self._length += len(signal)
        self._pending = np.concatenate([self._pending, signal.T], axis=-1)
        return self._spectra()

    def flush(self) -> Array:
        """The frames that begin before the end of the signal and end after it."""
        front, pending = self._frontend, self._pending
        if pending is None:
            raise ValueError("there is no signal: give at least one chunk, which may be empty, before flush()")
        left = front.count(self._length) - self._frames
        missing = (left - 1) * front.hop + front.window - pending.shape[-1] if left else 0
        self._pending = np.concatenate([pending, np.zeros((*pending.shape[:-1], missing), pending.dtype)], axis=-1)
        return self._spectra() if left else _no_frames(pending, front)

    def _spectra(self) -> Array:
        front, pending = self._frontend, self._pending
        assert pending is not None
        count = max((pending.shape[-1] - front.overlap) // front.hop, 0)
        if not count:
            return _no_frames(pending, front)
        windowed = _cut(pending, front.window, front.hop, count) * _windows(front, pending.dtype)[0]
        self._pending = pending[..., count * front.hop :].copy()
        self._frames += count
        spectra = np.fft.rfft(windowed)[..., : front.features]
        return spectra.astype(_complex(pending.dtype), copy=False)


class _OverlapAdd:
    """Frames that are added up where they overlap, as they come."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._early = frontend.overlap  # samples before the start that are still to be dropped
        self._tail: Array | None = None  # (..., segments - 1, hop): what the frames so far add to samples to come

    def _add(self, frames: Array) -> Array:
        """The samples (samples, ...) that no frame after these (..., frames, window) adds to."""
        hop, (*lead, count, window) = self._frontend.hop, frames.shape
        segments = -(-window // hop)
        if self._tail is None:
            self._tail = np.zeros((*lead, segments - 1, hop), frames.dtype)
        parts = np.zeros((*lead, count, segments * hop), frames.dtype)
        parts[..., :window] = frames
        parts = parts.reshape(*lead, count, segments, hop)
        total = np.zeros((*lead, count + segments - 1, hop), frames.dtype)
        total[..., : segments - 1, :] = self._tail
        for number in reversed(range(segments)):  # the oldest frame first, as if they came one by one
            total[..., number : number + count, :] += parts[..., number, :]
        self._tail = total[..., count:, :]
        return self._late(total[..., :count, :].reshape(*lead, count * hop).T)

    def flush(self) -> Array:
        """The samples that later frames would have added to, up to the end of the last frame."""
        if self._tail is None:
            raise ValueError("there are no frames: give at least one block, which may be empty, before flush()")
        return self._late(self._tail.reshape(*self._tail.shape[:-2], -1)[..., : self._frontend.overlap].T)

    def _late(self, samples: Array) -> Array:
        """Those that do not lie before the start."""
        early = min(self._early, len(samples))
        self._early -= early
        return samples[early:]


class Synthesis(_OverlapAdd):
    """The signal of spectra that come in blocks: that of all the spectra, wherever they are cut."""

    def process(self, spectra: Array) -> Array:
        """The samples that are complete with these spectra (..., frames, features), channels last."""
        front, real = self._frontend, spectra.real.dtype
        if not spectra.shape[-2]:
            return self._add(np.zeros((*spectra.shape[:-1], front.window), real))
        frames = np.fft.irfft(spectra, front.window).astype(real, copy=False)
        return self._add(frames * _windows(front, real)[1])


class Envelope(_OverlapAdd):
    """A gain for each frame as a gain for each sample: analysis and synthesis with no more than it in between."""

    def process(self, gains: Array) -> Array:
        """The gains of the samples that are complete with these frames (..., frames), channels last."""
        before, after = _windows(self._frontend, gains.dtype)
        return self._add(gains[..., None] * (before * after))


def _cut(row: Array, size: int, step: int, count: int) -> Array:
    """Pieces (..., count, size) of a row of numbers (..., length), each ``step`` after the one before, as a view."""
    if count == 1:  # the same in a tenth of the time, which counts in a stream
        return row[..., None, :size]
    return sliding_window_view(row, size, -1)[..., : count * step : step, :]


def _no_frames(pending: Array, front: Frontend) -> Array:
    return np.zeros((*pending.shape[:-1], 0, front.features), _complex(pending.dtype))


def _complex(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.complex64 if dtype == np.float32 else np.complex128)


@lru_cache
def _windows(front: Frontend, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """The window of the analysis and that of the synthesis."""
    hann = np.sin(np.pi * np.arange(front.window) / front.window) ** 2
    sums = np.array([hann[start :: front.hop].sum() for start in range(front.hop)])
    root = np.sqrt(hann)
    return root.astype(dtype), (root / np.resize(sums, front.window)).astype(dtype)
