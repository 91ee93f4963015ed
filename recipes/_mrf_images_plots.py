"""The picture of `recipes.mrf_images`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipes._mrf_images_measures import Entry
from recipes.lista import spread

EACH = 2
"""How many images are drawn under each noise: the first ones of the test set, then the next ones."""
COLOURS = {"mean field": "#E69F00", "belief propagation": "#0072B2"}
WRONG = "#D55E00"


def figure(
    found: Mapping[str, Any], methods: Sequence[str], layers: int, curve: Sequence[int], size: int, path: Path
) -> None:
    """Test images as methods give them, wrong pixels in colour; below, the error over steps and layers."""
    from matplotlib.figure import Figure

    trained = {f"{method}, {layers} layers, untied": f"{method},\n{layers} trained layers" for method in methods}
    shown = dict(zip(methods, methods, strict=True)) | trained
    drawing = Figure(figsize=(9.2, 2 * EACH * 1.6 + 3.1), layout="constrained")
    parts: Any = drawing.subfigures(2, 1, height_ratios=(2 * EACH * 1.6, 2.9))
    above, below = parts
    rows: Any = above.subplots(2 * EACH, 2 + len(shown))
    for number, (clean, seen, *rest) in enumerate(rows):
        name = list(found)[number // EACH]
        entries, _, test = found[name]
        truth = test.labels[number]
        _picture(clean, truth, truth, size)
        clean.set_ylabel(name, fontsize=9.5)
        seen.imshow(test.seen[number].reshape(size, size).numpy(), cmap="Greys", interpolation="nearest")
        _error(seen, entries["each pixel alone"], number)
        for axes, method in zip(rest, shown, strict=True):
            _picture(axes, entries[method].outputs[number].argmax(-1), truth, size)
            _error(axes, entries[method], number)
    for axes, title in zip(rows[0], ["clean", "seen", *shown.values()], strict=True):
        axes.set_title(title, fontsize=9.5)
    for axes, (name, (entries, curves, _)) in zip(below.subplots(1, len(found)), found.items(), strict=True):
        _courses(axes, entries, {method: curves[method] for method in methods}, curve)
        axes.set_title(name, loc="left", fontsize=10)
    drawing.savefig(path, dpi=150)


def _picture(axes: Any, labels: Tensor, truth: Tensor, size: int) -> None:
    """Shapes in grey, and what is wrong in colour, be it missing or too much."""
    from matplotlib.colors import ListedColormap

    codes = torch.where(labels == truth, labels, 2).reshape(size, size).numpy()
    axes.imshow(codes, cmap=ListedColormap(["white", "#333333", WRONG]), interpolation="nearest", vmin=0, vmax=2)
    axes.set(xticks=[], yticks=[])


def _error(axes: Any, entry: Entry, image: int) -> None:
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(f"{float(entry.errors[0, image]):.1f} %", fontsize=8.5)


def _courses(
    axes: Any, entries: Mapping[str, Entry], curves: Mapping[str, Sequence[float]], steps: Sequence[int]
) -> None:
    """The classic methods' error over their steps as lines, and that of networks over their layers as points."""
    least = min(float(entry.errors.mean()) for entry in entries.values())
    labels = spread([values[-1] for values in curves.values()], gap=0.13 * least)
    for (method, values), label in zip(curves.items(), labels, strict=True):
        colour = COLOURS[method]
        axes.plot(steps, values, color=colour, linewidth=1.6)
        end = (steps[-1], label + 0.06 * least)
        axes.annotate(method, end, (6, 0), textcoords="offset points", color=colour, va="center", annotation_clip=False)
        for name, entry in entries.items():
            kind, *details = name.split(", ")
            if kind == method and details:
                depth, face = int(details[0].split()[0]), colour if details[1] == "untied" else "white"
                axes.plot(depth, float(entry.errors.mean()), "o", color=colour, markerfacecolor=face, markersize=5.5)
    axes.text(0.98, 0.95, "lines: classic\n○ trained, tied\n● trained, untied", transform=axes.transAxes, **CORNER)
    axes.set(xscale="log", xlabel="steps, or layers", ylabel="pixels wrong (%)", ylim=(0.85 * least, 2.6 * least))
    axes.set_xticks(steps, [str(step) if step in (1, 2, 5, 10, 20, 50) else "" for step in steps], minor=False)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)


CORNER: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 9, "color": "#555555"}
