"""What `benchmarks.nmf` measures, as data: inference beside its matrix products and peers, a training step, memory."""

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks._memory import peak_bytes
from benchmarks._report import interleaved, least_and_median
from deepunfold import Unfolded
from deepunfold.nmf import DeepNMFLoss, MultiplicativeUpdate, NMFInference, beta_divergence, deep_nmf, infer, separate

SPARSITY = 5.0


class Size(NamedTuple):
    """Features F, components R, frames T, iterations or layers K, trained layers C, and frames of context."""

    features: int
    components: int
    frames: int
    layers: int
    trained: int = 0
    context: int = 1


@dataclass(frozen=True)
class Timing:
    """Seconds of one way to do it, least and median, and both over those of the products alone."""

    way: str
    least: float
    median: float
    ratio: tuple[float, float]


def data(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """A basis of unit columns, and a mixture."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.rand(size.features, size.components, generator=generator)
    mixture = torch.rand(size.frames, size.features, generator=generator)
    return (basis / basis.norm(dim=0)).to(device), mixture.to(device)


def compare(ways: dict[str, Callable[[], object]], base: str, repeats: int) -> list[Timing]:
    """Time ways in turn; ratios are to the base."""
    found = {way: least_and_median(times) for way, times in interleaved(ways, repeats, warmups=1, rest=0.3).items()}
    return [Timing(way, *times, (times[0] / found[base][0], times[1] / found[base][1])) for way, times in found.items()]


# -- inference -------------------------------------------------------------------------------------------------------


def inference(size: Size, device: torch.device, repeats: int) -> list[Timing]:
    """KL inference with a fixed basis: ours, its own products alone, and others' that are installed."""
    basis, mixture = data(size, device)
    algorithm = NMFInference(basis, sparsity=SPARSITY)
    ways: dict[str, Callable[[], object]] = {
        "products alone": lambda: products(basis, mixture, size.layers),
        "deepunfold": lambda: infer(algorithm, mixture, size.layers),
        "torch, one line": lambda: one_line(basis, mixture, size.layers),
    }
    if importlib.util.find_spec("torchnmf"):
        ways["torchnmf"] = lambda: torchnmf(basis, mixture, size.layers)
    if device.type == "cpu" and importlib.util.find_spec("sklearn"):
        ways["scikit-learn"] = lambda: scikit_learn(basis, mixture, size.layers)
    if device.type == "cuda" and importlib.util.find_spec("triton"):
        candidates: Any = importlib.import_module("benchmarks._nmf_gpu").candidates
        ways |= candidates(one_line, basis, mixture, SPARSITY, size.layers)
    return compare(ways, "products alone", repeats)


def products(basis: Tensor, mixture: Tensor, steps: int) -> None:
    """The two products of every iteration, all frames at once, into buffers, and nothing else."""
    activations = mixture.new_ones(len(mixture), basis.shape[1])
    model, pulled = torch.empty_like(mixture), torch.empty_like(activations)
    for _ in range(steps):
        torch.mm(activations, basis.mT, out=model)
        torch.mm(model, basis, out=pulled)


def one_line(basis: Tensor, mixture: Tensor, steps: int) -> Tensor:
    """Equation ``eq:nmf_updates`` for beta = 1 as one writes it down."""
    activations = mixture.new_ones(len(mixture), basis.shape[1])
    for _ in range(steps):
        activations = activations * ((mixture / (activations @ basis.mT + 1e-12)) @ basis) / (basis.sum(0) + SPARSITY)
    return activations


def torchnmf(basis: Tensor, mixture: Tensor, steps: int) -> None:
    """The same by torchnmf."""
    nmf: Any = importlib.import_module("torchnmf.nmf")
    model = nmf.NMF(W=basis, H=mixture.new_ones(len(mixture), basis.shape[1]), trainable_W=False).to(mixture.device)
    model.fit(mixture, beta=1, tol=0, max_iter=steps, alpha=SPARSITY, l1_ratio=1.0)


def scikit_learn(basis: Tensor, mixture: Tensor, steps: int) -> None:
    """The same by scikit-learn, whose penalty would take no time."""
    decomposition: Any = importlib.import_module("sklearn.decomposition")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decomposition.non_negative_factorization(
            mixture.numpy(),
            H=basis.mT.contiguous().numpy(),
            n_components=basis.shape[1],
            init="random",
            update_H=False,
            solver="mu",
            beta_loss="kullback-leibler",
            tol=0,
            max_iter=steps,
        )


# -- training --------------------------------------------------------------------------------------------------------


def network(size: Size, device: torch.device) -> tuple[Unfolded, Tensor, Tensor]:
    """A deep NMF of two sources, with a mixture and its sources."""
    basis, mixture = data(size._replace(features=size.features * size.context), device)
    bases = basis.chunk(2, 1)
    net = deep_nmf(bases, size.layers, size.trained, context=size.context, sparsity=SPARSITY)
    frames = mixture[:, -size.features :]
    share = torch.rand(frames.shape, generator=torch.Generator().manual_seed(1)).to(device)
    return net, mixture, torch.stack([share * frames, (1 - share) * frames], 1)


def steps(size: Size, device: torch.device) -> dict[str, Callable[[], object]]:
    """A forward pass, and whole training steps in closed form and by automatic differentiation."""
    net, mixture, sources = network(size, device)
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    loss, optimizer = DeepNMFLoss(2.0), MultiplicativeUpdate(trained, exponent=0.1)

    def closed_form() -> None:
        optimizer.zero_grad()
        loss(net, mixture, sources).backward()
        optimizer.step()

    def autograd() -> None:
        net.zero_grad()
        beta_divergence(sources, net(mixture), 2.0).sum().backward()

    return {
        "forward": lambda: separate(net, mixture),
        "closed-form step": closed_form,
        "autograd, no update": autograd,
    }


@dataclass(frozen=True)
class Peak:
    """The peak memory in bytes of each way, for a number of frames."""

    frames: int
    peaks: dict[str, int]


def peaks(size: Size, frames: tuple[int, ...], device: torch.device) -> list[Peak]:
    """Beyond parameters, data and what lasts from call to call."""
    rows = []
    for count in frames:
        ways = steps(size._replace(frames=count), device)
        for way in ways.values():
            way()
        rows.append(Peak(count, {name: peak_bytes(way, device) for name, way in ways.items()}))
    return rows
