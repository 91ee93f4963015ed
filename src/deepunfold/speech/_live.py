"""From the microphone to the loudspeaker: an enhancer that a sound device calls for each block."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepunfold.speech._enhancer import Enhancer, Stream
from deepunfold.speech._extras import extra
from deepunfold.speech._frontend import Array

WATCH = 0.5
"""Seconds between two looks at the counts."""


@dataclass
class Counts:
    """Of a run: blocks, those that took longer than they last, those with a gap that the device tells of; seconds."""

    blocks: int = 0
    missed: int = 0
    interrupted: int = 0
    worst: float = 0.0
    total: float = 0.0

    def __str__(self) -> str:
        mean = self.total / self.blocks if self.blocks else 0.0
        return (
            f"{self.blocks} blocks, {self.missed} missed deadlines, {self.interrupted} gaps; "
            f"{1e3 * mean:.2f} ms per block, {1e3 * self.worst:.2f} ms at most"
        )


class Live:
    """What a device calls with blocks of input and output, (frames, channels), as `sounddevice.Stream` does.

    The output is the enhanced input, `delay` samples later; with ``bypass``, which may be set at any time, the input
    as late as that, so that switching does not shift the sound. It fades from one to the other within a block.

    Args:
        enhancer: with its settings.
        rate: samples per second of the device.
        channels: of the input, and as many of the output.
        bypass: whether to begin with the input as it is.
    """

    def __init__(self, enhancer: Enhancer, rate: int, channels: int = 1, bypass: bool = False) -> None:
        self.rate, self.channels, self.bypass = rate, channels, bypass
        self.counts, self.done = Counts(), threading.Event()
        self.error: Exception | None = None
        self._stream = Stream(enhancer, rate, channels)
        self._stream.process(_silence(self.delay + rate // 10, channels))  # what is slow the first time is done now
        self._stream.reset()
        self._dry = self._wet = _silence(self.delay, channels)
        self._share = 0.0 if bypass else 1.0  # of the enhanced signal

    @property
    def delay(self) -> int:
        """How many samples the output is behind the input."""
        return self._stream.latency

    def __call__(self, given: Array, wanted: Array, frames: int, clock: object, status: object) -> None:
        """Fill the block that is wanted. It runs in the device's thread: an error ends the run, and is kept."""
        begun = time.perf_counter()
        try:
            wanted[...] = self._next(np.nan_to_num(given.astype(np.float32), posinf=0.0, neginf=0.0))
        except Exception as error:  # it would be lost in the device's thread
            wanted[...] = 0
            self.error = error
            self.stop()
        took, counts = time.perf_counter() - begun, self.counts
        counts.blocks += 1
        counts.missed += took > frames / self.rate
        counts.interrupted += bool(status)
        counts.worst, counts.total = max(counts.worst, took), counts.total + took

    def _next(self, block: Array) -> Array:
        """As many samples as come in."""
        count = len(block)
        ready = self._stream.process(block).reshape(-1, self.channels)
        self._dry, self._wet = np.concatenate([self._dry, block]), np.concatenate([self._wet, ready])
        share = 0.0 if self.bypass else 1.0
        course = np.linspace(self._share, share, count, dtype=np.float32)[:, None]
        result: Array = course * self._wet[:count] + (1 - course) * self._dry[:count]
        self._dry, self._wet, self._share = self._dry[count:], self._wet[count:], share
        return result

    def toggle(self) -> None:
        """Switch the bypass on or off."""
        self.bypass = not self.bypass

    def stop(self) -> None:
        """End `run`."""
        self.done.set()

    def obey(self, lines: Iterable[str]) -> None:
        """Follow what is typed: ``q`` ends, any other line switches the bypass."""
        for line in lines:
            if line.strip().lower() in ("q", "quit"):
                self.stop()
                return
            self.toggle()


def device() -> Any:
    """The module sounddevice, of the extra ``live``."""
    return extra("sounddevice", "live")


def usable_rate(
    sounddevice: Any,
    wanted: int,
    channels: int = 1,
    microphone: int | str | None = None,
    loudspeaker: int | str | None = None,
) -> int:
    """The wanted rate where both devices have it, for resampling takes time; else the microphone's own."""
    try:
        rate = round(float(sounddevice.query_devices(microphone, "input")["default_samplerate"]))
    except (sounddevice.PortAudioError, ValueError) as error:
        raise OSError(f"there is no such microphone: {error}; --list shows what there is") from error
    try:
        sounddevice.check_input_settings(microphone, channels, "float32", samplerate=wanted)
        sounddevice.check_output_settings(loudspeaker, channels, "float32", samplerate=wanted)
    except (sounddevice.PortAudioError, ValueError):
        return rate
    return wanted


def run(
    live: Live,
    sounddevice: Any,
    block: float = 0.01,
    *,
    microphone: int | str | None = None,
    loudspeaker: int | str | None = None,
    seconds: float | None = None,
    lines: Iterable[str] | None = None,
    watch: Callable[[Live], object] | None = None,
) -> Counts:
    """Let a device call ``live`` for blocks of so many seconds, until it is stopped, or the device ends, or in time.

    ``lines`` is what is typed, `Live.obey`; ``watch`` is called now and then.
    """
    if block <= 0:
        raise ValueError(f"block={block} must be a number of seconds above 0")
    settings = {
        "samplerate": live.rate,
        "blocksize": max(round(block * live.rate), 1),
        "channels": live.channels,
        "dtype": "float32",
        "device": (microphone, loudspeaker),
        "latency": "low",
    }
    if lines is not None:
        threading.Thread(target=live.obey, args=(lines,), daemon=True).start()
    end = None if seconds is None else time.monotonic() + seconds
    try:
        with sounddevice.Stream(**settings, callback=live, finished_callback=live.stop):
            while not live.done.wait(WATCH if end is None else min(max(end - time.monotonic(), 0), WATCH)):
                if watch is not None:
                    watch(live)
                if end is not None and time.monotonic() >= end:
                    break
    except (sounddevice.PortAudioError, ValueError) as error:
        raise OSError(f"the sound device cannot be used: {error}; --list shows what there is") from error
    if live.error is not None:
        raise live.error
    return live.counts


def _silence(samples: int, channels: int) -> Array:
    return np.zeros((samples, channels), np.float32)
