"""One lambda for a whole network, moved from mean field to belief propagation."""

import math
from functools import partial

import pytest
import torch
from torch import nn

import deepunfold as du
from deepunfold.mrf import BeliefPropagation, Grouped, MaxProduct, MeanField, MessagePassing, PairwiseMRF, grid
from deepunfold.mrf._dial import set_lambda
from deepunfold.mrf._layers import BeliefSigmoid, BeliefSoftmax

DOUBLE = {"dtype": torch.float64}


def sigmoid_network(dtype=torch.float64):
    return nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3)).to(dtype)


def converted(network, lambda_=0.0):
    first, second = (BeliefSigmoid.from_linear(network[k], lambda_) for k in (0, 2))
    return nn.Sequential(first, second, network[4])


def model(dtype=torch.float64):
    graph = grid(2, 3, 3)
    return PairwiseMRF(graph, torch.randn(len(graph.edges), 3, 3, dtype=dtype)).to(dtype)


# -- feed-forward layers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_a_converted_sigmoid_network_is_itself_at_zero_and_belief_propagation_at_one(dtype, close):
    network, x = sigmoid_network(dtype), torch.rand(20, 6, dtype=dtype)
    net = converted(network, 0.7)
    set_lambda(net, 0.0)
    torch.testing.assert_close(net(x), network(x), atol=close, rtol=0)
    set_lambda(net, 1.0)
    torch.testing.assert_close(net(x), converted(network, 1.0)(x), atol=0, rtol=0)
    assert bool((net(x) - network(x)).abs().amax() > 1e-3)
    assert all(net[k].lambda_.dtype == dtype for k in (0, 1))


@pytest.mark.parametrize("value", [-1.0, -1e-3, 0.0, 1e-3, 0.5, 1.0])
def test_outputs_move_continuously_and_with_the_slope_of_a_learnt_lambda(value):
    network, x, step = sigmoid_network(), torch.rand(20, 6, **DOUBLE), 1e-4
    net, outputs = converted(network), {}
    for side in (-1, 1):
        set_lambda(net, value + side * step)
        outputs[side] = net(x).detach()
    slope = (outputs[1] - outputs[-1]) / (2 * step)

    learnt = converted(network)
    for k in (0, 1):
        learnt[k] = BeliefSigmoid.from_linear(network[2 * k], nn.Parameter(torch.tensor(value))).double()
    probe = torch.randn(20, 3, **DOUBLE)
    (learnt(x) * probe).sum().backward()
    expected = learnt[0].lambda_.grad + learnt[1].lambda_.grad
    torch.testing.assert_close((slope * probe).sum(), expected, atol=1e-6, rtol=1e-4)
    assert float(expected.abs()) > 1e-3


def test_units_with_several_states_and_a_lambda_per_output_move_too():
    each = BeliefSoftmax(4, 3, (2, 5), torch.tensor([0.1, 0.2, 0.3]))
    set_lambda(each, 0.25)
    assert torch.equal(each.lambda_, torch.full((3,), 0.25))
    plain = BeliefSoftmax(4, 3, (2, 5), 0.25)
    plain.load_state_dict(each.state_dict() | {"lambda_": plain.lambda_})
    x = torch.rand(7, 4, 2).softmax(-1)
    torch.testing.assert_close(each(x), plain(x))


# -- unfolded message passing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("tie", ["all", "each"])
@pytest.mark.parametrize("start", ["number", "one", "per edge", "per message"])
def test_an_unfolded_network_is_the_one_with_that_lambda(dtype, tie, start):
    mrf = model(dtype)
    x = torch.randn(4, 6, 3, dtype=dtype)
    edges = len(mrf.graph.edges)
    shapes = {"one": (), "per edge": (edges,), "per message": (2 * edges,)}
    lambda_ = 0.3 if start == "number" else torch.full(shapes[start], 0.3, dtype=dtype)
    net = du.unfold(MessagePassing(mrf, lambda_=lambda_), 4, tie=tie)
    for value in (0.0, 0.6, 1.0, -0.5):
        set_lambda(net, value)
        fresh = du.unfold(MessagePassing(mrf, lambda_=value), 4, tie=tie)
        torch.testing.assert_close(net(x), fresh(x))


def test_the_ends_are_mean_field_and_belief_propagation():
    mrf, x = model(), torch.randn(4, 6, 3, **DOUBLE)
    net = du.unfold(BeliefPropagation(mrf), 5)
    exact = net(x)
    set_lambda(net, 0.0)
    # Messages start uniform, so that their beliefs are at first those of the fields, as the state of MeanField is.
    torch.testing.assert_close(net(x), du.unfold(MeanField(mrf), 5)(x))
    set_lambda(net, 1.0)
    torch.testing.assert_close(net(x), exact, atol=0, rtol=0)


# -- what is learnt ---------------------------------------------------------------------------------------------------


def test_learnt_ones_are_left_alone():
    mrf = model()
    frozen = nn.Parameter(torch.tensor(0.4), requires_grad=False)
    per_group = Grouped(0.4, torch.zeros(2 * len(mrf.graph.edges), dtype=torch.int64))
    learnt = [
        BeliefSigmoid(3, 3, nn.Parameter(torch.tensor(0.4))),
        BeliefSoftmax(3, 3, 2, frozen),
        MessagePassing(mrf, lambda_=nn.Parameter(torch.tensor(0.4))),
        MessagePassing(mrf, lambda_=per_group),
        du.constrain(MessagePassing(mrf, lambda_=nn.Parameter(torch.tensor(0.4))), lambda_=du.Positive()),
    ]
    network = nn.ModuleList([*learnt, BeliefSigmoid(3, 3, 0.4)])
    before = {name: value.clone() for name, value in network.state_dict().items()}
    set_lambda(network, 0.9)
    changed = [name for name, value in network.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["5.lambda_"]
    with pytest.raises(ValueError, match="ModuleList has no lambda that is not learnt"):
        set_lambda(network[:5], 0.9)


def test_a_lambda_of_another_kind_is_left_alone():
    class Other(nn.Module):
        lambda_ = 3.0

    other = Other()
    set_lambda(nn.Sequential(other, BeliefSigmoid(2, 2)), 0.5)
    assert other.lambda_ == 3.0


# -- files and training -----------------------------------------------------------------------------------------------


def test_buffers_survive_a_state_dict():
    mrf, x = model(), torch.randn(4, 6, 3, **DOUBLE)
    net, other = (du.unfold(MessagePassing(mrf, lambda_=torch.zeros((), **DOUBLE)), 3) for _ in range(2))
    set_lambda(net, 0.75)
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(other(x), net(x), atol=0, rtol=0)
    set_lambda(other, 0.0)
    set_lambda(net, 0.0)
    torch.testing.assert_close(other(x), net(x), atol=0, rtol=0)

    layers = converted(sigmoid_network())
    set_lambda(layers, 0.75)
    fresh = converted(sigmoid_network())
    fresh.load_state_dict(layers.state_dict())
    assert [float(fresh[k].lambda_) for k in (0, 1)] == [0.75, 0.75]


def test_training_ends_with_the_lambda_of_its_best_epoch():
    net, x = converted(sigmoid_network()), torch.rand(8, 6, **DOUBLE)
    seen = []

    def validate(net):
        seen.append(float(net[0].lambda_))
        return abs(seen[-1] - 0.5)

    du.fit(
        net,
        [(x, torch.zeros(8, 3, **DOUBLE))],
        nn.functional.mse_loss,
        epochs=5,
        optimizer=partial(torch.optim.Adam, lr=1e-3),
        validate=validate,
        callback=lambda epoch: set_lambda(net, (epoch.number + 1) / 4),
        progress=False,
    )
    assert seen == [0, 0.25, 0.5, 0.75, 1]
    assert float(net[0].lambda_) == float(net[1].lambda_) == 0.5


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_lambda_is_finite(value):
    layer = BeliefSigmoid(2, 2, 0.5)
    with pytest.raises(ValueError, match="lambda must be finite, not"):
        set_lambda(layer, value)
    assert float(layer.lambda_) == 0.5


def test_networks_without_a_lambda():
    with pytest.raises(ValueError, match="Sequential has no lambda that is not learnt"):
        set_lambda(sigmoid_network(), 0.5)
    with pytest.raises(ValueError, match="Unfolded has no lambda"):
        set_lambda(du.unfold(MeanField(model()), 2), 0.5)


def test_nothing_is_set_where_something_cannot_be():
    layer = BeliefSigmoid(2, 2, 0.5)
    with pytest.raises(ValueError, match="MaxProduct has kappa=inf"):
        set_lambda(nn.ModuleList([layer, MaxProduct(model())]), 0.0)
    with pytest.raises(ValueError, match=r"a tensor of torch\.int64; give it as one of floats"):
        set_lambda(nn.ModuleList([layer, MessagePassing(model(), lambda_=torch.tensor(1))]), 0.25)
    assert float(layer.lambda_) == 0.5
