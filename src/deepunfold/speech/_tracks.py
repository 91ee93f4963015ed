"""Endless tracks of noise, or of anything else, laid from clips."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepunfold.speech._audio import File
from deepunfold.speech._corpus import Clips

Samples = NDArray[np.float64]
SILENT = 1e-7
"""The RMS below which a signal is silence: it cannot be brought to a level."""

_FADE = 0.05
_BED_GAIN = 0.7
_CHANGE = 0.35
_EVENT_GAINS = (0.3, 2.0)
_EVENT_EVERY = 4.0


@dataclass(frozen=True)
class Track:
    """What a track is made of: a bed that never ends and, where there are such clips, events on top of it."""

    bed: Clips
    events: Clips | None = None

    @classmethod
    def of(cls, places: Sequence[File], rate: int) -> "Track":
        """A track of the audio in folders. Folders ``bed`` and ``event`` in one of them are taken for what they say."""
        roots = [Path(place) for place in places]
        beds = [root / "bed" if (root / "bed").is_dir() else root for root in roots]
        events = [root / "event" for root in roots if (root / "bed").is_dir() and (root / "event").is_dir()]
        return cls(Clips(*beds, rate=rate), Clips(*events, rate=rate) if events else None)

    @property
    def clips(self) -> tuple[Clips, ...]:
        """All that it is made of."""
        return (self.bed,) if self.events is None else (self.bed, self.events)

    def draw(self, generator: np.random.Generator, samples: int) -> tuple[Samples, dict[str, Any]]:
        """A track (samples,), and the names of its clips.

        Bed clips of unit RMS, times 0.7, follow each other with cross-fades of 50 ms; at each join another clip follows
        with probability 0.35, else the same one again. The first begins somewhere. One event of unit RMS, times 0.3 to
        2, begins every four seconds on average.
        """
        track, bed = self._bed(generator, samples)
        record: dict[str, Any] = {"bed": bed}
        if self.events is not None:
            record["events"] = self._add_events(generator, track)
        return track, record

    def _bed(self, generator: np.random.Generator, samples: int) -> tuple[Samples, list[str]]:
        track, names = np.zeros(samples), []
        index = int(generator.integers(len(self.bed)))
        clip = _unit(self.bed[index])
        clip = clip[int(generator.integers(len(clip))) :]
        fade, end = 0, 0  # of the join before the clip: its length, and where it ends
        while True:
            names.append(self.bed.clips[index].name)
            changed = generator.random() < _CHANGE
            index = int(generator.integers(len(self.bed))) if changed else index
            following = _unit(self.bed[index])
            next_fade = min(int(_FADE * self.bed.rate), len(clip) // 2, len(following) // 2)
            start = end - fade
            _add(track, start, _BED_GAIN * clip * _ramps(len(clip), fade, next_fade))
            end = start + len(clip)
            if end - next_fade >= samples:
                return track, names
            clip, fade = following, next_fade

    def _add_events(self, generator: np.random.Generator, track: Samples) -> list[str]:
        assert self.events is not None
        names = []
        for _ in range(generator.poisson(len(track) / self.events.rate / _EVENT_EVERY)):
            index = int(generator.integers(len(self.events)))
            gain, start = generator.uniform(*_EVENT_GAINS), int(generator.integers(len(track)))
            _add(track, start, gain * _unit(self.events[index]))
            names.append(self.events.clips[index].name)
        return names


def rms(signal: NDArray[Any]) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(signal, dtype=np.float64)))) if len(signal) else 0.0


def convolve(signal: NDArray[Any], response: NDArray[Any]) -> Samples:
    """The full linear convolution, by FFT."""
    length = len(signal) + len(response) - 1
    size = next(_smooth(length))
    product = np.fft.rfft(signal.astype(np.float64), size) * np.fft.rfft(response.astype(np.float64), size)
    return np.fft.irfft(product, size)[:length]


def _unit(clip: NDArray[Any]) -> Samples:
    """A clip of unit RMS; silence stays silence."""
    level = rms(clip)
    return clip.astype(np.float64) / (level if level > SILENT else np.inf)


def _ramps(length: int, rise: int, fall: int) -> Samples:
    """One, but for ramps at both ends under which the power of two unrelated signals stays."""
    gain = np.ones(length)
    gain[:rise] = np.sin(np.pi / 2 * (np.arange(rise) + 0.5) / max(rise, 1))
    gain[length - fall :] *= np.cos(np.pi / 2 * (np.arange(fall) + 0.5) / max(fall, 1))
    return gain


def _add(track: Samples, start: int, part: Samples) -> None:
    part = part[: max(len(track) - start, 0)]
    track[start : start + len(part)] += part


def _smooth(least: int) -> Iterator[int]:
    """Sizes from ``least`` on that have no prime factor beyond 5, for which the FFT is fast."""
    size = least
    while True:
        rest = size
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            yield size
        size += 1
