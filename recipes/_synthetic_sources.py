"""Two kinds of sound as magnitude spectra, made of numbers alone: plucked notes, and bursts of coloured noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 80


@dataclass(frozen=True)
class Sources:
    """Magnitudes of two sources, (frames, 2, bins); their sum is the mixture."""

    magnitudes: Tensor

    @property
    def mixture(self) -> Tensor:
        """The sum of the sources, (frames, bins)."""
        return self.magnitudes.sum(1)


def draw(frames: int, seed: int) -> Sources:
    """Fresh sources; what is drawn with another seed has other notes at other times, of the same instruments."""
    generator = torch.Generator().manual_seed(seed)
    return Sources(torch.stack([_notes(frames, generator), _bursts(frames, generator)], 1))


def _notes(frames: int, generator: torch.Generator) -> Tensor:
    """Harmonic spectra of eight pitches that begin at random times and decay."""
    bins = torch.arange(BINS, dtype=torch.float32)
    spectra = torch.zeros(8, BINS)
    for number in range(8):
        pitch = 4.0 * 2 ** (number / 6)
        for harmonic in range(1, 16):
            spectra[number] += torch.exp(-((bins - pitch * harmonic) ** 2) / 0.7) / harmonic**0.8
    return _played(frames, 8, 0.015, 25.0, generator) @ spectra


def _bursts(frames: int, generator: torch.Generator) -> Tensor:
    """Broad spectra of six colours, rough in every frame, in short bursts."""
    bins = torch.arange(BINS, dtype=torch.float32)
    centres = torch.linspace(2, BINS - 10, 6)
    spectra = torch.exp(-((bins - centres[:, None]) ** 2) / (2 * 8.0**2))
    rough = torch.randn(2, frames, BINS, generator=generator).square().sum(0).sqrt() / 1.25
    return 1.5 * (_played(frames, 6, 0.03, 6.0, generator) @ spectra) * rough


def _played(frames: int, count: int, rate: float, decay: float, generator: torch.Generator) -> Tensor:
    """Loudness of each spectrum over time: onsets of random strength, each decaying exponentially."""
    onsets = (torch.rand(frames, count, generator=generator) < rate) * torch.rand(frames, count, generator=generator)
    loudness, level = torch.zeros(frames, count), torch.zeros(count)
    for frame in range(frames):
        level = level * 2.718 ** (-1 / decay) + onsets[frame]
        loudness[frame] = level
    return loudness
