"""Sparse recovery on synthetic data: a random dictionary, and codes with few entries that are not zero.

The setting of Chen, Liu, Wang and Yin (2018): a dictionary D of independent Gaussian entries with columns of unit norm,
codes z of independent entries, zero but for a share of them that are standard Gaussian, and x = D z without noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

DICTIONARY, VALIDATION, TEST, TRAINING = range(4)
"""The streams of random numbers of a problem; epoch e of the training draws from stream TRAINING + e."""


def nmse_db(code: Tensor, true_code: Tensor) -> Tensor:
    """10 log10 of the squared error over the squared norm of the true codes, both summed over the batch."""
    error = (code - true_code).square().sum()
    return 10 * torch.log10(error / true_code.square().sum())


@dataclass(frozen=True)
class SparseProblem:
    """Pairs (x, z) with x = D z; everything is drawn from the seed.

    Shapes: dictionary (measurements, atoms), x (count, measurements), z (count, atoms).
    """

    measurements: int = 250
    atoms: int = 500
    density: float = 0.1
    validation_size: int = 1000
    test_size: int = 4000
    seed: int = 0
    dictionary: Tensor = field(init=False, repr=False)
    validation: tuple[Tensor, Tensor] = field(init=False, repr=False)
    test: tuple[Tensor, Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        entries = torch.randn(self.measurements, self.atoms, generator=self._stream(DICTIONARY))
        object.__setattr__(self, "dictionary", entries / entries.norm(dim=0))
        object.__setattr__(self, "validation", self.draw(self.validation_size, self._stream(VALIDATION)))
        object.__setattr__(self, "test", self.draw(self.test_size, self._stream(TEST)))

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Fresh pairs (x, z)."""
        chosen = torch.rand(count, self.atoms, generator=generator) < self.density
        code = chosen * torch.randn(count, self.atoms, generator=generator)
        return code @ self.dictionary.mT, code

    def batches(self, epoch: int, steps: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The training data of an epoch: never seen before, and the same again for the same epoch."""
        generator = self._stream(TRAINING + epoch)
        return (self.draw(size, generator) for _ in range(steps))

    def _stream(self, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(1_000_000 * self.seed + number)
