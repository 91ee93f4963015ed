"""Pictures of an `Explanation`: all in one, or one for each part of a page."""

from typing import TYPE_CHECKING, Any

import numpy as np

from deepunfold.speech._explain import Explanation
from deepunfold.speech._extras import extra
from deepunfold.speech._frontend import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANGE, FIRING_RANGE = 55.0, 40.0
"""How many dB below the loudest spectrograms and activations reach."""

LOUDEST = 99.9
"""Percent of the bins that are not louder than what counts as the loudest, 0 dB."""

GREY = "#555555"


def overview(found: Explanation, name: str) -> "Figure":
    """Everything in one picture."""
    figure = _figure(14, 14)
    figure.suptitle(f"{name}: what the network did", x=0.01, ha="left", fontsize=13)
    parts: Any = figure.subfigures(4, 1, height_ratios=(2.6, 3.6, 2.3, 2.1))
    top, middle, low, bottom = parts
    _signals(found, [*_axes(top, 1, 3)], stacked=False)
    _layers(found, _axes(middle, 2, len(found.layers())))
    _firing(found, _axes(low, 1, len(found.columns)))
    left, right = bottom.subfigures(1, 2, width_ratios=(1, 2))
    _distances(found, _axes(left, 1, 1)[0])
    _patches(found, right, 8)
    return figure


def signals(found: Explanation) -> "Figure":
    """The input, the mask and the output, one above the other, with one axis of time."""
    figure = _figure(10, 6.6)
    _signals(found, _axes(figure, 3, 1), stacked=True)
    return figure


def layers(found: Explanation) -> "Figure":
    """The estimate after some of the layers, and the mask that makes it."""
    figure = _figure(12, 4.2)
    _layers(found, _axes(figure, 2, len(found.layers())))
    return figure


def distances(found: Explanation) -> "Figure":
    """How far each layer's estimate is from the last."""
    figure = _figure(10, 2.3)
    _distances(found, _axes(figure, 1, 1)[0])
    return figure


def firing(found: Explanation) -> "Figure":
    """The activations of each source."""
    count = len(found.columns)
    figure = _figure(10, 0.6 + 2.3 * count)
    _firing(found, _axes(figure, count, 1))
    return figure


def patch(found: Explanation, name: str, number: int) -> "Figure":
    """The frames that one basis looks for."""
    figure = _figure(1.1, 1.5)
    axes = _axes(figure, 1, 1)[0]
    _patch(found, axes, name, number)
    return figure


def _figure(width: float, height: float) -> "Figure":
    return extra("matplotlib.figure", "plot").Figure(figsize=(width, height), layout="constrained")  # type: ignore[no-any-return]


def _axes(figure: Any, rows: int, columns: int) -> "list[Axes]":
    return list(figure.subplots(rows, columns, squeeze=False).flat)


def _signals(found: Explanation, places: "list[Axes]", stacked: bool) -> None:
    front = found.model.frontend
    output = np.abs(front.analyse(found.sources[found.target].astype(np.float32)))
    _spectrogram(found, places[0], found.magnitudes, "input, dB")
    _mask(found, places[1], found.model.layers)
    _dress(places[1], f"mask of {found.target}")
    _spectrogram(found, places[2], output, f"output, {found.target}, dB")
    for axes in places:
        _bar(axes)
    if stacked:
        for axes in places[:2]:
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
    for axes in places if stacked else places[:1]:
        axes.set_ylabel("kHz", fontsize=8.5)


def _layers(found: Explanation, places: "list[Axes]") -> None:
    """A column for each layer: the estimate above, the mask below."""
    shown, last = found.layers(), found.model.layers
    switch = last - max(found.model.trained - 1, 0)
    for column, layer in enumerate(shown):
        title = f"layer {layer}" if layer else "before layer 1"
        title += ", the last" if layer == last else ", context ends" if layer == switch else ""
        above, below = places[column], places[len(shown) + column]
        _spectrogram(found, above, found.estimate(layer), title)
        above.set_xlabel("")
        above.tick_params(labelbottom=False)
        _mask(found, below, layer)
        _dress(below, "")
        for axes in (above, below):
            axes.tick_params(labelleft=column == 0)
    places[0].set_ylabel("estimate, kHz", fontsize=8.5)
    places[len(shown)].set_ylabel("mask, kHz", fontsize=8.5)


def _distances(found: Explanation, axes: "Axes") -> None:
    switch = found.model.layers - max(found.model.trained - 1, 0)
    axes.plot(100 * found.distances, color="black", marker="o", markersize=3, linewidth=1)
    if switch < found.model.layers:
        axes.axvline(switch + 0.5, color=GREY, linewidth=0.8, linestyle=":")
        axes.annotate(
            "single frames", (switch + 0.5, 1), xycoords=("data", "axes fraction"), xytext=(3, -3),
            textcoords="offset points", va="top", fontsize=7.5, color=GREY,
        )  # fmt: skip
    _dress(axes, "distance of the estimate to the last one, %", "layer")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


def _firing(found: Explanation, places: "list[Axes]") -> None:
    amounts = {name: found.firing(name) for name in found.columns}
    top = max(float(_level(each).max()) for each in amounts.values())
    for axes, (name, amount) in zip(places, amounts.items(), strict=True):
        order = found.by_pitch(name)
        axes.imshow(
            _level(amount[:, order]).T - top,
            cmap="Greys",
            vmin=-FIRING_RANGE,
            vmax=0,
            **{**_extent(found, len(order)), "interpolation": "nearest"},
        )
        _cut(found, axes)
        _dress(axes, f"how strongly bases of {name} fire, dB")
        axes.set_ylabel("basis, low ones below", fontsize=8.5)
        _bar(axes)


def _patches(found: Explanation, figure: Any, count: int) -> None:
    """The strongest bases of each source, a row for each."""
    rows = figure.subplots(len(found.columns), count, squeeze=False)
    for places, name in zip(rows, found.columns, strict=True):
        for axes in places:
            axes.set_axis_off()
        for axes, number in zip(places, found.strongest(name, count), strict=False):
            axes.set_axis_on()
            _patch(found, axes, name, number)
        places[0].set_title(f"strongest bases of {name}", loc="left", fontsize=9.5)


def _patch(found: Explanation, axes: "Axes", name: str, number: int) -> None:
    level = _level(found.patch(name, number)).T
    axes.imshow(
        level,
        origin="lower",
        aspect="auto",
        cmap="magma",
        vmin=level.max() - 40,
        vmax=level.max(),
        interpolation="none",
    )
    axes.set_xticks([])
    axes.set_yticks([])


def _spectrogram(found: Explanation, axes: "Axes", magnitudes: Array, title: str) -> None:
    """In dB of what is loudest in the input."""
    top = float(np.percentile(_level(found.magnitudes), LOUDEST))
    extent = _extent(found, found.model.frontend.rate / 2)
    axes.imshow(_level(magnitudes).T - top, cmap="magma", vmin=-RANGE, vmax=0, **extent)
    _cut(found, axes)
    _dress(axes, title)


def _mask(found: Explanation, axes: "Axes", layer: int) -> None:
    extent = _extent(found, found.model.frontend.rate / 2)
    axes.imshow(found.masks(layer)[:, 0].T, cmap="viridis", vmin=0, vmax=1, **extent)
    _cut(found, axes)


def _extent(found: Explanation, height: float) -> dict[str, Any]:
    """Where an image of frames lies: each frame around its middle."""
    front = found.model.frontend
    first = found.start + ((front.window - front.hop) / 2 - front.overlap) / front.rate
    last = first + len(found.magnitudes) * front.hop / front.rate
    height = height / 1000 if height == front.rate / 2 else height
    return {"extent": (first, last, 0, height), "origin": "lower", "aspect": "auto", "interpolation": "antialiased"}


def _cut(found: Explanation, axes: "Axes") -> None:
    """Show as much time as the signal has."""
    axes.set_xlim(found.start, found.start + found.seconds)


def _dress(axes: "Axes", title: str, xlabel: str = "s") -> None:
    axes.set_title(title, loc="left", fontsize=9.5)
    axes.set_xlabel(xlabel, fontsize=8.5, labelpad=1)
    axes.tick_params(labelsize=8)


def _bar(axes: "Axes") -> None:
    bar = axes.figure.colorbar(axes.images[0], ax=axes, pad=0.01, aspect=18)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_visible(False)


def _level(amounts: Array) -> Array:
    """In dB; nothing at all is far below everything."""
    found: Array = 20 * np.log10(np.maximum(amounts, 1e-9))
    return found
