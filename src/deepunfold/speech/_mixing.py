"""Mixtures of sources: a target in a room, and the others at a given level beside it.

Made as the development mixtures of the open corpus were. A mixture is a function of its seed alone: neither those drawn
before nor the process matters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepunfold.speech._audio import AudioError, File, Signal
from deepunfold.speech._corpus import Clips
from deepunfold.speech._tracks import SILENT, Samples, Track, convolve, rms

Seed = int | Sequence[int]
Material = File | Sequence[File] | Clips | Track

_ATTEMPTS = 50
_PAUSE = 0.1  # a segment with less than this share of its clip's RMS is a pause
_BALANCE_DB = 5.0


@dataclass(frozen=True)
class Mixture:
    """``mixture`` (samples,) is the sum of ``sources`` (n, samples), which go by ``names``; the first is the target.

    ``snr`` is that of the target against all others, in dB, over the whole mixture. ``record`` names what was drawn.
    """

    mixture: Signal
    sources: Signal
    names: tuple[str, ...]
    snr: float
    record: dict[str, Any]


@dataclass(frozen=True)
class Target:
    """The target as it is in a mixture, (samples,), and what was drawn for it: ``clip`` is an index."""

    image: Samples
    clip: int
    record: dict[str, Any]


class Mixer:
    """Draws mixtures.

    Args:
        sources: for each name folders of audio, or `Clips`. The first is the target: an utterance, or a segment of one.
            Each of the others is a `Track` that is laid from its clips.
        rooms: folders with impulse responses, one of which the target is convolved with; its length stays.
        snr: the range, in dB, that an SNR is drawn from, uniformly.
        rate: of all signals, in samples a second.
        seconds: at most how long a mixture is; a longer utterance gives a random segment. None: whole utterances.
        level: RMS of the target, or a range that it is drawn from, uniformly in dB.
        peak: a mixture that goes beyond this is scaled down as a whole.
    """

    def __init__(
        self,
        sources: Mapping[str, Material],
        rooms: File | Sequence[File] | Clips | None = None,
        *,
        snr: tuple[float, float] = (-6.0, 9.0),
        rate: int = 16000,
        seconds: float | None = None,
        level: float | tuple[float, float] = 0.05,
        peak: float = 0.95,
    ) -> None:
        levels = (level, level) if isinstance(level, int | float) else level
        _check(sources, snr, seconds, levels, peak)
        target, *others = sources.values()
        self.names = tuple(sources)
        self.rate = rate
        self.target_clips = _clips(target, rate)
        self.tracks = tuple(other if isinstance(other, Track) else _track(other, rate) for other in others)
        self.rooms = None if rooms is None else _clips(rooms, rate)
        _check_rates(rate, self.target_clips, self.rooms, *(clips for each in self.tracks for clips in each.clips))
        self._snr = snr
        self._samples = None if seconds is None else max(round(seconds * rate), 1)
        self._levels = levels
        self._peak = peak

    def draw(self, seed: Seed, *, clip: int | None = None, snr: float | None = None) -> Mixture:
        """The mixture of a seed, which can be several numbers, as in ``(seed, index)``.

        The target's clip and the SNR are drawn unless they are given; what else is drawn does not depend on them.
        """
        own, other = np.random.SeedSequence(_entropy(seed)).spawn(2)
        generator = np.random.default_rng(own)
        drawn = float(generator.uniform(*self._snr))
        target = self._target(generator, clip)
        others, record = self.draw_others(other, len(target.image))
        return mix(
            self.names,
            target,
            others,
            drawn if snr is None else snr,
            peak=self._peak,
            record={**target.record, "others": record},
        )

    def draw_target(self, seed: Seed, *, clip: int | None = None) -> Target:
        """The target alone, at its level."""
        return self._target(np.random.default_rng(_entropy(seed)), clip)

    def draw_others(self, seed: Seed | np.random.SeedSequence, samples: int) -> tuple[Samples, dict[str, Any]]:
        """The other sources, (n - 1, samples), each of about unit RMS, and the names of their clips.

        Where there are several, their levels differ by up to 10 dB.
        """
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(_entropy(seed))
        parts, record = [], {}
        for name, track, own in zip(self.names[1:], self.tracks, sequence.spawn(len(self.tracks)), strict=True):
            generator = np.random.default_rng(own)
            part, record[name] = _audible(track, generator, samples, name)
            gain = 10 ** (generator.uniform(-_BALANCE_DB, _BALANCE_DB) / 20) if len(self.tracks) > 1 else 1.0
            parts.append(gain * part)
        return np.stack(parts), record

    def _target(self, generator: np.random.Generator, clip: int | None) -> Target:
        level = np.exp(generator.uniform(*np.log(self._levels)))
        room = None if self.rooms is None else int(generator.integers(len(self.rooms)))
        for _ in range(_ATTEMPTS):
            drawn = int(generator.integers(len(self.target_clips)))
            index = drawn if clip is None else clip
            start, end = self._segment(index, generator.random())
            dry = self.target_clips[index]
            if rms(dry[start:end]) > max(_PAUSE * rms(dry), SILENT):
                break
        else:
            raise AudioError(f"{self.names[0]} is silent, as in {self.target_clips.clips[index].path}; remove it")
        image = self._image(dry, start, end, room)
        record = {
            "clip": self.target_clips.clips[index].name,
            "start": start,
            "room": None if self.rooms is None or room is None else self.rooms.clips[room].name,
        }
        return Target(image * (level / rms(image)), index, record)

    def _segment(self, index: int, place: float) -> tuple[int, int]:
        """Where a segment of a clip begins and ends; ``place`` is from 0 to 1."""
        length = len(self.target_clips[index])
        samples = length if self._samples is None else min(self._samples, length)
        start = int(place * (length - samples + 1))
        return start, start + samples

    def _image(self, dry: Signal, start: int, end: int, room: int | None) -> Samples:
        """A segment as it sounds in a room, with the reverberation of what was before it."""
        if self.rooms is None or room is None:
            return dry[start:end].astype(np.float64)
        response = self.rooms[room]
        if rms(response) <= SILENT:
            raise AudioError(f"{self.rooms.clips[room].path} is silent; it is no impulse response")
        before = max(start - len(response) + 1, 0)
        return convolve(dry[before:end], response)[start - before : end - before]


def mix(
    names: Sequence[str], target: Target, others: Samples, snr: float, *, peak: float, record: dict[str, Any]
) -> Mixture:
    """The target with the others, (n, samples), scaled together to the SNR."""
    gain = rms(target.image) / rms(others.sum(axis=0)) * 10 ** (-snr / 20)
    sources = np.concatenate([target.image[None], gain * others])
    largest = float(np.abs(sources.sum(axis=0)).max())
    scale = min(1.0, peak / largest)
    scaled = (scale * sources).astype(np.float32)
    return Mixture(scaled.sum(axis=0), scaled, tuple(names), snr, {**record, "scale": scale})


def _audible(
    track: Track, generator: np.random.Generator, samples: int, name: str
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    for _ in range(_ATTEMPTS):
        part, record = track.draw(generator, samples)
        if rms(part) > SILENT:
            return part, record
    raise AudioError(f"{name} is silent, as in {track.bed.places[0]}; it cannot be brought to a level")


def _entropy(seed: Seed) -> list[int]:
    numbers = [seed] if isinstance(seed, int | np.integer) else [int(each) for each in seed]
    if not numbers or min(numbers) < 0:
        raise ValueError(f"seed={seed} must be a number from 0 on, or several of these")
    return [len(numbers), *(int(number) for number in numbers)]  # without their number, (1,) would be (1, 0)


def _clips(material: Any, rate: int) -> Clips:
    return material if isinstance(material, Clips) else Clips(*_places(material), rate=rate)


def _track(material: Any, rate: int) -> Track:
    return Track(material) if isinstance(material, Clips) else Track.of(_places(material), rate)


def _places(material: Any) -> Sequence[File]:
    return material if isinstance(material, list | tuple) else [material]


def _check(
    sources: Mapping[str, Material],
    snr: tuple[float, float],
    seconds: float | None,
    levels: tuple[float, float],
    peak: float,
) -> None:
    if len(sources) < 2:
        raise ValueError(f"there are the sources {list(sources)}; a mixture needs at least two, the target first")
    if not -100 <= snr[0] <= snr[1] <= 100:
        raise ValueError(f"snr={snr} must be a range in dB, the lower end first, from -100 to 100")
    if seconds is not None and not 0 < seconds < np.inf:
        raise ValueError(f"seconds={seconds} must be positive, or None for whole utterances")
    if not 0 < levels[0] <= levels[1] or not peak > 0:
        raise ValueError(f"level={levels} must be a positive RMS, or a range of it, and peak={peak} positive")


def _check_rates(rate: int, *clips: Clips | None) -> None:
    for each in clips:
        if each is not None and each.rate != rate:
            raise ValueError(f"clips of {each.places} are at {each.rate} Hz, the mixer is at {rate}; give one rate")


def named_places(named: Mapping[str, Sequence[File]], others: Sequence[str]) -> dict[str, list[File]]:
    """The sources of a command line: those that have an option of their own, then those given as NAME=DIR."""
    sources: dict[str, list[File]] = {name: list(places) for name, places in named.items() if places}
    for each in others:
        name, sign, place = each.partition("=")
        if not (name and sign and place):
            raise ValueError(f"source {each!r} must be NAME=DIR, such as music=songs/train")
        sources.setdefault(name, []).append(place)
    return sources
