"""Pictures of `recipes.deep_nmf`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepunfold import Unfolded
from deepunfold.nmf import context
from recipes._synthetic_sources import Sources

SHOWN = slice(100, 300)
"""The frames that are drawn."""
NAMES = ("notes", "bursts")


def separation(net: Unfolded, bases: Sequence[Tensor], sources: Sources, frames: int, path: Path) -> None:
    """Bases, activations, and a mixture with its sources, true and estimated."""
    from matplotlib.figure import Figure

    mixture = context(sources.mixture, frames)[SHOWN]
    with torch.no_grad():
        state = net.states(mixture, [net.depth])[0]
        estimate = net(mixture)
    features = sources.mixture.shape[1]
    figure = Figure(figsize=(9.5, 6.4), layout="constrained")
    places: Any = [
        ["mixture"] * 3,
        *([f"{part} {number}" for part in ("basis", "state", "source")] for number in (0, 1)),
    ]
    panels = figure.subplot_mosaic(places, width_ratios=(1, 2, 2))
    _image(panels["mixture"], sources.mixture[SHOWN], "mixture M", "bin")
    for number, (name, basis) in enumerate(zip(NAMES, bases, strict=True)):
        own = state.split([each.shape[1] for each in bases], 1)[number]
        order = (basis[-features:] * torch.arange(features)[:, None]).sum(0) / basis[-features:].sum(0)
        sorted_by_pitch = order.argsort()
        columns, heights, estimated = (panels[f"{part} {number}"] for part in ("basis", "state", "source"))
        _image(columns, basis[-features:, sorted_by_pitch].mT, f"bases of {name}", "bin")
        _image(heights, own[:, sorted_by_pitch], f"activations of {name}", "component")
        _image(estimated, estimate[:, number], f"{name}, estimated", "bin")
        for axes, label in ((columns, "component"), (heights, "frame"), (estimated, "frame")):
            axes.set_xlabel(label, fontsize=8.5)
    figure.savefig(path, dpi=150)


def _image(axes: Any, values: Tensor, title: str, ylabel: str) -> None:
    """Loudness on a logarithmic grey scale of 40 dB; the first dimension runs to the right."""
    level = 20 * torch.log10(values.mT.clamp(min=1e-9))
    top = float(level.max())
    axes.imshow(level, origin="lower", aspect="auto", cmap="Greys", vmin=top - 40, vmax=top, interpolation="nearest")
    axes.set_title(title, loc="left", fontsize=9.5)
    axes.set_ylabel(ylabel, fontsize=8.5)
    axes.tick_params(labelsize=8)


def courses(found: Mapping[str, Any], path: Path) -> None:
    """Loss over time for each way to train, named at its end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, course), colour in zip(found.items(), ("#D55E00", "#0072B2", "#009E73", "#888888"), strict=True):
        axes.semilogx(course.seconds, course.losses, color=colour, linewidth=1.6)
        end = (course.seconds[-1], course.losses[-1])
        axes.annotate(name, end, (6, 0), textcoords="offset points", color=colour, va="center")
    axes.set(xlabel="seconds", ylabel="training loss, relative to the untrained network")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    figure.savefig(path, dpi=160)
