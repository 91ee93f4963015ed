"""Writing audio: under a temporary name that becomes the file's when all is well."""

import os
import shutil
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
from numpy.typing import NDArray

from deepunfold.speech._formats import SUFFIXES, AudioError, AudioInfo, File

_NEAREST = {
    "PCM_S8": ("PCM_U8",),
    "PCM_U8": ("PCM_S8",),
    "PCM_32": ("PCM_24",),
    "FLOAT": ("PCM_24",),
    "DOUBLE": ("FLOAT", "PCM_24"),
    "ALAC_20": ("PCM_24",),
    "ALAC_24": ("PCM_24",),
    "ALAC_32": ("PCM_32", "PCM_24"),
    "DWVW_24": ("PCM_24",),
    "MPEG_LAYER_I": ("MPEG_LAYER_III",),
    "MPEG_LAYER_II": ("MPEG_LAYER_III",),
    "OPUS": ("VORBIS",),
}
"""What takes the place of an encoding that cannot be written; PCM_16 and the container's usual one come after these."""

_BITS = {"PCM_S8": 8, "PCM_U8": 8, "PCM_16": 16, "PCM_24": 24}
_BYTES = {"PCM_16": 2, "PCM_24": 3, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8}
_UNBOUNDED = ("FLOAT", "DOUBLE", "VORBIS", "OPUS", "MPEG_LAYER_III")
_WAV_LIMIT = 2**32 - 2**16


class Writer:
    """What `writer` gives.

    ``info`` is what is being written, ``frames`` how many samples of each channel are, and ``clipped`` how many
    samples were beyond full scale and became full scale, which happens where the encoding has integers.
    """

    def __init__(self, target: File, sound: sf.SoundFile) -> None:
        self._target = target
        self._sound = sound
        self.info = AudioInfo(sound.samplerate, sound.channels, 0, sound.format, sound.subtype)
        self.frames = 0
        self.clipped = 0

    def write(self, block: NDArray[Any]) -> None:
        """Append samples, (n, channels) or, for one channel, (n,)."""
        samples = np.asarray(block, dtype=np.float32)
        if samples.ndim not in (1, 2) or (samples.shape[1] if samples.ndim == 2 else 1) != self.info.channels:
            raise ValueError(f"cannot write the shape {samples.shape}; give (samples, {self.info.channels})")
        if not np.isfinite(samples).all():
            raise AudioError(f"cannot write {self._target}: what is to be written has samples that are not numbers")
        if self.info.subtype not in _UNBOUNDED:
            self.clipped += int(np.count_nonzero(np.abs(samples) > 1))
            samples = np.clip(samples, -1, 1)
        if self.info.subtype in _BITS:  # libsndfile would round down
            steps = np.float32(2 ** (_BITS[self.info.subtype] - 1))
            samples = np.minimum(np.rint(samples * steps), steps - 1) / steps
        try:
            self._sound.write(np.ascontiguousarray(samples))
        except (sf.SoundFileError, RuntimeError, AssertionError) as error:  # fewer bytes went out than were given
            raise AudioError(f"cannot write {self._target}: {_why(error)}") from error
        self.frames += len(samples)

    def _close(self) -> None:
        try:
            self._sound.close()
        except sf.SoundFileError as error:
            raise AudioError(f"cannot write {self._target}: {_why(error)}") from error


@contextmanager
def writer(path: File, like: AudioInfo) -> Iterator[Writer]:
    """A file to write in blocks: ``sink.write(block)`` with what this context manager gives.

    The file is there, whole, once the body has ended; if anything fails, what was there before is untouched and nothing
    is left behind. The rate and the number of channels are those of ``like``. So are container and encoding, unless the
    name of the file asks for another container; an encoding that cannot be written becomes the nearest one, with a
    warning if the container stays. A WAV file of more than 4 GB becomes RF64. ``-`` is standard output, in WAV.
    """
    if os.fspath(path) == "-":
        with tempfile.TemporaryDirectory(prefix="deepunfold-") as folder:
            copy = Path(folder) / "standard output.wav"
            with writer(copy, replace(like, format="WAV")) as sink:
                yield sink
            try:
                with copy.open("rb") as source:
                    shutil.copyfileobj(source, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            except OSError as error:
                raise AudioError(f"cannot write standard output: {error.strerror}") from error
        return
    target = Path(path)
    if not target.parent.is_dir():
        raise AudioError(f"cannot write {target}: the folder {target.parent} does not exist")
    temporary = target.with_name(f".deepunfold-{uuid.uuid4().hex}.tmp")
    try:
        sink = _begin(temporary, target, like)
        try:
            yield sink
        finally:
            sink._close()
        _finish(temporary, target, sink)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _begin(temporary: Path, target: Path, like: AudioInfo) -> Writer:
    container = _container(target, like)
    try:
        if target.is_dir():
            raise AudioError(f"cannot write {target}: it is a folder")
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise AudioError(f"cannot write {target}: {error.strerror}") from error
    if target.suffix.lower() == ".opus":
        like = replace(like, subtype="OPUS")
    wanted = (like.subtype, *_NEAREST.get(like.subtype, ()), "PCM_16", sf.default_subtype(container))
    # The encoder of ALAC is left out: libsndfile 1.2 crashes in it where the disk is full.
    possible = [each for each in wanted if sf.check_format(container, each) and not each.startswith("ALAC")]
    why = "no encoding fits"
    for subtype in dict.fromkeys(possible):
        try:
            sound = sf.SoundFile(temporary.absolute(), "w", like.rate, like.channels, subtype, format=container)
        except sf.SoundFileError as error:
            why = _why(error)
            continue
        if subtype != like.subtype and container == like.format:
            warnings.warn(f"{like.subtype} cannot be written in {container}; it becomes {subtype}", stacklevel=4)
        return Writer(target, sound)
    raise AudioError(
        f"cannot write {target}: {container} with {like.channels} channels at {like.rate} Hz: {why}; "
        "choose another container by the name of the file, such as .wav"
    )


def _finish(temporary: Path, target: Path, sink: Writer) -> None:
    """Rename the file, after a look whether all of it has arrived: not every encoder reports a full disk."""
    try:
        arrived = sf.info(temporary.absolute()).frames if sink.frames else 0
        if arrived < sink.frames:
            raise AudioError(f"cannot write {target}: {arrived} of {sink.frames} samples arrived; is the disk full?")
        temporary.replace(target)
    except (sf.SoundFileError, OSError) as error:
        raise AudioError(f"cannot write {target}: {_why(error)}") from error


def _container(target: Path, like: AudioInfo) -> str:
    named = SUFFIXES.get(target.suffix.lower(), (like.format,))
    container = like.format if like.format in named else named[0]
    size = like.frames * like.channels * _BYTES.get(like.subtype, 1)
    return "RF64" if container in ("WAV", "WAVEX") and size > _WAV_LIMIT else container


def _why(error: Exception) -> str:
    text = str(getattr(error, "error_string", None) or getattr(error, "strerror", None) or error).strip(" .")
    return "not all of it could be written; is the disk full?" if text in ("", "System error") else text
