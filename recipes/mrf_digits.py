"""Small networks on scikit-learn's digits: from sigmoid units to belief propagation, and beyond.

    python -m recipes.mrf_digits                      the whole experiment, some minutes on two cores
    python -m recipes.mrf_digits --small              a small one, some seconds
    python -m recipes.mrf_digits --plots docs/images --json results/mrf_digits.json

A sigmoid layer is mean field in a binary Markov random field, lambda = 0; at lambda = 1 the same layer is belief
propagation. The paper asks what that changes in a trained network, and proposes to start with a trained sigmoid network
and to move lambda from 0 to 1 while training goes on (end of Section 3).

The data are 1797 images of 8 x 8 pixels, scaled to [0, 1] so that a pixel is a belief: 1000 to train on, 297 to choose
learning rates, 500 to test. All networks have two hidden layers of as many free numbers per sample and a linear layer
in the end, and as many updates by Adam on the cross-entropy. The learning rate is the one of a short list whose loss on
the validation digits is lowest, as a mean over the first few seeds. The continued networks start where the sigmoid
network is after half of its updates, and make the other half with lambda moved, set to 1 at once, or left at 0.
"""

import argparse
import importlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks._report import need, parser, show, write_json
from deepunfold import Epoch, fit
from deepunfold.mrf import set_lambda
from recipes import _mrf_digits_plots
from recipes._mrf_digits_networks import NETWORKS, converted, sigmoid, with_lambda

BATCH = 50
MOVING = 0.6
"""The share of the continued training in which lambda moves; then it stays at 1."""


@dataclass(frozen=True)
class Setting:
    """The size of an experiment. ``units`` are the free numbers of a hidden layer, ``choosing`` the seeds for rates."""

    units: int = 64
    epochs: int = 50
    seeds: int = 8
    choosing: int = 3
    rates: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03)


FULL = Setting()
SMALL = Setting(units=16, epochs=8, seeds=2, choosing=1, rates=(0.01, 0.03))

Pair: TypeAlias = tuple[Tensor, Tensor]
"""Images (number, pixels) and their digits (number)."""


class Split(NamedTuple):
    """The data, divided once and for all."""

    train: Pair
    validation: Pair
    test: Pair


def load() -> Split:
    """The images as beliefs, in the same random order always."""
    digits = importlib.import_module("sklearn.datasets").load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.get_default_dtype()), torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, validation, test = ((x[part], y[part]) for part in order.split((1000, 297, 500)))
    return Split(train, validation, test)


CONTINUED: Mapping[str, Callable[[float], float]] = {
    "sigmoid, continued": lambda _: 0.0,
    "lambda moved from 0 to 1": lambda done: min(1.0, done / MOVING),
    "lambda 1 at once": lambda _: 1.0,
}
"""lambda as a function of the share of the continued training that is done, from above 0 to 1."""

COMPARED = (
    ("belief propagation", "sigmoid"),
    ("lambda learnt", "sigmoid"),
    ("5 states, lambda = 1", "5 states, lambda = 0"),
    ("lambda moved from 0 to 1", "sigmoid, continued"),
    ("lambda 1 at once", "sigmoid, continued"),
    ("lambda moved from 0 to 1", "belief propagation"),
    ("maxout", "sigmoid"),
)
"""What is compared seed by seed, and digit by digit."""


# -- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A training: which network, how fast, from which random numbers, and from which sigmoid network it continues."""

    name: str
    rate: float
    seed: int
    start: dict[str, Tensor] | None = None


@dataclass
class Run:
    """How it went. ``losses`` and ``right`` are those of each test digit, ``half`` is the network halfway."""

    job: Job
    parameters: int = 0
    seconds: float = 0.0
    validation: float = 0.0
    losses: Tensor = field(default_factory=lambda: torch.zeros(0))
    right: Tensor = field(default_factory=lambda: torch.zeros(0))
    lambdas: list[float] = field(default_factory=list)
    curves: dict[str, list[float]] = field(default_factory=lambda: {"validation": [], "test": []})
    half: dict[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def loss_on(network: nn.Module, data: Pair) -> float:
    """The mean cross-entropy."""
    return float(cross_entropy(network(data[0]), data[1]))


def run(job: Job, setting: Setting) -> Run:
    """Train one network. With the same seed, all see the digits in the same order."""
    torch.set_num_threads(1)  # such small products gain nothing from more
    data, found = load(), Run(job)
    torch.manual_seed(job.seed)
    network = NETWORKS["sigmoid" if job.start else job.name](setting.units)
    first, last = (setting.epochs // 2, setting.epochs) if job.start else (0, setting.epochs)
    if job.start:
        network.load_state_dict(job.start)
        network = converted(network)
    order = torch.Generator().manual_seed(job.seed + (1 << 20 if job.start else 0))

    def batches(number: int) -> list[Pair]:
        if job.start:
            set_lambda(network, CONTINUED[job.name]((number + 1) / (last - first)))
        x, y = data.train
        return [(x[part], y[part]) for part in torch.randperm(len(x), generator=order).split(BATCH)]

    def note(epoch: Epoch) -> None:
        found.seconds += epoch.seconds
        if job.start:
            found.lambdas.append(float(with_lambda(network)[0].lambda_))
            for name, curve in found.curves.items():
                curve.append(loss_on(network, getattr(data, name)))
        elif job.name == "sigmoid" and epoch.number + 1 == setting.epochs // 2:
            found.half = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    optimizer = partial(torch.optim.Adam, lr=job.rate)
    fit(network, batches, cross_entropy, epochs=last - first, optimizer=optimizer, callback=note, progress=False)
    found.parameters = sum(parameter.numel() for parameter in network.parameters())
    found.validation = loss_on(network, data.validation)
    x, y = data.test
    with torch.no_grad():
        output = network(x)
    found.losses, found.right = cross_entropy(output, y, reduction="none"), (output.argmax(1) == y).double()
    if job.name == "lambda learnt":
        found.lambdas = [float(layer.lambda_.detach()) for layer in with_lambda(network)]
    return found


Runner: TypeAlias = Callable[[list[Job]], Iterable[Run]]
"""What does trainings, one after the other or several at a time."""


def all_seeds(names: Sequence[str], starts: Sequence[Any], setting: Setting, runner: Runner) -> dict[str, list[Run]]:
    """The runs of each network for all seeds, at the learning rate that is best on the mean of the first few."""
    first, seeds = range(setting.choosing), range(setting.seeds)
    runs = list(
        runner([Job(name, rate, seed, starts[seed]) for name in names for rate in setting.rates for seed in first])
    )

    def tried(name: str, rate: float) -> list[Run]:
        return [each for each in runs if (each.job.name, each.job.rate) == (name, rate)]

    best = {
        name: min(setting.rates, key=lambda rate: sum(each.validation for each in tried(name, rate))) for name in names
    }
    runs += runner([Job(name, best[name], seed, starts[seed]) for name in names for seed in seeds[setting.choosing :]])
    chosen = {name: tried(name, best[name]) for name in names}
    for name, own in chosen.items():
        mean = torch.stack([each.losses for each in own]).mean()
        print(f"{name}: rate {best[name]:g}, test loss {mean:.3f}", flush=True)
    return chosen


# -- what it came to -------------------------------------------------------------------------------------------------


def interval(values: Tensor) -> tuple[float, float]:
    """The mean and half of the 95 % t interval."""
    count = len(values)
    quantile = float(importlib.import_module("scipy.stats").t.ppf(0.975, count - 1))
    return float(values.mean()), quantile * float(values.std()) / count**0.5


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """What is reported of a network."""
    return {
        "rate": runs[0].job.rate,
        "parameters": runs[0].parameters,
        "seconds": sum(each.seconds for each in runs) / len(runs),
        "loss": interval(torch.stack([each.losses.mean() for each in runs])),
        "accuracy": interval(torch.stack([100 * each.right.mean() for each in runs])),
        "losses": [float(each.losses.mean()) for each in runs],
        "accuracies": [float(100 * each.right.mean()) for each in runs],
        "lambdas": [each.lambdas for each in runs] if runs[0].job.name == "lambda learnt" else runs[0].lambdas,
        "curves": {
            name: torch.tensor([each.curves[name] for each in runs]).mean(0).tolist() for name in runs[0].curves
        },
    }


def compare(ours: Sequence[Run], others: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """Differences of loss and of accuracy, over seeds and over test digits."""
    loss = torch.stack([one.losses - other.losses for one, other in zip(ours, others, strict=True)])
    right = torch.stack([100 * (one.right - other.right) for one, other in zip(ours, others, strict=True)])
    return {
        f"{name} over {what}": interval(each.mean(dimension))
        for name, each in (("loss", loss), ("accuracy", right))
        for what, dimension in (("seeds", 1), ("digits", 0))
    }


def with_fixed_weights(starts: Sequence[dict[str, Tensor]], lambdas: Sequence[float], units: int) -> list[float]:
    """The test loss, the mean over all starts, if lambda moves and nothing is trained."""
    data, found = load(), torch.zeros(len(starts), len(lambdas))
    for row, start in zip(found, starts, strict=True):
        network = sigmoid(units)
        network.load_state_dict(start)
        network = converted(network)
        for column, value in enumerate(lambdas):
            set_lambda(network, value)
            row[column] = loss_on(network, data.test)
    means: list[float] = found.mean(0).tolist()
    return means


def experiment(setting: Setting, runner: Runner) -> dict[str, Any]:
    """All networks, and those that are continued."""
    runs = all_seeds(list(NETWORKS), [None] * setting.seeds, setting, runner)
    starts = [each.half for each in runs["sigmoid"]]
    runs |= all_seeds(list(CONTINUED), starts, setting, runner)
    moved = runs["lambda moved from 0 to 1"][0].lambdas
    return {
        "networks": {name: summary(each) for name, each in runs.items()},
        "differences": {f"{one} - {other}": compare(runs[one], runs[other]) for one, other in COMPARED},
        "weights fixed": with_fixed_weights(starts, [0.0, *moved], setting.units),
        "updates per epoch": 1000 // BATCH,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment and report it."""
    begun = time.perf_counter()
    given, setting = options(arguments)
    work = partial(run, setting=setting)
    if given.workers > 1:
        with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
            results = experiment(setting, partial(pool.map, work))
    else:
        results = experiment(setting, partial(map, work))
    write_json(given.json, "mrf_digits", asdict(setting) | {"workers": given.workers}, results)
    if given.plots:
        _mrf_digits_plots.draw(results, setting.epochs, given.plots / "mrf_digits.png")
    print(f"everything took {time.perf_counter() - begun:.0f} s")
    show(
        "Differences of test loss and of accuracy in points, with 95 % intervals over seeds and over test digits",
        ["", "loss", "over seeds", "over digits", "accuracy", "over seeds", "over digits"],
        [
            [name, *(text for kind in ("loss", "accuracy") for text in difference(each, kind))]
            for name, each in results["differences"].items()
        ],
    )
    show(
        f"{setting.epochs} epochs, test digits, means over {setting.seeds} seeds with 95 % t intervals",
        ["network", "accuracy in %", "cross-entropy", "rate", "parameters", "seconds"],
        [
            [
                name,
                "{:.2f} ± {:.2f}".format(*each["accuracy"]),
                "{:.3f} ± {:.3f}".format(*each["loss"]),
                f"{each['rate']:g}",
                f"{each['parameters']:,}",
                f"{each['seconds']:.1f}",
            ]
            for name, each in results["networks"].items()
        ],
    )


def difference(found: Mapping[str, tuple[float, float]], kind: str) -> list[str]:
    """A difference, and how sure it is, as cells of a table."""
    digits = 4 if kind == "loss" else 2
    mean, seeds = found[f"{kind} over seeds"]
    return [f"{mean:+.{digits}f}", f"± {seeds:.{digits}f}", f"± {found[f'{kind} over digits'][1]:.{digits}f}"]


def options(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Setting]:
    """The command line's options, and the size of the experiment that they ask for."""
    made = parser(__doc__)
    made.add_argument("--small", action="store_true", help="a much smaller experiment, for a first look")
    made.add_argument("--epochs", type=int, help=f"passes over the data (default {FULL.epochs})")
    made.add_argument("--seeds", type=int, help=f"trainings of each network (default {FULL.seeds}), at least 2")
    made.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="trainings at a time")
    made.add_argument("--plots", type=Path, metavar="FOLDER", help="draw losses of all networks, and over lambda")
    given = made.parse_args(arguments)
    need("sklearn", "dev")
    if given.plots:
        need("matplotlib", "plot")
        given.plots.mkdir(parents=True, exist_ok=True)
    setting = SMALL if given.small else FULL
    asked = {name: value for name in ("epochs", "seeds") if (value := getattr(given, name)) is not None}
    setting = replace(setting, **asked)
    if min(setting.epochs, setting.seeds) < 2:
        made.error("give at least 2 epochs, half of which can be continued, and at least 2 seeds")
    return given, replace(setting, choosing=min(setting.choosing, setting.seeds))


if __name__ == "__main__":
    main()
