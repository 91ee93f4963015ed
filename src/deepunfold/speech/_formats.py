"""What an audio file can be, and the error when it is not."""

import os
from dataclasses import dataclass

File = str | os.PathLike[str]
SUFFIXES: dict[str, tuple[str, ...]] = {
    ".wav": ("WAV", "WAVEX", "RF64", "NIST"),
    ".flac": ("FLAC",),
    ".ogg": ("OGG",),
    ".oga": ("OGG",),
    ".opus": ("OGG",),
    ".mp3": ("MP3",),
    ".aiff": ("AIFF",),
    ".aif": ("AIFF",),
    ".aifc": ("AIFF",),
    ".au": ("AU",),
    ".snd": ("AU",),
    ".caf": ("CAF",),
    ".w64": ("W64",),
    ".rf64": ("RF64",),
    ".sph": ("NIST",),
}
"""Which containers go by which names, the usual one first."""


class AudioError(ValueError):
    """A file is not audio, is damaged, holds what cannot be used, or cannot be written."""


@dataclass(frozen=True)
class AudioInfo:
    """What a file holds: ``format`` is the container, such as WAV, and ``subtype`` the encoding, such as PCM_16.

    ``frames`` is the number of samples of each channel.
    """

    rate: int
    channels: int
    frames: int
    format: str
    subtype: str

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.frames / self.rate
