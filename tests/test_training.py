"""Training: fit, resumption to the same numbers, deep supervision, layer-wise growth."""

import functools
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import deepunfold as du
from deepunfold.core.algorithms import ISTA, LISTA
from tests.cases import Babylonian, dictionary, linear_recurrence, signals

ADAM = functools.partial(torch.optim.Adam, lr=0.01)


def problem(count=24, seed=3):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    codes *= torch.rand(count, 5, generator=generator) < 0.4
    return codes @ dictionary().mT, codes


def net(**settings):
    return du.unfold(LISTA(dictionary(), 0.05), 3, **({"tie": "each"} | settings))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_fit_lowers_the_loss():
    x, z = problem()
    trained = net()
    training = du.fit(trained, [(x, z)], mse_loss, epochs=100, optimizer=ADAM)
    assert training.epochs[-1].loss < 0.2 * training.epochs[0].loss
    assert [epoch.number for epoch in training.epochs] == list(range(100))
    assert training.best.loss == min(epoch.loss for epoch in training.epochs)


def test_fit_is_the_plain_loop():
    x, z = problem()
    batches = list(zip(x.split(8), z.split(8), strict=True))
    ours, theirs = net(), net()
    du.fit(ours, batches, mse_loss, epochs=3, optimizer=ADAM)
    optimizer = ADAM(theirs.parameters())
    for _ in range(3):
        for batch, target in batches:
            optimizer.zero_grad()
            mse_loss(theirs(batch), target).backward()
            optimizer.step()
    assert same(ours, theirs)


def test_clipping_bounds_the_whole_gradient():
    x, z = problem()
    ours = net()
    before = [p.detach().clone() for p in ours.parameters()]
    du.fit(ours, [(x, 1e6 * z)], mse_loss, epochs=1, optimizer=functools.partial(torch.optim.SGD, lr=1.0), clip=0.5)
    moved = math.sqrt(
        sum(float((p.detach() - b).square().sum()) for p, b in zip(ours.parameters(), before, strict=True))
    )
    assert moved == pytest.approx(0.5, rel=1e-4)


def test_with_a_validation_the_best_parameters_are_kept():
    x, z = problem()
    scores = iter([3.0, 1.0, 2.0, 5.0])
    states = []

    def validate(network):
        assert not torch.is_grad_enabled()
        assert not network.training
        states.append({name: value.clone() for name, value in network.state_dict().items()})
        return next(scores)

    trained = net()
    training = du.fit(trained, [(x, z)], mse_loss, epochs=4, optimizer=ADAM, validate=validate)
    assert training.best.number == 1
    assert all(torch.equal(value, states[1][name]) for name, value in trained.state_dict().items())


def test_a_callback_sees_epochs_and_stops():
    x, z = problem()
    seen = []
    training = du.fit(
        net(), [(x, z)], mse_loss, epochs=50, callback=lambda epoch: seen.append(epoch) or epoch.number == 2
    )
    assert len(training.epochs) == 3
    assert seen == training.epochs


def test_data_may_depend_on_the_epoch():
    x, z = problem()
    asked = []
    du.fit(net(), lambda number: asked.append(number) or [(x, z)], mse_loss, epochs=3)
    assert asked == [0, 1, 2]


def test_an_update_that_is_not_finite_is_left_out():
    x, z = problem()
    broken = x.clone()
    broken[0, 0] = math.nan
    ours, theirs = net(), net()
    training = du.fit(ours, [(x, z), (broken, z), (x, z)], mse_loss, epochs=1, optimizer=ADAM)
    du.fit(theirs, [(x, z), (x, z)], mse_loss, epochs=1, optimizer=ADAM)
    assert training.epochs[0].skipped == 1
    assert same(ours, theirs)


def test_nothing_but_updates_that_are_not_finite_is_an_error():
    x, z = problem()
    with pytest.raises(FloatingPointError, match=r"20 updates in a row .* \(epoch 0, loss nan\); lower the learning"):
        du.fit(net(), [(x * math.nan, z)] * 30, mse_loss, epochs=2)


def test_only_what_is_named_is_trained():
    x, z = problem()
    part = net(train_last=2)
    before = {name: value.clone() for name, value in part.state_dict().items()}
    du.fit(part, [(x, z)], mse_loss, epochs=2, optimizer=ADAM)
    changed = {name.split(".")[1] for name, value in part.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"2"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: du.fit(net(train_last=0), [problem()], mse_loss, epochs=1), "no parameter to train; see train_last"),
        (lambda: du.fit(net(), [], mse_loss, epochs=1), "epoch 0 had no batches"),
        (lambda: du.fit_layerwise(Babylonian(), 0, lambda _net: None), "layers=0 is no network"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_bar_is_shown_when_asked_for_and_silent_otherwise(capsys):
    x, z = problem()
    du.fit(net(), [(x, z)], mse_loss, epochs=2)
    assert capsys.readouterr().err == ""
    du.fit(net(), [(x, z)], mse_loss, epochs=2, progress=True, validate=lambda network: 0.5)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "validation 0.5" in shown


# -- resumption ------------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def interrupted(batches, at):
    """Data that stop the process, as it were, in the middle of an epoch."""

    def data(number):
        for i, batch in enumerate(batches):
            if number == at and i == 1:
                raise Killed
            yield batch

    return data


@pytest.mark.parametrize(
    "optimizer",
    [
        ADAM,
        functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        functools.partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
        functools.partial(torch.optim.Rprop, lr=0.001),
    ],
    ids=["adam", "momentum", "adamw", "rprop"],
)
def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path, optimizer):
    x, z = problem()
    batches = list(zip(x.split(8), z.split(8), strict=True))
    validate = lambda network: float(mse_loss(network(x), z))  # noqa: E731
    whole, killed, resumed = net(), net(), net()
    settings = {"epochs": 6, "optimizer": optimizer, "validate": validate}
    expected = du.fit(whole, batches, mse_loss, **settings)
    path = tmp_path / "run.safetensors"
    with pytest.raises(Killed):
        du.fit(killed, interrupted(batches, 3), mse_loss, checkpoint=path, **settings)
    training = du.fit(resumed, batches, mse_loss, checkpoint=path, **settings)
    assert same(whole, resumed)
    assert [epoch.loss for epoch in training.epochs] == [epoch.loss for epoch in expected.epochs]
    assert training.best.number == expected.best.number
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.safetensors"]


@pytest.mark.parametrize("own_generator", [False, True])
def test_random_order_goes_on_too(tmp_path, own_generator):
    def run(epochs, path=None):
        torch.manual_seed(11)
        generator = torch.Generator().manual_seed(4) if own_generator else None
        loader = DataLoader(TensorDataset(*problem()), batch_size=8, shuffle=True, generator=generator)
        network = net()
        training = du.fit(network, loader, mse_loss, epochs=epochs, optimizer=ADAM, checkpoint=path)
        return network, [epoch.loss for epoch in training.epochs]

    path = tmp_path / "run.safetensors"
    run(2, path)
    resumed, losses = run(5, path)
    whole, expected = run(5)
    assert losses == expected
    assert same(whole, resumed)


def test_a_finished_run_is_not_run_again(tmp_path):
    x, z = problem()
    path = tmp_path / "run.safetensors"
    first, second = net(), net()
    du.fit(first, [(x, z)], mse_loss, epochs=2, optimizer=ADAM, checkpoint=path)
    training = du.fit(second, [(x, z)], mse_loss, epochs=2, optimizer=ADAM, checkpoint=path)
    assert len(training.epochs) == 2
    assert same(first, second)


def test_the_checkpoint_of_another_run_is_refused(tmp_path):
    x, z = problem()
    path = tmp_path / "run.safetensors"
    du.fit(net(), [(x, z)], mse_loss, epochs=1, checkpoint=path)
    with pytest.raises(du.FileFormatError, match="is the checkpoint of another training than this one"):
        du.fit(du.unfold(ISTA(dictionary()), 3), [(x, z)], mse_loss, epochs=2, checkpoint=path)
    path.write_text("nonsense")
    with pytest.raises(du.FileFormatError, match="no safetensors file"):
        du.fit(net(), [(x, z)], mse_loss, epochs=1, checkpoint=path)


SCRIPT = """
import sys, time, torch
import deepunfold as du
from tests.test_training import ADAM, net, problem
from torch.nn.functional import mse_loss
x, z = problem()
def data(number):
    if sys.argv[2] == "slow":
        time.sleep(0.05)
    return list(zip(x.split(8), z.split(8)))
network = net()
du.fit(network, data, mse_loss, epochs=40, optimizer=ADAM, checkpoint=sys.argv[1])
print(float(sum(p.detach().double().sum() for p in network.parameters())).hex())
"""


@pytest.mark.slow
def test_a_process_that_is_really_killed_loses_nothing(tmp_path):
    path = tmp_path / "run.safetensors"
    root = Path(__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(root)}

    def start(speed, checkpoint):
        command = [sys.executable, "-c", SCRIPT, str(checkpoint), speed]
        return subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)

    process = start("slow", path)
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    resumed, _ = start("fast", path).communicate()
    whole, _ = start("fast", tmp_path / "other.safetensors").communicate()
    assert resumed == whole != ""


# -- objectives ------------------------------------------------------------------------------------------------------


def test_deep_supervision_is_the_weighted_sum_over_layers():
    x, z = problem()
    network = net()
    objective = du.deep_supervision(mse_loss, {1: 0.25, 3: 1.0, 2: 0.0})
    expected = 0.25 * mse_loss(network(x, layers=1), z) + mse_loss(network(x), z)
    assert torch.allclose(objective(network, x, z), expected)


def test_deep_supervision_trains():
    x, z = problem()
    network = net()
    training = du.fit(
        network, [(x, z)], du.deep_supervision(mse_loss, {1: 0.3, 2: 0.3, 3: 1.0}), epochs=60, optimizer=ADAM
    )
    assert training.epochs[-1].loss < 0.5 * training.epochs[0].loss


@pytest.mark.parametrize("settings", [{"train_last": 2}, {"tie": "all", "backward": "jacobian_free"}])
def test_a_layer_without_gradient_cannot_be_supervised(settings):
    x, z = problem()
    objective = du.deep_supervision(mse_loss, {1: 1.0, 3: 1.0})
    with pytest.raises(ValueError, match="the output of layer 1 carries no gradient"):
        objective(net(**settings), x, z)
    with torch.no_grad():
        assert torch.isfinite(objective(net(**settings), x, z))


def test_an_objective_sees_the_network():
    x, z = problem()
    penalised = du.Objective(lambda network, a, b: mse_loss(network(a), b) + network.layers[0].threshold.square().sum())
    assert du.fit(net(), [(x, z)], penalised, epochs=2).epochs[0].loss > 0


# -- layer-wise growth -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("only_new", [False, True])
def test_layerwise_training_grows_one_layer_at_a_time(only_new):
    x, z = problem()
    stages = []

    def train(network):
        before = network.untie() if network.depth == 1 else network
        training = du.fit(network, [(x, z)], mse_loss, epochs=30, optimizer=ADAM)
        stages.append((network.depth, training.epochs[0].loss, training.epochs[-1].loss))
        assert before.depth == network.depth

    network = du.fit_layerwise(LISTA(dictionary(), 0.05), 4, train, only_new=only_new)
    assert [depth for depth, _, _ in stages] == [1, 2, 3, 4]
    assert all(last < first for _, first, last in stages)
    assert network.depth == 4
    assert network.train_last is None
    assert stages[-1][2] < stages[0][2]


def test_layerwise_training_of_the_new_layer_leaves_the_others():
    x, z = problem()
    first = []

    def train(network):
        du.fit(network, [(x, z)], mse_loss, epochs=5, optimizer=ADAM)
        first.append(network.layers[0].encoder.detach().clone())

    du.fit_layerwise(LISTA(dictionary(), 0.05), 3, train, only_new=True)
    assert torch.equal(first[0], first[1])
    assert torch.equal(first[1], first[2])


def test_a_readout_is_trained_along_with_the_new_layer():
    x, target = signals(6, 5), signals(6, 5, seed=8)

    def train(network):
        du.fit(network, [(x, target)], mse_loss, epochs=20, optimizer=ADAM)

    network = du.fit_layerwise(linear_recurrence(), 3, train, only_new=True)
    start = du.unfold(linear_recurrence(), 3)
    assert mse_loss(network(x), target) < mse_loss(start(x), target)
