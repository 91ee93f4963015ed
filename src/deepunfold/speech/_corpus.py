"""Folders of audio: the clips to train with, and sets of mixtures to evaluate on."""

import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from deepunfold.speech._audio import SUFFIXES, AudioError, File, Signal, open_audio, read

_SNR = re.compile(r"(m|-|)([0-9]+(?:\.[0-9]+)?)db", re.IGNORECASE)


@dataclass(frozen=True)
class Clip:
    """A file, or a part of one: ``frames`` samples from ``start`` on, at the rate of the file.

    ``name`` is the path below the folder that was listed, with ``@start`` if it is a part.
    """

    path: Path
    name: str
    rate: int
    start: int
    frames: int

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.frames / self.rate


class Clips(Sequence[Signal]):
    """The audio files in folders and all that is below these, sorted: ``clips[index]`` is (samples,) float32.

    Channels are averaged, rates become ``rate``. A file of more than ``longest`` seconds is cut into clips of equal
    length. What was decoded is kept, up to ``memory`` MB, the least recently used goes first; do not write into it.

    Args:
        places: folders, or files.
        rate: the rate of what is given, in samples a second.
        longest: of a clip, in seconds.
        memory: for decoded clips, in MB.
    """

    def __init__(self, *places: File, rate: int = 16000, longest: float = 60.0, memory: float = 512.0) -> None:
        if rate < 1 or longest <= 0 or memory < 0:
            raise ValueError(f"rate={rate} and longest={longest} must be positive, memory={memory} not negative")
        self.rate = rate
        self.places = tuple(Path(place) for place in places)
        self.clips = [clip for place in self.places for clip in _clips(place, longest)]
        self._limit = int(memory * 1e6)
        self._forget()

    def __len__(self) -> int:
        return len(self.clips)

    @overload
    def __getitem__(self, index: int) -> Signal: ...
    @overload
    def __getitem__(self, index: slice) -> list[Signal]: ...
    def __getitem__(self, index: int | slice) -> Signal | list[Signal]:
        """A clip, or several, decoded."""
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        place = range(len(self))[index]
        with self._lock:
            if place in self._decoded:
                self._decoded.move_to_end(place)
                return self._decoded[place]
        clip = self.clips[place]
        signal, _ = read(clip.path, self.rate, mono=True, start=clip.start, frames=clip.frames)
        signal.flags.writeable = False
        with self._lock:
            if signal.nbytes <= self._limit and place not in self._decoded:
                self._decoded[place] = signal
                self._held += signal.nbytes
            while self._held > self._limit:
                self._held -= self._decoded.popitem(last=False)[1].nbytes
        return signal

    @property
    def seconds(self) -> float:
        """The duration of all clips together."""
        return sum(clip.seconds for clip in self.clips)

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets: not the decoded clips."""
        return {name: value for name, value in vars(self).items() if name not in ("_decoded", "_held", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._decoded: OrderedDict[int, Signal] = OrderedDict()
        self._held = 0


@dataclass(frozen=True)
class Item:
    """One mixture of an evaluation set; ``reference`` is its target alone. What the set does not tell is None."""

    mixture: Path
    reference: Path | None
    snr: float | None
    name: str
    speaker: str | None


def audio_files(place: File) -> list[Path]:
    """The audio files in a folder and below, by their names, sorted; hidden ones are not listed. A file is itself."""
    root = Path(place)
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise AudioError(f"{root} is not there; give a folder with audio files")
    found = [path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    shown = [path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts)]
    if not shown:
        raise AudioError(f"{root} has no audio files, which end in {', '.join(SUFFIXES)}")
    return sorted(shown, key=lambda path: path.relative_to(root).parts)


def chime2(root: File) -> list[Item]:
    """The mixtures of a set that is laid out as CHiME-2.

    The mixtures are those files below ``root`` that are in a folder named ``isolated``, or below it. Any folder in a
    path of the form ``m6dB`` ... ``9dB`` is the SNR, the folder around a file is the speaker, and the reference is the
    file with the utterance's name in the folder ``reverberated`` beside ``isolated``: that of the same speaker if there
    are several.
    """
    items = []
    references: dict[Path, dict[str, list[Path]]] = {}
    for path in audio_files(root):
        folders = path.absolute().parent.parts
        if "isolated" not in folders:
            continue
        isolated = len(folders) - 1 - folders[::-1].index("isolated")
        clean = Path(*folders[:isolated], "reverberated")
        if clean not in references:
            references[clean] = _by_stem(clean)
        below = folders[isolated + 1 :]
        snrs = [snr for snr in map(_snr, below) if snr is not None]
        speaker = below[-1] if below and _snr(below[-1]) is None else None
        plain = [folder for folder in below if _snr(folder) is None]
        reference = _reference(path, references[clean].get(path.stem, []), plain)
        items.append(Item(path, reference, snrs[-1] if snrs else None, path.stem, speaker))
    if not items:
        raise AudioError(f"{root} has no audio in a folder named isolated; expected isolated/dev/m6dB/SPEAKER/NAME.wav")
    return items


def paired(noisy: File, clean: File) -> list[Item]:
    """The files of a folder, each with the file at the same place in another: the endings may differ."""
    references = {_place(path, clean): path for path in audio_files(clean)}
    items = []
    for path in audio_files(noisy):
        place = _place(path, noisy)
        if place not in references:
            raise AudioError(f"{path} has no counterpart {place.as_posix()} in {clean}")
        items.append(Item(path, references[place], None, place.as_posix(), place.parent.name or None))
    return items


def single(folder: File) -> list[Item]:
    """The files of a folder, of which no reference is known."""
    places = [(path, _place(path, folder)) for path in audio_files(folder)]
    return [Item(path, None, None, place.as_posix(), place.parent.name or None) for path, place in places]


def _clips(place: Path, longest: float) -> Iterator[Clip]:
    for path in audio_files(place):
        name = path.relative_to(place).as_posix() if path != place else path.name
        info = open_audio(path)
        parts = -(-info.frames // max(int(longest * info.rate), 1))
        edges = [info.frames * part // parts for part in range(parts + 1)]
        for start, end in itertools.pairwise(edges):
            yield Clip(path, name if parts == 1 else f"{name}@{start}", info.rate, start, end - start)


def _snr(folder: str) -> float | None:
    """-6.0 of ``m6dB``; None of what is no SNR."""
    found = _SNR.fullmatch(folder)
    return None if found is None else float(found[2]) * (-1 if found[1] else 1)


def _by_stem(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in audio_files(folder) if folder.is_dir() else []:
        found.setdefault(path.stem, []).append(path)
    return found


def _reference(path: Path, candidates: list[Path], folders: Sequence[str]) -> Path | None:
    """The candidate whose innermost folders agree with those of the mixture the furthest."""
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    agreeing = [_agreeing(candidate.parent.parts[::-1], folders[::-1]) for candidate in candidates]
    best = [candidate for candidate, depth in zip(candidates, agreeing, strict=True) if depth == max(agreeing)]
    if len(best) > 1:
        raise AudioError(f"{path} has several references: {best[0]} and {best[1]}; keep one of them")
    return best[0]


def _agreeing(one: Sequence[str], other: Sequence[str]) -> int:
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))


def _place(path: Path, root: File) -> Path:
    """Where a file is below a folder, without its ending."""
    return (path.relative_to(root) if path != Path(root) else Path(path.name)).with_suffix("")
