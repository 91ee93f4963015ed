"""Constraints: always inside the set, kept through tying, growing, training, saving."""

import pytest
import torch

import deepunfold as du
from deepunfold.core.algorithms import ISTA
from tests.cases import constrained_ista, dictionary, signals

INSIDE = {
    "non_negative": (du.NonNegative(), lambda v: (v >= 0).all()),
    "positive": (du.Positive(), lambda v: (v > 0).all()),
    "interval": (du.Interval(), lambda v: ((v >= 0) & (v <= 1)).all()),
    "other interval": (du.Interval(-2, 3), lambda v: ((v >= -2) & (v <= 3)).all()),
    "simplex": (du.Simplex(), lambda v: (v >= 0).all() and torch.allclose(v.sum(-1), v.new_ones(()))),
    "simplex over rows": (du.Simplex(0), lambda v: torch.allclose(v.sum(0), v.new_ones(()))),
    "symmetric": (du.Symmetric(), lambda v: torch.equal(v, v.mT)),
}


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_any_free_value_is_mapped_inside(name, scale):
    constraint, inside = INSIDE[name]
    for dtype in (torch.float32, torch.float64):
        assert inside(constraint(scale * torch.randn(6, 6, dtype=dtype)))


@pytest.mark.parametrize("name", INSIDE)
def test_the_inverse_gives_the_value_back(name):
    constraint, _ = INSIDE[name]
    value = constraint(torch.randn(6, 6, dtype=torch.float64))
    assert torch.allclose(constraint(constraint.right_inverse(value)), value, atol=1e-12)


@pytest.mark.parametrize("size", [1e-30, 1e-8, 1e-3, 1.0, 40.0, 1e4, 1e30])
def test_non_negative_keeps_values_of_any_size(size):
    value = torch.tensor([size], dtype=torch.float64)
    for constraint in (du.NonNegative(), du.Positive()):
        assert torch.allclose(constraint(constraint.right_inverse(value)), value, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", INSIDE)
def test_gradients_are_finite(name):
    constraint, _ = INSIDE[name]
    free = (20 * torch.randn(6, 6, dtype=torch.float64)).requires_grad_()
    constraint(free).square().sum().backward()
    assert torch.isfinite(free.grad).all()


def test_values_survive_the_constraint():
    algorithm = ISTA(dictionary(), 0.05)
    before = algorithm.threshold.detach().clone()
    du.constrain(algorithm, threshold=du.NonNegative())
    assert torch.allclose(algorithm.threshold, before, atol=1e-15)


def test_training_cannot_leave_the_set():
    net = du.unfold(constrained_ista(), 3, tie="each")
    free = [p for name, p in net.named_parameters() if "threshold" in name]
    optimizer = torch.optim.SGD(free, lr=5.0)
    for _ in range(30):
        loss = sum(layer.threshold.sum() for layer in net.layers) + net(signals()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all((layer.threshold >= 0).all() for layer in net.layers)
    assert all((layer.threshold < 0.02).all() for layer in net.layers[:3])


def test_constraints_are_kept_through_tying_conversion_and_files(tmp_path):
    net = du.unfold(constrained_ista(), 3, tie={"threshold": [0, 0, 1, 1]})
    assert net.tying_table().count("threshold") == 2
    du.save(net, tmp_path / "net.safetensors")
    for other in (net.untie(), net.grow(2), net.with_train_last(2), du.load(tmp_path / "net.safetensors")):
        with torch.no_grad():
            for name, parameter in other.named_parameters():
                if "threshold" in name:
                    parameter.sub_(1000.0)
        assert all((layer.threshold >= 0).all() for layer in other.layers)


def test_fixed_parameters_stay_fixed_under_a_constraint():
    algorithm = ISTA(dictionary(), 0.05)
    algorithm.threshold.requires_grad_(False)
    du.constrain(algorithm, threshold=du.Positive())
    net = du.unfold(algorithm, 2)
    assert [name for name, p in net.named_parameters() if p.requires_grad] == [
        "layers.0.dictionary",
        "layers.0.analysis",
    ]


def test_state_dict_names_are_stable():
    names = list(du.unfold(constrained_ista(), 2).state_dict())
    assert names == ["layers.0.dictionary", "layers.0.analysis", "layers.0.parametrizations.threshold.original"]


@pytest.mark.parametrize(
    ("name", "constraint", "message"),
    [
        ("rate", du.NonNegative(), "ISTA has no free parameter 'rate' of its own; there are: dictionary, analysis"),
        ("dictionary", du.NonNegative(), r"dictionary lies outside of NonNegative\(\): its values range from -"),
        ("threshold", du.Interval(5, 6), r"threshold lies outside of Interval\(\s*5, 6\s*\)"),
        ("threshold", du.Simplex(), "threshold lies outside of Simplex"),
        ("dictionary", du.Symmetric(), r"dictionary of shape \(7, 5\) cannot be symmetric"),
    ],
)
def test_mistakes_are_named(name, constraint, message):
    with pytest.raises(ValueError, match=message):
        du.constrain(ISTA(dictionary(), 0.05), **{name: constraint})


def test_an_empty_interval_is_an_error():
    with pytest.raises(ValueError, match=r"Interval\(1, 1\) is empty"):
        du.Interval(1, 1)
