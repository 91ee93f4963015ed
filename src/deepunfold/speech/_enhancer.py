"""The enhancer: noisy signals in, clean ones out, whole or as a stream, through one and the same path."""

import os
from collections.abc import Sequence
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from deepunfold.speech._flow import Flow, Weigh
from deepunfold.speech._frontend import Array
from deepunfold.speech._inference import BLOCK, Separator
from deepunfold.speech._model import Model

PRETRAINED = Path(__file__).with_name("pretrained.safetensors")

ABOVE = ("keep", "attenuate", "drop")

TOP = 8
"""What lies above the model's frequencies follows the mean mask of one in so many bins, the highest."""

FULL_SCALE = {np.dtype(np.int16): 2.0**15, np.dtype(np.int32): 2.0**31}


class Enhancer:
    """Takes the noise out of speech, or keeps whichever sources of a mixture are wanted.

    Args:
        model: the one to use; None is the one that comes with the package.
        strength: how much of the result is enhanced, from 0, the input, to 1.
        floor_db: the most that a bin is attenuated, in dB below 0; None is without limit.
        above: what becomes of all above the model's frequencies, 8 kHz: "keep", "attenuate" as much as the highest of
            them, or "drop".
        sources: names of those that are kept; the first of the model unless told.
    """

    def __init__(
        self,
        model: Model | None = None,
        *,
        strength: float = 1.0,
        floor_db: float | None = None,
        above: str = "attenuate",
        sources: str | Sequence[str] | None = None,
    ) -> None:
        if not 0 <= strength <= 1:
            raise ValueError(f"strength={strength} must be a number from 0, the input as it is, to 1")
        if floor_db is not None and not floor_db <= 0:
            raise ValueError(f"floor_db={floor_db} must be 0 or less, such as -20: the most that is taken away")
        if above not in ABOVE:
            raise ValueError(f"above={above!r} is unknown; use one of {', '.join(ABOVE)}")
        self.model = _pretrained() if model is None else model
        self.strength, self.floor_db, self.above = float(strength), floor_db, above
        names = list(self.model.sources)
        wanted = names[:1] if sources is None else [sources] if isinstance(sources, str) else list(sources)
        if not wanted or not set(wanted) <= set(names):
            raise ValueError(f"sources={sources!r} must be among those of the model, {', '.join(names)}")
        self.sources = tuple(name for name in names if name in wanted)
        self._kept = [names.index(name) for name in self.sources]
        self._separator = Separator(self.model)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **settings: Any) -> "Enhancer":
        """With the model in a file; the settings are those of the constructor."""
        return cls(Model.load(path), **settings)

    def enhance(self, signal: Array, rate: int) -> Array:
        """The enhanced signal, of the same shape, type and length; each channel by itself.

        A signal is (samples,) or (samples, channels), of float32, float64, int16 or int32, at any rate.
        """
        return self._run(signal, rate, self._weigh, 1)[0]

    def separate(self, signal: Array, rate: int) -> dict[str, Array]:
        """Each source by its name, as `enhance` gives signals; strength and the like have no effect. They sum to it."""
        parts = self._run(signal, rate, _shares, len(self.model.sources))
        return dict(zip(self.model.sources, parts, strict=True))

    def _run(self, signal: Array, rate: int, weigh: Weigh, outputs: int) -> list[Array]:
        channels = _channels_of(signal)
        flow = Flow(self._separator, weigh, _checked_rate(rate), channels, outputs)
        result = np.empty((outputs, len(signal), channels), signal.dtype)
        size = max(4 * BLOCK * self.model.frontend.hop * rate // self.model.frontend.rate, 1)
        done = 0
        for start in range(0, len(signal) + size, size):
            chunk = signal[start : start + size]
            ready = flow.process(_to_float(chunk, channels)) if len(chunk) else flow.flush()
            result[:, done : done + len(ready)] = _from_float(ready, signal.dtype).swapaxes(0, 1)
            done += len(ready)
        return [part.reshape(signal.shape) for part in result]

    def _weigh(self, masks: Array) -> tuple[Array, Array]:
        """From masks (channels, frames, sources, F), what the one output is made with; see `Flow`."""
        mask = masks[:, None, :, self._kept].sum(-2)
        if self.floor_db is not None:
            mask = np.maximum(mask, np.float32(10 ** (self.floor_db / 20)))
        above = _top(mask) if self.above == "attenuate" else np.full(mask.shape[:-1], self.above == "keep", np.float32)
        dry = 1 - self.strength
        return dry + self.strength * mask, dry + self.strength * above


class Stream:
    """An enhancer at work on one signal that comes in chunks: microphone blocks, or a file of any length.

    Concatenated, what `process` and `flush` return is what `Enhancer.enhance` gives for the whole signal, within
    rounding, and of its length.

    Args:
        enhancer: with its settings; they are those at the time when the stream begins.
        rate: samples per second.
        channels: how many signals are side by side in each chunk.
    """

    def __init__(self, enhancer: Enhancer, rate: int, channels: int = 1) -> None:
        if type(channels) is not int or channels < 1:
            raise ValueError(f"channels={channels!r} must be a whole number, at least 1")
        self.enhancer, self.rate, self.channels = enhancer, _checked_rate(rate), channels
        self.reset()

    def reset(self) -> None:
        """Begin another signal; what has not come out is lost."""
        self._flow = Flow(self.enhancer._separator, self.enhancer._weigh, self.rate, self.channels)
        self._shape: tuple[int, ...] = (-1,) if self.channels == 1 else (-1, self.channels)
        self._dtype = np.dtype(np.float32)

    @property
    def latency(self) -> int:
        """How many samples the output can be behind the input at most, until `flush`."""
        return self._flow.latency

    def process(self, chunk: Array) -> Array:
        """The samples that are ready after this chunk, possibly none, in its shape and type.

        A chunk is (samples,) or (samples, channels), of any length, 0 included.
        """
        if _channels_of(chunk) != self.channels:
            raise ValueError(f"a chunk of shape {chunk.shape} does not have the stream's {self.channels} channels")
        ready = self._flow.process(_to_float(chunk, self.channels))
        self._shape, self._dtype = (-1, *chunk.shape[1:]), chunk.dtype
        return self._shaped(ready)

    def flush(self) -> Array:
        """The rest, at the end of the signal; after it, another one can begin."""
        rest = self._shaped(self._flow.flush())
        self.reset()
        return rest

    def _shaped(self, ready: Array) -> Array:
        return _from_float(ready, self._dtype).reshape(len(ready), *self._shape[1:])


def _pretrained() -> Model:
    if not PRETRAINED.is_file():
        raise FileNotFoundError(
            f"this installation has no pretrained model ({PRETRAINED.name}); train one, and use Enhancer.load(path)"
        )
    return Model.load(PRETRAINED)


def _shares(masks: Array) -> tuple[Array, Array]:
    """All sources as they are, and what lies above the model's frequencies in their proportion."""
    masks = masks.swapaxes(1, 2)
    return masks, _top(masks)


def _top(masks: Array) -> Array:
    """The mean of the highest bins (..., F)."""
    mean: Array = masks[..., -max(masks.shape[-1] // TOP, 1) :].mean(-1)
    return mean


def _checked_rate(rate: int) -> int:
    try:
        checked = index(rate)
    except TypeError:
        checked = 0
    if checked < 1:
        raise ValueError(f"rate={rate!r} must be a whole number of samples per second")
    return checked


def _channels_of(signal: Array) -> int:
    if signal.ndim not in (1, 2) or signal.shape[1:] == (0,):
        raise ValueError(f"a signal of shape {signal.shape}: give (samples,) or (samples, channels)")
    return 1 if signal.ndim == 1 else int(signal.shape[1])


def _to_float(signal: Array, channels: int) -> Array:
    """In floating point, (samples, channels), full scale at 1."""
    signal = signal.reshape(len(signal), channels)
    if signal.dtype in FULL_SCALE:
        return (signal / FULL_SCALE[signal.dtype]).astype(np.float32 if signal.dtype == np.int16 else np.float64)
    if signal.dtype not in (np.float32, np.float64):
        raise ValueError(f"a signal of {signal.dtype}: give float32, float64, int16 or int32")
    if not np.isfinite(signal).all():
        raise ValueError("the signal has samples that are NaN or infinite; find out why, or set them to zero")
    return signal


def _from_float(signal: Array, dtype: np.dtype[Any]) -> Array:
    """The other way; whole numbers are rounded, and limited to full scale."""
    if dtype not in FULL_SCALE:
        return signal
    scale = FULL_SCALE[dtype]
    return np.clip(np.rint(signal * scale), -scale, scale - 1).astype(dtype)
