"""What unfolding does, in about a minute: speech enhanced, and a sparse coder trained.

    python -m recipes.demo                     recordings and pictures in the folder demo/
    python -m recipes.demo --out FOLDER

A noisy recording goes through the trained network that comes with the package. Then a sparse coder of sixteen trained
layers is compared with sixteen steps of ISTA; the problem is that of `recipes.lista` at a quarter of the size.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from benchmarks._report import need, show
from deepunfold import Unfolded, algorithms, unfold
from recipes import _demo_speech, lista
from recipes._sparse_problem import SparseProblem, nmse_db

SETTING = lista.Setting(measurements=125, atoms=250, steps=600, batch=128)
NETWORK = "Coupled weights"


def plot_codes(codes: dict[str, Tensor], path: Path) -> None:
    """Codes of one signal, one above the other; the first is the true one, which the others show behind theirs."""
    from matplotlib.figure import Figure

    true_code = next(iter(codes.values()))
    entries = true_code.nonzero().squeeze(1)
    figure = Figure(figsize=(8, 5.4), layout="constrained")
    panels = figure.subplots(len(codes), sharex=True, sharey=True)
    for axes, (name, code), colour in zip(panels, codes.items(), ("#000000", "#0072B2", "#D55E00"), strict=True):
        kept = code.nonzero().squeeze(1)
        axes.plot(entries, true_code[entries], "o", color="#999999", markersize=7, fillstyle="none")
        axes.vlines(kept, 0, code[kept], color=colour, linewidth=1.3)
        axes.plot(kept, code[kept], "o", color=colour, markersize=3.2)
        axes.axhline(0, color="#999999", linewidth=0.7)
        axes.set_title(name, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supylabel("value", fontsize=10)
    panels[-1].set(xlabel="entry of the code (rings: the true values)", xlim=(-2, len(true_code) + 1))
    figure.savefig(path, dpi=160)


def middling_signal(net: Unfolded, problem: SparseProblem) -> tuple[Tensor, Tensor]:
    """The test signal whose error by the network is the median: neither its best nor its worst."""
    x, code = problem.test
    error = (net(x) - code).square().sum(-1) / code.square().sum(-1)
    chosen = int(error.argsort()[len(error) // 2])
    return x[chosen], code[chosen]


def draw_codes(coder: Unfolded, net: Unfolded, problem: SparseProblem, path: Path) -> None:
    """One test signal as the classic algorithm and as the network see it."""
    x, true_code = middling_signal(net, problem)
    codes = {"True code": true_code}
    for name, method in (("ISTA", coder), ("Trained network", net)):
        code = method(x[None])[0].detach()
        steps = "steps" if method is coder else "layers"
        codes[f"{name}, {method.depth} {steps}: {nmse_db(code, true_code):.1f} dB"] = code
    plot_codes(codes, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Tell, train, compare, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="FOLDER", help="where all goes")
    out = parser.parse_args(arguments).out
    need("matplotlib", "plot")
    out.mkdir(parents=True, exist_ok=True)
    print(_demo_speech.enhance(_demo_speech.NOISY, out), end="\n\n")

    problem = SparseProblem(SETTING.measurements, SETTING.atoms)
    print(
        f"Each signal has {problem.measurements} numbers, mixed from a few of {problem.atoms} known atoms.\n"
        "Which atoms, and how much of each? That is its code. ISTA finds codes by repeating one simple step.\n"
        f"First, the sparsity with which {SETTING.layers} steps of it come closest:\n"
    )
    sparsity, entries = lista.classic(algorithms.ISTA, problem, SETTING.layers)
    print(
        f"\nNow the same {SETTING.layers} steps as the layers of a network, trained from there on "
        f"{SETTING.steps * SETTING.batch:,} random signals.\n"
        "The error is in dB: 10 dB less is a tenth of the squared error.\n"
    )
    net = lista.networks(problem, SETTING.layers, sparsity)[NETWORK]
    seconds = lista.train("Network", net, problem, SETTING)
    entries["Trained network"] = lista.entry(net, problem, seconds)

    lista.plot_curves({name: found.test_db for name, found in entries.items()}, out / "nmse_over_layers.png")
    draw_codes(unfold(algorithms.ISTA(problem.dictionary, sparsity), SETTING.layers), net, problem, out / "codes.png")
    print(
        f"\nPictures: {out / 'nmse_over_layers.png'} (error after each layer), {out / 'codes.png'} (codes of a signal)"
    )
    header, rows = lista.table(entries, SETTING.layers)
    show("Error on signals that neither has seen", header, rows)


if __name__ == "__main__":
    main()
