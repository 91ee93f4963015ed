"""Multiplicative updates: the step, what can never happen, training with `fit`, several processes."""

import math
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import deepunfold as du
from deepunfold.nmf import (
    DeepNMFLoss,
    MultiplicativeLoss,
    MultiplicativeUpdate,
    Split,
    deep_nmf,
    sum_over_processes,
)


def parameter(*values):
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def test_one_step():
    w = parameter(1.0, 2.0, 3.0)
    w.split_grad = Split(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([4.0, 2.0, 1.0]))
    MultiplicativeUpdate([w], exponent=0.5).step()
    assert w.tolist() == [2.0, 2.0, 1.5]


def test_groups_have_settings_of_their_own():
    one, other = parameter(1.0), parameter(1.0)
    for each in (one, other):
        each.split_grad = Split(torch.ones(1), torch.full((1,), 16.0))
    MultiplicativeUpdate([{"params": [one], "exponent": 0.5}, {"params": [other], "limit": 2.0}]).step()
    assert (float(one.detach()), float(other.detach())) == (4.0, 2.0)


anything = st.floats(width=32) | st.sampled_from([0.0, math.inf, -math.inf, math.nan, 1e38, 1e-45, -1.0])
weight = st.floats(0, 2.0**126, width=32) | st.sampled_from([0.0, 1e-45, 3e38])


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(weight, anything, anything), min_size=1, max_size=6), st.sampled_from([0.3, 1.0, 2.0]))
def test_whatever_the_gradients_are(rows, exponent):
    """Never negative, never NaN or infinite, zeros stay zero, within the limit."""
    start, upper, lower = (torch.tensor(column, dtype=torch.float32) for column in zip(*rows, strict=True))
    w = nn.Parameter(start.clone())
    optimizer = MultiplicativeUpdate([w], exponent=exponent, limit=10.0)
    w.split_grad = Split(upper, lower)
    optimizer.step()
    after = w.detach()
    assert bool(torch.isfinite(after).all())
    assert bool((after >= 0).all())
    assert bool((after[start == 0] == 0).all())
    assert bool((after.double() <= 10.001 * start.double()).all())
    assert bool((after.double() >= start.double() / 10.001 - 1e-44).all())


def test_without_a_pull_nothing_moves():
    w = parameter(1.0, 2.0)
    optimizer = MultiplicativeUpdate([w])
    optimizer.step()
    w.split_grad = Split(torch.zeros(2), torch.zeros(2))
    optimizer.step()
    assert w.tolist() == [1.0, 2.0]


def test_zero_grad_forgets_both():
    w = parameter(1.0)
    w.grad, w.split_grad = torch.ones(1, dtype=torch.float64), Split(torch.ones(1), torch.ones(1))
    MultiplicativeUpdate([w]).zero_grad()
    assert w.grad is None
    assert w.split_grad is None


class Mixing(nn.Module):
    """A non-negative model of a user: x = (A^p B) / (1 + A^p B)."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.rand(4, 3) + 0.1), nn.Parameter(torch.rand(3, 5) + 0.1)

    def forward(self, x):
        mixed = x @ self.a.sqrt() @ self.b
        return mixed / (1 + mixed)


def test_a_non_negative_model_of_ones_own_trains():
    x = torch.rand(50, 4)
    target = Mixing()(x).detach()
    net = Mixing()
    training = du.fit(net, [(x, target)], MultiplicativeLoss(1), epochs=60, optimizer=MultiplicativeUpdate)
    losses = [epoch.loss for epoch in training.epochs]
    assert losses[-1] < 0.02 * losses[0]
    assert all(bool((parameter > 0).all()) for parameter in net.parameters())


def problem(frames=200):
    columns = [torch.rand(10, 4, dtype=torch.float64) ** 3 for _ in range(2)]
    sources = torch.stack([torch.rand(frames, 4, dtype=torch.float64) ** 4 @ own.mT for own in columns], 1)
    return columns, sources.sum(1), sources


def test_fit_trains_deep_nmf_and_resumes(tmp_path):
    columns, x, target = problem()
    data = [(x[:100], target[:100]), (x[100:], target[100:])]

    def train(epochs, checkpoint=None):
        net = deep_nmf(columns, 4, 2)
        training = du.fit(
            net, data, DeepNMFLoss(2), epochs=epochs, optimizer=MultiplicativeUpdate, checkpoint=checkpoint
        )
        return net, [epoch.loss for epoch in training.epochs]

    net, losses = train(6)
    assert losses[-1] < losses[2] < losses[0]
    path = tmp_path / "training.safetensors"
    train(3, path)
    again, resumed = train(6, path)
    assert resumed == losses
    assert torch.equal(again(x), net(x))


def test_the_order_of_the_paper():
    """C = 0 is worse than C = 1 is worse than C = 2, on data that were not trained on, for K = 4 and K = 25."""
    columns, x, target = problem(400)
    train, test = slice(0, 300), slice(300, 400)
    for layers in (4, 25):
        errors = []
        for train_last in (0, 1, 2):
            net = deep_nmf([own / own.norm(dim=0) for own in columns], layers, train_last, sparsity=0.1)
            if train_last:
                trained = [each for each in net.parameters() if each.requires_grad]
                du.fit(
                    net, [(x[train], target[train])], DeepNMFLoss(2), epochs=40, optimizer=MultiplicativeUpdate(trained)
                )
            errors.append(float((net(x[test]) - target[test]).square().sum().detach()))
        assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MultiplicativeUpdate([parameter(-1.0)]), "negative or not finite"),
        (lambda: MultiplicativeUpdate([parameter(math.nan)]), "negative or not finite"),
        (lambda: MultiplicativeUpdate([parameter(1.0)], exponent=0.0), "exponent=0.0 must be > 0"),
        (lambda: MultiplicativeUpdate([parameter(1.0)], limit=1.0), "limit=1.0 must be > 1"),
    ],
)
def test_bad_settings(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def _share(rank, folder):
    """One of two processes: its half of the frames, the sum of the parts, one step."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    data = torch.load(f"{folder}/data", weights_only=True)
    net = deep_nmf(data["columns"], 4, 2)
    trained = [each for each in net.parameters() if each.requires_grad]
    optimizer = MultiplicativeUpdate(trained)
    DeepNMFLoss(2)(net, data["x"][rank::2], data["target"][rank::2]).backward()
    sum_over_processes(trained)
    optimizer.step()
    torch.save([each.detach() for each in trained], f"{folder}/result{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_processes_that_share_the_data_take_the_same_step():
    columns, x, target = problem(40)
    net = deep_nmf(columns, 4, 2)
    trained = [each for each in net.parameters() if each.requires_grad]
    DeepNMFLoss(2)(net, x, target).backward()
    MultiplicativeUpdate(trained).step()
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"columns": columns, "x": x, "target": target}, Path(folder) / "data")
        torch.multiprocessing.spawn(_share, (folder,), nprocs=2)
        for rank in (0, 1):
            for ours, theirs in zip(trained, torch.load(f"{folder}/result{rank}", weights_only=True), strict=True):
                torch.testing.assert_close(ours.detach(), theirs)
