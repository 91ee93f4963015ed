"""Feed-forward layers on unnormalised logarithms, and maxout beside them."""

import itertools
import math

import pytest
import torch
from torch import nn

from benchmarks._memory import peak_bytes
from deepunfold.mrf import _log_means
from deepunfold.mrf._layers import BeliefSoftmax
from deepunfold.mrf._log_layers import LogMaxProduct, LogSumProduct, Maxout, SoftMaxout

INF = math.inf


def learnt(value):
    return nn.Parameter(torch.tensor(value))


def doubled(layer):
    layer = layer.double()
    with torch.no_grad():
        layer.bias.add_(torch.randn_like(layer.bias))
    return layer


def formula(u, psi, b, kappa):
    """Equation ``eq:logsumprod``, or ``eq:logmaxprod`` for kappa = inf; all terms in between."""
    terms = u[:, None, None] + psi
    if kappa == INF:
        return terms.amax(-1).sum(-1) + b
    return ((kappa * terms).exp().mean(-1).log() / kappa).sum(-1) + b


@pytest.mark.parametrize("states", [2, (3, 2), (2, 4), (9, 3)])
@pytest.mark.parametrize("kappa", [-1.0, 0.3, 1.0, 6.0, INF])
def test_the_formula(kappa, states):
    layer = doubled(LogSumProduct(5, 4, states, kappa, centred=False))
    u = torch.randn(3, 5, layer.states[0], dtype=torch.float64)
    expected = formula(u, layer.potentials, layer.bias, float(layer.kappa))
    torch.testing.assert_close(layer(u), expected, rtol=1e-11, atol=1e-11)
    layer.centred = True
    centred = expected - expected.mean(-1, keepdim=True)
    torch.testing.assert_close(layer(u), centred, rtol=1e-11, atol=1e-11)


def test_max_product_is_its_limit():
    soft = doubled(LogSumProduct(6, 4, 3, 1.0, centred=False))
    hard = LogMaxProduct(6, 4, 3, centred=False).double()
    hard.load_state_dict({name: soft.state_dict()[name] for name in ("potentials", "bias")})
    u = torch.randn(5, 6, 3, dtype=torch.float64)
    expected = formula(u, soft.potentials, soft.bias, INF)
    torch.testing.assert_close(hard(u), expected)
    gaps = []
    for kappa in (1.0, 10.0, 100.0, 1e4, 1e8):
        soft.kappa.fill_(kappa)
        gaps.append(expected - soft(u))
        # A mean over three states is less than the largest by at most log(3) / kappa, for each input.
        assert bool((gaps[-1] >= -1e-12).all())
        assert bool((gaps[-1] <= 6 * math.log(3) / kappa + 1e-12).all())
    assert all(bool((one >= other - 1e-12).all()) for one, other in itertools.pairwise(gaps))
    soft.kappa.fill_(INF)
    assert torch.equal(soft(u), hard(u))


def test_at_zero_it_is_the_mean():
    layer = doubled(LogSumProduct(6, 4, (3, 2), 0.0, centred=False))
    u = torch.randn(5, 6, 3, dtype=torch.float64)
    expected = (u[:, None, None] + layer.potentials).mean(-1).sum(-1) + layer.bias
    torch.testing.assert_close(layer(u), expected)
    for kappa in (-1e-8, 1e-8):
        layer.kappa.fill_(kappa)
        torch.testing.assert_close(layer(u), expected, rtol=0, atol=1e-5)
        assert not torch.equal(layer(u), expected)


def test_normalised_it_is_belief_propagation():
    """With u = log q and kappa = 1, the softmax of the outputs is `BeliefSoftmax` at lambda = 1."""
    layer, other = doubled(LogSumProduct(6, 4, 3)), BeliefSoftmax(6, 4, 3, 1.0).double()
    kept = {name: layer.state_dict()[name] for name in ("potentials", "bias")}
    other.load_state_dict(kept | {"lambda_": torch.ones(())})
    q = torch.randn(5, 6, 3, dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(layer(q.log()).softmax(-1), other(q))


@pytest.mark.parametrize("kappa", [0.5, 1.0, INF])
def test_centring_means_nothing(kappa):
    """Differences between states are the same at any depth; without it, all states grow together."""
    plain = [doubled(LogSumProduct(8, 8, 3, kappa, centred=False)) for _ in range(4)]
    u = torch.randn(5, 8, 3, dtype=torch.float64)
    raw = nn.Sequential(*plain)(u)
    for layer in plain:
        layer.centred = True
    centred = nn.Sequential(*plain)(u)
    torch.testing.assert_close(raw - raw.mean(-1, keepdim=True), centred, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(centred.mean(-1), torch.zeros(5, 8, dtype=torch.float64))
    assert bool(raw.abs().max() > 10 * centred.abs().max())


@pytest.mark.parametrize("kappa", [-1.0, 0.0, 1e-3, 1.0, 5.0])
@pytest.mark.parametrize("states", [(2, 3), (5, 2)])
def test_gradients(states, kappa):
    layer = doubled(LogSumProduct(3, 2, states, learnt(kappa), centred=False))
    u = torch.randn(2, 3, states[0], dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    assert set(names) == {"potentials", "bias", "kappa"}

    def call(u, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (u,))

    assert torch.autograd.gradcheck(call, (u, *parameters), atol=1e-6)


def test_gradients_of_the_maximum():
    layer = doubled(LogMaxProduct(4, 3, (3, 2)))
    u = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda u, p, b: torch.func.functional_call(layer, {"potentials": p, "bias": b}, (u,)),
        (u, layer.potentials, layer.bias),
    )


@pytest.mark.parametrize("kappa", [0.1, 1.0, 10.0, 1e3, INF])
def test_large_potentials_in_single_precision(kappa):
    layer = LogSumProduct(7, 3, (20, 4), 1.0 if kappa == INF else learnt(kappa), centred=False)
    if kappa == INF:
        layer.kappa.fill_(INF)
    with torch.no_grad():
        layer.potentials.copy_(100 * torch.rand_like(layer.potentials) - 50)
    u = (100 * torch.randn(5, 7, 20)).requires_grad_()
    terms = u.detach().double()[:, None, None] + layer.potentials.detach().double()
    if kappa == INF:
        expected = terms.amax(-1).sum(-1)
    else:
        expected = ((kappa * terms).logsumexp(-1) - math.log(20)).sum(-1) / kappa
    torch.testing.assert_close(layer.messages(u), expected.float(), rtol=1e-5, atol=1e-3)
    for gradient in torch.autograd.grad(layer(u).sum(), (u, layer.potentials, layer.bias)):
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("kappa", [1.0, INF])
def test_the_terms_are_never_there_at_once(kappa, monkeypatch):
    monkeypatch.setattr(_log_means, "BLOCK", 1 << 12)
    layer, u = LogSumProduct(64, 48, 2, kappa), torch.randn(96, 64, 2, requires_grad=True)
    terms = 4 * 96 * 48 * 2 * 64 * 2

    def peak(call):
        def both():
            call().sum().backward()

        both()
        u.grad = layer.potentials.grad = layer.bias.grad = None
        return peak_bytes(both, torch.device("cpu"))

    assert peak(lambda: formula(u, layer.potentials, layer.bias, kappa)) > terms
    assert peak(lambda: layer(u)) < terms / 3


# -- maxout -------------------------------------------------------------------------------------------------------


def test_maxout_is_its_formula():
    layer = doubled(Maxout(5, 3, 4))
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    pieces = torch.stack([x @ layer.weight[:, n].mT + layer.bias[:, n] for n in range(4)])
    torch.testing.assert_close(layer(x), pieces.amax(0))
    soft = SoftMaxout(5, 3, 4).double()
    soft.load_state_dict(layer.state_dict() | {"kappa": torch.tensor(2.0)})
    torch.testing.assert_close(soft(x), ((2 * pieces).logsumexp(0) - math.log(4)) / 2)
    soft.kappa.fill_(0.0)
    torch.testing.assert_close(soft(x), pieces.mean(0))
    soft.kappa.fill_(INF)
    torch.testing.assert_close(soft(x), layer(x))


def test_maxout_of_two_pieces_one_of_them_zero_is_a_rectifier():
    layer = Maxout(5, 3)
    with torch.no_grad():
        layer.weight[:, 1] = 0
    x = torch.randn(4, 5)
    torch.testing.assert_close(layer(x), (x @ layer.weight[:, 0].mT).relu())


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_gradients_of_soft_maxout(kappa):
    layer = doubled(SoftMaxout(3, 2, 3, learnt(kappa)))
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, *parameters), atol=1e-6)


def test_two_states_are_one_number_per_unit():
    """u = (0, x) is x, and the difference of an output's states a sum of softplus functions of single inputs."""
    layer = doubled(LogSumProduct(4, 3, 2, 1.0))
    x = torch.randn(5, 4, dtype=torch.float64)
    u = layer(torch.stack([torch.zeros_like(x), x], -1))
    psi = layer.potentials
    own = [
        torch.nn.functional.softplus(x[:, None] + psi[:, s, :, 1] - psi[:, s, :, 0]) + psi[:, s, :, 0] for s in (0, 1)
    ]
    expected = (own[1] - own[0]).sum(-1) + layer.bias[:, 1] - layer.bias[:, 0]
    torch.testing.assert_close(u[..., 1] - u[..., 0], expected)


# -- stacks and interface -----------------------------------------------------------------------------------------

LAYERS = {
    "sum": (lambda: LogSumProduct(48, 48), 2),
    "sharp sum": (lambda: LogSumProduct(48, 48, 2, 4.0), 2),
    "sum of 4 states": (lambda: LogSumProduct(48, 48, 4), 4),
    "max": (lambda: LogMaxProduct(48, 48), 2),
    "max of 4 states": (lambda: LogMaxProduct(48, 48, 4), 4),
    "maxout": (lambda: Maxout(48, 48), 0),
    "soft maxout": (lambda: SoftMaxout(48, 48), 0),
    "soft maxout of 4": (lambda: SoftMaxout(48, 48, 4), 0),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_deep_stacks_start_alive(make):
    layer, states = make
    x = torch.randn(32, 48, *([states] if states else []), requires_grad=True)
    y = nn.Sequential(*(layer() for _ in range(10)))(x)
    (gradient,) = torch.autograd.grad((y * torch.randn_like(y)).sum(), x)
    assert 0.01 < float(y.detach().std(0).mean()) < 10
    assert 0.01 < float(gradient.norm()) / math.sqrt(gradient.numel()) < 30


@pytest.mark.parametrize("kappa", [0.5, 1.0, 3.0, INF])
def test_zeros_start_as_zeros(kappa):
    output = LogSumProduct(7, 4, (3, 2), kappa)(torch.zeros(1, 7, 3))
    torch.testing.assert_close(output, torch.zeros(1, 4, 2), rtol=0, atol=1e-5)


def test_shapes_fields_and_names():
    layer, u = LogSumProduct(4, 3, (2, 5), centred=False), torch.randn(2, 6, 4, 2)
    assert layer(u).shape == (2, 6, 3, 5)
    assert layer(u[0, 0]).shape == (3, 5)
    assert layer(u[:0]).shape == (0, 6, 3, 5)
    field = torch.randn(2, 6, 3, 5)
    torch.testing.assert_close(layer(u, field), layer(u) + field)
    assert Maxout(4, 3)(u[..., 0]).shape == (2, 6, 3)
    assert repr(layer) == "LogSumProduct(4, 3, states=(2, 5), kappa=1)"
    assert repr(LogMaxProduct(4, 3)) == "LogMaxProduct(4, 3, states=(2, 2))"
    assert repr(Maxout(4, 3)) == "Maxout(4, 3, pieces=2)"
    assert repr(SoftMaxout(4, 3, 5, learnt(0.5))) == "SoftMaxout(4, 3, pieces=5, kappa=0.5 (learnt))"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LogSumProduct(0, 3), "inputs=0: give at least one"),
        (lambda: LogMaxProduct(3, 3, 1), r"states=1: give one number, or \(S_in, S_out\), at least 2"),
        (lambda: Maxout(3, 3, 0), "pieces=0: give at least one"),
        (lambda: LogSumProduct(3, 3, 2, torch.ones(3)), r"kappa has the shape \(3,\); give one number"),
        (lambda: LogSumProduct(3, 3, 2, -INF), "kappa must be finite, not -inf"),
        (lambda: LogSumProduct(3, 3, 2, learnt(INF)), "kappa must be finite, not inf"),
        (lambda: SoftMaxout(3, 3, 2, math.nan), "kappa must be finite, not nan"),
        (lambda: LogSumProduct(3, 3)(torch.randn(5, 3)), r"values have the shape \(5, 3\); give \(..., 3, 2\)"),
        (lambda: Maxout(3, 3)(torch.randn(5, 4)), r"x have the shape \(5, 4\); give \(..., 3\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
