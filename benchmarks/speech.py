"""The speech enhancer on one core: streams, files, and the command from a cold start.

    python -m benchmarks.speech --json results/speech.json

The shipped model is measured; where there is none, random numbers of its size, which cost the same. Each measurement
is a process with one thread. Beside it, in turns, run the same enhancer with its inference written down in
numpy as the equations are, and, in chunks, the matrix products of the updates alone, which is the floor.
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks._report import least_and_median, met, parser, show, write_json
from benchmarks._speech_measures import HOP, RATE, alone

STREAM, FILE = 0.05, 0.03
"""Goals: real-time factors of chunks of one frame, and of whole signals."""

LIMIT = 400e6


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    chosen = arguments(given)
    torch.set_num_threads(1)  # as many as are measured; the machine's line tells of it
    seconds, repeats = (5, 2) if chosen.small else (30, 9)
    lengths = (10, 60) if chosen.small else (60, 1800)
    about = alone("about")
    print(f"{about['model']}, {'the one that is shipped' if about['pretrained'] else 'random'}")
    rounds = [alone("streaming", seconds) for _ in range(1 if chosen.small else 3)]
    streamed = min(rounds, key=lambda each: each["factor"]["deepunfold"])
    show_streams(rounds)
    whole = alone("offline", 10, repeats)
    show_files(whole)
    started = alone("cold", 10, repeats)
    show_starts(started)
    used = {length: alone("memory", length) for length in lengths}
    show(
        "Peak memory of deepunfold enhance",
        ["seconds of sound", "MB"],
        [[f"{length}", f"{peak / 1e6:.0f}"] for length, peak in used.items()],
    )
    summary = claims(rounds, whole, started, used)
    show("speech on one core: what is claimed and what was reached", ["claim", "goal", "reached", "met"], summary)
    results = {
        "about": about,
        "streaming": rounds,
        "least": streamed,
        "offline": whole,
        "cold": started,
        "memory": used,
        "summary": summary,
    }
    write_json(chosen.json, "speech", {"small": chosen.small, "seconds": seconds, "repeats": repeats}, results)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The settings of a run."""
    made = parser(__doc__)
    made.add_argument("--small", action="store_true", help="a quick look: seconds of sound, few repeats")
    return made.parse_args(given)


def show_streams(rounds: Sequence[dict[str, Any]]) -> None:
    """The real-time factor and milliseconds of a chunk."""
    rows = []
    for way in rounds[0]["factor"]:
        factor = least_and_median([each["factor"][way] for each in rounds])
        chunks = [1e3 * statistics.median(each["chunk"][way][place] for each in rounds) for place in range(3)]
        worked = statistics.median(each["processor"][way] for each in rounds)
        rows.append([way, *(f"{each:.4f}" for each in (*factor, worked)), *(f"{each:.2f}" for each in chunks)])
    show(
        f"Streaming in chunks of one frame, {HOP} samples: real-time factor, milliseconds (medians of runs)",
        ["", "least", "median", "processor alone", "p50", "p99", "most"],
        rows,
    )
    first = rounds[0]
    late = 1e3 * first["latency"] / RATE
    print(
        f"\nlatency {first['latency']} samples, {late:.1f} ms, and {first['behind']} behind at most; "
        f"lag against offline {first['lag']} samples, difference {first['difference']:.0e}; "
        f"plain numpy differs by {first['difference_of_plain']:.0e}"
    )


def show_files(whole: dict[str, dict[str, list[float]]]) -> None:
    """The real-time factor of whole signals."""
    show(
        "Offline, 10 s at once: real-time factor",
        ["", "least", "median", "processor alone"],
        [
            [
                way,
                *(f"{each:.4f}" for each in (*least_and_median(found["clock"]), statistics.median(found["processor"]))),
            ]
            for way, found in whole.items()
        ],
    )


def show_starts(started: dict[str, list[float]]) -> None:
    """Seconds from start to end of a process."""
    show(
        "A new process, a file of 10 s: seconds",
        ["", "least", "median"],
        [[way, *(f"{each:.2f}" for each in least_and_median(found))] for way, found in started.items()],
    )


def claims(
    rounds: Sequence[dict[str, Any]],
    whole: dict[str, dict[str, list[float]]],
    started: dict[str, list[float]],
    used: dict[int, int],
) -> list[list[object]]:
    """What the speed comes to."""
    least, median = least_and_median([each["factor"]["deepunfold"] for each in rounds])
    plain = [each["factor"]["plain numpy"] / each["factor"]["deepunfold"] for each in rounds]
    floor = [each["factor"]["deepunfold"] / each["factor"]["its products alone"] for each in rounds]
    p99 = least_and_median([1e3 * each["chunk"]["deepunfold"][1] for each in rounds])
    late = max(abs(each["lag"]) for each in rounds)
    file, cold = least_and_median(whole["deepunfold"]["clock"]), least_and_median(started["deepunfold enhance"])
    ratio = [a / b for a, b in zip(whole["plain numpy"]["clock"], whole["deepunfold"]["clock"], strict=True)]
    peak = max(used.values())
    return [
        ["real-time factor, chunks of one frame", f"at most {STREAM}", _two(least, median), met(median <= STREAM)],
        ["times as fast as plain numpy, chunks", "above 1", _two(min(plain), statistics.median(plain)), _above(plain)],
        ["its time over that of its products alone", "", _two(min(floor), statistics.median(floor)), ""],
        ["milliseconds of a frame, p99", "below 5", _two(*p99), met(p99[1] < 5)],
        ["lag of a stream against offline, samples", "0", f"{late}", met(late == 0)],
        ["real-time factor, offline", f"at most {FILE}", _two(*file), met(file[1] <= FILE)],
        ["times as fast as plain numpy, offline", "above 1", _two(min(ratio), statistics.median(ratio)), _above(ratio)],
        ["seconds of deepunfold enhance, 10 s of sound", "below 1", _two(*cold), met(cold[1] < 1)],
        ["peak memory in MB, the longest file", f"below {LIMIT / 1e6:.0f}", f"{peak / 1e6:.0f}", met(peak < LIMIT)],
    ]


def _two(least: float, median: float) -> str:
    return f"least {least:.3g}, median {median:.3g}"


def _above(ratios: Sequence[float]) -> str:
    return met(statistics.median(ratios) > 1)


if __name__ == "__main__":
    main()
