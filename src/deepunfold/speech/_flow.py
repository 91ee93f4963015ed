"""The way of a signal through a model, in chunks of any size, at any rate: the one path of files and of streams.

With the spectra X of a signal x at the model's rate, the weight v of each bin and a gain g for each frame, the result
is

    y = g x + synthesis((v - g) X).

At the model's rate this is synthesis(v X). At a higher one, the first term is taken at the signal's own rate and only
the second one is resampled: what the model's frames do not hold, such as all above half its rate, is multiplied by g.
Where v = g = 1, y is x and not merely close to it.
"""

from collections.abc import Callable

import numpy as np

from deepunfold.speech._frontend import Analysis, Array, Envelope, Synthesis
from deepunfold.speech._inference import Separator
from deepunfold.speech._resampling import Resampler

Weigh = Callable[[Array], tuple[Array, Array]]
"""From masks (channels, frames, sources, F) to weights v (channels, outputs, frames, F) and gains g without the F."""


class Flow:
    """One signal (samples, channels) on its way; what comes out is (samples, outputs, channels)."""

    def __init__(self, separator: Separator, weigh: Weigh, rate: int, channels: int, outputs: int = 1) -> None:
        front = separator.frontend
        self._separator, self._weigh = separator, weigh
        self._rate, self._own_rate, self._outputs = rate, front.rate, outputs
        self._down = Resampler(rate, front.rate, channels)
        self._up = Resampler(front.rate, rate, channels * outputs)
        self._analysis, self._synthesis, self._envelope = Analysis(front), Synthesis(front), Envelope(front)
        self._before = np.zeros((channels, front.context - 1, front.features), np.float32)
        self._dry = np.zeros((0, channels), np.float32)
        self._wet = np.zeros((0, outputs, channels), np.float32)
        self._gains = np.zeros((0, outputs, channels), np.float32)  # minus 1, at the model's rate
        self._given, self._dropped, self._heard = 0, 0, 0

    @property
    def latency(self) -> int:
        """How many samples the output can be behind the input at most."""
        front = self._separator.frontend
        if self._rate == self._own_rate:
            return front.window - 1
        own = self._down.latency + front.window
        margin = self._rate // 1000 + 1  # the latencies of the filters were found in steps of half a millisecond
        return -(-own * self._rate // self._own_rate) + self._up.latency + margin

    def process(self, chunk: Array) -> Array:
        """The samples that are ready after some more of the signal."""
        self._dry = np.concatenate([self._dry.astype(chunk.dtype, copy=False), chunk])
        self._advance(self._low(self._down.process(chunk)))
        return self._ready()

    def flush(self) -> Array:
        """The rest, so that as many have come out as have gone in."""
        rest = self._down.flush()
        if not self._heard + len(rest):  # too short for a sample at the model's rate
            rest = np.zeros((1, rest.shape[1]), rest.dtype)
        self._advance(self._low(rest))
        self._advance(self._analysis.flush())
        self._wet = np.concatenate([self._wet, self._high(self._synthesis.flush()), self._shaped(self._up.flush())])
        missing = max(len(self._dry) - len(self._wet), 0)
        self._wet = np.concatenate([self._wet, np.zeros((missing, *self._wet.shape[1:]), np.float32)])
        self._gains = np.concatenate([self._gains, self._envelope.flush()])
        self._gains = np.concatenate([self._gains, self._gains[-1:], self._gains[-1:]])
        return self._ready()

    def _low(self, signal: Array) -> Array:
        """The spectra that are complete with some more of the signal at the model's rate."""
        self._heard += len(signal)
        return self._analysis.process(signal)

    def _high(self, signal: Array) -> Array:
        """The samples that are ready at the signal's rate, from those at the model's (samples, outputs, channels)."""
        return self._shaped(self._up.process(signal.reshape(len(signal), self._up.channels)))

    def _shaped(self, signal: Array) -> Array:
        return signal.reshape(len(signal), *self._wet.shape[1:])

    def _advance(self, spectra: Array) -> None:
        """Take spectra (channels, frames, F) through the model."""
        if not spectra.shape[1]:
            return
        magnitudes = np.abs(spectra)
        weights, gains = self._weigh(self._separator.masks(magnitudes, self._before))
        self._before = np.concatenate([self._before, magnitudes], axis=1)[:, magnitudes.shape[1] :]
        wet = self._synthesis.process((weights - gains[..., None]) * spectra[:, None])
        self._wet = np.concatenate([self._wet, self._high(wet)])
        self._gains = np.concatenate([self._gains, self._envelope.process(gains - 1)])

    def _ready(self) -> Array:
        """The samples of which everything is known."""
        same = self._rate == self._own_rate
        known = self._dropped + len(self._gains)  # at the model's rate
        reach = known if same else max((known - 1) * self._rate - 1, -1) // self._own_rate + 1
        count = max(min(len(self._dry), len(self._wet), reach - self._given), 0)
        result: Array = self._dry[:count, None] * (1 + self._course(count)) + self._wet[:count]
        self._given += count
        self._dry, self._wet = self._dry[count:], self._wet[count:]
        drop = min(self._given * self._own_rate // self._rate - self._dropped, len(self._gains))
        self._gains, self._dropped = self._gains[drop:], self._dropped + drop
        return result.astype(self._dry.dtype, copy=False)

    def _course(self, count: int) -> Array:
        """The gains of the next samples, minus 1: between two samples of the model's rate, on the line."""
        if self._rate == self._own_rate:
            return self._gains[:count]
        places = np.arange(self._given, self._given + count, dtype=np.int64) * self._own_rate
        left = places // self._rate - self._dropped
        share = ((places % self._rate) / self._rate).astype(np.float32)[:, None, None]
        course: Array = self._gains[left] * (1 - share) + self._gains[left + 1] * share
        return course
