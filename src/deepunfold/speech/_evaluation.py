"""Scoring files: pairs of a reference and an estimate, or mixtures that an enhancer is run on, in several processes.

A file that cannot be read or scored becomes a failure with its reason, and the others are done. What two files may
differ in, and what is done about it:

- Rate: the estimate is resampled to the rate of the reference, with a remark.
- Length: both are cut to the shorter if they differ by at most `SLACK` seconds, with a remark; beyond, it is a failure.
- Delay: nothing is moved; an estimate that is late or early gets a remark (see `deepunfold.speech._metrics` for what
  each metric makes of it).
- Channels: as many in both, or it is a failure. Each is scored by itself, and the mean taken, or all are first
  averaged to one (``mono``).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from deepunfold.speech._audio import Signal, read, resample
from deepunfold.speech._metrics import NEEDS, available, check_metrics, delay, score
from deepunfold.speech._workers import one_thread_each

SLACK = 0.1
"""By how many seconds a reference and an estimate may differ in length: codecs and frames pad and cut by less."""

_REACH = 0.1
"""How many seconds an estimate can be late or early for it to be noticed."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with how many files are done, and how many there are."""


class Enhances(Protocol):
    """What is evaluated: an `Enhancer`, or anything that does the same."""

    def enhance(self, signal: Signal, rate: int, /) -> Signal:
        """The enhanced signal, of the same shape."""
        ...


@dataclass(frozen=True)
class Case:
    """What is to be scored: an estimate, or a mixture and what the enhancer makes of it, against a reference."""

    name: str
    reference: Path
    estimate: Path | None = None
    mixture: Path | None = None
    snr: float | None = None
    speaker: str | None = None


@dataclass(frozen=True)
class FileScores:
    """The scores of a case. ``noisy`` are those of the mixture, if there is one; remarks are for the reader."""

    case: Case
    rate: int
    seconds: float
    estimate: dict[str, float]
    noisy: dict[str, float] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def improvement(self) -> dict[str, float] | None:
        """By how much the estimate is better than the mixture."""
        return self.noisy and {name: value - self.noisy[name] for name, value in self.estimate.items()}

    def of(self, stage: str) -> dict[str, float] | None:
        """The scores of a stage: ``noisy``, ``estimate`` or ``improvement``."""
        scores: dict[str, float] | None = getattr(self, stage)
        return scores


@dataclass(frozen=True)
class Failure:
    """A file that has no scores, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Evaluation:
    """Scores and failures, in the order of the cases, and the metrics that were computed."""

    metrics: list[str]
    files: list[FileScores]
    failures: list[Failure] = field(default_factory=list)

    @property
    def stages(self) -> list[str]:
        """What the scores tell of: ``estimate``, and ``noisy`` and ``improvement`` where there are mixtures."""
        return ["noisy", "estimate", "improvement"] if any(each.noisy for each in self.files) else ["estimate"]


def evaluate(
    cases: Sequence[Case],
    enhancer: Enhances | None = None,
    *,
    metrics: Iterable[str] | None = None,
    mono: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Evaluation:
    """Score cases, each in one of several processes. By default all metrics that are installed."""
    names = available() if metrics is None else check_metrics(metrics)
    if jobs < 1:
        raise ValueError(f"jobs={jobs}: at least one process has to do the work")
    for case in cases:
        if case.estimate is None and (case.mixture is None or enhancer is None):
            raise ValueError(f"{case.name} has no estimate; give one, or a mixture and an enhancer")
    outcomes: list[FileScores | Failure] = []
    for outcome in _map(_Scorer(enhancer, names, mono), cases, min(jobs, len(cases))):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(cases))
    files = [each for each in outcomes if isinstance(each, FileScores)]
    return Evaluation(names, files, [each for each in outcomes if isinstance(each, Failure)])


@dataclass(frozen=True)
class _Scorer:
    """Scores one case. It goes to each process once."""

    enhancer: Enhances | None
    metrics: list[str]
    mono: bool

    def __call__(self, case: Case) -> FileScores | Failure:
        try:
            return self._score(case)
        except (OSError, ValueError) as error:
            return Failure(case.name, str(error))

    def _score(self, case: Case) -> FileScores:
        reference, rate = self._read(case.reference)
        noisy, remarks = None, list[str]()
        if case.mixture is not None:
            mixture, own_rate = self._read(case.mixture)
            noisy, remarks = self._compare(reference, rate, mixture, own_rate, "mixture")
        if case.estimate is not None:
            estimate, own_rate = self._read(case.estimate)
        else:
            assert self.enhancer is not None
            estimate = self.enhancer.enhance(mixture, own_rate)
        scores, more = self._compare(reference, rate, estimate, own_rate, "estimate")
        return FileScores(case, rate, len(reference) / rate, scores, noisy, tuple(dict.fromkeys(remarks + more)))

    def _read(self, path: Path) -> tuple[Signal, int]:
        """A file as (samples, channels), and its rate."""
        signal, rate = read(path)
        return (signal.mean(1, keepdims=True) if self.mono else signal), rate

    def _compare(
        self, reference: Signal, rate: int, other: Signal, own_rate: int, what: str
    ) -> tuple[dict[str, float], list[str]]:
        """The scores of a mixture or an estimate, and remarks on how it was made to fit its reference."""
        remarks = []
        if own_rate != rate:
            other = resample(other, own_rate, rate)
            remarks.append(f"the {what} was resampled from {own_rate} to the {rate} Hz of its reference")
        if other.shape[1] != reference.shape[1]:
            raise ValueError(f"the {what} has {other.shape[1]} channels, its reference {reference.shape[1]}")
        if len(other) != len(reference):
            reference, other, remark = _cut(reference, other, rate, what)
            remarks.append(remark)
        for name, signal in (("reference", reference), (what, other)):
            if not signal.any():
                remarks.append(f"the {name} is silent")
        loudest = int(np.abs(reference).max(0).argmax())
        late = delay(reference[:, loudest], other[:, loudest], round(_REACH * rate))
        if late:
            remarks.append(f"the {what} is {abs(late)} samples {'late' if late > 0 else 'early'}")
        scores = score(reference, other, rate, self.metrics)
        lacking = [name for name, value in scores.items() if np.isnan(value) and reference.any()]
        return scores, remarks + [f"{name} is not defined: it needs {NEEDS[name]}" for name in lacking]


def _cut(reference: Signal, other: Signal, rate: int, what: str) -> tuple[Signal, Signal, str]:
    """Both cut to the shorter, and a remark that says so."""
    excess = len(other) - len(reference)
    told = f"the {what} is {abs(excess)} samples {'longer' if excess > 0 else 'shorter'} than its reference"
    if abs(excess) > SLACK * rate:
        raise ValueError(f"{told}, more than {SLACK:g} s: do the two belong together?")
    length = min(len(reference), len(other))
    return reference[:length], other[:length], f"{told}: both were cut to the shorter"


_scorer: _Scorer | None = None
"""In a process that was started to score: what it scores with."""


def _start(scorer: _Scorer) -> None:
    global _scorer
    _scorer = scorer


def _work(case: Case) -> FileScores | Failure:
    assert _scorer is not None
    return _scorer(case)


def _map(scorer: _Scorer, cases: Sequence[Case], jobs: int) -> Iterator[FileScores | Failure]:
    """The outcomes in order, from this process or from several."""
    if jobs <= 1:
        yield from map(scorer, cases)
        return
    with (
        one_thread_each(),
        ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_start, initargs=(scorer,)) as pool,
    ):
        try:
            yield from pool.map(_work, cases)
        except BrokenProcessPool as error:
            raise ChildProcessError("a process ended before its work was done; try again with fewer jobs") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
