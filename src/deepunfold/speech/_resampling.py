"""Changing the sampling rate, of arrays and of streams, with the same numbers for both."""

from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

Signal = NDArray[np.float32]


class Resampler:
    """A stream of samples, (n, channels) or, if there is one channel, (n,), at another rate.

    What `process` and `flush` give, one after the other, is aligned with the input, without delay, has the length
    `resampled_length`, and does not depend on how the input was cut. The filter looks ahead: up to `latency` samples of
    the output are still to come while the input runs.
    """

    def __init__(self, source_rate: int, target_rate: int, channels: int = 1) -> None:
        if min(source_rate, target_rate, channels) < 1:
            raise ValueError(
                f"cannot resample {channels} channels from {source_rate} to {target_rate} Hz; all must be positive"
            )
        self.source_rate = source_rate
        self.target_rate = target_rate
        self.channels = channels
        self.reset()

    def reset(self) -> None:
        """Begin another stream."""
        same = self.source_rate == self.target_rate
        self._stream = None if same else soxr.ResampleStream(self.source_rate, self.target_rate, self.channels)
        self._taken = self._given = 0
        self._flat = False

    @property
    def latency(self) -> int:
        """How many samples of the output can be missing at most before the stream has ended."""
        return _latency(self.source_rate, self.target_rate)

    def process(self, chunk: NDArray[Any]) -> Signal:
        """The samples that are ready after some more of the input, which can be none."""
        if chunk.ndim not in (1, 2) or (chunk.shape[1] if chunk.ndim == 2 else 1) != self.channels:
            raise ValueError(f"a chunk has the shape {chunk.shape}; give (samples, {self.channels})")
        self._flat = chunk.ndim == 1
        self._taken += len(chunk)
        return self._next(chunk, last=False)

    def flush(self) -> Signal:
        """The rest, after the end of the input; then the object is as new."""
        rest = self._next(np.zeros((0, self.channels), np.float32), last=True)
        self.reset()
        return rest

    def _next(self, chunk: NDArray[Any], last: bool) -> Signal:
        block = np.ascontiguousarray(chunk.reshape(len(chunk), self.channels), dtype=np.float32)
        if self._stream is not None and self._taken:
            block = self._stream.resample_chunk(block, last=last)
        if last:
            missing = resampled_length(self._taken, self.source_rate, self.target_rate) - self._given
            block = np.concatenate([block, np.zeros((max(missing - len(block), 0), self.channels), np.float32)])
            block = block[: max(missing, 0)]
        self._given += len(block)
        return block[:, 0] if self._flat else block


def resample(signal: NDArray[Any], source_rate: int, target_rate: int) -> Signal:
    """A signal (n,) or (n, channels) at another rate, as `Resampler` gives it."""
    resampler = Resampler(source_rate, target_rate, signal.shape[1] if signal.ndim == 2 else 1)
    return np.concatenate([resampler.process(signal), resampler.flush()])


def resampled_length(samples: int, source_rate: int, target_rate: int) -> int:
    """Samples * target / source, rounded; a half is rounded up."""
    return (2 * samples * target_rate + source_rate) // (2 * source_rate)


_LATENCIES: dict[tuple[int, int], int] = {}


def _latency(source_rate: int, target_rate: int) -> int:
    """Found by running a second of silence through the filter, sample by sample where it matters."""
    if source_rate == target_rate:
        return 0
    if (source_rate, target_rate) not in _LATENCIES:
        stream = soxr.ResampleStream(source_rate, target_rate, 1)
        silence = np.zeros(max(source_rate // 2000, 1), np.float32)
        given, worst = 0, 0
        for step in range(1, source_rate // len(silence) + 1):
            given += len(stream.resample_chunk(silence))
            due = -(-step * len(silence) * target_rate // source_rate)
            worst = max(worst, due - given)
        _LATENCIES[source_rate, target_rate] = worst
    return _LATENCIES[source_rate, target_rate]
