"""Feed-forward layers on beliefs: formulas, the limit lambda = 0, gradients, extremes, memory."""

import math

import pytest
import torch
from torch import nn

from benchmarks._memory import peak_bytes
from deepunfold.mrf import _log_means
from deepunfold.mrf._dial import set_lambda
from deepunfold.mrf._exact import marginals
from deepunfold.mrf._graph import Graph
from deepunfold.mrf._layers import BeliefSigmoid, BeliefSoftmax

LAMBDAS = [-3.0, -1.0, -1e-3, -1e-9, 0.0, 1e-12, 1e-5, 0.02, 0.3, 1.0, 2.5]


def learnt(value):
    return nn.Parameter(torch.tensor(value))


def doubled(layer, scale=1.0):
    """In float64, with a bias that is not where it started."""
    layer = layer.double()
    with torch.no_grad():
        layer.bias.add_(torch.randn_like(layer.bias))
        next(layer.parameters()).mul_(scale)
    return layer


def sigmoid_formula(mu, a, b, s, lambda_):
    """Equation ``eq:bpbelief_binary_abc`` as it is printed, for lambda not 0; (batch, outputs, inputs) in between."""
    mu, lambda_ = mu[:, None], torch.as_tensor(lambda_).reshape(-1, 1)
    above = mu * (lambda_ * (a + s)).exp() + 1 - mu
    below = mu * (lambda_ * s).exp() + 1 - mu
    return torch.sigmoid(((above / below).log() / lambda_).sum(-1) + b)


def softmax_formula(q, psi, b, lambda_):
    terms = torch.einsum("njh,isjh->nisj", q, (lambda_ * psi).exp()).log() / lambda_
    return (terms.sum(-1) + b).softmax(-1)


# -- formulas -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [False, True])
@pytest.mark.parametrize("inputs", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("lambda_", [-1.7, 0.2, 1.0, 3.0, "each"])
def test_the_sigmoid_layer_is_the_formula(lambda_, inputs, source):
    lambda_ = torch.tensor([-1.0, 0.5, 1.0, 2.0, 0.1]) if lambda_ == "each" else lambda_
    share = torch.randn(inputs) if source else None
    layer = doubled(BeliefSigmoid(inputs, 5, lambda_, source_bias=share), 2.0)
    mu = torch.rand(7, inputs, dtype=torch.float64)
    s = layer.source_bias if source else torch.zeros(inputs, dtype=torch.float64)
    expected = sigmoid_formula(mu, layer.weight, layer.bias, s, layer.lambda_)
    torch.testing.assert_close(layer(mu), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("states", [(2, 2), (2, 5), (3, 2), (4, 3), (20, 4)])
@pytest.mark.parametrize("lambda_", [-1.7, 0.2, 1.0])
def test_the_softmax_layer_is_the_formula(lambda_, states):
    layer = doubled(BeliefSoftmax(5, 3, states, lambda_))
    q = torch.randn(4, 5, states[0], dtype=torch.float64).softmax(-1)
    expected = softmax_formula(q, layer.potentials, layer.bias, layer.lambda_)
    torch.testing.assert_close(layer(q), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("lambda_", [-1.0, 0.0, 0.4, 1.0])
def test_two_states_are_the_sigmoid_layer(lambda_):
    softmax = doubled(BeliefSoftmax(6, 4, 2, lambda_))
    psi, share = softmax.potentials.detach(), torch.randn(6)
    a = psi[:, 1, :, 1] - psi[:, 1, :, 0] - psi[:, 0, :, 1] + psi[:, 0, :, 0]
    # A potential that has the table's other numbers, as in Appendix A: that of the input's state is its share.
    sigmoid = BeliefSigmoid(6, 4, lambda_, source_bias=share).double()
    own = psi[:, 1, :, 0] - psi[:, 0, :, 0]
    with torch.no_grad():
        softmax.potentials[:, 0, :, 1] = softmax.potentials[:, 0, :, 0] + sigmoid.source_bias
        softmax.potentials[:, 1, :, 1] = softmax.potentials[:, 1, :, 0] + sigmoid.source_bias + a
        sigmoid.weight.copy_(a)
        sigmoid.bias.copy_(softmax.bias[:, 1] - softmax.bias[:, 0] + own.sum(1))
    mu = torch.rand(3, 6, dtype=torch.float64)
    torch.testing.assert_close(softmax(torch.stack([1 - mu, mu], -1))[..., 1], sigmoid(mu), rtol=1e-12, atol=1e-13)


def test_at_one_it_is_exact_inference_of_an_output_that_sees_all_inputs():
    """With lambda = 1 a unit is the root of a tree whose leaves have the beliefs that come in."""
    inputs, states = 5, 3
    layer = doubled(BeliefSoftmax(inputs, 2, states, 1.0))
    q = torch.randn(4, inputs, states, dtype=torch.float64).softmax(-1)
    graph = Graph([(inputs, j) for j in range(inputs)], states, inputs + 1)
    for unit in range(2):
        own = layer.bias[unit].expand(4, 1, states)
        found = marginals(graph, torch.cat([q.log(), own], 1), layer.potentials[unit].transpose(0, 1))
        torch.testing.assert_close(layer(q)[:, unit], found[:, inputs])


# -- the limit lambda = 0 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["fixed", "learnt", "each"])
def test_at_zero_it_is_linear_and_sigmoid(kind, dtype):
    lambda_ = {"fixed": 0.0, "learnt": learnt(0.0), "each": torch.zeros(7)}[kind]
    linear = nn.Linear(40, 7, dtype=dtype)
    layer = BeliefSigmoid.from_linear(linear, lambda_)
    mu = torch.rand(2, 3, 40, dtype=dtype)
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(layer(mu), linear(mu).sigmoid(), rtol=tolerance, atol=tolerance)
    ours = torch.autograd.grad(layer(mu).square().sum(), (layer.weight, layer.bias))
    theirs = torch.autograd.grad(linear(mu).sigmoid().square().sum(), (linear.weight, linear.bias))
    torch.testing.assert_close(ours, theirs, rtol=20 * tolerance, atol=20 * tolerance)
    assert torch.equal(layer.to_linear()(mu), linear(mu))
    shared = BeliefSigmoid.from_linear(linear, lambda_, source_bias=torch.randn(40))
    torch.testing.assert_close(shared(mu), layer(mu), rtol=10 * tolerance, atol=10 * tolerance)


def test_a_linear_layer_without_bias():
    linear = nn.Linear(3, 2, bias=False)
    mu = torch.rand(4, 3)
    torch.testing.assert_close(BeliefSigmoid.from_linear(linear)(mu), linear(mu).sigmoid())


def test_the_slope_at_zero_is_half_the_variance():
    layer = BeliefSigmoid(30, 1, learnt(0.0)).double()
    mu = torch.rand(1, 30, dtype=torch.float64)
    (slope,) = torch.autograd.grad(layer.messages(mu).sum(), layer.lambda_)
    torch.testing.assert_close(slope, (layer.weight.square() * mu * (1 - mu)).sum() / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_is_continuous_through_zero(dtype):
    """No lambda is so small, and none lies so on the edge of a series, that a value or a gradient jumps."""
    layer = BeliefSigmoid(50, 3, learnt(0.0)).to(dtype)
    mu = torch.rand(4, 50, dtype=dtype).requires_grad_()
    inputs = (mu, layer.weight, layer.lambda_)
    positive = torch.cat([torch.logspace(-30, -3, 28), torch.linspace(2e-3, 0.2, 100)])
    rows = []
    for value in torch.cat([-positive.flip(0), torch.zeros(1), positive]):
        with torch.no_grad():
            layer.lambda_.fill_(float(value))
        messages = layer.messages(mu)
        rows.append([value, messages.detach(), *torch.autograd.grad(messages.sum(), inputs)])
    lambdas, *columns = zip(*rows, strict=True)
    steps = torch.stack(lambdas).diff()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for column in columns:
        values = torch.stack(column).reshape(len(column), -1)
        jumps = values.diff(dim=0).abs().amax(1) / values.abs().max()
        assert bool((jumps <= 10 * steps + 20 * tolerance).all())


def test_the_sides_of_zero():
    layer = doubled(BeliefSigmoid(10, 4, 0.0))
    mu = torch.rand(3, 10, dtype=torch.float64)
    middle = layer(mu)
    for value in (1e-6, -1e-6):
        set_lambda(layer, value)
        torch.testing.assert_close(layer(mu), middle, rtol=0, atol=1e-4)
        assert not torch.equal(layer(mu), middle)


# -- gradients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lambda_", LAMBDAS)
@pytest.mark.parametrize("source", [False, True])
def test_gradients_of_the_sigmoid_layer(source, lambda_):
    share = torch.randn(5) if source else None
    layer = doubled(BeliefSigmoid(5, 3, learnt(lambda_), source_bias=share), 0.5)
    mu = (0.1 + 0.8 * torch.rand(2, 5, dtype=torch.float64)).requires_grad_()
    names, parameters = zip(*layer.named_parameters(), strict=True)
    assert len(names) == 3 + source

    def call(mu, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (mu,))

    assert torch.autograd.gradcheck(call, (mu, *parameters), atol=1e-6)


@pytest.mark.parametrize("lambda_", [-1.0, 0.0, 1e-3, 1.0])
@pytest.mark.parametrize("states", [(2, 3), (5, 2)])
def test_gradients_of_the_softmax_layer(states, lambda_):
    layer = doubled(BeliefSoftmax(3, 2, states, nn.Parameter(torch.full((2,), lambda_))))
    logits = torch.randn(2, 3, states[0], dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(logits, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (logits.softmax(-1),))

    assert torch.autograd.gradcheck(call, (logits, *parameters), atol=1e-6)


def test_an_exponent_for_each_output():
    """Those that are zero among others that are not are linear."""
    lambdas = torch.tensor([0.0, 1.0, -2.0])
    layer = doubled(BeliefSigmoid(6, 3, nn.Parameter(lambdas)))
    mu = torch.rand(5, 6, dtype=torch.float64)
    single = doubled(BeliefSigmoid(6, 3))
    single.load_state_dict(layer.state_dict() | {"lambda_": torch.tensor(0.0)})
    for i, value in enumerate(lambdas):
        set_lambda(single, float(value))
        torch.testing.assert_close(layer(mu)[:, i], single(mu)[:, i])
    (slopes,) = torch.autograd.grad(layer.messages(mu).sum(), layer.lambda_)
    expected = (layer.weight[0].square() * mu * (1 - mu)).sum() / 2
    torch.testing.assert_close(slopes[0], expected)


@pytest.mark.parametrize("lambda_", [-1.0, 1e-4, 1.0])
def test_beliefs_of_exactly_zero_and_one(lambda_):
    layer = doubled(BeliefSigmoid(6, 3, lambda_))
    mu = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.5, 1.0], [0.0] * 6, [1.0] * 6], dtype=torch.float64, requires_grad=True)
    ours = layer(mu)
    theirs = sigmoid_formula(mu, layer.weight, layer.bias, torch.zeros(6, dtype=torch.float64), lambda_)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(each.sum(), (mu, layer.weight)) for each in (ours, theirs)]
    torch.testing.assert_close(*gradients)


# -- extremes -----------------------------------------------------------------------------------------------------


def messages_in_double(mu, a, lambda_):
    """Stable whatever the size: log(mu e^x + 1 - mu) = logaddexp(log mu + x, log(1 - mu))."""
    mu, x = mu.detach().double()[:, None], lambda_ * a.detach().double()
    return (torch.logaddexp(mu.log() + x, torch.log1p(-mu)) / lambda_).sum(-1)


@pytest.mark.parametrize("lambda_", [-30.0, -1.0, 1e-3, 1.0, 5.0, 30.0])
def test_large_weights_in_single_precision(lambda_):
    layer = BeliefSigmoid(12, 8, learnt(lambda_))
    with torch.no_grad():
        layer.weight.copy_(100 * torch.rand(8, 12) - 50)
        layer.weight[0, 0], layer.weight[1, 1] = 50.0, -50.0
    mu = torch.rand(9, 12)
    mu[0], mu[1], mu[2, ::2] = 0.0, 1.0, 1e-20
    mu.requires_grad_()
    messages = layer.messages(mu)
    torch.testing.assert_close(messages, messages_in_double(mu, layer.weight, lambda_).float(), rtol=1e-5, atol=1e-4)
    for gradient in torch.autograd.grad(messages.sum(), (mu, layer.weight, layer.lambda_)):
        assert bool(gradient.isfinite().all())


def test_large_weights_and_source_biases():
    layer = BeliefSigmoid(12, 8, 1.0, source_bias=100 * torch.rand(12) - 50)
    with torch.no_grad():
        layer.weight.copy_(100 * torch.rand(8, 12) - 50)
    mu = torch.rand(9, 12, requires_grad=True)
    s = layer.source_bias.detach()
    expected = messages_in_double(mu, layer.weight + s, 1.0) - messages_in_double(mu, s[None], 1.0)
    torch.testing.assert_close(layer.messages(mu), expected.float(), rtol=1e-5, atol=1e-4)
    gradients = torch.autograd.grad(layer(mu).sum(), (mu, layer.weight, layer.source_bias))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("lambda_", [-1.0, 0.5, 1.0, 20.0])
def test_large_potentials_of_many_states(lambda_):
    layer = BeliefSoftmax(6, 4, (30, 3), learnt(lambda_))
    with torch.no_grad():
        layer.potentials.copy_(100 * torch.rand_like(layer.potentials) - 50)
    logits = (10 * torch.randn(5, 6, 30)).requires_grad_()
    q = logits.softmax(-1)
    terms = q.detach().double().log()[:, None, None] + lambda_ * layer.potentials.detach().double()
    expected = terms.logsumexp(-1).sum(-1) / lambda_
    torch.testing.assert_close(layer.messages(q), expected.float(), rtol=1e-5, atol=1e-4)
    gradients = torch.autograd.grad(layer(q).sum(), (logits, layer.potentials, layer.lambda_))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("lambda_", [-9.0, 9.0])
def test_where_exponentials_overflow_the_gradients_go_on(lambda_):
    """On both sides of the largest reach: sums of products, and logarithms in blocks."""
    layer = doubled(BeliefSoftmax(3, 2, 3, learnt(lambda_)))
    logits = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for limit in (600.0, 0.1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_log_means, "REACH", {torch.float32: limit, torch.float64: limit})
            total = layer.messages(logits.softmax(-1))
            weights = torch.linspace(1, 2, total.numel(), dtype=torch.float64).reshape(total.shape)
            inputs = (logits, layer.potentials, layer.lambda_)
            found.append([total, *torch.autograd.grad((weights * total).sum(), inputs)])
    torch.testing.assert_close(*found)


# -- memory and speed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 7, 40, 1000])
def test_the_size_of_blocks_has_no_effect(block, monkeypatch):
    layer = doubled(BeliefSigmoid(11, 6, learnt(0.7)))
    mu = torch.rand(9, 11, dtype=torch.float64, requires_grad=True)
    found = []
    for size in (1 << 18, block):
        monkeypatch.setattr(_log_means, "BLOCK", size)
        output = layer(mu)
        found.append([output, *torch.autograd.grad(output.square().sum(), (mu, *layer.parameters()))])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("lambda_", [1.0, 100.0, 1e4])
def test_the_terms_are_never_there_at_once(lambda_, monkeypatch):
    """Forwards and backwards; the formula as it is printed, measured the same way, has them all."""
    monkeypatch.setattr(_log_means, "BLOCK", 1 << 13)
    batch, inputs, outputs = 96, 128, 96
    layer, mu = BeliefSigmoid(inputs, outputs, learnt(lambda_)), torch.rand(batch, inputs, requires_grad=True)
    terms = 4 * batch * inputs * outputs

    def peak(call):
        def both():
            call().sum().backward()

        both()
        for tensor in (mu, *layer.parameters()):
            tensor.grad = None
        return peak_bytes(both, torch.device("cpu"))

    zero = torch.zeros(inputs)
    assert peak(lambda: sigmoid_formula(mu, layer.weight, layer.bias, zero, layer.lambda_)) > 2 * terms
    assert peak(lambda: layer(mu)) < terms / 3


# -- stacks -------------------------------------------------------------------------------------------------------


def spread_and_gradient(layers, x):
    """How much the outputs differ between samples, and how large the gradient is for outputs weighted at random."""
    x = x.clone().requires_grad_()
    y = nn.Sequential(*layers)(x)
    (gradient,) = torch.autograd.grad((y * torch.randn_like(y)).sum(), x)
    return float(y.detach().std(0).mean()), float(gradient.norm()) / math.sqrt(gradient.numel())


@pytest.mark.parametrize("lambda_", [-1.0, 0.0, 1.0])
def test_deep_stacks_start_alive(lambda_):
    units = 64
    sigmoids = [BeliefSigmoid(units, units, lambda_) for _ in range(12)]
    spread, gradient = spread_and_gradient(sigmoids, torch.rand(32, units))
    assert 0.01 < spread < 0.4
    assert 0.05 < gradient < 5
    softmaxes = [BeliefSoftmax(units, units, 3, lambda_) for _ in range(12)]
    spread, gradient = spread_and_gradient(softmaxes, torch.randn(32, units, 3).softmax(-1))
    assert 0.01 < spread < 0.4
    assert 0.05 < gradient < 5


@pytest.mark.parametrize("lambda_", [-1.0, 0.0, 2.0])
def test_undecided_inputs_start_undecided(lambda_):
    share = torch.randn(9)
    half = torch.full((1, 9), 0.5)
    torch.testing.assert_close(BeliefSigmoid(9, 4, lambda_, source_bias=share)(half), torch.full((1, 4), 0.5))
    uniform = torch.full((1, 9, 3), 1 / 3)
    torch.testing.assert_close(BeliefSoftmax(9, 4, (3, 5), lambda_)(uniform), torch.full((1, 4, 5), 0.2))


def test_a_trained_network_goes_on_with_another_lambda():
    linears = [nn.Linear(4, 6), nn.Linear(6, 3)]
    plain = nn.Sequential(linears[0], nn.Sigmoid(), linears[1], nn.Sigmoid())
    network = nn.Sequential(*map(BeliefSigmoid.from_linear, linears))
    x, target = torch.rand(20, 4), torch.rand(20, 3)
    torch.testing.assert_close(network(x), plain(x))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    losses = []
    for step in range(51):
        set_lambda(network, step / 50)
        optimizer.zero_grad()
        loss = (network(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert [float(layer.lambda_) for layer in network] == [1, 1]
    assert "lambda_" in network[0].state_dict()


def test_lambda_is_learnt():
    """From beliefs that a layer with lambda = 1 made, weights known."""
    teacher = BeliefSigmoid(8, 16, 1.0)
    student = BeliefSigmoid(8, 16, learnt(0.0))
    student.load_state_dict(teacher.state_dict() | {"lambda_": torch.tensor(0.0)})
    x = torch.rand(50, 8)
    optimizer = torch.optim.Adam([student.lambda_], lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        (student(x) - teacher(x)).square().sum().backward()
        optimizer.step()
    assert float(student.lambda_.detach()) == pytest.approx(1, abs=0.05)


def test_shapes_fields_and_names():
    layer, x = BeliefSigmoid(4, 3), torch.rand(2, 5, 4)
    field = torch.randn(2, 5, 3)
    assert layer(x).shape == (2, 5, 3)
    assert layer(x[0, 0]).shape == (3,)
    assert layer(x[:0]).shape == (0, 5, 3)
    torch.testing.assert_close(layer(x, field), torch.sigmoid(layer(x).logit() + field), rtol=1e-4, atol=1e-5)
    softmax, q = BeliefSoftmax(4, 3, (2, 5)), torch.randn(2, 6, 4, 2).softmax(-1)
    assert softmax(q).shape == (2, 6, 3, 5)
    field = torch.randn(2, 6, 3, 5)
    torch.testing.assert_close(softmax(q, field), (softmax(q).log() + field).softmax(-1))
    assert repr(layer) == "BeliefSigmoid(4, 3, lambda_=1)"
    assert repr(BeliefSigmoid(4, 3, learnt(0.5))) == "BeliefSigmoid(4, 3, lambda_=0.5 (learnt))"
    assert repr(BeliefSoftmax(4, 3, (2, 5), torch.ones(3))) == (
        "BeliefSoftmax(4, 3, states=(2, 5), lambda_=<3 numbers>)"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BeliefSigmoid(0, 3), "inputs=0: give at least one"),
        (lambda: BeliefSoftmax(3, 0), "outputs=0: give at least one"),
        (lambda: BeliefSoftmax(3, 3, 1), r"states=1: give one number, or \(S_in, S_out\), at least 2"),
        (lambda: BeliefSigmoid(3, 2, math.inf), "lambda_ must be finite, not inf"),
        (lambda: BeliefSigmoid(3, 2, torch.ones(3)), r"lambda_ has the shape \(3,\); give one number, or 2, one per"),
        (lambda: BeliefSigmoid(3, 2, source_bias=torch.ones(2)), r"source_bias has the shape \(2,\); give 3 numbers"),
        (lambda: BeliefSigmoid(3, 2)(torch.rand(5, 4)), r"beliefs have the shape \(5, 4\); give \(..., 3\)"),
        (lambda: BeliefSigmoid(3, 2)(torch.randn(5, 3)), r"beliefs lie in \[0, 1\], but these have values from -"),
        (lambda: BeliefSigmoid(3, 2)(torch.full((5, 3), torch.nan)), r"beliefs lie in \[0, 1\], but .* nan"),
        (lambda: BeliefSoftmax(3, 2, 4)(torch.rand(5, 3)), r"beliefs have the shape \(5, 3\); give \(..., 3, 4\)"),
        (lambda: BeliefSoftmax(3, 2)(torch.rand(5, 3, 2)), "beliefs sum to one over the states of each unit"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_weights_that_are_not_finite():
    layer = BeliefSigmoid(3, 2)
    with torch.no_grad():
        layer.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="the exponent or a potential is NaN or infinite"):
        layer(torch.rand(5, 3))
