"""The picture of `recipes.mrf_digits`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLOURS = {
    "sigmoid, continued": "#555555",
    "lambda moved from 0 to 1": "#D55E00",
    "lambda 1 at once": "#0072B2",
}
"""Those of the continued networks, the same in both panels."""


def draw(results: Mapping[str, Any], epochs: int, path: Path) -> None:
    """Test losses of all networks with their intervals, and those of the continued ones as training goes on."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    _dots(left, results["networks"])
    _curves(right, results, epochs)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=160)


def _dots(axes: Any, networks: Mapping[str, Any]) -> None:
    """The mean of each network with its interval, and the seeds behind it."""
    for place, (name, found) in enumerate(networks.items()):
        mean, half = found["loss"]
        colour = COLOURS.get(name, "#222222")
        axes.plot(found["losses"], [place] * len(found["losses"]), ".", color=colour, alpha=0.3, markersize=5)
        axes.errorbar(mean, place, xerr=half, color=colour, fmt="o", markersize=5.5, linewidth=1.6)
    axes.set_yticks(range(len(networks)), [_greek(name) for name in networks])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_title("after training", loc="left", fontsize=10)
    axes.set_xlabel("cross-entropy on test digits")
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.7)


def _curves(axes: Any, results: Mapping[str, Any], epochs: int) -> None:
    """The loss while lambda moves, and after."""
    fixed, networks = results["weights fixed"], results["networks"]
    first, each = epochs // 2, results["updates per epoch"]
    updates = [each * (first + number) for number in range(len(fixed))]
    axes.plot(updates, fixed, color="#999999", linewidth=1.3, linestyle=":", label="λ moved, weights fixed")
    for name, colour in COLOURS.items():
        curve = [fixed[0], *networks[name]["curves"]["test"]]
        axes.plot(updates, curve, color=colour, linewidth=1.6, label=_greek(name))
    lambdas = [0.0, *networks["lambda moved from 0 to 1"]["lambdas"]]
    last = lambdas.index(1.0)
    axes.axvline(updates[last], color="#cccccc", linewidth=0.8)
    note = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "color": "#777777"}
    axes.annotate("λ = 1 from here", (updates[last], 0.5), (5, 0), fontsize=9, **note)
    axes.set_title("from a trained sigmoid network", loc="left", fontsize=10)
    axes.set(xlabel="updates", ylabel="cross-entropy on test digits")
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.legend(frameon=False, fontsize=9)


def _greek(name: str) -> str:
    return name.replace("lambda", "λ")
