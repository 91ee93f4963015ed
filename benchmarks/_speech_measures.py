"""What `benchmarks.speech` measures, as data, each in a process of its own that has one thread.

python -m benchmarks._speech_measures streaming 10
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile as sf

from deepunfold.speech._enhancer import PRETRAINED, Enhancer, Stream
from deepunfold.speech._frontend import Array, Frontend
from deepunfold.speech._inference import FLOOR, TINY, Separator
from deepunfold.speech._model import Model

RATE, HOP = 16000, 160
TURN = 100
ONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def alone(name: str, *settings: float) -> Any:
    """What a function of this module gives, run with one thread."""
    command = [sys.executable, "-m", "benchmarks._speech_measures", name, *map(str, settings)]
    done = subprocess.run(command, env={**os.environ, **ONE}, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def model() -> Model:
    """The one that is shipped, or random numbers of its size, which cost the same."""
    if PRETRAINED.is_file():
        return Model.load(PRETRAINED)
    random, front, sources = np.random.default_rng(0), Frontend(), {"speech": 100, "noise": 100}
    bases = [random.random((rows, 200)) for rows in (front.context * front.features, *[front.features] * 4)]
    wide, *own = (basis / np.linalg.norm(basis, axis=0) for basis in bases)
    return Model(front, sources, 25, wide, own, sparsity=5.0, record={"made": "random numbers"})


def about() -> dict[str, Any]:
    """Which model it is."""
    found = model()
    return {"model": str(found), "pretrained": PRETRAINED.is_file()}


def recording(seconds: float) -> Array:
    """Harmonics that come and go, in noise."""
    random, times = np.random.default_rng(0), np.arange(round(seconds * RATE)) / RATE
    voice = sum(np.sin(2 * np.pi * 140 * n * times) / n for n in range(1, 30)) * np.sin(2 * np.pi * 2 * times) ** 2
    mixture: Array = 0.1 * voice + 0.05 * random.standard_normal(len(times))
    return mixture.astype(np.float32)


class Plain(Separator):
    """The equations in numpy as one would write them down: the floor of the comparison."""

    def __init__(self, given: Model) -> None:
        super().__init__(given)
        self._plain = given

    def masks(self, magnitudes: Array, before: Array | None = None) -> Array:
        """The share of each source in each bin (..., frames, sources, F)."""
        given = self._plain
        rows = self.frontend.in_context(magnitudes, before)
        level = rows.mean(-1, keepdims=True)
        floor = FLOOR * level + TINY
        activations = np.repeat(level, given.context_basis.shape[1], -1)
        for basis in [given.context_basis] * (given.layers - given.trained + 1) + given.bases[:-1]:
            mixture = rows[..., -len(basis) :]
            pull = (mixture / (activations @ basis.T + floor)) @ basis
            activations = activations * pull / (basis.sum(0) + given.sparsity)
        columns = np.cumsum(list(given.sources.values()))[:-1]
        parts = zip(np.split(activations, columns, -1), np.split(given.bases[-1], columns, -1), strict=True)
        models = np.stack([part @ basis.T + floor for part, basis in parts], axis=-2)
        found: Array = models / models.sum(-2, keepdims=True)
        return found


def enhancers() -> dict[str, Enhancer]:
    """Ours, and one that differs in the inference alone."""
    given = model()
    ours, plain = Enhancer(given), Enhancer(given)
    plain._separator = Plain(given)
    return {"deepunfold": ours, "plain numpy": plain}


def products(given: Model) -> Callable[[Array], Array]:
    """The matrix products of one frame and nothing else: the basis in halves, as in `Separator`, read twice a step."""
    halves = [np.ascontiguousarray(half.T) for half in np.array_split(given.context_basis, 2)]
    work = [(half, np.empty(half.shape[1], np.float32)) for half in halves]
    activations = np.ones(halves[0].shape[0], np.float32)
    pull, nothing = np.empty_like(activations), np.zeros(0, np.float32)

    def process(_: Array) -> Array:
        for _step in range(given.layers - given.trained + 1):
            for half, model in work:
                np.dot(activations, half, out=model)
                np.dot(half, model, out=pull)
        return nothing

    return process


def streaming(seconds: float) -> dict[str, Any]:
    """Seconds of each chunk of one frame, and of the processor; how far streams are behind, and from files.

    The ways take turns of `TURN` chunks: after each chunk of one, the other would find the caches empty.
    """
    signal, ways = recording(seconds), enhancers()
    streams = {name: Stream(each, RATE) for name, each in ways.items()}
    for stream in streams.values():
        stream.process(signal[: 50 * HOP])
        stream.reset()
    calls = {**{name: stream.process for name, stream in streams.items()}, "its products alone": products(model())}
    times: dict[str, list[float]] = {name: [] for name in calls}
    parts: dict[str, list[Array]] = {name: [] for name in calls}
    processor = dict.fromkeys(calls, 0.0)
    out = behind = 0
    for turn in range(0, len(signal), TURN * HOP):
        for name, process in calls.items():
            worked = time.process_time()
            for start in range(turn, min(turn + TURN * HOP, len(signal)), HOP):
                begun = time.perf_counter()
                parts[name].append(process(signal[start : start + HOP]))
                times[name].append(time.perf_counter() - begun)
                if name == "deepunfold":
                    out += len(parts[name][-1])
                    behind = max(behind, min(start + HOP, len(signal)) - out)
            processor[name] += time.process_time() - worked
    outputs = {name: np.concatenate([*parts[name], streams[name].flush()]) for name in ways}
    ours, whole = outputs["deepunfold"], ways["deepunfold"].enhance(signal, RATE)
    return {
        "factor": {name: sum(each) / seconds for name, each in times.items()},
        "processor": {name: each / seconds for name, each in processor.items()},
        "chunk": {name: np.percentile(each, [50, 99, 100]).tolist() for name, each in times.items()},
        "latency": streams["deepunfold"].latency,
        "behind": behind,
        "lag": lag(ours, whole),
        "difference": float(np.abs(ours - whole).max()),
        "difference_of_plain": float(np.abs(ours - outputs["plain numpy"]).max()),
    }


def lag(late: Array, early: Array) -> int:
    """By how many samples one signal is best moved to fit another: the peak of their correlation."""
    size = 2 * max(len(late), len(early))
    correlation = np.fft.irfft(np.fft.rfft(late, size) * np.fft.rfft(early, size).conj(), size)
    place = int(correlation.argmax())
    return place - size if place > size // 2 else place


def offline(seconds: float, repeats: float) -> dict[str, dict[str, list[float]]]:
    """Real-time factors of whole signals, taken in turn, and the same by the processor's time."""
    signal, ways = recording(seconds), enhancers()
    found: dict[str, dict[str, list[float]]] = {name: {"clock": [], "processor": []} for name in ways}
    for number in range(-1, int(repeats)):
        for name, each in ways.items():
            begun, worked = time.perf_counter(), time.process_time()
            each.enhance(signal, RATE)
            if number >= 0:
                found[name]["clock"].append((time.perf_counter() - begun) / seconds)
                found[name]["processor"].append((time.process_time() - worked) / seconds)
    return found


def cold(seconds: float, repeats: float) -> dict[str, list[float]]:
    """Seconds of ``deepunfold enhance`` as a new process, and of one that only imports numpy and soundfile."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        command = program(folder, seconds)
        ways: dict[str, Callable[[], object]] = {
            "deepunfold enhance": partial(subprocess.run, command, check=True),
            "import numpy, soundfile": partial(
                subprocess.run, [sys.executable, "-c", "import numpy, soundfile"], check=True
            ),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(-1, int(repeats)):
            for name, way in ways.items():
                (folder / "out.wav").unlink(missing_ok=True)
                begun = time.perf_counter()
                way()
                if number >= 0:
                    found[name].append(time.perf_counter() - begun)
        return found


def memory(seconds: float) -> int:
    """The most bytes that ``deepunfold enhance`` had resident with a file of that length."""
    with TemporaryDirectory() as place:
        process = subprocess.Popen(program(Path(place), seconds))
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError("deepunfold enhance failed")
        return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def program(folder: Path, seconds: float) -> list[str]:
    """The command that enhances a file of that length, which is made here."""
    model().save(folder / "model.safetensors", half=True)
    block = recording(min(seconds, 10))
    with sf.SoundFile(folder / "in.wav", "w", RATE, 1, "PCM_16") as file:
        for _ in range(max(round(seconds / 10), 1)):
            file.write(block)
    settings = [] if PRETRAINED.is_file() else ["--model", str(folder / "model.safetensors")]
    begin = [sys.executable, "-m", "deepunfold", "enhance"]
    return [*begin, str(folder / "in.wav"), "-o", str(folder / "out.wav"), *settings]


MEASURES: dict[str, Callable[..., Any]] = {
    "about": about,
    "streaming": streaming,
    "offline": offline,
    "cold": cold,
    "memory": memory,
}

if __name__ == "__main__":
    print(json.dumps(MEASURES[sys.argv[1]](*map(float, sys.argv[2:]))))
