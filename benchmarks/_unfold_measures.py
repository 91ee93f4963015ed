"""What `benchmarks.unfold` measures, as data: time beside a loop, peak memory, growth over a training."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks._memory import live_tensors, peak_bytes, resident_bytes, saved_bytes
from benchmarks._report import interleaved, least_and_median
from deepunfold import Backward, Implicit, Unfolded, unfold
from deepunfold.core.algorithms import ISTA

MODES = ("unroll", "checkpoint", "truncated", "implicit", "jacobian_free")
# GMRES keeps what it has found, and stops when that is enough, sooner where the state is near the fixed point. Made to
# go on to the end of its space, it takes its most, for every K alike.
FULL_SPACE = Implicit(tolerance=0.0, max_steps=20)


class Size(NamedTuple):
    """A problem of sparse coding: x of shape (batch, m), codes of shape (batch, n), K layers."""

    batch: int
    m: int
    n: int
    layers: int

    @property
    def shape(self) -> str:
        """The size without the number of layers."""
        return f"{self.batch} x {self.m} x {self.n}"


def problem(size: Size, device: torch.device) -> tuple[ISTA, Tensor]:
    """The algorithm with a random dictionary, and an input made of a tenth of its atoms."""
    generator = torch.Generator().manual_seed(0)
    dictionary = torch.randn(size.m, size.n, generator=generator) / math.sqrt(size.m)
    code = torch.randn(size.batch, size.n, generator=generator)
    x = (code * (torch.rand(code.shape, generator=generator) < 0.1)) @ dictionary.mT
    return ISTA(dictionary.to(device)), x.to(device)


# -- time ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overhead:
    """Microseconds per call, least and median, and by what fraction `unfold` and the loop itself exceed the loop."""

    size: Size
    tie: str
    call: str
    loop: tuple[float, float]
    unfold: tuple[float, float]
    excess: tuple[float, float]
    noise: tuple[float, float]


def overheads(size: Size, device: torch.device, repeats: int) -> list[Overhead]:
    """The overhead for tied and untied layers and each way of calling."""
    algorithm, x = problem(size, device)
    found = []
    for tie in ("all", "each"):
        net = unfold(algorithm, size.layers, tie=tie)
        parameters = list(net.parameters())
        loops, nets = calls(by_hand(net), x, parameters), calls(net, x, parameters)
        for call, run in loops.items():
            times = interleaved({"loop": run, "unfold": nets[call], "loop again": run}, repeats, warmups=5)
            loop, unfolded, again = (_microseconds(taken) for taken in times.values())
            found.append(Overhead(size, tie, call, loop, unfolded, _excess(unfolded, loop), _excess(again, loop)))
    return found


def by_hand(net: Unfolded) -> Callable[[Tensor], Tensor]:
    """The loop that a person would write, over the network's own layers."""
    layers: list[Any] = list(net.layers)[:-1]

    def run(x: Tensor) -> Tensor:
        code: Tensor = layers[0].init(x)
        for layer in layers:
            code = layer.step(x, code)
        return code

    return run


def calls(
    network: Callable[[Tensor], Tensor], x: Tensor, parameters: Sequence[Tensor]
) -> dict[str, Callable[[], object]]:
    """The three ways in which a network is called."""

    def without_graph() -> Tensor:
        with torch.no_grad():
            return network(x)

    return {
        "forward, no graph": without_graph,
        "forward": lambda: network(x),
        "forward + backward": lambda: torch.autograd.grad(network(x).square().sum(), parameters),
    }


def _microseconds(times: Sequence[float]) -> tuple[float, float]:
    least, median = least_and_median(times)
    return least * 1e6, median * 1e6


def _excess(times: tuple[float, float], base: tuple[float, float]) -> tuple[float, float]:
    return times[0] / base[0] - 1, times[1] / base[1] - 1


# -- memory ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Peaks in bytes over K for each mode, and over C for train_last at ``size.layers`` layers.

    ``kept_per_step`` is what autograd says that it keeps of one step.
    """

    size: Size
    depths: tuple[int, ...]
    peaks: dict[str, list[int]]
    trained: tuple[int, ...]
    trained_peaks: list[int]
    kept_per_step: int


def memory(size: Size, depths: tuple[int, ...], trained: tuple[int, ...], device: torch.device) -> Memory:
    """The peaks of tied networks."""
    modes: dict[str, str | Backward] = {mode: mode for mode in MODES} | {"implicit": FULL_SPACE}
    algorithm, x = problem(size, device)
    return Memory(
        size,
        depths,
        {name: [peak(size, k, device, backward=mode) for k in depths] for name, mode in modes.items()},
        trained,
        [peak(size, size.layers, device, train_last=c) for c in trained],
        saved_bytes(unfold(algorithm, 3), x) - saved_bytes(unfold(algorithm, 2), x),
    )


def peak(size: Size, layers: int, device: torch.device, **settings: Any) -> int:
    """The peak of a forward and backward pass, after a first one that sets up what lasts, such as workspaces."""
    algorithm, x = problem(size, device)
    net = unfold(algorithm, layers, **settings)

    def gradients() -> None:
        net(x).square().sum().backward()
        net.zero_grad()

    gradients()
    return peak_bytes(gradients, device)


def exponent(numbers: Sequence[int], peaks: Sequence[int]) -> float:
    """The slope of a straight line through the points on logarithmic axes."""
    return statistics.linear_regression([math.log(k) for k in numbers], [math.log(p) for p in peaks]).slope


def per_layer(numbers: Sequence[int], peaks: Sequence[int]) -> float:
    """The slope of a straight line through the points: the bytes that each further layer takes."""
    return statistics.linear_regression(numbers, peaks).slope


# -- growth ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """What a training gained between two of its steps; ``graphs`` is the size of the graphs that it made meanwhile."""

    mode: str
    tensors: int
    tensor_bytes: int
    resident_bytes: int
    graphs: int


def growth(mode: str, size: Size, between: tuple[int, int], device: torch.device) -> Growth:
    """Train with Adam and look twice."""
    algorithm, x = problem(size, device)
    net = unfold(algorithm, size.layers, backward=mode)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-5)
    seen = []
    for step in range(1, between[1] + 1):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        if step in between:
            # Nothing is collected first: a graph that only Python's cycle collector can free is to show as well.
            seen.append((*live_tensors(device), resident_bytes()))
    tensors, held, resident = (after - before for before, after in zip(*seen, strict=True))
    return Growth(mode, tensors, held, resident, saved_bytes(net, x) * (between[1] - between[0]))
