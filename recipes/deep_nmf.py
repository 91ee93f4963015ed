"""Deep NMF on two synthetic sources: what more trained layers give, and what trains them best.

    python -m recipes.deep_nmf                      the whole experiment
    python -m recipes.deep_nmf --small              a small one, some seconds
    python -m recipes.deep_nmf --plots docs/images --json results/deep_nmf.json

The sources are plucked notes and bursts of noise (`recipes._synthetic_sources`), as magnitude spectra; the measure is
the signal-to-distortion ratio of the estimated magnitudes in dB, the mean of both sources, on data not trained on.

1. The order of the paper (Table 2): C = 0, 1, 2, 3, 4 trained layers of K = 4 and of K = 25, multiplicative updates.
2. Loss over time for K = 25, C = 4: multiplicative back-propagation, Adam on the logarithms of the bases, and both in
   turn; and the bi-level alternative, one basis trained through the converged inference by implicit differentiation.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from benchmarks._report import need, parser, show, write_json
from deepunfold import ConvergenceWarning, Epoch, Implicit, Positive, Unfolded, constrain, fit, unfold
from deepunfold.nmf import (
    DeepNMFLoss,
    MultiplicativeUpdate,
    NMFInference,
    SparseNMF,
    beta_divergence,
    context,
    deep_nmf,
)
from recipes import _deep_nmf_plots
from recipes._synthetic_sources import Sources, draw

CONTEXT = 3
SPARSITY = 0.3
BI_LEVEL_STEPS = 200
"""Iterations that count as convergence where the network is one basis and a minimum."""


@dataclass(frozen=True)
class Setting:
    """The size of an experiment."""

    frames: int = 4000
    components: int = 20
    steps: int = 150
    depths: tuple[int, ...] = (4, 25)
    trained: tuple[int, ...] = (0, 1, 2, 3, 4)


FULL = Setting()
SMALL = Setting(frames=800, steps=20, depths=(4,), trained=(0, 1, 2))


@dataclass
class Course:
    """How a training went: the loss after each update, relative to the untrained network's, and the time until then."""

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    sdr_before: float = 0.0
    sdr: float = 0.0


def quality(net: Unfolded, sources: Sources) -> float:
    """The signal-to-distortion ratio in dB, the mean of both sources."""
    with torch.no_grad():
        estimate = net(context(sources.mixture, CONTEXT))
    error = (sources.magnitudes - estimate).square().sum((0, 2))
    return float((10 * torch.log10(sources.magnitudes.square().sum((0, 2)) / error)).mean())


def learn_bases(sources: Sources, components: int) -> list[Tensor]:
    """A sparse NMF of each source."""
    bases = []
    for number, magnitudes in enumerate(sources.magnitudes.unbind(1)):
        learnt = SparseNMF(components, sparsity=SPARSITY, seed=number).fit(context(magnitudes, CONTEXT), steps=100)
        assert learnt.basis is not None
        bases.append(learnt.basis)
    return bases


def plain(output: Tensor, target: Tensor) -> Tensor:
    """The loss of `DeepNMFLoss`, for automatic differentiation."""
    return beta_divergence(target, output, 2.0).sum()


Way: TypeAlias = tuple[Any, Callable[..., torch.optim.Optimizer]]
"""A loss, and what makes the optimiser that belongs to it."""
MULTIPLICATIVE: Way = (DeepNMFLoss(2.0), MultiplicativeUpdate)
ADAM: Way = (plain, partial(torch.optim.Adam, lr=0.02))


def train(net: Unfolded, way: Way, sources: Sources, steps: int, course: Course) -> None:
    """Updates on all data at once; their losses and times are added to the course."""
    loss, optimizer = way
    before = course.seconds[-1] if course.seconds else 0.0
    begun = time.perf_counter()

    def note(epoch: Epoch) -> None:
        course.losses.append(epoch.loss)
        course.seconds.append(before + time.perf_counter() - begun)

    data = [(context(sources.mixture, CONTEXT), sources.magnitudes)]
    fit(net, data, loss, epochs=steps, optimizer=optimizer, callback=note, progress=False)


# -- the two experiments ---------------------------------------------------------------------------------------------


def order(bases: Sequence[Tensor], data: Sources, test: Sources, setting: Setting) -> dict[str, dict[str, float]]:
    """The quality for each K and C."""
    found: dict[str, dict[str, float]] = {}
    for layers in setting.depths:
        row = found.setdefault(f"K={layers}", {})
        for trained in setting.trained:
            net = deep_nmf(bases, layers, trained, context=CONTEXT, sparsity=SPARSITY)
            if trained:
                train(net, MULTIPLICATIVE, data, setting.steps, Course())
            row[f"C={trained}"] = quality(net, test)
            print(f"K={layers}, C={trained}: {row[f'C={trained}']:.2f} dB", flush=True)
    return found


def ways(bases: Sequence[Tensor], data: Sources, test: Sources, setting: Setting) -> dict[str, Course]:
    """The course of each way to train the deepest network."""
    layers, trained, steps = setting.depths[-1], setting.trained[-1], setting.steps

    def fresh(**settings: Any) -> Unfolded:
        return deep_nmf(bases, layers, trained, context=CONTEXT, sparsity=SPARSITY, **settings)

    def logarithmic(like: Unfolded) -> Unfolded:
        """The same network with the logarithms of its trained bases as parameters."""
        net = fresh(constraint=Positive())
        pairs: Any = zip(net.layers, like.layers, strict=True)
        for own, other in pairs:
            own.basis = other.basis.detach()
        return net

    courses = {}
    net = fresh()
    course = Course(sdr_before=quality(net, test))
    train(net, MULTIPLICATIVE, data, steps, course)
    courses["multiplicative"] = finished(course, net, test)

    net = logarithmic(fresh())
    course = Course(sdr_before=quality(net, test))
    train(net, ADAM, data, steps, course)
    courses["Adam"] = finished(course, net, test)

    net = fresh()
    course = Course(sdr_before=quality(net, test))
    train(net, MULTIPLICATIVE, data, steps // 3, course)
    net = logarithmic(net)
    train(net, ADAM, data, steps - steps // 3, course)
    courses["in turn"] = finished(course, net, test)

    net = bi_level(bases)
    course = Course(sdr_before=quality(net, test))
    with warnings.catch_warnings(record=True) as inexact:
        warnings.simplefilter("always", ConvergenceWarning)
        train(net, ADAM, data, steps // 3, course)
    print(f"bi-level: {len(inexact)} warnings of inexact gradients in {steps // 3} updates", flush=True)
    courses["bi-level"] = finished(course, net, test)
    return courses


def bi_level(bases: Sequence[Tensor]) -> Unfolded:
    """One basis for inference and reconstruction, trained through the converged inference."""
    algorithm = NMFInference(
        torch.cat(list(bases), 1), [own.shape[1] for own in bases], sparsity=SPARSITY, features=len(bases[0]) // CONTEXT
    )
    return unfold(
        constrain(algorithm, basis=Positive()), BI_LEVEL_STEPS, backward=Implicit(tolerance=0.1, max_steps=60)
    )


def finished(course: Course, net: Unfolded, test: Sources) -> Course:
    """Losses relative to the first one, and the quality in the end."""
    course.losses = [loss / course.losses[0] for loss in course.losses]
    course.sdr = quality(net, test)
    return course


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiments and report them."""
    given, setting = options(arguments)
    data, test = draw(setting.frames, 1), draw(setting.frames // 2, 2)
    bases = learn_bases(data, setting.components)
    by_depth = order(bases, data, test, setting)
    courses = ways(bases, data, test, setting)
    if given.plots:
        net = deep_nmf(bases, setting.depths[-1], 0, context=CONTEXT, sparsity=SPARSITY)
        _deep_nmf_plots.separation(net, bases, test, CONTEXT, given.plots / "nmf_separation.png")
        _deep_nmf_plots.courses(courses, given.plots / "nmf_training.png")
    results = {"order": by_depth, "courses": {name: asdict(course) for name, course in courses.items()}}
    write_json(given.json, "deep_nmf", asdict(setting), results)
    show(
        f"K={setting.depths[-1]}, C={setting.trained[-1]}: ways to train",
        ["way", "updates", "seconds", "loss, of the first", "SDR before", "SDR in dB"],
        [
            [
                name,
                len(one.losses),
                *(f"{value:.2f}" for value in (one.seconds[-1], one.losses[-1], one.sdr_before, one.sdr)),
            ]
            for name, one in courses.items()
        ],
    )
    header = list(next(iter(by_depth.values())))
    rows = [[name, *(f"{row[column]:.2f}" for column in header)] for name, row in by_depth.items()]
    show("SDR in dB on data not trained on, K layers of which the last C are trained", ["", *header], rows)


def options(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Setting]:
    """The command line's options, and the size of the experiment that they ask for."""
    made = parser(__doc__)
    made.add_argument("--small", action="store_true", help="a much smaller experiment, for a first look")
    made.add_argument("--steps", type=int, help=f"updates of each network (default {FULL.steps})")
    made.add_argument("--plots", type=Path, metavar="FOLDER", help="draw bases, activations, sources, and losses")
    given = made.parse_args(arguments)
    if given.plots:
        need("matplotlib", "plot")
        given.plots.mkdir(parents=True, exist_ok=True)
    setting = SMALL if given.small else FULL
    return given, replace(setting, steps=given.steps) if given.steps else setting


if __name__ == "__main__":
    main()
