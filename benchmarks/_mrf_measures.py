"""What `benchmarks.mrf` measures, as data: loopy belief propagation beside others, batches, training, layers."""

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks._memory import peak_bytes
from benchmarks._report import interleaved, least_and_median
from deepunfold import Unfolded, unfold
from deepunfold.mrf import BeliefPropagation, BeliefSigmoid, Graph, PairwiseMRF, grid, infer

COUPLING = 0.5
"""The size of random potentials, small enough for belief propagation to converge, in every library."""


class Size(NamedTuple):
    """A square grid of some side, states per node, iterations, and samples of fields at once."""

    side: int
    states: int
    steps: int = 100
    batch: int = 1

    def __str__(self) -> str:
        samples = f", {self.batch} samples" if self.batch > 1 else ""
        return f"{self.side} x {self.side}, {self.states} states{samples}"


class Timing(NamedTuple):
    """Seconds of one way to do it, least and median, and both as multiples of deepunfold's."""

    way: str
    least: float
    median: float
    ratio: tuple[float, float]


class Problem(NamedTuple):
    """A grid with random potentials, and fields (batch, nodes, states)."""

    graph: Graph
    pairwise: Tensor
    fields: Tensor


def problem(size: Size, device: torch.device) -> Problem:
    """Random, and the same in every run."""
    generator = torch.Generator().manual_seed(0)
    graph = grid(size.side, size.side, size.states)
    pairwise = COUPLING * torch.randn(len(graph.edges), size.states, size.states, generator=generator)
    fields = torch.randn(size.batch, graph.nodes, size.states, generator=generator)
    return Problem(graph.to(device), pairwise.to(device), fields.to(device))


def inference(size: Size, device: torch.device, repeats: int) -> tuple[list[Timing], float]:
    """Times of deepunfold, of torch as one writes it down, and of PGMax where it is installed; the largest difference
    between the marginals that they find.
    """
    given = problem(size, device)
    ways: dict[str, Callable[[], Tensor]] = {"deepunfold": ours(given, size), "torch, written down": naive(given, size)}
    if device.type == "cpu" and size.batch == 1 and importlib.util.find_spec("pgmax"):
        ways["PGMax, compiled"] = pgmax(given, size)
    found = {name: way() for name, way in ways.items()}
    error = max(float((each - found["deepunfold"]).abs().max()) for each in found.values())
    times = interleaved(ways, repeats, warmups=1, rest=0.5)
    least, median = least_and_median(times["deepunfold"])
    rows = [(name, *least_and_median(each)) for name, each in times.items()]
    return [Timing(name, a, b, (a / least, b / median)) for name, a, b in rows], error


def ours(given: Problem, size: Size) -> Callable[[], Tensor]:
    """All iterations, the marginals included."""
    algorithm = BeliefPropagation(PairwiseMRF(given.graph, given.pairwise))

    def run() -> Tensor:
        found: Tensor = infer(algorithm, given.fields, size.steps)
        return found

    return run


@torch.no_grad()
def naive(given: Problem, size: Size) -> Callable[[], Tensor]:
    """The formulas with torch.logsumexp, states last, as one would write them at first."""
    edges = given.graph.edges
    sources, targets = torch.cat([edges, edges.flip(1)]).unbind(1)
    tables = torch.cat([given.pairwise.mT, given.pairwise])  # receiver's states first
    count = len(edges)

    def beliefs(messages: Tensor) -> Tensor:
        return given.fields.index_add(1, targets, messages)

    def run() -> Tensor:
        messages = given.fields.new_zeros(len(given.fields), 2 * count, size.states)
        for _ in range(size.steps):
            heard = torch.cat([messages[:, count:], messages[:, :count]], 1)
            cavity = beliefs(messages)[:, sources] - heard
            messages = torch.logsumexp(tables + cavity[:, :, None], -1)
            messages = messages - messages.logsumexp(-1, keepdim=True)
        return beliefs(messages).softmax(-1)

    return run


def pgmax(given: Problem, size: Size) -> Callable[[], Tensor]:
    """The same by PGMax, compiled before it is timed, with the setting of XLA that makes it 15 times as fast."""
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_thunk_runtime=false")
    jax: Any = importlib.import_module("jax")
    numpy: Any = importlib.import_module("numpy")
    fgraph, fgroup, inference, vgroup = (
        importlib.import_module(f"pgmax.{name}") for name in ("fgraph", "fgroup", "infer", "vgroup")
    )
    names: Any = vgroup
    shape = (size.side, size.side)
    variables = names.NDVarArray(num_states=size.states, shape=shape)
    made: Any = fgraph
    factors: Any = fgroup
    graph = made.FactorGraph(variable_groups=variables)
    pairs = [[variables[divmod(node, size.side)] for node in edge] for edge in given.graph.edges.tolist()]
    graph.add_factors(
        factors.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=given.pairwise.numpy())
    )
    runner: Any = inference
    solver = runner.BP(graph.bp_state, temperature=1.0)
    start = solver.init(evidence_updates={variables: given.fields[0].reshape(*shape, size.states).numpy()})
    compiled = jax.jit(lambda state: solver.run(state, num_iters=size.steps, damping=0.0, temperature=1.0))

    def run() -> Tensor:
        end = jax.block_until_ready(compiled(start))
        marginals = runner.get_marginals(solver.get_beliefs(end))[variables]
        return torch.from_numpy(numpy.array(marginals)).reshape(1, -1, size.states)

    return run


def samples_at_once(size: Size, device: torch.device, repeats: int) -> dict[str, tuple[float, float]]:
    """Seconds, least and median, of a batch, and of its samples one after the other."""
    given = problem(size, device)
    algorithm = BeliefPropagation(PairwiseMRF(given.graph, given.pairwise))
    ways: dict[str, Callable[[], object]] = {
        "at once": lambda: infer(algorithm, given.fields, size.steps),
        "one by one": lambda: [infer(algorithm, fields[None], size.steps) for fields in given.fields],
    }
    return {name: least_and_median(times) for name, times in interleaved(ways, repeats, warmups=1).items()}


def building(side: int, repeats: int) -> tuple[float, float]:
    """Seconds to build the model of a grid, least and median."""
    edges, states = grid(side, side).edges, torch.zeros(2 * side * (side - 1), 2, 2)
    times = interleaved({"build": lambda: PairwiseMRF(Graph(edges, 2, side * side), states)}, repeats)
    return least_and_median(times["build"])


def network(size: Size, device: torch.device, backward: str = "unroll") -> tuple[Unfolded, Tensor]:
    """An untied network, and an input."""
    given = problem(size, device)
    model = PairwiseMRF(given.graph, given.pairwise)
    return unfold(BeliefPropagation(model), size.steps, tie="each", backward=backward), given.fields


def training(size: Size, device: torch.device, repeats: int) -> dict[str, tuple[float, float]]:
    """Seconds, least and median, of a forward pass without a graph, and of a forward and backward pass."""
    net, fields = network(size, device)

    def forward() -> None:
        with torch.no_grad():
            net(fields)

    def both() -> None:
        net.zero_grad()
        net(fields).square().sum().backward()

    times = interleaved({"forward": forward, "forward and backward": both}, repeats)
    return {name: least_and_median(each) for name, each in times.items()}


def memory(size: Size, depths: tuple[int, ...], device: torch.device) -> dict[str, list[int]]:
    """The peak in bytes of a forward and backward pass of a tied network, for each mode and number of layers."""
    found: dict[str, list[int]] = {}
    for mode in ("unroll", "checkpoint"):
        for depth in depths:
            given = problem(size, device)
            net = unfold(BeliefPropagation(PairwiseMRF(given.graph, given.pairwise)), depth, backward=mode)

            def both(net: Unfolded = net, fields: Tensor = given.fields) -> None:
                net.zero_grad()
                net(fields).square().sum().backward()

            both()
            found.setdefault(mode, []).append(peak_bytes(both, device))
    return found


class LayerCost(NamedTuple):
    """Seconds of a forward pass, and of one with a backward pass, least of several; peak memory of both in bytes."""

    layer: str
    forward: float
    both: float
    peak: int


def layers(units: int, batch: int, device: torch.device, repeats: int) -> list[LayerCost]:
    """Feed-forward layers of as many inputs as outputs; the table of their terms alone has batch * units^2 numbers."""
    made: dict[str, nn.Module] = {
        "linear and sigmoid": nn.Sequential(nn.Linear(units, units), nn.Sigmoid()),
        "BeliefSigmoid, lambda 1": BeliefSigmoid(units, units),
        "BeliefSigmoid, lambda learnt": BeliefSigmoid(units, units, nn.Parameter(torch.tensor(0.5))),
    }
    beliefs = torch.rand(batch, units, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    rows = []
    for name, layer in made.items():
        layer.to(device)

        def forward(layer: nn.Module = layer) -> None:
            with torch.no_grad():
                layer(beliefs)

        def both(layer: nn.Module = layer) -> None:
            layer(beliefs).square().sum().backward()

        times = interleaved({"forward": forward, "both": both}, repeats)
        rows.append(LayerCost(name, min(times["forward"]), min(times["both"]), peak_bytes(both, device)))
    return rows


def moved_bytes(size: Size) -> int:
    """What an iteration must at least move: old and new messages, tables and fields, once each, in float32."""
    edges = 2 * size.side * (size.side - 1)
    per_sample = 2 * (2 * edges * size.states) + size.side**2 * size.states
    return 4 * (size.batch * per_sample + edges * size.states**2)


def copied_per_second(device: torch.device) -> float:
    """Bytes that a large copy reads and writes in a second: the bandwidth to compare with."""
    source = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = interleaved({"copy": lambda: target.copy_(source)}, 10)["copy"]
    return 2 * len(source) / min(times)
