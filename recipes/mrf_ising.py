"""Marginals of Ising grids with random couplings: mean field, belief propagation, and networks unfolded from it.

    python -m recipes.mrf_ising                    the whole experiment
    python -m recipes.mrf_ising --small            a small one, some seconds
    python -m recipes.mrf_ising --plots docs/images --json results/mrf_ising.json

Grids of 10x10 spins with couplings uniform in [-strength, strength] and fields uniform in [-1, 1]
(`recipes._ising_problem`). The measure is the mean absolute error of P(spin = 1) against exact marginals, for each
strength, on graphs not trained on, and on grids of 20x20.

- Classic: mean field, belief propagation, tree-reweighted belief propagation, lambda = 0.5 and the best fixed lambda.
  Plain ones take 50 steps; for "best" ones, damping and the number of steps (lambda too, where it is the best) are
  those of least error on validation graphs, chosen anew for each strength.
- Networks of 5 and 10 layers, tied and untied (`recipes._ising_networks`): theta^k = {Psi^k, alpha^k, lambda^k}, where
  Psi^k is the given potentials times a function of each edge's surroundings, or, "numbers alone", times numbers. Each
  is one network for all strengths, trained for the measure on 10x10 grids of mixed strengths.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from benchmarks._report import need, parser, show, write_json
from deepunfold import Epoch, Unfolded, fit
from deepunfold.mrf import BeliefPropagation, Graph, MeanField, MessagePassing, PairwiseMRF, TreeReweighted, grid, infer
from recipes import _mrf_ising_plots
from recipes._ising_networks import LocalPotentials, ScaledPotentials, carried_over, network
from recipes._ising_problem import Solved, Training, by_strength

TRAIN, VALIDATE, TEST, TEST_LARGE = 1, 2, 3, 4
"""Seeds of the graphs."""
LAMBDAS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
DAMPINGS = (1.0, 0.75, 0.5, 0.25)
STEPS = (5, 10, 50)
EPOCHS = 20
"""The training is cut into these, for validation and for the decay of the learning rate."""


@dataclass(frozen=True)
class Setting:
    """The size of an experiment."""

    side: int = 10
    large_side: int = 20
    strengths: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    mixture: tuple[float, float] = (0.25, 4.5)
    training: int = 20000
    validation: int = 64
    test: int = 200
    large_test: int = 16
    updates: int = 600
    batch: int = 64
    learning_rate: float = 2e-2
    seeds: int = 2


FULL = Setting()
SMALL = Setting(
    side=4,
    large_side=6,
    strengths=(1.0, 3.0),
    training=1000,
    validation=20,
    test=50,
    large_test=20,
    updates=60,
    batch=32,
    seeds=1,
)


class Kind(NamedTuple):
    """Which network: its depth, its tying, and whether its potentials know an edge's surroundings."""

    layers: int
    tie: str
    local: bool = True

    def make(self, graph: Graph) -> Unfolded:
        """Such a network for a graph, before training."""
        return network((LocalPotentials if self.local else ScaledPotentials)(graph), self.layers, self.tie)


NETWORKS = {
    "5 layers, tied": Kind(5, "all"),
    "5 layers, untied": Kind(5, "each"),
    "10 layers, tied": Kind(10, "all"),
    "10 layers, untied": Kind(10, "each"),
    "10 layers, untied, numbers alone": Kind(10, "each", local=False),
}

Make: TypeAlias = Callable[[PairwiseMRF, float], MessagePassing | MeanField]
"""An algorithm for a model and an alpha."""


def with_lambda(lambda_: float) -> Make:
    """Message passing with one lambda for all edges."""
    return lambda model, alpha: MessagePassing(model, lambda_=lambda_, alpha=alpha)


FAMILIES: dict[str, dict[str, Make]] = {
    "mean field": {"": lambda model, alpha: MeanField(model, alpha=alpha)},
    "belief propagation": {"": lambda model, alpha: BeliefPropagation(model, alpha=alpha)},
    "tree-reweighted": {"": lambda model, alpha: TreeReweighted(model, alpha=alpha)},
    "lambda 0.5": {"": with_lambda(0.5)},
    "best lambda": {f"lambda {each}": with_lambda(each) for each in LAMBDAS},
}
PLAIN = ("mean field", "belief propagation", "tree-reweighted")

Graphs: TypeAlias = Mapping[float, Solved]
"""Solved graphs by strength."""
Errors: TypeAlias = dict[float, Tensor]
"""For each strength the mean absolute error of each graph; with several seeds (seeds, graphs)."""


@dataclass
class Found:
    """What is reported of a method on one size of graphs, by strength."""

    mean: list[float]
    interval: list[float]
    """Half the width of the 95 % interval over graphs."""
    seeds: list[list[float]] = field(default_factory=list)
    """The means of each seed, for networks."""


def errors(output: Tensor, solved: Solved) -> Tensor:
    """The mean absolute error of each graph."""
    return (output[..., 1] - solved.up).abs().mean(-1)


def summary(found: Errors) -> Found:
    """Means with intervals; the error on a graph is the mean over seeds."""
    per_graph = [each.mean(0) if each.dim() == 2 else each for each in found.values()]
    return Found(
        [float(each.mean()) for each in per_graph],
        [half_width(each) for each in per_graph],
        [each.mean(1).tolist() for each in found.values() if each.dim() == 2],
    )


def half_width(values: Tensor) -> float:
    """Half the width of the 95 % interval of a mean."""
    return float(1.96 * values.std() / len(values) ** 0.5)


# -- classic methods -------------------------------------------------------------------------------------------------


def classic(graph: Graph, validation: Graphs, tests: Mapping[int, Graphs]) -> dict[str, dict[int, Errors]]:
    """The errors of each classic method on each size of test graphs."""
    found: dict[str, dict[int, Errors]] = {}
    for family, members in FAMILIES.items():
        if family in PLAIN:
            (make,) = members.values()
            found[family] = {
                side: {strength: run(make, grid(side, side), 1.0, 50, solved) for strength, solved in graphs.items()}
                for side, graphs in tests.items()
            }
        name = family if family == "best lambda" else f"{family}, best"
        ways, chosen = list(product(members, DAMPINGS, STEPS)), []
        for strength, solved in validation.items():
            tried = [float(run(members[own], graph, alpha, steps, solved).mean()) for own, alpha, steps in ways]
            own, alpha, steps = ways[tried.index(min(tried))]
            chosen.append(f"{strength:g}: " + ", ".join(filter(None, (own, f"alpha {alpha:g}", f"{steps} steps"))))
            for side, graphs in tests.items():
                now = run(members[own], grid(side, side), alpha, steps, graphs[strength])
                found.setdefault(name, {}).setdefault(side, {})[strength] = now
        print(f"{name}, by strength: {'; '.join(chosen)}", flush=True)
    return found


def run(make: Make, graph: Graph, alpha: float, steps: int, solved: Solved) -> Tensor:
    """The errors of an algorithm after some steps."""
    return errors(infer(make(PairwiseMRF(graph), alpha), solved.x, steps), solved)


# -- networks --------------------------------------------------------------------------------------------------------


def loss(output: Tensor, up: Tensor) -> Tensor:
    """The measure itself."""
    return nn.functional.l1_loss(output[..., 1], up)


def train(kind: Kind, graph: Graph, training: Training, validation: Graphs, setting: Setting, seed: int) -> Unfolded:
    """A network with the parameters that were best on validation graphs, over all strengths."""
    torch.manual_seed(seed)
    net = kind.make(graph)
    epochs = min(EPOCHS, setting.updates)
    optimizer = torch.optim.Adam(net.parameters(), lr=setting.learning_rate)
    decay = CosineAnnealingLR(optimizer, epochs)

    def after(_: Epoch) -> None:
        decay.step()

    fit(
        net,
        lambda epoch: training.batches(setting.updates // epochs, setting.batch, 1000 * seed + epoch),
        loss,
        epochs=epochs,
        optimizer=optimizer,
        clip=1.0,
        validate=lambda net: sum(float(errors(net(solved.x), solved).mean()) for solved in validation.values()),
        callback=after,
        progress=False,
    )
    return net


@torch.no_grad()
def tested(kind: Kind, net: Unfolded, tests: Mapping[int, Graphs]) -> dict[int, Errors]:
    """The errors of a network on each size of test graphs."""
    found = {}
    for side, graphs in tests.items():
        own = carried_over(net, kind.make(grid(side, side)))
        found[side] = {strength: errors(own(solved.x), solved) for strength, solved in graphs.items()}
    return found


def trained(
    graph: Graph, training: Training, validation: Graphs, tests: Mapping[int, Graphs], setting: Setting
) -> tuple[dict[str, dict[int, Errors]], dict[str, Any]]:
    """The errors of each network, of all seeds, and what it learnt with the first."""
    found: dict[str, dict[int, Errors]] = {}
    learnt = {}
    for name, kind in NETWORKS.items():
        begun, runs = time.perf_counter(), []
        for seed in range(setting.seeds):
            net = train(kind, graph, training, validation, setting, seed)
            runs.append(tested(kind, net, tests))
            if seed == 0:
                learnt[name] = numbers(net)
        found[name] = {
            side: {strength: torch.stack([one[side][strength] for one in runs]) for strength in graphs}
            for side, graphs in tests.items()
        }
        print(f"{name}: {(time.perf_counter() - begun) / setting.seeds:.0f} s per seed", flush=True)
    return found, learnt


@torch.no_grad()
def numbers(net: Unfolded) -> dict[str, Any]:
    """lambda, alpha and the scales of each step, and how many numbers were learnt in all."""
    steps: Any = list(net.layers)[:-1]
    of_steps = {
        "lambda": [float(each.lambda_) for each in steps],
        "alpha": [float(each.alpha) for each in steps],
        "scale of couplings": [float(each.model.scale) for each in steps],
        "scale of fields": [float(each.model.evidence.factor) for each in steps],
    }
    return of_steps | {"parameters": sum(each.numel() for each in net.parameters())}


# -- the report ------------------------------------------------------------------------------------------------------


def margins(found: Mapping[str, dict[int, Errors]], rivals: Sequence[str]) -> dict[str, dict[int, list[list[float]]]]:
    """By how much each network is below the best of some methods on the same graphs, and its interval, by strength."""

    def margin(net: Tensor, others: list[Tensor]) -> list[float]:
        gains = min(others, key=lambda each: float(each.mean())) - net.mean(0)
        return [float(gains.mean()), half_width(gains)]

    return {
        name: {
            side: [margin(own[strength], [found[rival][side][strength] for rival in rivals]) for strength in own]
            for side, own in found[name].items()
        }
        for name in NETWORKS
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment and report it."""
    begun = time.perf_counter()
    given, setting = options(arguments)
    graph, large = (grid(side, side) for side in (setting.side, setting.large_side))
    training = Training.of(graph, *setting.mixture, setting.training, TRAIN)
    validation = by_strength(graph, setting.strengths, setting.validation, VALIDATE)
    tests = {
        setting.side: by_strength(graph, setting.strengths, setting.test, TEST),
        setting.large_side: by_strength(large, setting.strengths, setting.large_test, TEST_LARGE),
    }
    print(f"exact marginals: {time.perf_counter() - begun:.0f} s", flush=True)
    of_classic = classic(graph, validation, tests)
    of_networks, learnt = trained(graph, training, validation, tests, setting)
    found = of_classic | of_networks
    gains = {
        "mean field and belief propagation": margins(
            found, [name for name in of_classic if name.startswith(PLAIN[:2])]
        ),
        "all classic": margins(found, list(of_classic)),
    }
    summaries = {name: {side: summary(own) for side, own in sides.items()} for name, sides in found.items()}
    if given.plots:
        _mrf_ising_plots.over_strength(setting.strengths, summaries, given.plots / "mrf_ising.png")
    errors_by_size = {name: {side: asdict(own) for side, own in sides.items()} for name, sides in summaries.items()}
    results = {"errors": errors_by_size, "below the best of": gains, "learnt": learnt}
    write_json(given.json, "mrf_ising", asdict(setting), results)
    print(f"everything took {time.perf_counter() - begun:.0f} s")
    header = ["strength", *(f"{strength:g}" for strength in setting.strengths)]
    for side in tests:
        rows = [
            [name, *(f"{mean:.3f} ±{half:.3f}" for mean, half in zip(own[side].mean, own[side].interval, strict=True))]
            for name, own in summaries.items()
        ]
        show(f"Mean absolute error of marginals, {side}x{side}", header, rows)


def options(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Setting]:
    """The command line's options, and the size of the experiment that they ask for."""
    made = parser(__doc__)
    made.add_argument("--small", action="store_true", help="a much smaller experiment, for a first look")
    made.add_argument("--updates", type=int, help=f"updates of each network (default {FULL.updates})")
    made.add_argument("--seeds", type=int, help=f"networks of each kind (default {FULL.seeds})")
    made.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the error over the strength")
    given = made.parse_args(arguments)
    if given.plots:
        need("matplotlib", "plot")
        given.plots.mkdir(parents=True, exist_ok=True)
    setting = SMALL if given.small else FULL
    asked = {name: value for name in ("updates", "seeds") if (value := getattr(given, name)) is not None}
    return given, replace(setting, **asked)


if __name__ == "__main__":
    torch.set_num_threads(1)  # tensors are small: a second thread gains little, and waits long where cores are shared
    main()
