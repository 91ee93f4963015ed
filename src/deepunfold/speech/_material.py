"""What a training draws from: the sources' files, a part of which is held out, and frames of mixtures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deepunfold.speech._audio import read
from deepunfold.speech._corpus import Clips, audio_files, chime2
from deepunfold.speech._frontend import Array, Frontend
from deepunfold.speech._mixing import Mixer, Mixture
from deepunfold.speech._settings import Settings
from deepunfold.speech._tracks import Track

FEWEST = 5
"""Files of a source of which some are held out; where there are fewer, they serve for both."""


class Material(NamedTuple):
    """Mixers of the two parts, and what they hold, for the record."""

    training: Mixer
    held_out: Mixer
    record: dict[str, Any]


def material(settings: Settings) -> Material:
    """The sources' files in two parts: to train with, and to choose the best update on."""
    parts: list[dict[str, Any]] = [{}, {}]
    record: dict[str, Any] = {}
    share = settings.held_out if settings.dev is None else 0.0
    rate = settings.frontend.rate
    for number, (name, places) in enumerate(settings.sources.items()):
        layers = [places] if number == 0 else _layers(places)
        split = [_split([path for place in layer for path in audio_files(place)], share) for layer in layers]
        for side, part in enumerate(parts):
            clips = [Clips(*sides[side], rate=rate) for sides in split]
            part[name] = clips[0] if number == 0 else Track(*clips)
        record[name] = _told(parts[0][name], parts[1][name])
    rooms = [path for place in settings.rooms for path in audio_files(place)]
    both = [Clips(*side, rate=rate) if side else None for side in _split(rooms, share)]
    if both[0] is not None:
        record["rooms"] = {"files": len(both[0].places)}
    training, held_out = (
        Mixer(part, room, snr=settings.snr, rate=rate, seconds=settings.seconds)
        for part, room in zip(parts, both, strict=True)
    )
    return Material(training, held_out, record)


def _layers(places: Sequence[str]) -> list[list[Path]]:
    """What lies beneath and, if there are folders of these names, the events on top of it; see `Track.of`."""
    roots = [Path(place) for place in places]
    beds = [root / "bed" if (root / "bed").is_dir() else root for root in roots]
    events = [root / "event" for root in roots if (root / "bed").is_dir() and (root / "event").is_dir()]
    return [beds, events] if events else [beds]


def _split(files: list[Path], share: float) -> tuple[list[Path], list[Path]]:
    """Without a share of the files, evenly spread, and that share; too few files serve for both."""
    if share == 0 or len(files) < FEWEST:
        return files, files
    count = max(round(share * len(files)), 1)
    chosen = {int((number + 0.5) * len(files) / count) for number in range(count)}
    return (
        [path for number, path in enumerate(files) if number not in chosen],
        [path for number, path in enumerate(files) if number in chosen],
    )


def _told(training: Clips | Track, held_out: Clips | Track) -> dict[str, Any]:
    own, other = (each.clips if isinstance(each, Track) else (each,) for each in (training, held_out))
    same = [clips.places for clips in own] == [clips.places for clips in other]
    return {
        "files": sum(len(clips.places) for clips in own),
        "seconds": round(sum(clips.seconds for clips in own)),
        "held out": 0 if same else sum(len(clips.places) for clips in other),
    }


class Spectra(NamedTuple):
    """A mixture (frames, F) and its sources (frames, n, F), complex."""

    mixture: Array
    sources: Array


def spectra(mixture: Mixture, frontend: Frontend) -> Spectra:
    """The short-time spectra of a mixture and its sources."""
    return Spectra(frontend.analyse(mixture.mixture), frontend.analyse(mixture.sources.T).swapaxes(0, 1))


def levelled(found: Spectra) -> Spectra:
    """The same, divided by the root of the RMS of all that is not the target.

    What a model does scales with the mixture. The squared error would mostly be that of the mixtures with the most
    noise, while SDR, a logarithm, counts all alike; this is half of the way.
    """
    level = np.sqrt(np.mean(np.abs(found.sources[:, 1:].sum(1)) ** 2))
    scale = level**-0.5 if level > 0 else level
    return Spectra(found.mixture * scale, found.sources * scale)


def targets(found: Spectra, kind: str) -> Array:
    """What the outputs should be, non-negative: magnitudes, or what of them is in phase with the mixture."""
    if kind == "magnitude":
        return np.abs(found.sources)
    mixture = found.mixture[:, None]
    size = np.abs(mixture)
    aligned = (found.sources * mixture.conj()).real / np.maximum(size, np.finfo(size.dtype).tiny)
    clipped: Array = np.clip(aligned, 0, size)
    return clipped


def dev_pairs(settings: Settings, held_out: Mixer, share: slice) -> list[tuple[Array, Array]]:
    """Mixtures and their targets, (samples,), to choose the best update on: this process's share of them."""
    if settings.dev is None:
        drawn = [held_out.draw((settings.seed, 3, index)) for index in range(settings.dev_mixtures)[share]]
        return [(each.mixture, each.sources[0]) for each in drawn]
    items = [item for item in chime2(settings.dev) if item.reference is not None]
    if not items:
        raise ValueError(f"{settings.dev} has no mixture with a reference")
    count = min(settings.dev_mixtures, len(items))
    chosen = [items[int((number + 0.5) * len(items) / count)] for number in range(count)][share]
    rate = settings.frontend.rate
    pairs = []
    for item in chosen:
        assert item.reference is not None
        pairs.append((read(item.mixture, rate, mono=True)[0], read(item.reference, rate, mono=True)[0]))
    return pairs
