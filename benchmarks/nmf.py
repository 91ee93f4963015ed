"""What inference in non-negative models costs beyond its matrix products, and a training step beyond its inference.

    python -m benchmarks.nmf --json results/nmf.json

Peers are measured where they are installed: scikit-learn (in the extra "dev"), torchnmf. Everything is float32.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from resource import RUSAGE_SELF, getrusage

import torch

from benchmarks._nmf_measures import Peak, Size, Timing, compare, inference, peaks, steps
from benchmarks._report import add_device, met, parser, show, write_json

INFERENCE = (Size(1800, 200, 5000, 25), Size(1800, 2000, 5000, 25))
# The paper's networks, whose first layers see nine frames, and ones that see one, where every update is as cheap.
TRAINING = (
    Size(200, 200, 20_000, 4, 4, 9),
    Size(200, 200, 20_000, 25, 4, 9),
    Size(200, 200, 20_000, 4, 4),
    Size(200, 200, 20_000, 25, 4),
)
MEMORY = Size(200, 200, 0, 4, 4)
LARGE = Size(200, 200, 300_000, 25, 25)
GOALS = {"cpu": (1.05, 1.05), "cuda": (1.3, 1.1)}


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    chosen = arguments(given)
    device = torch.device(chosen.device)
    torch.backends.cuda.matmul.allow_tf32 = True
    shrink = 10 if chosen.small else 1
    repeats = 3 if chosen.small else 5
    sizes = [size._replace(frames=size.frames // shrink) for size in INFERENCE[: 1 if chosen.small else 2]]
    speeds = [(size, inference(size, device, repeats)) for size in sizes]
    for size, rows in speeds:
        show_timings(
            f"KL inference, F={size.features}, R={size.components}, T={size.frames}, {size.layers} times", rows
        )
    training = [size._replace(frames=size.frames // shrink) for size in TRAINING]
    trained = [(size, compare(steps(size, device), "forward", repeats)) for size in training]
    for size, rows in trained:
        show_timings(f"Training, F=200, R=200, T={size.frames}, {network_of(size)}", rows)
    used = peaks(MEMORY, (2000, 4000, 8000, 16_000), device)
    show_peaks(used)
    large = fits(LARGE._replace(frames=LARGE.frames // (50 if chosen.small else 1)), device) if chosen.large else None
    summary = claims(speeds, trained, used, device) + ([] if large is None else [large])
    show(f"nmf on {device.type}: what is claimed and what was reached", ["claim", "goal", "reached", "met"], summary)
    results = {
        "inference": [{"size": size._asdict(), "rows": [asdict(row) for row in rows]} for size, rows in speeds],
        "training": [{"size": size._asdict(), "rows": [asdict(row) for row in rows]} for size, rows in trained],
        "memory": [asdict(row) for row in used],
        "summary": summary,
    }
    write_json(chosen.json, "nmf", {"device": chosen.device, "small": chosen.small, "repeats": repeats}, results)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The settings of a run."""
    made = parser(__doc__)
    add_device(made)
    made.add_argument("--small", action="store_true", help="a quick look: fewer frames and repeats")
    made.add_argument("--large", action="store_true", help="also one step of 300,000 frames through 25 trained layers")
    return made.parse_args(given)


def network_of(size: Size) -> str:
    """The shape of a network in words."""
    return f"K={size.layers}, C={size.trained}, context {size.context}"


def show_timings(title: str, rows: Sequence[Timing]) -> None:
    """Milliseconds and ratios of each way."""
    show(
        f"{title}: milliseconds, and ratio to the first row",
        ["", "least", "median", "ratio of least", "of median"],
        [
            [row.way, f"{1e3 * row.least:,.1f}", f"{1e3 * row.median:,.1f}", *(f"{ratio:.2f}" for ratio in row.ratio)]
            for row in rows
        ],
    )


def show_peaks(rows: Sequence[Peak]) -> None:
    """Peak memory over the number of frames."""
    show(
        "Peak memory in MB beyond parameters and data, K=4, C=4",
        ["", *(f"T={row.frames}" for row in rows)],
        [[way, *(f"{row.peaks[way] / 1e6:.1f}" for row in rows)] for way in rows[0].peaks],
    )


def fits(size: Size, device: torch.device) -> list[object]:
    """One closed-form step of everything: how long, and the most memory that the process ever had."""
    begun = time.perf_counter()
    steps(size, device)["closed-form step"]()
    # Linux counts in units of 1024 bytes.
    held = torch.cuda.max_memory_allocated() if device.type == "cuda" else 1024 * getrusage(RUSAGE_SELF).ru_maxrss
    reached = f"{held / 1e9:.1f} GB, {time.perf_counter() - begun:.0f} s"
    return [f"a step of T={size.frames:,}, K=25, C=25, R=200", "in 24 GB", reached, met(held < 24e9)]


def claims(
    speeds: Sequence[tuple[Size, list[Timing]]],
    trained: Sequence[tuple[Size, list[Timing]]],
    used: Sequence[Peak],
    device: torch.device,
) -> list[list[object]]:
    """What the issue of speed comes to."""
    rows: list[list[object]] = []
    for (size, timings), goal in zip(speeds, GOALS[device.type], strict=False):
        ratio = next(row.ratio for row in timings if row.way == "deepunfold")
        claim = f"inference over its products, R={size.components}"
        rows.append([claim, f"at most {goal}", f"least {ratio[0]:.2f}, median {ratio[1]:.2f}", met(max(ratio) <= goal)])
    for size, timings in trained:
        ratio = next(row.ratio for row in timings if row.way == "closed-form step")
        claim = f"closed-form step over its forward pass, {network_of(size)}"
        rows.append([claim, "at most 4", f"least {ratio[0]:.2f}, median {ratio[1]:.2f}", met(max(ratio) <= 4)])
    last, first = used[-1].peaks, used[0].peaks
    share = last["closed-form step"] / last["autograd, no update"]
    rows.append([f"its peak over autograd's, T={used[-1].frames}", "at most 0.5", f"{share:.3f}", met(share <= 0.5)])
    growth = last["closed-form step"] / first["closed-form step"]
    claim = f"its peak at T={used[-1].frames} over that at T={used[0].frames}"
    rows.append([claim, "1", f"{growth:.2f}", met(growth <= 1.01)])
    return rows


if __name__ == "__main__":
    main()
