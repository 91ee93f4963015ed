"""Continuity: frames in order, through time, in pieces."""

import pytest
import torch

from deepunfold.nmf import Continuous, deep_nmf
from tests.cases import bases, mixtures


def model(carry=0.5, layers=3):
    return Continuous(deep_nmf(bases(), layers, layers + 1, sparsity=0.1), carry)


def sequence(batch=2, frames=6):
    return torch.stack([mixtures(frames, seed=number) for number in range(batch)])


def test_the_first_frame_is_as_ever_and_the_others_start_from_the_past():
    net, x = model(), sequence()
    output = net(x)
    assert output.shape == (2, 6, 2, 7)
    torch.testing.assert_close(output[:, 0], net.net(x[:, 0]))
    last = net.net.states(x[:, 0], [3])[0]
    start = net.carry * last + (1 - net.carry) * last.mean(-1, keepdim=True)
    torch.testing.assert_close(output[:, 1], net.net((x[:, 1], start)))


def test_nothing_is_carried_in_the_limit():
    """For beta = 1 a start with equal activations is the start without a past."""
    net, x = model(1e-12), sequence()
    torch.testing.assert_close(net(x), net.net(x), rtol=1e-9, atol=0)


def test_pieces_give_what_the_whole_gives():
    net, x = model(), sequence()
    first, last = net.run(x[:, :2])
    second, _ = net.run(x[:, 2:], last)
    torch.testing.assert_close(torch.cat([first, second], 1), net(x))


def test_gradients_go_through_time():
    net, x = model(), sequence()
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(net(x)[:, 3].square().sum(), x)
    assert bool((gradient[:, :4].abs().amax(-1) > 0).all())
    assert bool((gradient[:, 4:] == 0).all())


def test_carry_is_learnt():
    net, x = model(), sequence()
    direction = torch.tensor(1e-6, dtype=torch.float64)
    free = net.parametrizations.carry.original
    net(x).square().sum().backward()
    with torch.no_grad():
        free += direction
        above = float(net(x).square().sum())
        free -= 2 * direction
        below = float(net(x).square().sum())
    assert float(free.grad) == pytest.approx((above - below) / 2e-6, rel=1e-5)


def test_layers_without_a_graph_cut_off_the_past():
    net = Continuous(deep_nmf(bases(), 3, 2, sparsity=0.1))
    assert not net.parametrizations.carry.original.requires_grad
    freed = Continuous(net.net.with_train_last(None))
    assert freed.parametrizations.carry.original.requires_grad
    torch.testing.assert_close(freed(sequence()), net(sequence()))


def test_after_silence_it_starts_anew():
    net, x = model(), sequence()
    x[:, 2] = 0
    output = net(x)
    assert bool((output[:, 2] == 0).all())
    torch.testing.assert_close(output[:, 3], net.net(x[:, 3]))
    output.square().sum().backward()
    assert bool(torch.isfinite(net.parametrizations.carry.original.grad))


def test_a_steady_mixture_converges_over_frames():
    """With a past, few layers per frame reach in ten frames what thirty layers reach in one."""
    x = mixtures(1)[:, None].expand(1, 10, 7)
    carried = model(0.99)(x)[:, -1].detach()
    exact = deep_nmf(bases(), 300, 0, sparsity=0.1)(x[:, 0]).detach()
    alone = deep_nmf(bases(), 3, 0, sparsity=0.1)(x[:, 0]).detach()
    assert float((carried - exact).abs().max()) < 0.2 * float((alone - exact).abs().max())


def test_it_trains_through_time_to_less_than_a_network_without_a_past():
    """Activations that last: what a few layers cannot infer from a frame, they learn to carry over."""
    basis = torch.cat(bases(), 1)
    lasting = (torch.rand(8, 4, 3, dtype=torch.float64) ** 3).repeat_interleave(5, dim=1)
    models = (lasting[..., :2] @ basis[:, :2].mT, lasting[..., 2:] @ basis[:, 2:].mT)
    sources = torch.stack(models, 2) * (0.5 + torch.rand(8, 20, 2, 7, dtype=torch.float64))
    mixture = sources.sum(2)
    errors = []
    for make in (model, lambda: model().net):
        net = make()
        optimizer = torch.optim.Adam([each for each in net.parameters() if each.requires_grad], lr=3e-3)
        for _ in range(60):
            optimizer.zero_grad()
            error = (net(mixture) - sources).square().sum()
            error.backward()
            optimizer.step()
        errors.append(float(error.detach()))
    assert errors[0] < 0.95 * errors[1]


@pytest.mark.parametrize("carry", [0.0, 1.0, -1.0])
def test_carry_out_of_range(carry):
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        model(carry)


def test_no_frames():
    with pytest.raises(ValueError, match="has no frames"):
        model()(torch.zeros(1, 0, 7, dtype=torch.float64))
