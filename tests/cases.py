"""Algorithms with inputs for the conformance suite: all that ship, and a few that a user might write."""

import torch
from torch import Tensor, nn

import deepunfold as du
from deepunfold.core.algorithms import ADMM, FISTA, ISTA, LISTA, GradientDescent, VariationalMixture
from deepunfold.mrf import BeliefPropagation, Graph, MeanField, MessagePassing, PairwiseMRF, per_degree, sequential
from deepunfold.nmf import NMFInference
from deepunfold.testing import Case


def dictionary(m: int = 7, n: int = 5, seed: int = 0) -> Tensor:
    """A well-conditioned dictionary with unit columns, so that iterations converge fast."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(m, n, generator=generator, dtype=torch.float64)
    return matrix / matrix.norm(dim=0)


def signals(batch: int = 4, m: int = 7, seed: int = 1) -> Tensor:
    return torch.randn(batch, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Babylonian(nn.Module):
    """The square root by Newton's method: two methods, no readout, one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def init(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)

    def step(self, x: Tensor, root: Tensor) -> Tensor:
        return root + self.rate * (x / root - root)


class Centre(nn.Module):
    """Half of a schedule: moves a dict state's mean towards x."""

    def __init__(self) -> None:
        super().__init__()
        self.pull = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def init(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": torch.zeros_like(x), "spread": torch.ones_like(x)}

    def step(self, x: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**state, "mean": state["mean"] + self.pull * (x - state["mean"]) / state["spread"]}


class Spread(nn.Module):
    """The other half: moves the spread, and reads out a nest."""

    def __init__(self) -> None:
        super().__init__()
        self.floor = nn.Parameter(torch.tensor(0.8, dtype=torch.float64))
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def init(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": torch.zeros_like(x), "spread": torch.ones_like(x)}

    def step(self, x: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**state, "spread": self.floor + 0.3 * torch.tanh(state["spread"] * (x - state["mean"]).square())}

    def readout(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.scale * state["mean"], {"spread": state["spread"]}


def linear_recurrence() -> nn.Module:
    """An algorithm of plain functions with parameters."""
    return du.from_functions(
        init=lambda theta, x: torch.zeros_like(x),
        step=lambda theta, x, z: torch.tanh(x + z @ theta.matrix),
        readout=lambda theta, x, z: z @ theta.matrix + theta.offset,
        matrix=0.3 * dictionary(5, 5, seed=3),
        offset=torch.linspace(-1, 1, 5, dtype=torch.float64),
    )


def constrained_ista() -> nn.Module:
    algorithm = ISTA(dictionary(), 0.05)
    return du.constrain(algorithm, threshold=du.NonNegative())


def complex_phases() -> nn.Module:
    """A complex state with a real readout."""
    return du.from_functions(
        init=lambda theta, x: torch.complex(x, torch.zeros_like(x)),
        step=lambda theta, x, z: 0.5 * z * torch.exp(1j * theta.angle) + x,
        readout=lambda theta, x, z: torch.view_as_real(z),
        angle=torch.tensor(0.4, dtype=torch.float64),
    )


def mixture_data() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    points = torch.randn(3, 20, 2, generator=generator, dtype=torch.float64)
    points[:, :10] += 3.0
    return points


def mixture() -> VariationalMixture:
    prior = torch.tensor([[-1.0, 0.5], [2.0, 2.5]], dtype=torch.float64)
    return VariationalMixture(prior, precision=1.2, strength=0.2, concentration=1.5)


def bases(rows: int = 7, sizes: tuple[int, ...] = (2, 1), seed: int = 7) -> list[Tensor]:
    """Bases with columns of unit norm, each with rows that are its own, so that inference converges soon."""
    generator = torch.Generator().manual_seed(seed)
    columns = 0.1 * torch.rand(rows, sum(sizes), generator=generator, dtype=torch.float64) + 0.01
    columns[torch.arange(rows), torch.arange(rows) % sum(sizes)] += 1
    return list((columns / columns.norm(dim=0)).split(sizes, 1))


def mixtures(frames: int = 4, rows: int = 7, seed: int = 6) -> Tensor:
    """What the bases can make, and a little more."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.cat(bases(rows), 1)
    activations = torch.rand(frames, 3, generator=generator, dtype=torch.float64) + 0.3
    return activations @ basis.mT + 0.1 * torch.rand(frames, rows, generator=generator, dtype=torch.float64)


def nmf(beta: float = 1.0, learn_sparsity: bool = False) -> NMFInference:
    return NMFInference(torch.cat(bases(), 1), (2, 1), sparsity=0.1, beta=beta, learn_sparsity=learn_sparsity)


def field(scale: float = 0.4) -> PairwiseMRF:
    """A cycle with a chord, of nodes with different numbers of states."""
    generator = torch.Generator().manual_seed(7)
    graph = Graph([(0, 1), (2, 1), (2, 3), (3, 0), (0, 2)], [2, 3, 2, 3])
    pairwise, unary = (torch.randn(n, *m, 3, generator=generator, dtype=torch.float64) for n, m in ((5, [3]), (4, [])))
    return PairwiseMRF(graph, scale * pairwise, scale * unary)


def fields(batch: int = 3) -> Tensor:
    return torch.randn(batch, 4, 3, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def learnt_exponents() -> MessagePassing:
    """Every setting trained, per message, per degree, and for all."""
    generator = torch.Generator().manual_seed(9)
    alpha = nn.Parameter(0.5 + 0.3 * torch.rand(10, generator=generator, dtype=torch.float64))
    kappa, rho = (nn.Parameter(torch.tensor(value, dtype=torch.float64)) for value in (1.2, 0.5))
    found = MessagePassing(field(), lambda_=per_degree(field().graph, 0.7).double(), kappa=kappa, alpha=alpha, rho=rho)
    return du.constrain(found, alpha=du.Interval())


def _positive() -> Tensor:
    return torch.tensor([[0.5, 2.0], [3.0, 4.0], [9.0, 0.1]], dtype=torch.float64)


def shipped() -> dict[str, Case]:
    """The algorithms of the library."""
    return {
        "gradient_descent": Case(GradientDescent(dictionary(), 0.1), signals(), 3, 400),
        "ista": Case(ISTA(dictionary(), 0.05), signals(), 4, 400),
        "lista": Case(LISTA(dictionary(), 0.05), signals(), 3, 400),
        "fista": Case(FISTA(dictionary(), 0.05), signals(), 4, None),
        "admm": Case(ADMM(dictionary(), 0.05), signals(), 3, 400),
        "variational_mixture": Case(mixture(), mixture_data(), 3, 200),
        "nmf": Case(nmf(), mixtures(), 3, 400),
        "nmf_itakura_saito": Case(nmf(0.0, learn_sparsity=True), mixtures(), 3, None),
        "nmf_squared_error": Case(nmf(2.0, learn_sparsity=True), mixtures(), 3, 400),
        "mean_field": Case(MeanField(field()), fields(), 3, 100),
        "mean_field_in_turns": Case(MeanField(field(), alpha=sequential(field().graph)), fields(), 5, None),
        "belief_propagation": Case(BeliefPropagation(field()), fields(), 3, 100),
        "message_passing": Case(learnt_exponents(), fields(), 3, 200),
    }


def written() -> dict[str, Case]:
    """Algorithms as users write them: every shape that the contract allows."""
    small = signals(3, 5)
    return {
        "babylonian": Case(Babylonian(), _positive(), 4, 80),
        "functions": Case(linear_recurrence(), small, 3, 80),
        "schedule": Case(du.Schedule(Centre(), Spread()), small, 3, 200),
        "constrained": Case(constrained_ista(), signals(), 3, 400),
        "complex": Case(complex_phases(), small, 3, 100),
    }


def all_cases() -> dict[str, Case]:
    return shipped() | written()
