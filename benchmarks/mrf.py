"""Loopy belief propagation beside other ways to do it, batches, and training.

    python -m benchmarks.mrf --json results/mrf.json

Peers are measured where they are installed: PGMax, which compiles for the processor with JAX (version 0.6.1 needs a JAX
older than 0.5). pgmpy is no peer: its message passing is for graphs without loops. Everything is float32. On a GPU
also: messages per second, and the share of the bandwidth of a copy that they reach.
"""

import argparse
import importlib.util
from collections.abc import Sequence

import torch

from benchmarks._mrf_measures import (
    Size,
    Timing,
    building,
    copied_per_second,
    inference,
    layers,
    memory,
    moved_bytes,
    samples_at_once,
    training,
)
from benchmarks._report import add_device, met, parser, show, write_json

GRIDS = (Size(50, 2), Size(200, 2), Size(50, 5), Size(200, 5))
LARGE = (*GRIDS, Size(2000, 2), Size(200, 5, batch=64))
BATCH = Size(20, 2, batch=64)
TRAINING = Size(50, 2, steps=10)
DEPTHS = (8, 32, 128)
MEMORY = Size(50, 2, batch=8)
PEER = "PGMax, compiled"


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    chosen = arguments(given)
    device = torch.device(chosen.device)
    repeats = 2 if chosen.small else 7
    sizes = GRIDS[:1] if chosen.small else LARGE if device.type == "cuda" else GRIDS
    measured = []
    for size in sizes:
        rows, error = inference(size, device, repeats if size.states == 2 else 3)  # peers need a minute for one run
        measured.append((size, rows, error))
        show_timings(size, rows, error)
    batch = samples_at_once(BATCH, device, repeats)
    trained = training(TRAINING, device, 2 * repeats)
    depths = DEPTHS[: 2 if chosen.small else None]
    used = memory(MEMORY, depths, device)
    show(
        f"Peak memory in MB of a forward and backward pass, {MEMORY}, tied",
        ["backward", *(f"K={depth}" for depth in depths)],
        [[mode, *(f"{peak / 1e6:.1f}" for peak in peaks)] for mode, peaks in used.items()],
    )
    built = building(200, 5 * repeats)
    units, rows_of = (256, 64) if chosen.small else (1024, 256)
    costs = layers(units, rows_of, device, repeats)
    show(
        f"Layers of {units} to {units} units, batch {rows_of}: least milliseconds, and the peak in MB of both passes",
        ["", "forward", "forward and backward", "peak"],
        [
            [each.layer, f"{1e3 * each.forward:.1f}", f"{1e3 * each.both:.1f}", f"{each.peak / 1e6:.1f}"]
            for each in costs
        ],
    )
    summary = claims(measured, batch, trained, used, built) + bandwidth(measured, device)
    show(f"mrf on {device.type}: what is claimed and what was reached", ["claim", "goal", "reached", "met"], summary)
    results = {
        "inference": [
            {"size": size._asdict(), "rows": [row._asdict() for row in rows], "difference": error}
            for size, rows, error in measured
        ],
        "batch": batch,
        "training": trained,
        "memory": used,
        "building": built,
        "layers": [each._asdict() for each in costs],
        "summary": summary,
    }
    write_json(chosen.json, "mrf", {"device": chosen.device, "small": chosen.small, "repeats": repeats}, results)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The settings of a run."""
    made = parser(__doc__)
    add_device(made)
    made.add_argument("--small", action="store_true", help="a quick look: one grid, few repeats")
    return made.parse_args(given)


def show_timings(size: Size, rows: Sequence[Timing], error: float) -> None:
    """Milliseconds and ratios of each way."""
    show(
        f"{size.steps} iterations, {size}: milliseconds; the marginals that they find differ by {error:.0e} at most",
        ["", "least", "median", "ratio of least", "of median"],
        [
            [row.way, f"{1e3 * row.least:,.1f}", f"{1e3 * row.median:,.1f}", *(f"{ratio:.2f}" for ratio in row.ratio)]
            for row in rows
        ],
    )


def claims(
    measured: Sequence[tuple[Size, list[Timing], float]],
    batch: dict[str, tuple[float, float]],
    trained: dict[str, tuple[float, float]],
    used: dict[str, list[int]],
    built: tuple[float, float],
) -> list[list[object]]:
    """What the speed comes to."""
    rows: list[list[object]] = []
    for size, timings, _ in measured:
        goal = 3 if size.states == 2 else 1
        for row in timings:
            if row.way == PEER:
                reached = f"least {row.ratio[0]:.1f}, median {row.ratio[1]:.1f}"
                rows.append(
                    [f"times as fast as PGMax, {size}", f"at least {goal}", reached, met(min(row.ratio) >= goal)]
                )
    if not importlib.util.find_spec("pgmax"):
        rows.append(["times as fast as PGMax", "at least 1 and 3", "PGMax is not installed", "not measured"])
    together = [slow / fast for slow, fast in zip(batch["one by one"], batch["at once"], strict=True)]
    rows.append(
        [
            f"{BATCH} at once, times as fast as one by one",
            "above 1",
            f"{together[0]:.1f}, {together[1]:.1f}",
            met(min(together) > 1),
        ]
    )
    ratio = [both / alone for both, alone in zip(trained["forward and backward"], trained["forward"], strict=True)]
    claim = f"forward and backward of {TRAINING.steps} layers over forward, {TRAINING}"
    rows.append([claim, "at most 4", f"least {ratio[0]:.2f}, median {ratio[1]:.2f}", met(max(ratio) <= 4)])
    growth = used["checkpoint"][-1] / used["checkpoint"][0]
    layers = DEPTHS[len(used["checkpoint"]) - 1] / DEPTHS[0]
    claim = f"growth of the peak with checkpoints, {layers:.0f} times the layers"
    rows.append([claim, f"its root, {layers**0.5:.1f}", f"{growth:.1f}", met(growth <= 1.1 * layers**0.5)])
    claim = "milliseconds to build the model of a 200 x 200 grid"
    rows.append([claim, "below 50", f"least {1e3 * built[0]:.1f}, median {1e3 * built[1]:.1f}", met(built[1] < 0.05)])
    return rows


def bandwidth(measured: Sequence[tuple[Size, list[Timing], float]], device: torch.device) -> list[list[object]]:
    """Messages per second, and the share of a copy's bandwidth."""
    copied = copied_per_second(device)
    rows: list[list[object]] = []
    for size, timings, _ in measured:
        per_step = timings[0].least / size.steps
        messages = size.batch * 4 * size.side * (size.side - 1) / per_step
        share = moved_bytes(size) / per_step / copied
        rows.append([f"messages per second, share of bandwidth, {size}", "", f"{messages:.2e}, {share:.0%}", ""])
    return rows


if __name__ == "__main__":
    main()
