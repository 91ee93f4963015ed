"""The conformance suite: what every algorithm must hold to, for the library's own and for yours.

`check_algorithm` runs all of it; `CHECKS` has the parts by name, for use with pytest's ``parametrize``.
"""

import copy
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepunfold.core import _tree
from deepunfold.core._algorithm import as_algorithm
from deepunfold.core._errors import ConvergenceWarning
from deepunfold.core._implicit import Implicit
from deepunfold.core._iterate import iterate
from deepunfold.core._saving import load, save
from deepunfold.core._unfolded import Unfolded, unfold


@dataclass(frozen=True)
class Case:
    """An algorithm with an input, both in float64, that the checks are run on.

    ``layers`` is the depth of the networks. ``converged`` is a number of steps after which the state no longer moves,
    for algorithms that have a fixed point; without it, implicit gradients are not compared with unrolled ones.
    """

    algorithm: Any
    x: Any
    layers: int = 3
    converged: int | None = None

    def net(self, layers: int | None = None, **settings: Any) -> Unfolded:
        """A network of the algorithm."""
        return unfold(self.algorithm, layers or self.layers, **settings)


def check_algorithm(algorithm: Any, x: Any, layers: int = 3, converged: int | None = None) -> None:
    """Run every check; the first that fails raises an ``AssertionError`` that says what should have held.

    Args:
        algorithm: with parameters in float64, so that "equal" can mean to round-off.
        x: an input in float64 with a batch of at least two.
        layers: see `Case`.
        converged: see `Case`.
    """
    case = Case(as_algorithm(algorithm), x, layers, converged)
    for check in CHECKS.values():
        check(case)


def tied_equals_iterate(case: Case) -> None:
    """An unfolded network with tied, untrained parameters is the classic algorithm."""
    result = iterate(case.algorithm, case.x, until=None, max_steps=case.layers)
    with torch.no_grad():
        _close(case.net()(case.x), result.value, "the unfolded network and iterate() differ")


def gradients_are_true(case: Case) -> None:
    """Exact modes give the derivative along random directions of all parameters, tied and untied."""
    for mode in ("unroll", "checkpoint"):
        for tie in ("all", "each"):
            net = case.net(backward=mode, tie=tie)
            _check_gradient(net, case.x, f"{mode}, tie={tie}")


def modes_agree_forward(case: Case) -> None:
    """Every backward mode gives the same forward values, bit for bit."""
    expected = case.net()(case.x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for mode in ("checkpoint", "truncated", "implicit", "jacobian_free"):
            _equal(case.net(backward=mode)(case.x), expected, f"backward={mode} changes the forward values")


def tied_gradient_is_the_sum(case: Case) -> None:
    """The gradient of a tied parameter is the sum of those of its untied copies."""
    tied, untied = case.net(), case.net(tie="each")
    _loss(tied(case.x)).backward()
    _loss(untied(case.x)).backward()
    for name, parameter in tied.layers[0].named_parameters():
        copies = {id(p): p for layer in untied.layers for own, p in layer.named_parameters() if own == name}
        total = sum(p.grad for p in copies.values() if p.grad is not None)
        if parameter.grad is not None:
            _close(parameter.grad, total, f"the gradient of the tied {name} is not the sum of the untied ones")


def untied_storage_is_distinct(case: Case) -> None:
    """No two untied parameters share memory, nor does the network share any with the algorithm it came from."""
    net = case.net(tie="each")
    tensors = [*net.parameters(), *case.algorithm.parameters()]
    places = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    assert len(places) == len(tensors), "two untied parameters share one storage"


def batch_is_independent(case: Case) -> None:
    """A sample's result does not depend on the samples beside it."""
    net = case.net()
    size = _tree.batch_size(case.x)
    with torch.no_grad():
        whole = net(case.x)
        for i in range(size):
            alone = net(_tree.select(case.x, torch.tensor([i]), size))
            part = _tree.select(whole, torch.tensor([i]), size)
            _close(alone, part, f"sample {i} alone gives another result than in its batch")


def dtype_is_kept(case: Case) -> None:
    """In float32 throughout, and in float64 throughout."""
    for dtype in (torch.float32, torch.float64):
        net = case.net().to(dtype)
        x = _tree.map_tensors(lambda leaf, to=dtype: leaf.to(to) if leaf.is_floating_point() else leaf, case.x)
        with torch.no_grad():
            for leaf in _tree.leaves(net.states(x, [net.depth])):
                if isinstance(leaf, Tensor) and leaf.is_floating_point():
                    assert leaf.dtype == dtype, f"the state is {leaf.dtype} where x and the parameters are {dtype}"


def conversions_keep_outputs(case: Case) -> None:
    """Untying, growing and another train_last leave the outputs as they are, bit for bit."""
    net = case.net()
    with torch.no_grad():
        expected = net(case.x)
        _equal(net.untie()(case.x), expected, "untie() changes the outputs")
        _equal(net.grow(2)(case.x), expected, "grow(2) changes the outputs")
        deeper = net.grow(2, start="copy")
        _equal(deeper(case.x), net(case.x, layers=case.layers + 2), 'grow(2, "copy") is not two more iterations')
        _equal(deeper(case.x, layers=case.layers), expected, 'grow(2, "copy") changes the layers that were there')
    _equal(net.with_train_last(1)(case.x), expected, "with_train_last(1) changes the outputs")


def copies_are_faithful(case: Case) -> None:
    """A state_dict holds each parameter once and restores it; a file and a deep copy give an equal network."""
    net = case.net(tie="each")
    own = net.state_dict()
    places = {tensor.data_ptr() for tensor in own.values() if tensor.numel()}
    assert len(places) == sum(tensor.numel() > 0 for tensor in own.values()), "state_dict holds a tensor twice"
    with torch.no_grad():
        expected = net(case.x)
        other = case.net(tie="each")
        for parameter in other.parameters():
            parameter.zero_()
        other.load_state_dict(own)
        _equal(other(case.x), expected, "load_state_dict does not restore the network")
        _equal(copy.deepcopy(net)(case.x), expected, "a deep copy differs")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.safetensors"
            save(net, path)
            classes = [type(part) for part in case.algorithm.modules()]
            _equal(load(path, classes=classes)(case.x), expected, "save and load change the network")


def implicit_is_unrolled_in_the_limit(case: Case) -> None:
    """At a fixed point, the implicit gradient is that of unrolling all the way."""
    if case.converged is None:
        return
    unrolled = case.net(case.converged)
    _loss(unrolled(case.x)).backward()
    for solver, settings in (("gmres", {}), ("neumann", {"damping": 0.9, "max_steps": 20 * case.converged})):
        net = case.net(case.converged, backward=Implicit(solver, tolerance=1e-7, **settings))  # type: ignore[arg-type]
        _loss(net(case.x)).backward()
        for (name, ours), theirs in zip(net.named_parameters(), unrolled.parameters(), strict=True):
            if theirs.grad is not None:
                assert ours.grad is not None, f"the implicit gradient of {name} is missing"
                _close(ours.grad, theirs.grad, f"the implicit gradient of {name} ({solver}) differs", tolerance=1e-4)


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__: check
    for check in (
        tied_equals_iterate,
        gradients_are_true,
        modes_agree_forward,
        tied_gradient_is_the_sum,
        untied_storage_is_distinct,
        batch_is_independent,
        dtype_is_kept,
        conversions_keep_outputs,
        copies_are_faithful,
        implicit_is_unrolled_in_the_limit,
    )
}


def _loss(output: Any) -> Tensor:
    """A smooth number that depends on every continuous value of an output, each with a weight of its own."""
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros((), dtype=torch.float64)
    for leaf in _tree.leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            weights = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype).to(leaf.device)
            total = total + (weights * leaf + leaf.square() / 2).sum().cpu()
    return total


def _check_gradient(net: nn.Module, x: Any, what: str, step: float = 1e-6) -> None:
    """Compare back-propagation with a central difference along a random direction."""
    generator = torch.Generator().manual_seed(1)
    net.zero_grad()
    _loss(net(x)).backward()
    parameters = [p for p in net.parameters() if p.grad is not None]
    assert parameters, f"no parameter has a gradient ({what})"
    directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in parameters]
    gradients = [p.grad for p in parameters if p.grad is not None]
    analytic = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    values = []
    with torch.no_grad():
        for sign in (1, -2):
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=sign * step)
            values.append(float(_loss(net(x))))
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.add_(direction, alpha=step)
    numeric = (values[0] - values[1]) / (2 * step)
    error = abs(analytic - numeric)
    assert error <= 1e-5 * max(abs(numeric), 1.0), (
        f"the gradient is {analytic:.9g}, finite differences give {numeric:.9g} ({what})"
    )


def _pairs(one: Any, other: Any) -> list[tuple[Tensor, Tensor]]:
    return list(zip(_tree.leaves(one), _tree.leaves(other), strict=True))


def _close(one: Any, other: Any, message: str, tolerance: float = 1e-10) -> None:
    for a, b in _pairs(one, other):
        scale = max(float(b.abs().max()), 1e-30) if b.numel() else 1.0
        error = float((a - b).abs().max()) if b.numel() else 0.0
        assert error <= tolerance * max(scale, 1.0), f"{message}: by {error:.2e}, at values up to {scale:.2e}"


def _equal(one: Any, other: Any, message: str) -> None:
    for a, b in _pairs(one, other):
        assert torch.equal(a, b), f"{message}: by {float((a - b).abs().max()):.2e}"
