"""Layers, tying, chains, schedules and train_last."""

import pytest
import torch
from torch import nn

import deepunfold as du
from deepunfold.core.algorithms import FISTA, ISTA, LISTA
from tests.cases import Babylonian, Centre, Spread, dictionary, linear_recurrence, signals


def perturbed(net):
    """A network whose parameters all differ, as after training."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return net


def numbers(net, trained_only=False):
    return sum(p.numel() for p in net.parameters() if p.requires_grad or not trained_only)


def test_steps_use_theta_0_to_k_minus_1_and_the_readout_theta_k():
    net = perturbed(du.unfold(linear_recurrence(), 3, tie="each"))
    x = signals(2, 5)
    z = torch.zeros_like(x)
    for k in range(3):
        z = torch.tanh(x + z @ net.layers[k].matrix)
    assert torch.equal(net(x), z @ net.layers[3].matrix + net.layers[3].offset)
    assert len(net.layers) == net.depth + 1 == 4


def test_tied_parameters_are_one_object_and_untied_ones_are_not():
    tied, untied = du.unfold(ISTA(dictionary()), 3), du.unfold(ISTA(dictionary()), 3, tie="each")
    assert len({id(layer.analysis) for layer in tied.layers}) == 1
    assert len({id(layer.analysis) for layer in untied.layers[:3]}) == 3


def test_labels_tie_the_layers_that_share_them():
    net = du.unfold(linear_recurrence(), 4, tie=[0, 0, "a", "a", 2])
    ids = [id(layer.matrix) for layer in net.layers]
    assert ids[0] == ids[1] != ids[2] == ids[3] != ids[4]


def test_a_pattern_per_parameter_name():
    net = du.unfold(linear_recurrence(), 3, tie={"matrix": [0, 1, 0, 1]})
    assert net.layers[0].matrix is net.layers[2].matrix is not net.layers[1].matrix
    assert len({id(layer.offset) for layer in net.layers}) == 1


def test_a_pattern_for_a_prefix_reaches_submodules():
    net = du.unfold(du.Schedule(Centre(), Spread()), 2, tie={"parts.1": "each", "parts.1.scale": "all"})
    assert len({id(layer.parts[0].pull) for layer in net.layers}) == 1
    assert len({id(layer.parts[1].floor) for layer in net.layers}) == 3
    assert len({id(layer.parts[1].scale) for layer in net.layers}) == 1


def test_a_readout_without_parameters_has_no_theta_of_its_own():
    one = sum(p.numel() for p in LISTA(dictionary()).parameters())
    assert numbers(du.unfold(LISTA(dictionary()), 16, tie="each")) == 16 * one
    assert numbers(du.unfold(FISTA(dictionary()), 16, tie="each")) == 16 * sum(
        p.numel() for p in FISTA(dictionary()).parameters()
    )


def test_declared_parameters_get_no_copies_that_nothing_uses():
    class Declared(Spread):
        step_parameters = ("floor",)
        readout_parameters = ("scale",)

    net = du.unfold(Declared(), 5, tie="each")
    assert numbers(net) == 5 + 1
    assert net.layers[0].scale is net.layers[5].scale


def test_the_algorithm_is_left_as_it_is():
    algorithm = Babylonian()
    net = perturbed(du.unfold(algorithm, 2))
    assert algorithm.rate.item() == 0.5 != net.layers[0].rate.item()


def test_tying_prints_the_table(capsys):
    du.unfold(linear_recurrence(), 3, tie={"matrix": [0, 0, 1, 2]}, train_last=2).tying()
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[0] == ["parameter", "shape", "layers", "trained", "numbers"]
    assert cells[2] == ["matrix", "(5, 5)", "0-1", "no", "25"]
    assert cells[4] == ["matrix", "(5, 5)", "3", "yes", "25"]
    assert cells[5:] == [["offset", "(5,)", "0-1", "no", "5"], ["offset", "(5,)", "2-3", "yes", "5"]]


def test_shared_modules_and_parameters_inside_an_algorithm_stay_shared():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def init(self, x):
            return x

        def step(self, x, z):
            return self.second(self.first(z))

    net = du.unfold(Twice(), 2, tie="each")
    assert all(layer.first.weight is layer.second.weight for layer in net.layers)
    assert net.layers[0].first.weight is not net.layers[1].first.weight


def test_buffers_are_shared_by_untied_layers_and_stay_so_on_a_move():
    class Fixed(Babylonian):
        def __init__(self):
            super().__init__()
            self.register_buffer("one", torch.ones(3))

    net = du.unfold(Fixed(), 3, tie="each")
    for moved in (net, net.double(), net.to("meta")):
        assert len({id(layer.one) for layer in moved.layers}) == 1


def test_a_chain_runs_its_algorithms_in_turn_on_one_state():
    wide, narrow = ISTA(dictionary(), 0.1), ISTA(dictionary(seed=4), 0.02)
    net = du.unfold([(wide, 3), (narrow, 2)])
    x = signals()
    z = wide.init(x)
    for part, steps in ((wide, 3), (narrow, 2)):
        for _ in range(steps):
            z = part.step(x, z)
    assert torch.allclose(net(x), z, atol=1e-12)
    assert net.depth == 5
    assert len({id(layer) for layer in net.layers}) == 2


def test_a_chain_can_be_untied_and_trained_in_part():
    net = du.unfold([(ISTA(dictionary()), 3), (LISTA(dictionary()), 2)], tie="each", train_last=3)
    assert [type(layer).__name__ for layer in net.layers] == ["ISTA"] * 3 + ["LISTA"] * 3
    net(signals()).sum().backward()
    assert all(p.grad is None for p in net.layers[:3].parameters())
    assert all(p.grad is not None for p in net.layers[3].parameters())


def test_an_object_shared_by_two_algorithms_of_a_chain_stays_shared():
    first, second = Babylonian(), Babylonian()
    second.rate = first.rate
    net = du.unfold([(first, 2), (second, 1)])
    assert net.layers[0].rate is net.layers[2].rate
    assert numbers(net) == 1


def test_a_schedule_takes_all_its_parts_in_one_step():
    centre, spread = Centre(), Spread()
    schedule = du.Schedule(centre, spread)
    x = signals(2, 3)
    state = spread.step(x, centre.step(x, centre.init(x)))
    whole = schedule.step(x, schedule.init(x))
    assert all(torch.equal(state[key], whole[key]) for key in state)
    assert torch.equal(schedule.readout(x, whole)[0], spread.readout(x, state)[0])


def test_plain_functions_make_a_network():
    net = du.unfold((torch.zeros_like, lambda x, z: 0.5 * (x + z), lambda x, z: -z), 3)
    assert torch.equal(net(torch.ones(2, 1)), torch.full((2, 1), -0.875))
    assert not list(net.parameters())


# -- train_last ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", range(6))
def test_train_last_trains_layers_above_k_minus_c(last):
    net = du.unfold(linear_recurrence(), 4, tie="each", train_last=last)
    y = net(signals(2, 5))
    trained = [any(p.requires_grad for p in layer.parameters()) for layer in net.layers]
    assert trained == [k > 4 - last for k in range(5)]
    assert y.requires_grad == (last > 0)
    if last:
        y.sum().backward()
        reached = [any(p.grad is not None for p in layer.parameters()) for layer in net.layers]
        assert reached == trained


def test_train_last_gives_the_gradient_of_full_training_where_it_trains():
    x = signals(2, 5)
    whole = du.unfold(linear_recurrence(), 4, tie="each")
    part = du.unfold(linear_recurrence(), 4, tie="each", train_last=3)
    whole(x).sum().backward()
    part(x).sum().backward()
    for k in (2, 3, 4):
        assert torch.equal(whole.layers[k].matrix.grad, part.layers[k].matrix.grad)


def test_what_lies_below_train_last_runs_without_a_graph():
    seen = []

    class Watched(Babylonian):
        def step(self, x, root):
            seen.append(torch.is_grad_enabled())
            return super().step(x, root)

    du.unfold(Watched(), 5, train_last=3)(torch.ones(2, 1))
    assert seen == [False] * 3 + [True] * 2


def test_what_is_trained_is_never_shared_with_what_is_not():
    net = du.unfold(linear_recurrence(), 4, train_last=2)  # tied, but for the frontier: the paper's DNMF has C=1
    ids = [id(layer.matrix) for layer in net.layers]
    assert ids[0] == ids[1] == ids[2] != ids[3] == ids[4]


def test_parameters_fixed_by_hand_stay_fixed():
    algorithm = ISTA(dictionary())
    algorithm.dictionary.requires_grad_(False)
    net = du.unfold(algorithm, 4, tie="each", train_last=2)
    again = net.with_train_last(None)
    assert not any(layer.dictionary.requires_grad for layer in again.layers)
    assert all(layer.analysis.requires_grad for layer in again.layers)


# -- conversions of trained networks ---------------------------------------------------------------------------------


def test_a_trained_network_keeps_its_outputs_through_every_conversion():
    x = signals()
    net = perturbed(du.unfold(ISTA(dictionary()), 3, tie=[0, 1, 1, 2]))
    y = net(x)
    chain = net
    for convert in (
        lambda n: n.with_train_last(2),
        lambda n: n.untie(),
        lambda n: n.grow(2),
        lambda n: n.with_train_last(None),
        lambda n: n.grow(1),
        lambda n: n.untie(),
    ):
        chain = convert(chain)
        assert torch.equal(chain(x), y)
    assert chain.depth == 6


def test_conversions_do_not_touch_the_network_they_come_from():
    net = du.unfold(ISTA(dictionary()), 3)
    for other in (net.untie(), net.grow(1), net.with_train_last(1)):
        perturbed(other)
        assert not {id(p) for p in other.parameters()} & {id(p) for p in net.parameters()}
        assert torch.equal(net.layers[0].analysis, du.unfold(ISTA(dictionary()), 3).layers[0].analysis)


def test_equal_layers_can_be_tied_again_and_others_cannot():
    net = du.unfold(ISTA(dictionary()), 3, tie="each")
    assert numbers(net.untie("all")) == numbers(net) // 3
    with pytest.raises(du.TieError, match="layer 1 cannot be tied with an earlier one: their 'dictionary' differ"):
        perturbed(net).untie("all")


def test_a_tied_network_runs_with_any_number_of_layers():
    algorithm, x = ISTA(dictionary()), signals()
    net = du.unfold(algorithm, 3)
    for layers in (0, 1, 3, 7):
        expected = du.unfold(algorithm, layers)(x) if layers else algorithm.init(x)
        assert torch.equal(net(x, layers=layers), expected)


def test_growing_by_copies_goes_on_with_the_last_step():
    x = signals()
    net = perturbed(du.unfold(ISTA(dictionary()), 2, tie="each"))
    grown = net.grow(2, start="copy")
    state = net(x)
    for _ in range(2):
        state = net.layers[1].step(x, state)
    assert torch.equal(grown(x), state)
    assert len({id(layer.analysis) for layer in grown.layers[:4]}) == 4


def test_growing_a_tied_network_by_copies_keeps_it_tied():
    net = du.unfold(ISTA(dictionary()), 2, backward="implicit")
    grown = net.grow(2, start="copy")
    assert numbers(grown) == numbers(net)
    assert isinstance(grown.backward, du.Implicit)


def test_the_gate_of_a_grown_layer_learns_to_open():
    x, target = signals(), signals(4, 5, seed=9)
    net = du.unfold(ISTA(dictionary(), 0.01), 1).grow(3)
    gate = net.gates["2"]
    before = torch.nn.functional.mse_loss(net(x), target)
    before.backward()
    assert gate.grad is not None
    assert gate.grad.abs() > 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    optimizer.step()
    assert torch.nn.functional.mse_loss(net(x), target) < before


def test_growing_leaves_the_readout_its_own_parameters():
    net = perturbed(du.unfold(linear_recurrence(), 2, tie="each"))
    grown = net.grow(1, start="copy")
    assert torch.equal(grown.layers[3].offset, net.layers[2].offset)
    assert torch.equal(grown.layers[2].offset, net.layers[1].offset)


def test_growing_moves_the_frontier_up_with_the_layers():
    net = du.unfold(linear_recurrence(), 3, tie="each", train_last=2)
    grown = net.grow(2)
    assert grown.train_last == 4
    trained = [any(p.requires_grad for p in layer.parameters()) for layer in grown.layers]
    assert trained == [False, False, True, True, True, True]


def test_training_mode_survives_conversion():
    assert not du.unfold(Babylonian(), 2).eval().untie().training


# -- outputs of several layers ---------------------------------------------------------------------------------------


def test_outputs_by_index():
    net = perturbed(du.unfold(linear_recurrence(), 4, tie="each"))
    x = signals(2, 5)
    outputs = net.outputs(x, at=[3, 0, -1, 3])
    assert torch.equal(outputs[0], net(x, layers=3))
    assert torch.equal(outputs[0], outputs[3])
    assert torch.equal(outputs[1], net(x, layers=0))
    assert torch.equal(outputs[2], net(x))


@pytest.mark.parametrize("mode", ["unroll", "checkpoint", "truncated"])
def test_outputs_of_several_layers_carry_gradients_in_one_pass(mode):
    x = signals(2, 5)
    net = du.unfold(linear_recurrence(), 6, tie="each", backward=mode if mode != "truncated" else du.Truncated(5))
    two, six = net.outputs(x, at=[2, 6])
    (two.sum() + six.sum()).backward()
    reference = du.unfold(linear_recurrence(), 6, tie="each")
    (reference(x, layers=2).sum() + reference(x).sum()).backward()
    for k in range(1, 7):
        assert torch.allclose(net.layers[k].matrix.grad, reference.layers[k].matrix.grad, atol=1e-12)


def test_outputs_without_gradient():
    assert not du.unfold(Babylonian(), 3).outputs(torch.ones(2, 1), at=[1, 3], grad=False)[0].requires_grad


def test_states_include_the_start():
    x = torch.full((2, 1), 4.0)
    first, last = du.unfold(Babylonian(), 3).states(x, at=[0, 3])
    assert torch.equal(first, torch.ones(2, 1))
    assert torch.allclose(last, torch.full((2, 1), 2.0), atol=0.01)


def test_the_last_algorithm_of_a_chain_may_only_read_out():
    first, last = linear_recurrence(), linear_recurrence()
    with torch.no_grad():
        last.offset += 1
    net = du.unfold([(first, 3), (last, 0)], tie="each", train_last=1)
    x = signals(2, 5)
    assert torch.allclose(net(x), du.unfold(first, 3)(x) + 1, atol=1e-14)
    net(x).sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is not None] == ["layers.3.matrix", "layers.3.offset"]
