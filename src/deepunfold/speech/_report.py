"""What an evaluation says: means with bootstrap intervals for each input SNR and overall, as tables, CSV and JSON."""

import csv
import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepunfold.speech._evaluation import Evaluation, FileScores
from deepunfold.speech._metrics import METRICS, available, missing

if TYPE_CHECKING:
    from rich.table import Table

_TITLES = {"noisy": "noisy", "estimate": "enhanced", "improvement": "improvement"}
_DRAWS = 2000
_LEVEL = 0.95
_REMARKS = 10
"""How many remarks are shown; files hold all."""


@dataclass(frozen=True)
class Summary:
    """The mean of a metric at a stage, over the files of one input SNR (None: over all files), with its interval.

    ``count`` files have a score and make the mean, ``undefined`` files do not.
    """

    snr: float | None
    stage: str
    metric: str
    mean: float
    low: float
    high: float
    count: int
    undefined: int


def bootstrap(values: Sequence[float], groups: Iterable[Hashable], seed: int = 0) -> tuple[float, float, float]:
    """The mean of values and the ends of its interval of 95 %, by drawing groups again, with replacement.

    Values of a group are drawn together, since they are alike: the mixtures of one utterance, that share a reference.
    With a single group nothing can be said of the interval, and its ends are NaN; without values all is.
    """
    if not values:
        return math.nan, math.nan, math.nan
    numbers: dict[Hashable, int] = {}
    index = [numbers.setdefault(group, len(numbers)) for group in groups]
    sums, counts = np.bincount(index, weights=values), np.bincount(index)
    mean = float(sums.sum() / counts.sum())
    if len(sums) < 2:
        return mean, math.nan, math.nan
    generator = np.random.default_rng(seed)
    drawn = (generator.integers(len(sums), size=len(sums)) for _ in range(_DRAWS))
    means = [sums[each].sum() / counts[each].sum() for each in drawn]
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return mean, float(low), float(high)


@dataclass(frozen=True)
class Report:
    """An evaluation for readers. ``notes`` are plain values that go into the JSON."""

    evaluation: Evaluation
    seed: int = 0
    notes: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def summaries(self) -> list[Summary]:
        """For each input SNR, and for all files, whether their SNR is known or not: each stage, each metric."""
        found, files = self.evaluation, self.evaluation.files
        snrs = sorted({each.case.snr for each in files if each.case.snr is not None})
        parts = [*((snr, [each for each in files if each.case.snr == snr]) for snr in snrs), (None, files)]
        return [
            self._summary(snr, part, stage, metric)
            for snr, part in parts
            for stage in found.stages
            for metric in found.metrics
        ]

    def _summary(self, snr: float | None, files: Sequence[FileScores], stage: str, metric: str) -> Summary:
        values = [(scores[metric], each.case.reference) for each in files if (scores := each.of(stage))]
        known = [(value, group) for value, group in values if not math.isnan(value)]
        interval = bootstrap([value for value, _ in known], [group for _, group in known], self.seed)
        return Summary(snr, stage, metric, *interval, len(known), len(values) - len(known))

    def tables(self) -> "list[Table]":
        """For mixtures a table for each metric, its columns the stages; else one table, its columns the metrics."""
        metrics, stages = self.evaluation.metrics, self.evaluation.stages
        if stages == ["estimate"]:
            return [self._table("Estimates", {METRICS[metric]: ("estimate", metric) for metric in metrics})]
        return [self._table(METRICS[metric], {_TITLES[each]: (each, metric) for each in stages}) for metric in metrics]

    def _table(self, title: str, columns: Mapping[str, tuple[str, str]]) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        cells = {(each.snr, each.stage, each.metric): each for each in self.summaries}
        table = Table(title=f"\n{title}", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        table.title_justify = table.caption_justify = "left"
        for head in ("SNR", "files", *columns):
            table.add_column(head, justify="right")
        for snr in dict.fromkeys(each.snr for each in self.summaries):
            row = [cells[snr, *key] for key in columns.values()]
            files = max(each.count + each.undefined for each in row)
            table.add_row("all" if snr is None else f"{snr:g} dB", str(files), *map(_cell, row))
        undefined = max(cells[None, *key].undefined for key in columns.values())
        if undefined:
            table.caption = f"means leave out what has no score: {undefined} of the files"
        return table

    def remarks(self) -> list[str]:
        """Lines for the reader: metrics that are not installed, the first remarks on files, all failures."""
        found = self.evaluation
        chosen = found.metrics != available()
        without = [f"without {name}: pip install {package}" for name, package in missing().items() if not chosen]
        noted = [f"{each.case.name}: {remark}" for each in found.files for remark in each.remarks]
        if len(noted) > _REMARKS:
            noted[_REMARKS:] = [f"... and {len(noted) - _REMARKS} more remarks, which --csv and --json list"]
        return [*without, *noted, *(f"{each.name}: not scored: {each.reason}" for each in found.failures)]

    def show(self) -> None:
        """Print the tables, and the remarks on standard error."""
        from rich.console import Console

        console = Console()
        for table in self.tables() if self.evaluation.files else ():
            console.print(table)
        for line in self.remarks():
            print(line, file=sys.stderr)  # noqa: T201

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values: notes, summaries, files, failures; a number that is none is None."""
        return {
            **self.notes,
            "metrics": self.evaluation.metrics,
            "interval": {"level": _LEVEL, "draws": _DRAWS, "seed": self.seed},
            "summary": [{name: _plain(value) for name, value in asdict(each).items()} for each in self.summaries],
            "files": [_file(each) for each in self.evaluation.files],
            "failures": [asdict(each) for each in self.evaluation.failures],
        }

    def as_csv(self) -> str:
        """A row for each file, those that failed last. Fields of numbers that are none are empty."""
        columns = [(stage, metric) for stage in self.evaluation.stages for metric in self.evaluation.metrics]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["name", "snr", "speaker", "seconds", *map("_".join, columns), "remarks", "failure"])
        for each in self.evaluation.files:
            scores = [_plain((each.of(stage) or {}).get(metric)) for stage, metric in columns]
            about = (each.case.name, each.case.snr, each.case.speaker, each.seconds)
            writer.writerow([*about, *scores, "; ".join(each.remarks), None])
        for failure in self.evaluation.failures:
            writer.writerow([failure.name, *[None] * (len(columns) + 4), failure.reason])
        return text.getvalue()

    def write(self, csv_file: Path | None = None, json_file: Path | None = None) -> None:
        """Write the files that are wanted, each whole or not at all."""
        if csv_file is not None:
            _write(csv_file, self.as_csv())
        if json_file is not None:
            _write(json_file, json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n")


def check_target(path: Path) -> None:
    """Fail before the work rather than after it."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")


def _cell(summary: Summary) -> str:
    if not summary.count:
        return "-"
    places = 3 if summary.metric == "stoi" else 2
    interval = "" if math.isnan(summary.low) else f" [{summary.low:z.{places}f}, {summary.high:z.{places}f}]"
    return f"{summary.mean:z.{places}f}{interval}"


def _file(file: FileScores) -> dict[str, Any]:
    case = file.case
    scores = {
        stage: {name: _plain(value) for name, value in values.items()}
        for stage in _TITLES
        if (values := file.of(stage))
    }
    paths = {name: str(path) for name, path in vars(case).items() if isinstance(path, Path)}
    about = {"name": case.name, "snr": case.snr, "speaker": case.speaker, **paths}
    return {**about, "rate": file.rate, "seconds": file.seconds, "scores": scores, "remarks": list(file.remarks)}


def _plain(value: Any) -> Any:
    """The value, or None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it."""
    check_target(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
