"""Drawn shapes under noise: inference in a Markov random field, and the networks that are unfolded from it.

    python -m recipes.mrf_images                    the whole experiment, some five minutes on one core
    python -m recipes.mrf_images --small            a small one, some seconds
    python -m recipes.mrf_images --plots docs/images --json results/mrf_images.json

Images of discs, rings, rectangles, bars and triangles (`recipes._drawn_shapes`) are seen with one pixel in five
flipped, or with Gaussian noise that puts three in ten on the wrong side. The model: a grid of binary pixels, a
potential that all horizontal neighbours share and one for all vertical ones, and evidence from each noisy pixel.

- Classic: mean field, belief propagation and max-product until they converge, with the true evidence and the coupling
  that is best on validation images; another one may be best for their cross-entropy, and that is the one reported.
- Unfolded: mean field and belief propagation of 5 and 10 layers, which start as the classic ones. Trained are the
  potentials, the evidence, alpha and, for belief propagation, lambda: tied, or untied, theta^k of each layer.
- Without the model: each pixel alone; the mean of the best window; a convolutional network, trained four times as long.

Networks are trained on windows of images, since shared potentials are those of any grid, and tested on whole images.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from benchmarks._report import need, parser, write_json
from deepunfold import Epoch, Interval, Result, Unfolded, constrain, fit, iterate, unfold
from deepunfold.mrf import BeliefPropagation, MaxProduct, MeanField, MessagePassing, PairwiseMRF, grid
from recipes import _mrf_images_plots
from recipes._drawn_shapes import Flips, Gaussian, Noise, draw
from recipes._mrf_images_measures import Data, Entry, Run, bits, cross_entropy, differences, entry, show_all, wrong

NOISES: dict[str, Noise] = {"flips": Flips(0.2), "Gaussian": Gaussian(2.0)}
CLASSIC: dict[str, Callable[..., nn.Module]] = {
    "mean field": MeanField,
    "belief propagation": BeliefPropagation,
    "max-product": MaxProduct,
}
UNFOLDED = ("mean field", "belief propagation")
TIES = {"tied": "all", "untied": "each"}
COUPLINGS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.7)
"""What the classic methods choose from."""
WINDOWS = (3, 5, 7, 9)
DAMPING = 0.5
"""The alpha of the classic methods; without damping, synchronous updates swing."""
EPOCHS = 10
"""The training is cut into these for the decay of the learning rate."""
CURVE = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50)
"""The steps after which the classic methods are drawn."""


@dataclass(frozen=True)
class Setting:
    """The size of an experiment."""

    size: int = 48
    window: int = 32
    drawn: int = 1000
    validation: int = 24
    test: int = 100
    layers: tuple[int, ...] = (5, 10)
    updates: int = 250
    batch: int = 8
    rate: float = 0.03
    seeds: int = 3
    steps: int = 200


FULL = Setting()
SMALL = Setting(size=32, window=24, drawn=50, validation=4, test=6, layers=(5,), updates=40, seeds=2, steps=30)


# -- the model and its networks --------------------------------------------------------------------------------------


def model(size: int, noise: Noise, coupling: float) -> PairwiseMRF:
    """A grid of pixels that like to be as their neighbours are, with the evidence of the true noise."""
    graph = grid(size, size)
    directions = torch.arange(2).repeat_interleave(len(graph.edges) // 2)
    potentials = (coupling * torch.eye(2)).repeat(2, 1, 1)
    return PairwiseMRF(graph, potentials, evidence=noise.evidence(graph), groups=directions)


def classic(method: str, size: int, noise: Noise, coupling: float) -> nn.Module:
    """An algorithm whose output is the logarithms of the marginals."""
    return CLASSIC[method](model(size, noise, coupling), alpha=DAMPING, estimator=nn.Identity())


def network(method: str, layers: int, tie: str, noise: Noise, coupling: float, size: int) -> Unfolded:
    """Steps of the classic method, nearly undamped, with all to be trained."""
    alpha = nn.Parameter(torch.tensor(0.9))
    settings: Any = {"alpha": alpha, "estimator": nn.Identity()}
    if method == "belief propagation":
        settings["lambda_"] = nn.Parameter(torch.tensor(1.0))
    kind: Callable[..., nn.Module] = MeanField if method == "mean field" else MessagePassing
    algorithm = kind(model(size, noise, coupling), **settings)
    constrain(algorithm, alpha=Interval())
    return unfold(algorithm, layers, tie=TIES[tie])


class Convolutions(nn.Module):
    """Four convolutions of 3 x 3, with six channels between them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        widths = (1, 6, 6, 6, 2)
        maps = [nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(widths)]
        inner = [part for each in maps[:-1] for part in (each, nn.ReLU())]
        self.layers = nn.Sequential(nn.Unflatten(1, (1, size, size)), *inner, maps[-1], nn.Flatten(2))

    def forward(self, seen: Tensor) -> Tensor:
        """Logarithms of probabilities, (images, pixels, 2)."""
        scores: Tensor = self.layers(seen.float())
        return scores.mT.log_softmax(-1)


# -- training --------------------------------------------------------------------------------------------------------


def train(build: Callable[[int], nn.Module], noise: Noise, setting: Setting, seed: int) -> nn.Module:
    """Train a network on windows of images under ever new noise; the same network for whole images."""
    torch.manual_seed(seed)
    margin = (setting.size - setting.window) // 2
    inner = slice(margin, margin + setting.window)
    windows = draw(setting.drawn, setting.size, seed)[:, inner, inner].flatten(1)
    generator = torch.Generator().manual_seed(seed)
    net = build(setting.window)
    optimizer = torch.optim.Adam(net.parameters(), lr=setting.rate)
    decay = CosineAnnealingLR(optimizer, EPOCHS)

    def batches(_: int) -> Any:
        for _ in range(setting.updates // EPOCHS):
            labels = windows[torch.randint(len(windows), (setting.batch,), generator=generator)]
            yield noise.see(labels, generator), labels

    def after(_: Epoch) -> None:
        decay.step()

    fit(net, batches, cross_entropy, epochs=EPOCHS, optimizer=optimizer, clip=1.0, callback=after, progress=False)
    whole = build(setting.size)
    with torch.no_grad():
        for own, trained in zip(whole.parameters(), net.parameters(), strict=True):
            own.copy_(trained)
    return whole


# -- the experiment --------------------------------------------------------------------------------------------------


def converged(algorithm: nn.Module, seen: Tensor, setting: Setting) -> Result:
    """The classic algorithm, run until it changes nothing any more."""
    return iterate(algorithm, seen, until=1e-4, max_steps=setting.steps)


def best_couplings(method: str, noise: Noise, validation: Data, setting: Setting) -> tuple[float, float]:
    """The couplings with the fewest wrong pixels and with the least cross-entropy on the validation images."""
    errors, losses = {}, {}
    for coupling in COUPLINGS:
        found = converged(classic(method, setting.size, noise, coupling), validation.seen, setting)
        errors[coupling] = float(wrong(found.value, validation.labels).mean())
        losses[coupling] = float(cross_entropy(found.value, validation.labels))
    tried = ", ".join(f"{coupling:g}: {error:.2f}" for coupling, error in errors.items())
    print(f"{method}, % wrong on the validation images by coupling: {tried}", flush=True)
    by_errors, by_losses = (min(found, key=lambda coupling: found[coupling]) for found in (errors, losses))
    return by_errors, by_losses


def without_model(noise: Noise, validation: Data, test: Data, setting: Setting) -> dict[str, Entry]:
    """Each pixel alone, the mean log-odds in the best window, and convolutions."""
    alone = model(setting.size, noise, 0.0)

    def window(width: int) -> Run:
        def run(seen: Tensor) -> Tensor:
            fields = alone.fields(seen).mT.unflatten(-1, (setting.size, setting.size))
            return nn.functional.avg_pool2d(fields, width, 1, width // 2, count_include_pad=False).flatten(2).mT

        return run

    width = min(WINDOWS, key=lambda each: float(wrong(window(each)(validation.seen), validation.labels).mean()))
    longer = replace(setting, updates=4 * setting.updates, rate=0.01)
    nets = [train(Convolutions, noise, longer, seed) for seed in range(setting.seeds)]
    return {
        "each pixel alone": entry([lambda seen: alone.fields(seen).log_softmax(-1)], test),
        "mean of the best window": replace(entry([window(width)], test, notes={"width": width}), bits=None),
        "convolutions": entry(nets, test),
    }


def experiment(noise: Noise, setting: Setting) -> tuple[dict[str, Entry], dict[str, list[float]], Data]:
    """All methods; the classic ones' error over their steps; and the test images."""
    validation, test = (
        Data(labels, noise.see(labels, torch.Generator().manual_seed(seed)))
        for seed, count in ((1000, setting.validation), (2000, setting.test))
        for labels in [draw(count, setting.size, seed).flatten(1)]
    )
    entries = without_model(noise, validation, test, setting)
    couplings, curves = {}, {}
    for method in CLASSIC:
        couplings[method], surer = best_couplings(method, noise, validation, setting)
        best, for_bits = (classic(method, setting.size, noise, each) for each in (couplings[method], surer))
        entries[method], curves[method] = converged_entry(best, test, setting)
        entries[method].bits = bits(converged(for_bits, test.seen, setting).value, test.labels)[None]
        entries[method].notes |= {"coupling": couplings[method], "coupling for bits": surer}
    for method, layers, tie in itertools.product(UNFOLDED, setting.layers, TIES):
        begun = time.perf_counter()
        build = partial(network, method, layers, tie, noise, couplings[method])
        nets = [train(build, noise, setting, seed) for seed in range(setting.seeds)]
        seconds = (time.perf_counter() - begun) / len(nets)
        name = f"{method}, {layers} layers, {tie}"
        entries[name] = entry(nets, test, notes={"seconds": seconds, **learnt(nets)})
        print(f"{name}: {float(entries[name].errors.mean()):.2f} % wrong, {seconds:.0f} s", flush=True)
    entries["max-product"].bits = None  # its output is not the probability of a pixel's label
    return entries, curves, test


def converged_entry(algorithm: nn.Module, test: Data, setting: Setting) -> tuple[Entry, list[float]]:
    """The result of a classic algorithm, and its error over the first steps."""
    found = converged(algorithm, test.seen, setting)
    notes = {"converged": found.summary(), "steps": float(found.steps.float().mean())}
    outputs = unfold(algorithm, max(CURVE)).outputs(test.seen, CURVE, grad=False)
    curve = [float(wrong(output, test.labels).mean()) for output in outputs]
    return entry([lambda seen: converged(algorithm, seen, setting).value], test, notes=notes), curve


def learnt(nets: Sequence[Any]) -> dict[str, list[float]]:
    """The exponents and schedules of trained networks, by layer, in the mean over seeds."""
    found = {}
    for name in ("lambda_", "alpha"):
        if hasattr(nets[0].layers[0], name):
            values = [[getattr(each, name).detach() for each in net.layers[:-1]] for net in nets]
            found[name.strip("_")] = torch.tensor(values).mean(0).tolist()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment and report it."""
    begun = time.perf_counter()
    given, setting = options(arguments)
    found = {}
    for name, noise in NOISES.items():
        print(f"-- {name}", flush=True)
        found[name] = experiment(noise, setting)
    deepest = setting.layers[-1]
    if given.plots:
        _mrf_images_plots.figure(found, UNFOLDED, deepest, CURVE, setting.size, given.plots / "mrf_images.png")
    results = {
        name: {
            "methods": {method: one.summary() for method, one in entries.items()},
            "differences": differences(entries, UNFOLDED, deepest),
            "curves": {"steps": CURVE, **curves},
        }
        for name, (entries, curves, _) in found.items()
    }
    write_json(given.json, "mrf_images", asdict(setting), results)
    print(f"everything took {time.perf_counter() - begun:.0f} s")
    show_all(results)


def options(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Setting]:
    """The command line's options, and the size of the experiment that they ask for."""
    made = parser(__doc__)
    made.add_argument("--small", action="store_true", help="a much smaller experiment, for a first look")
    made.add_argument("--updates", type=int, help=f"updates of each network (default {FULL.updates})")
    made.add_argument("--plots", type=Path, metavar="FOLDER", help="draw images and results")
    given = made.parse_args(arguments)
    if given.plots:
        need("matplotlib", "plot")
        given.plots.mkdir(parents=True, exist_ok=True)
    setting = SMALL if given.small else FULL
    return given, replace(setting, updates=given.updates) if given.updates else setting


if __name__ == "__main__":
    main()
