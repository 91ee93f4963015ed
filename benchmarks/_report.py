"""What benchmarks and recipes share: arguments, the machine's name, interleaved timing, a table, a JSON file."""

import argparse
import importlib.util
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser that has ``--json FILE``; the description's first line is shown."""
    made = argparse.ArgumentParser(description=(description or "").strip().split("\n", 1)[0])
    made.add_argument("--json", type=Path, metavar="FILE", help="write settings and results to FILE as JSON")
    return made


def add_device(made: argparse.ArgumentParser) -> None:
    """Give a parser ``--device``: "cpu" or "cuda", the latter by default where it is there, and only there."""
    there = torch.cuda.is_available()

    def device(name: str) -> str:
        if name == "cuda" and not there:
            raise argparse.ArgumentTypeError("there is no CUDA device here; use cpu")
        return name

    made.add_argument("--device", type=device, choices=("cpu", "cuda"), default="cuda" if there else "cpu")


def need(module: str, extra: str) -> None:
    """End with a message where a module that was asked for is not installed, before any work is done."""
    if importlib.util.find_spec(module) is None:
        raise SystemExit(f"this needs {module}, which is not installed: pip install 'deepunfold[{extra}]'")


def machine() -> str:
    """Processor, accelerator and versions in one line, such as ``2 threads of Xeon, Python 3.11.7, torch 2.13.0``."""
    parts = [f"{torch.get_num_threads()} threads of {_processor()}"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, f"Python {platform.python_version()}", f"torch {torch.__version__}"])


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def interleaved(
    functions: Mapping[str, Callable[[], object]], repeats: int, warmups: int = 2, rest: float = 0.0
) -> dict[str, list[float]]:
    """Seconds per call of each function, taken in turn, so that a machine's noise meets all of them alike.

    A rest before each call is for functions of libraries whose threads go on waiting for work when they have none.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(-warmups, repeats):
        for name, function in functions.items():
            time.sleep(rest)
            begun = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number >= 0:
                times[name].append(time.perf_counter() - begun)
    return times


def least_and_median(times: Sequence[float]) -> tuple[float, float]:
    """The two numbers that are reported of a list of times."""
    return min(times), statistics.median(times)


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a title, the machine, and a table with aligned columns."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    print(f"\n{title}\n{machine()}\n")
    for row in [list(header), ["-" * width for width in widths], *cells]:
        first, *rest = (cell for cell in row)
        padded = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        print("  ".join(padded).rstrip())


def met(holds: bool) -> str:
    """The last cell of a claim."""
    return "yes" if holds else "no"


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_json(path: Path | None, name: str, settings: Mapping[str, Any], results: Any) -> None:
    """Write what was measured, on which machine and with which settings; under a temporary name, then renamed."""
    if path is None:
        return
    record = {"name": name, "machine": machine(), "settings": dict(settings), "results": results}
    temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
    try:
        temporary.write_text(json.dumps(record, indent=2, default=str) + "\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
