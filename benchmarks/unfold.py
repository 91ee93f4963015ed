"""What `unfold` costs over a loop written by hand, and what memory each backward mode takes.

    python -m benchmarks.unfold --json results/unfold.json --plot docs/images/unfold_memory.png

Time: the same layers, called by the network and by a bare Python loop, in turn. The loop is timed twice; how far it is
from itself says how far the ratios can be trusted. Memory: the peak of one forward and backward pass, beyond parameters
and input, over K for each mode and over C for train_last. Growth: what a process gains over many training steps.
"""

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import torch

from benchmarks import _unfold_plot
from benchmarks._report import add_device, met, need, parser, show, write_json
from benchmarks._unfold_measures import (
    MODES,
    Growth,
    Memory,
    Overhead,
    Size,
    exponent,
    growth,
    memory,
    overheads,
    per_layer,
)
from deepunfold import ConvergenceWarning

TINY = Size(1, 10, 20, 16)
REALISTIC = (Size(64, 250, 500, 16), Size(256, 128, 256, 16))
# A large batch, so that states outweigh parameters, as they do wherever memory is short.
MEMORY = Size(512, 64, 128, 64)
# More measurements than unknowns, so that the adjoint of "implicit" converges soon.
TRAINING = Size(64, 64, 32, 32)

EXPONENTS = {"unroll": 1.0, "checkpoint": 0.5, "truncated": 0.0, "implicit": 0.0, "jacobian_free": 0.0}

Rows: TypeAlias = list[list[object]]


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    chosen = arguments(given)
    device = torch.device(chosen.device)
    sizes, repeats = (REALISTIC[:1], 10) if chosen.small else (REALISTIC, 200)
    depths = (4, 8, 16, 32) if chosen.small else (4, 8, 16, 32, 64, 128, 256)
    trained = range(MEMORY.layers // 8, MEMORY.layers + 1, MEMORY.layers // 8)
    between = (10, 50) if chosen.small else (100, 1000)
    with warnings.catch_warnings():
        # A short network is far from its fixed point. Its implicit gradient is inexact, but takes the same memory.
        warnings.simplefilter("ignore", ConvergenceWarning)
        tiny = overheads(TINY, device, 10 * repeats)
        realistic = [row for size in sizes for row in overheads(size, device, repeats)]
        used = memory(MEMORY, depths, tuple(trained), device)
        growths = [growth(mode, TRAINING, between, device) for mode in MODES]
    show_times(tiny + realistic)
    show_memory(used)
    show_growth(growths, between)
    summary = [*time_claims(tiny, realistic), *memory_claims(used), *growth_claims(growths)]
    show(f"unfold on {device.type}: what is claimed and what was reached", ["claim", "goal", "reached", "met"], summary)
    results = {
        "overhead": [asdict(row) for row in tiny + realistic],
        "memory": asdict(used),
        "growth": [asdict(row) for row in growths],
        "summary": summary,
    }
    settings = {"device": chosen.device, "small": chosen.small, "repeats": repeats, "growth between": between}
    write_json(chosen.json, "unfold", settings, results)
    if chosen.plot:
        _unfold_plot.draw(used, chosen.plot)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The settings of a run; what it could not do is said before it starts."""
    made = parser(__doc__)
    add_device(made)
    made.add_argument("--small", action="store_true", help="a quick look: fewer sizes and repeats")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw peak memory over K and over C")
    chosen = made.parse_args(given)
    for module in ("psutil", "matplotlib") if chosen.plot else ("psutil",):
        need(module, "bench")
    return chosen


# -- tables ----------------------------------------------------------------------------------------------------------


def show_times(rows: Sequence[Overhead]) -> None:
    """Each case, with what `unfold` adds, and what the loop seems to add to itself."""
    show(
        "Microseconds per call, least and median; what unfold, and the loop timed once more (noise), are above it",
        ["batch x m x n", "K", "tie", "call", "loop", "unfold", "excess", "noise"],
        [
            [row.size.shape, row.size.layers, row.tie, row.call]
            + [f"{least:,.0f}, {median:,.0f}" for least, median in (row.loop, row.unfold)]
            + [f"{percent(least)}, {percent(median)}" for least, median in (row.excess, row.noise)]
            for row in rows
        ],
    )


def show_memory(used: Memory) -> None:
    """The peaks over K and over C."""
    show(
        f"Peak memory in MB of a forward and backward pass, {used.size.shape}; exponent p of K^p",
        ["backward", *(f"K={k}" for k in used.depths), "p"],
        [[mode, *map(megabytes, peaks), round(exponent(used.depths, peaks), 2)] for mode, peaks in used.peaks.items()],
    )
    show(
        f"The same where only the last layers are trained, K={used.size.layers}",
        ["backward", *(f"C={c}" for c in used.trained)],
        [["unroll", *map(megabytes, used.trained_peaks)]],
    )


def show_growth(rows: Sequence[Growth], between: tuple[int, int]) -> None:
    """What a training gained, beside the graphs that would show if they stayed."""
    show(
        f"MB gained from training step {between[0]} to {between[1]}, and what the graphs made meanwhile would take",
        ["backward", "tensors", "their MB", "resident MB", "graphs MB"],
        [[row.mode, row.tensors, *map(megabytes, (row.tensor_bytes, row.resident_bytes, row.graphs))] for row in rows],
    )


def percent(fraction: float) -> str:
    """A signed percentage."""
    return f"{100 * fraction:+.1f} %"


def megabytes(count: int) -> str:
    """Bytes in millions."""
    return f"{count / 1e6:.2f}"


# -- claims ----------------------------------------------------------------------------------------------------------


def time_claims(tiny: Sequence[Overhead], realistic: Sequence[Overhead]) -> Rows:
    """The worst of the realistic cases for each way of calling; the fixed cost from the tiny ones."""
    rows: Rows = []
    for call in dict.fromkeys(row.call for row in realistic):
        cases = [row for row in realistic if row.call == call]
        least, median = (max(row.excess[i] for row in cases) for i in (0, 1))
        noise = max(abs(value) for row in cases for value in row.noise)
        reached = f"least {percent(least)}, median {percent(median)} (noise {100 * noise:.1f} %)"
        rows.append([f"{call}: worst over a loop", "at most 5 %", reached, met(max(least, median) <= 0.05)])
    for row in tiny:
        least, median = (row.unfold[i] - row.loop[i] for i in (0, 1))
        claim = f"{row.call}, tie={row.tie}: added to a tiny call"
        rows.append([claim, "", f"least {least:.0f} us, median {median:.0f} us", ""])
    return rows


def memory_claims(used: Memory) -> Rows:
    """Growth exponents; and the measure itself against what autograd says that it keeps."""
    rows: Rows = []
    for mode, goal in EXPONENTS.items():
        p = exponent(used.depths, used.peaks[mode])
        rows.append([f"{mode}: peak memory as K^p", f"p about {goal:g}", f"p = {p:.2f}", met(abs(p - goal) <= 0.1)])
    p = exponent(used.trained, used.trained_peaks)
    rows.append(["train_last=C: peak memory as C^p", "p about 1", f"p = {p:.2f}", met(abs(p - 1) <= 0.1)])
    for claim, numbers, peaks in (
        ("check: peak per layer K over what autograd keeps", used.depths, used.peaks["unroll"]),
        ("check: peak per layer C over what autograd keeps", used.trained, used.trained_peaks),
    ):
        ratio = per_layer(numbers, peaks) / used.kept_per_step
        rows.append([claim, "1", f"{ratio:.4f}", met(abs(ratio - 1) <= 0.01)])
    return rows


def growth_claims(rows: Sequence[Growth]) -> Rows:
    """The worst of the modes."""
    tensors, resident = max(row.tensors for row in rows), max(row.resident_bytes for row in rows)
    return [
        ["training: tensors gained", "0", f"{tensors}", met(tensors <= 0)],
        ["training: resident memory gained", "at most 1 MB", f"{megabytes(resident)} MB", met(resident <= 1e6)],
    ]


if __name__ == "__main__":
    main()
