"""Audio files: read in blocks, so that length does not matter, and written whole or not at all.

Samples are float32, full scale is -1 to 1. Everything that can be wrong with a file is an `AudioError` that names it.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import soundfile as sf

from deepunfold.speech._formats import SUFFIXES, AudioError, AudioInfo, File
from deepunfold.speech._resampling import Resampler, Signal, resample, resampled_length
from deepunfold.speech._writing import Writer, writer

__all__ = [
    "SUFFIXES",
    "AudioError",
    "AudioInfo",
    "File",
    "Resampler",
    "Signal",
    "Writer",
    "on_disk",
    "open_audio",
    "read",
    "read_blocks",
    "resample",
    "resampled_length",
    "writer",
]

RATES = (1_000, 1_000_000)
_CONTAINERS = frozenset(container for each in SUFFIXES.values() for container in each)
_LARGEST_BLOCK = 1 << 23
_LARGEST = 1e9
_UNKNOWN = 1 << 62
_MP3_SLACK = 2304
_SHORT = re.compile(r"^\s*(?:data|SSND|Data Size|riff|Riff size)\s*:\s*(\d+) \(should be (\d+)\)", re.MULTILINE)


class _Sequential(sf.SoundFile):  # type: ignore[misc]
    """A file that is read from one place on. After each block soundfile seeks to where it is, unless it thinks that it
    cannot; near the end of some compressed files that goes astray.
    """

    def seekable(self) -> bool:
        return False


def open_audio(path: File) -> AudioInfo:
    """What a file holds, by its header. A container is known by its content, not by the name of the file."""
    with _open(path) as sound:
        return _info(path, sound)


def read_blocks(path: File, block: int = 1 << 16, *, start: int = 0, frames: int | None = None) -> Iterator[Signal]:
    """The samples, (n, channels) with n at most ``block``, from ``start`` on, ``frames`` of them or all.

    Memory does not grow with the file. That a file is truncated or holds NaN is found when its reading gets there.
    """
    with _open(path) as sound:
        info = _info(path, sound)
        if block < 1 or not 0 <= start <= info.frames:
            raise ValueError(f"cannot read {path} in blocks of {block} from {start}; it has {info.frames} samples")
        end = info.frames if frames is None else min(start + frames, info.frames)
        size = min(block, max(_LARGEST_BLOCK // info.channels, 1))
        place = start
        try:
            if start:
                sound.seek(start)
            while place < end:
                samples = sound.read(min(size, end - place), dtype="float32", always_2d=True)
                if not len(samples):
                    break
                _require_numbers(path, samples, place, info.rate)
                place += len(samples)
                yield samples
        except (sf.SoundFileError, RuntimeError) as error:
            raise AudioError(f"{path} is damaged after {place / info.rate:.2f} s: {_reason(error)}") from error
    if end - place > (_MP3_SLACK if info.format == "MP3" else 0):
        raise AudioError(f"{path} ends after {place} of {info.frames} samples; it is truncated or damaged")


def read(
    path: File, rate: int | None = None, mono: bool = False, *, start: int = 0, frames: int | None = None
) -> tuple[Signal, int]:
    """The samples of a file, (samples, channels), and their rate, which is ``rate`` if that is given.

    With ``mono`` the mean of the channels, (samples,). ``start`` and ``frames`` choose a part, at the file's rate.
    """
    info = open_audio(path)
    resampler = Resampler(info.rate, rate or info.rate, 1 if mono else info.channels)
    parts = []
    for block in read_blocks(path, start=start, frames=frames):
        parts.append(resampler.process(block.mean(axis=1, keepdims=True) if mono else block))
    signal = np.concatenate([*parts, resampler.flush()])
    return (signal[:, 0] if mono else signal), rate or info.rate


@contextmanager
def on_disk(path: File) -> Iterator[Path]:
    """The file itself, or for ``-`` a temporary one with all that came over standard input: a pipe cannot be sought."""
    if os.fspath(path) != "-":
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="deepunfold-") as folder:
        copy = Path(folder) / "standard input"
        try:
            with copy.open("wb") as target:
                shutil.copyfileobj(sys.stdin.buffer, target)
        except OSError as error:
            raise AudioError(f"cannot read standard input: {error.strerror}") from error
        yield copy


def _open(path: File) -> _Sequential:
    """An open file; its header has been parsed, but may hold nonsense."""
    file = Path(path)
    try:
        if not file.is_file():
            raise AudioError(f"{path} is not a file" if file.exists() else f"{path} is not there")
        return _Sequential(file.absolute())
    except (sf.SoundFileError, OSError) as error:
        raise AudioError(f"{path} is not audio that can be read: {_reason(error)}") from error
    except TypeError as error:  # a .raw file
        raise AudioError(f"{path} is audio without a header; give a file that says how it is to be read") from error


def _info(path: File, sound: _Sequential) -> AudioInfo:
    """What an open file holds, checked."""
    frames = sound.frames if sound.frames < _UNKNOWN else _count(path)
    info = AudioInfo(sound.samplerate, sound.channels, frames, sound.format, sound.subtype)
    if info.format not in _CONTAINERS:
        raise AudioError(f"{path} is {info.format}, which is not read; give one of {', '.join(sorted(_CONTAINERS))}")
    if not RATES[0] <= info.rate <= RATES[1]:
        raise AudioError(f"{path} has {info.rate} samples a second; files with {RATES[0]} to {RATES[1]} can be read")
    if info.frames < 1:
        raise AudioError(f"{path} has no samples")
    for said, there in _SHORT.findall(sound.extra_info):
        # Recorders that write to a pipe give the largest number that there is, which means that they do not know.
        if int(there) + 8 < int(said) < 0x7FFF0000:
            raise AudioError(f"{path} is truncated: {there} of {said} bytes are there")
    return info


def _count(path: File) -> int:
    """The number of samples of a file that does not tell, as FLAC that came through a pipe: it is read to the end."""
    with _open(path) as sound:
        frames = 0
        try:
            while count := len(sound.read(1 << 13, dtype="float32")):
                frames += count
            return frames
        except (sf.SoundFileError, RuntimeError) as error:
            raise AudioError(f"{path} is damaged: {_reason(error)}") from error


def _require_numbers(path: File, samples: Signal, place: int, rate: int) -> None:
    wrong = ~(np.abs(samples) <= _LARGEST)  # NaN is not
    if wrong.any():
        first = int(np.argmax(wrong.any(axis=1)))
        value = samples[first][wrong[first]][0]
        raise AudioError(
            f"{path} has the sample {value:g} after {(place + first) / rate:.2f} s; "
            f"samples must be numbers up to {_LARGEST:g}, full scale is 1"
        )


def _reason(error: Exception) -> str:
    """What the library says, without its mark and its full stop."""
    text = getattr(error, "error_string", None) or str(error)
    return str(text).removeprefix("Error : ").strip(" .")
