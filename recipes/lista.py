"""Learned ISTA on synthetic sparse recovery: sixteen trained layers against sixteen steps of the classic algorithm.

    python -m recipes.lista                    the whole experiment, about five minutes on two cores
    python -m recipes.lista --small            a small one, some seconds
    python -m recipes.lista --plot lista.png --save lista.safetensors --json lista.json

The problem: x = D z with a Gaussian dictionary of 250 x 500 with unit columns, codes z of which one entry in ten is
standard Gaussian and the others zero, no noise. Each method gives a code after each number of steps, measured by the
NMSE in dB, 10 log10(sum ||code - z||^2 / sum ||z||^2), over a test set that no choice has seen.

- ISTA and FISTA, each with the sparsity that is best on the validation set after the last step; ISTA also with others.
- LISTA tied: one set of parameters for all layers, a recurrent network (Gregor and LeCun, 2010).
- LISTA untied: a set for each layer.
- Coupled weights: every layer keeps the true dictionary and has an analysis and a threshold of its own (LISTA-CP of
  Chen, Liu, Wang and Yin, 2018).

The networks start as ISTA with its best sparsity and are trained alike: fresh samples at every update, and as loss the
mean over all layers of the NMSE in dB, so that each layer counts, however small its error has become. With a loss on
the last layer alone the untied network learns far more slowly.

To compare with: Chen, Liu, Wang and Yin, "Theoretical Linear Convergence of Unfolded ISTA and its Practical Weights and
Thresholds" (NeurIPS 2018, arXiv:1808.10038), the figure of NMSE over layers for LISTA, LISTA-CP, LISTA-SS and
LISTA-CPSS without noise (SNR infinite); support selection, the SS, is not among the methods here. The setting is that
of the authors' code (github.com/VITA-Group/LISTA-CPSS, defaults of config.py), which trains much longer: layer by
layer, each stage for up to 200,000 updates.
"""

import argparse
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from benchmarks._report import need, parser, show, write_json
from deepunfold import Epoch, Unfolded, algorithms, deep_supervision, fit, save, unfold
from recipes._sparse_problem import SparseProblem, nmse_db

SPARSITIES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
"""What ISTA and FISTA choose from."""
SHOWN_SPARSITIES = (0.05, 0.1)
"""ISTA is shown with these as well as with its best."""
EPOCHS = 20
"""The training is cut into these, for validation and for the decay of the learning rate."""


@dataclass(frozen=True)
class Setting:
    """The size of an experiment: the problem, the depth, and each network's training."""

    measurements: int = 250
    atoms: int = 500
    layers: int = 16
    steps: int = 1500
    batch: int = 256
    learning_rate: float = 3e-3


FULL = Setting()
SMALL = Setting(measurements=50, atoms=100, steps=200, learning_rate=1e-2)


@dataclass(frozen=True)
class Entry:
    """A method's result: its NMSE on the test set after 0, 1, ... steps."""

    parameters: int
    seconds: float
    validation_db: float
    test_db: list[float]


def curve(net: Unfolded, data: tuple[torch.Tensor, torch.Tensor]) -> list[float]:
    """The NMSE in dB after 0, 1, ..., K steps."""
    x, code = data
    return [float(nmse_db(output, code)) for output in net.outputs(x, range(net.depth + 1), grad=False)]


def entry(net: Unfolded, problem: SparseProblem, seconds: float = 0.0, trained: bool = True) -> Entry:
    """What is reported of a network; the steps of a classic algorithm are one whose parameters nobody trained."""
    parameters = sum(parameter.numel() for parameter in net.parameters() if trained and parameter.requires_grad)
    return Entry(parameters, seconds, curve(net, problem.validation)[-1], curve(net, problem.test))


def classic(
    kind: type[algorithms.ISTA], problem: SparseProblem, layers: int, shown: Sequence[float] = ()
) -> tuple[float, dict[str, Entry]]:
    """The sparsity that is best on the validation set after the last step, and entries for it and the shown ones."""
    entries = {s: entry(unfold(kind(problem.dictionary, s), layers), problem, trained=False) for s in SPARSITIES}
    best = min(SPARSITIES, key=lambda s: entries[s].validation_db)
    tried = ", ".join(f"{s:g}: {entries[s].validation_db:.1f}" for s in SPARSITIES)
    print(f"{kind.__name__}, dB after {layers} steps on the validation set by sparsity: {tried}", flush=True)
    names = {s: f"{kind.__name__}, sparsity {s:g}" for s in sorted({*shown} - {best})}
    names[best] = f"{kind.__name__}, sparsity {best:g} (best)"
    return best, {name: entries[s] for s, name in names.items()}


def networks(problem: SparseProblem, layers: int, sparsity: float) -> dict[str, Unfolded]:
    """The three networks, each still the same function as ISTA."""
    lista, ista = algorithms.LISTA(problem.dictionary, sparsity), algorithms.ISTA(problem.dictionary, sparsity)
    ista.dictionary.requires_grad_(False)
    coupled = {"dictionary": "all", "analysis": "each", "threshold": "each"}
    return {
        "LISTA, tied": unfold(lista, layers),
        "LISTA, untied": unfold(lista, layers, tie="each"),
        "Coupled weights": unfold(ista, layers, tie=coupled),
    }


def train(name: str, net: Unfolded, problem: SparseProblem, setting: Setting) -> float:
    """Train a network for the mean of its layers' NMSE in dB; the seconds that it took."""
    begun, epochs = time.perf_counter(), min(EPOCHS, setting.steps)
    bounds = [number * setting.steps // epochs for number in range(epochs + 1)]
    x, code = problem.validation
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=setting.learning_rate, fused=True)
    decay = CosineAnnealingLR(optimizer, epochs)

    def after(epoch: Epoch) -> None:
        decay.step()
        done = epoch.number + 1
        if done % max(1, epochs // 5) == 0:
            seconds = time.perf_counter() - begun
            print(f"{name}: {bounds[done]} steps, {epoch.validation:.1f} dB, {seconds:.0f} s", flush=True)

    fit(
        net,
        lambda number: problem.batches(number, bounds[number + 1] - bounds[number], setting.batch),
        deep_supervision(nmse_db, dict.fromkeys(range(1, net.depth + 1), 1 / net.depth)),
        epochs=epochs,
        optimizer=optimizer,
        clip=1.0,
        validate=lambda net: float(nmse_db(net(x), code)),
        callback=after,
        progress=False,
    )
    return time.perf_counter() - begun


def compare(setting: Setting, seed: int) -> tuple[dict[str, Entry], dict[str, Unfolded]]:
    """Run every method; their entries, and the trained networks."""
    problem = SparseProblem(setting.measurements, setting.atoms, seed=seed)
    best, entries = classic(algorithms.ISTA, problem, setting.layers, SHOWN_SPARSITIES)
    entries |= classic(algorithms.FISTA, problem, setting.layers)[1]
    nets = networks(problem, setting.layers, best)
    for name, net in nets.items():
        seconds = train(name, net, problem, setting)
        entries[name] = entry(net, problem, seconds)
    return entries, nets


def table(entries: Mapping[str, Entry], layers: int) -> tuple[list[str], list[list[str]]]:
    """Header and rows of what is printed."""
    chosen = sorted({k for k in (1, 2, 4, 8, 12, 16) if k < layers} | {layers})
    header = ["dB after layer", *map(str, chosen), "parameters", "seconds"]
    rows = [
        [
            name,
            *(f"{found.test_db[k]:.1f}" for k in chosen),
            f"{found.parameters:,}",
            f"{found.seconds:.0f}" if found.parameters else "-",
        ]
        for name, found in entries.items()
    ]
    return header, rows


def plot_curves(curves: Mapping[str, Sequence[float]], path: Path) -> None:
    """NMSE over layers, each line labelled at its end."""
    from matplotlib.figure import Figure

    colours = ("#999999", "#555555", "#E69F00", "#0072B2", "#D55E00", "#009E73")
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    last = max(len(values) for values in curves.values()) - 1
    labels = spread([values[-1] for values in curves.values()], gap=0.05 * -min(map(min, curves.values())))
    for (name, values), colour, label in zip(curves.items(), colours, labels, strict=False):
        axes.plot(range(len(values)), values, color=colour, marker="o", markersize=3.5, linewidth=1.6)
        axes.annotate(name, (last, label), (8, 0), textcoords="offset points", va="center", color=colour)
    axes.set(xlabel="steps of the algorithm, layers of the network", ylabel="NMSE (dB)", xlim=(0, last))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    figure.savefig(path, dpi=160)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Heights for labels that want to be at the given ones, but at least a gap apart."""
    placed = list(heights)
    order = sorted(range(len(placed)), key=lambda i: -placed[i])
    for upper, lower in itertools.pairwise(order):
        placed[lower] = min(placed[lower], placed[upper] - gap)
    return placed


def options(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Setting]:
    """The command line's options, and the size of the experiment that they ask for."""
    made = parser(__doc__)
    made.add_argument("--seed", type=int, default=0, help="draws the dictionary and all data (default 0)")
    made.add_argument("--layers", type=int, help=f"steps and layers (default {FULL.layers})")
    made.add_argument("--steps", type=int, help=f"updates of each network (default {FULL.steps})")
    made.add_argument("--small", action="store_true", help="a much smaller problem, for a first look")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw NMSE over layers")
    made.add_argument("--save", type=Path, metavar="FILE", help="write the best network (safetensors)")
    given = made.parse_args(arguments)
    if given.plot:
        need("matplotlib", "plot")
    for path in filter(None, (given.plot, given.save, given.json)):
        path.parent.mkdir(parents=True, exist_ok=True)
    setting = SMALL if given.small else FULL
    asked = {name: value for name in ("layers", "steps") if (value := getattr(given, name)) is not None}
    return given, replace(setting, **asked)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment and report it."""
    begun = time.perf_counter()
    given, setting = options(arguments)
    entries, nets = compare(setting, given.seed)
    results: dict[str, Any] = {name: asdict(found) for name, found in entries.items()}
    settings = asdict(setting) | {"seed": given.seed}
    write_json(given.json, "lista", settings, results)
    if given.plot:
        shown = {name: found.test_db for name, found in entries.items() if found.parameters or "best" in name}
        plot_curves(shown, given.plot)
    if given.save:
        best = min(nets, key=lambda name: entries[name].validation_db)
        save(nets[best], given.save, method=best, test_db=entries[best].test_db, settings=settings)
    print(f"everything took {time.perf_counter() - begun:.0f} s")
    header, rows = table(entries, setting.layers)
    show(f"Sparse recovery, {setting.measurements} x {setting.atoms}, NMSE on the test set", header, rows)


if __name__ == "__main__":
    main()
