"""The picture of `benchmarks.unfold`: peak memory over K for each backward mode, and over C for train_last."""

from pathlib import Path
from typing import Any

from benchmarks._unfold_measures import Memory, exponent, per_layer

# Colours after Okabe and Ito, which stay apart for colour-blind readers; markers and labels say the same again.
STYLES = {
    "unroll": ("#D55E00", "o"),
    "checkpoint": ("#0072B2", "s"),
    "truncated": ("#009E73", "^"),
    "implicit": ("#B8578F", "D"),
    "jacobian_free": ("#444444", "v"),
}
LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
}


def draw(used: Memory, path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(LOOK):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained", width_ratios=(1.5, 1))
        _over_depth(left, used)
        _over_trained(right, used)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200)
        pyplot.close(figure)


def _over_depth(axes: Any, used: Memory) -> None:
    """Straight lines on logarithmic axes, each named at its end, with its slope."""
    for mode, (colour, marker) in STYLES.items():
        heights = [peak / 1e6 for peak in used.peaks[mode]]
        axes.loglog(used.depths, heights, color=colour, marker=marker)
        name = f"{mode} $\\sim K^{{{exponent(used.depths, used.peaks[mode]):.2f}}}$"
        end = (used.depths[-1], heights[-1])
        axes.annotate(name, end, (8, 0), textcoords="offset points", color=colour, va="center")
    axes.set_xticks(used.depths, [str(k) for k in used.depths])
    _plain_numbers(axes)
    axes.set_xlabel("layers $K$")
    axes.set_ylabel("peak memory (MB)")
    axes.set_title("All layers trained, by backward mode")


def _plain_numbers(axes: Any) -> None:
    """1, 2, 5, 10, ... in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))


def _over_trained(axes: Any, used: Memory) -> None:
    """A straight line on plain axes that starts at the origin is what "in proportion" looks like."""
    heights = [peak / 1e6 for peak in used.trained_peaks]
    colour, marker = STYLES["unroll"]
    axes.plot(used.trained, heights, color=colour, marker=marker)
    each = per_layer(used.trained, used.trained_peaks) / 1e6
    middle = len(heights) // 2 - 1
    place = (used.trained[middle], heights[middle])
    axes.annotate(f"{each:.2f} MB per layer", place, (7, -9), textcoords="offset points", color=colour)
    axes.set_xlim(0, used.size.layers * 1.03)
    axes.set_ylim(0)
    axes.set_xticks([0, *used.trained][:: max(1, len(used.trained) // 4)])
    axes.set_xlabel("trained layers $C$")
    axes.set_title(f"train_last=$C$ of $K$ = {used.size.layers} layers")
