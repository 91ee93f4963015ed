"""What `recipes.mrf_images` measures: wrong pixels and their intervals, cross-entropy, time; and the tables."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from benchmarks._report import show

RESAMPLES = 2000


@dataclass(frozen=True)
class Data:
    """Clean images as labels 0 and 1, (images, pixels), and what is seen of them."""

    labels: Tensor
    seen: Tensor


@dataclass
class Entry:
    """A method's result on the test images; ``errors`` (seeds, images) are pixels that are wrong, in %, and ``bits``
    the cross-entropy of labels per pixel, where there are probabilities.
    """

    errors: Tensor
    bits: Tensor | None
    milliseconds: float
    parameters: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    outputs: Tensor | None = None

    def summary(self) -> dict[str, Any]:
        """Numbers alone."""
        return {
            "error": float(self.errors.mean()),
            "interval": interval(self.errors),
            "of seeds": self.errors.mean(1).tolist(),
            "bits": None if self.bits is None else float(self.bits.mean()),
            "bits of seeds": None if self.bits is None else self.bits.mean(1).tolist(),
            "milliseconds": self.milliseconds,
            "parameters": self.parameters,
            **self.notes,
        }


Run: TypeAlias = Callable[[Tensor], Tensor]
"""From what is seen to logarithms of probabilities, (images, pixels, 2)."""


def cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    """Of the pixels' labels, the mean over pixels."""
    return nn.functional.nll_loss(output.flatten(0, 1), labels.flatten())


def bits(output: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each image in bits per pixel."""
    return -output.gather(-1, labels[..., None])[..., 0].mean(-1) / math.log(2)


def wrong(output: Tensor, labels: Tensor) -> Tensor:
    """Pixels that are wrong in each image, in %."""
    return 100 * (output.argmax(-1) != labels).float().mean(-1)


@torch.no_grad()
def entry(runs: Sequence[Run], test: Data, notes: dict[str, Any] | None = None) -> Entry:
    """The result of methods that differ in their seed alone. Time is the least of three runs over 20 images."""
    outputs = [run(test.seen) for run in runs]
    errors, surprise = (torch.stack([measure(each, test.labels) for each in outputs]) for measure in (wrong, bits))
    some, times = test.seen[:20], []
    for _ in range(3):
        begun = time.perf_counter()
        runs[0](some)
        times.append(1000 * (time.perf_counter() - begun) / len(some))
    numbers = sum(each.numel() for each in runs[0].parameters()) if isinstance(runs[0], nn.Module) else 0
    return Entry(errors, surprise, min(times), numbers, notes or {}, outputs[0])


def interval(values: Tensor) -> list[float]:
    """A bootstrap interval of 95 % for the mean of values (seeds, images): both are drawn again, with replacement."""
    generator = torch.Generator().manual_seed(0)
    seeds, images = (torch.randint(n, (RESAMPLES, n), generator=generator) for n in values.shape)
    means = values[seeds[:, :, None], images[:, None]].mean((1, 2))
    return [float(each) for each in means.quantile(torch.tensor([0.025, 0.975]))]


def differences(entries: Mapping[str, Entry], methods: Sequence[str], layers: int) -> dict[str, dict[str, Any]]:
    """What training, untying and belief propagation change on the same images: in wrong pixels (%) and in bits."""

    def net(method: str, tie: str) -> str:
        return f"{method}, {layers} layers, {tie}"

    mean_field, passing = methods
    pairs = {
        "training, tied, over the classic method": [(net(each, "tied"), each) for each in methods],
        "untying": [(net(each, "untied"), net(each, "tied")) for each in methods],
        "belief propagation over mean field": [
            (passing, mean_field),
            *((net(passing, tie), net(mean_field, tie)) for tie in ("tied", "untied")),
        ],
    }
    found: dict[str, dict[str, Any]] = {}
    for question, compared in pairs.items():
        for one, other in compared:
            changes = {name: getattr(entries[one], name) - getattr(entries[other], name) for name in ("errors", "bits")}
            found.setdefault(question, {})[f"{one}, less {other}"] = {
                name: [float(change.mean()), *interval(change)] for name, change in changes.items()
            }
    return found


def show_all(results: Mapping[str, Any]) -> None:
    """Print differences, and the table of all methods last."""
    flips, gaussian = results.values()
    for measure, title in (("errors", "wrong pixels, in points of %"), ("bits", "bits per pixel")):
        rows = [
            [pair, *(_signed(each["differences"][question][pair][measure]) for each in results.values())]
            for question, pairs in flips["differences"].items()
            for pair in pairs
        ]
        show(f"Differences on the same images: {title}", ["", *results], rows)
    header = ["", *(cell for name in results for cell in (f"{name}, % wrong", "bits per pixel")), "parameters", "ms"]
    table: list[list[object]] = []
    for method, own in flips["methods"].items():
        cells: list[object] = []
        for one in (own, gaussian["methods"][method]):
            low, high = one["interval"]
            cells += [f"{one['error']:.2f} ({low:.2f} to {high:.2f})", f"{one['bits']:.3f}" if one["bits"] else "-"]
        table.append([method, *cells, own["parameters"] or "-", f"{own['milliseconds']:.1f}"])
    show("Pixels that are wrong on the test images, with a bootstrap interval over images and seeds", header, table)


def _signed(change: Sequence[float]) -> str:
    mean, low, high = change
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
