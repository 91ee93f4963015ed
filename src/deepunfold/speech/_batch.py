"""Files through an enhancer, block by block: one by one, or in several processes; what fails is told, the rest is done.

A file of any length takes the same memory.
"""

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Literal, NoReturn

from deepunfold.speech._audio import AudioInfo, Signal, Writer, on_disk, open_audio, read_blocks, writer
from deepunfold.speech._enhancer import Enhancer, _shares
from deepunfold.speech._flow import Flow
from deepunfold.speech._inference import BLOCK
from deepunfold.speech._plan import STANDARD, Job
from deepunfold.speech._workers import one_thread_each

Progress = Callable[[float, float], None]
"""Called with how many seconds of audio are done, and how many there are."""

Advance = Callable[[float], None]
"""Called with some more seconds that are done."""

_POLL = 0.2


@dataclass(frozen=True)
class Settings:
    """With what files are enhanced: the enhancer's settings, and whether each source of its model is an output."""

    model: str | None = None
    strength: float = 1.0
    floor_db: float | None = None
    above: str = "attenuate"
    separate: bool = False

    def enhancer(self) -> Enhancer:
        """The one that these settings describe."""
        settings: dict[str, Any] = {"strength": self.strength, "floor_db": self.floor_db, "above": self.above}
        return Enhancer(**settings) if self.model is None else Enhancer.load(self.model, **settings)


@dataclass(frozen=True)
class Report:
    """What became of a file: how long it is, how long it took, and how many samples were beyond full scale."""

    source: str
    outputs: dict[str, str]
    status: Literal["done", "skipped", "failed"]
    seconds: float = 0.0
    elapsed: float = 0.0
    clipped: int = 0
    remarks: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work for a second of audio."""
        return self.elapsed / self.seconds if self.status == "done" and self.seconds else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"real_time_factor": self.real_time_factor}


def enhance_files(
    jobs: Sequence[Job],
    settings: Settings,
    *,
    processes: int = 1,
    skip_existing: bool = False,
    progress: Progress | None = None,
) -> list[Report]:
    """Do jobs, and report on each, in their order.

    With ``skip_existing``, those of which all outputs are there are skipped.
    """
    enhancer = settings.enhancer()  # what is wrong with the settings is told before any work, and here
    skipped = {place for place, job in enumerate(jobs) if skip_existing and _is_done(job)}
    todo = [job for place, job in enumerate(jobs) if place not in skipped]
    if processes > 1 and len(todo) > 1:
        reports = iter(_in_processes(todo, settings, min(processes, len(todo)), progress))
    else:
        reports = _one_by_one(todo, enhancer, settings.separate, progress)
    return [
        Report(job.source, job.outputs, "skipped") if place in skipped else next(reports)
        for place, job in enumerate(jobs)
    ]


def enhance_file(enhancer: Enhancer, job: Job, separate: bool = False, advance: Advance = lambda _: None) -> Report:
    """Do one job. What can be wrong with files is reported, and nothing is left of outputs that are not whole."""
    begin, seconds, heard, clipped = time.perf_counter(), 0.0, 0.0, 0
    error: str | None = None
    with warnings.catch_warnings(record=True) as caught, ExitStack() as stack:
        warnings.simplefilter("always", UserWarning)
        path = Path(job.source)
        try:
            path = stack.enter_context(on_disk(job.source))
            info = open_audio(path)
            seconds = info.seconds
            with ExitStack() as outputs:
                sinks = [outputs.enter_context(_output(each, info, job.tree)) for each in job.outputs.values()]
                for block, result in _results(enhancer, path, info, separate):
                    for sink, part in zip(sinks, result, strict=True):
                        sink.write(part)
                    heard += block / info.rate
                    advance(block / info.rate)
            seconds, clipped = sinks[0].frames / info.rate, sum(sink.clipped for sink in sinks)
        except (OSError, ValueError, MemoryError) as problem:
            error = str(problem) or type(problem).__name__
            if job.source == STANDARD:
                error = error.replace(str(path), "standard input")
            advance(max(seconds - heard, 0))
    return Report(
        job.source,
        job.outputs,
        "done" if error is None else "failed",
        round(seconds, 6),
        round(time.perf_counter() - begin, 6),
        clipped,
        list(dict.fromkeys(str(each.message) for each in caught)),
        error,
    )


def _results(enhancer: Enhancer, path: Path, info: AudioInfo, separate: bool) -> Iterator[tuple[int, list[Signal]]]:
    """For each block of a file, how many samples were read, and the samples of each output that are ready."""
    front, count = enhancer.model.frontend, len(enhancer.model.sources) if separate else 1
    weigh = _shares if separate else enhancer._weigh
    flow = Flow(enhancer._separator, weigh, info.rate, info.channels, count)
    size = max(BLOCK * front.hop * info.rate // front.rate, 1)
    for block in read_blocks(path, size):
        yield len(block), list(flow.process(block).swapaxes(0, 1))
    yield 0, list(flow.flush().swapaxes(0, 1))


@contextmanager
def _output(path: str, info: AudioInfo, tree: bool) -> Iterator[Writer]:
    if tree:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with writer(path, info) as sink:
        yield sink


def _is_done(job: Job) -> bool:
    return all(output != STANDARD and Path(output).is_file() for output in job.outputs.values())


def _total(jobs: Sequence[Job]) -> float:
    """Seconds of audio; files that cannot be read have none."""
    seconds = 0.0
    for job in jobs:
        try:
            seconds += open_audio(job.source).seconds if job.source != STANDARD else 0
        except ValueError:
            continue
    return seconds


def _one_by_one(jobs: Sequence[Job], enhancer: Enhancer, separate: bool, progress: Progress | None) -> Iterator[Report]:
    total, done = _total(jobs) if progress else 0.0, 0.0

    def advance(seconds: float) -> None:
        nonlocal done
        done += seconds
        if progress is not None:
            progress(done, max(total, done))

    for job in jobs:
        yield enhance_file(enhancer, job, separate, advance)


_work: Callable[[Job], Report] | None = None
"""In a process that was started for this: how it does a job."""


def _start(settings: Settings, done: Any) -> None:
    global _work
    _on_signals(signal.SIG_DFL)
    enhancer = settings.enhancer()

    def advance(seconds: float) -> None:
        with done.get_lock():
            done.value += seconds

    _work = lambda job: enhance_file(enhancer, job, settings.separate, advance)  # noqa: E731


def _do(job: Job) -> Report:
    """A job in a process of its own, which ends when it is told to, and leaves nothing behind."""
    assert _work is not None
    _on_signals(_stop)
    try:
        return _work(job)
    except KeyboardInterrupt:
        os._exit(1)
    finally:
        _on_signals(signal.SIG_DFL)


def _on_signals(action: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, action)


def _stop(*_: object) -> NoReturn:
    """Once is enough: both signals can come."""
    _on_signals(lambda *_: None)
    raise KeyboardInterrupt


def _in_processes(jobs: Sequence[Job], settings: Settings, count: int, progress: Progress | None) -> list[Report]:
    context = get_context("spawn")
    done = context.Value("d", 0.0)
    total = _total(jobs) if progress else 0.0
    others = set(active_children())
    with one_thread_each(), ProcessPoolExecutor(count, context, _start, (settings, done)) as pool:
        try:
            waiting = futures = [pool.submit(_do, job) for job in jobs]
            while waiting:
                waiting = list(wait(waiting, _POLL if progress else None).not_done)
                if progress is not None:
                    progress(done.value, max(total, done.value))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()
            raise
    return [_report(job, future) for job, future in zip(jobs, futures, strict=True)]


def _report(job: Job, future: Future[Report]) -> Report:
    try:
        return future.result()
    except BrokenProcessPool:
        reason = "its process ended before the work was done; is there enough memory? Try fewer jobs"
        return Report(job.source, job.outputs, "failed", error=f"{job.source}: {reason}")
