"""Picture of `recipes.mrf_ising`."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SHOWN = {
    "mean field, best": ("mean field", "#888888", "--"),
    "tree-reweighted, best": ("tree-reweighted", "#E69F00", "--"),
    "belief propagation": ("BP, 50 steps", "#009E73", "--"),
    "belief propagation, best": ("BP, best damping", "#009E73", "-"),
    "best lambda": ("best fixed λ", "#56B4E9", "-"),
    "5 layers, untied": ("5 layers, untied", "#CC79A7", "-"),
    "10 layers, tied": ("10 layers, tied", "#0072B2", "-"),
    "10 layers, untied": ("10 layers, untied", "#D55E00", "-"),
}
"""Methods that are drawn: how they are called, and their line."""


def over_strength(strengths: Sequence[float], found: Mapping[str, Mapping[int, Any]], path: Path) -> None:
    """The error of each method over the strength, named at the line's end; one panel for each size of graphs."""
    from matplotlib.figure import Figure

    sides = list(next(iter(found.values())))
    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    panels = figure.subplots(1, len(sides), sharey=True)
    for axes, side in zip(panels, sides, strict=True):
        own = {name: found[name][side] for name in SHOWN}
        heights = _apart([each.mean[-1] for each in own.values()], gap=0.017)
        for (name, each), height in zip(own.items(), heights, strict=True):
            label, colour, dashes = SHOWN[name]
            axes.plot(strengths, each.mean, dashes, color=colour, linewidth=1.6)
            low, high = (
                [mean + sign * half for mean, half in zip(each.mean, each.interval, strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(strengths, low, high, color=colour, alpha=0.12, linewidth=0)
            axes.annotate(
                label,
                (strengths[-1], height),
                (6, 0),
                textcoords="offset points",
                color=colour,
                va="center",
                fontsize=9,
            )
        axes.set_title(f"grids of {side}x{side}", loc="left", fontsize=10)
        axes.set(xlabel="strength of the couplings", xlim=(strengths[0], strengths[-1]), ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("mean absolute error of P(spin = 1)")
    figure.savefig(path, dpi=160)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights for labels that want to be at the given ones, but at least a gap apart."""
    placed = list(heights)
    order = sorted(range(len(placed)), key=lambda i: -placed[i])
    for upper, lower in itertools.pairwise(order):
        placed[lower] = min(placed[lower], placed[upper] - gap)
    return placed
