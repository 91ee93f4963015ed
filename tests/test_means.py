"""Power means: the table of Appendix B, an independent library, gradients through zero, extremes."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pmean

from deepunfold.means import log_power_mean, power_mean

INF = math.inf
EXPONENTS = [-INF, -30.0, -3.0, -1.0, -1e-3, -1e-9, 0.0, 1e-12, 1e-7, 1e-3, 0.3, 1.0, 2.0, 30.0, INF]
FINITE = [a for a in EXPONENTS if math.isfinite(a)]


def problem(dtype=torch.float64):
    return torch.rand(4, 6, dtype=dtype) * 3 + 0.1, torch.rand(4, 6, dtype=dtype)


def normalised(w):
    return w / w.sum(-1, keepdim=True)


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_table_of_the_appendix(weighted, as_tensor):
    x, w = problem()
    weights = w if weighted else None
    p = normalised(w) if weighted else torch.full_like(w, 1 / 6)
    table = {
        -INF: x.amin(-1),
        -1.0: 1 / (p / x).sum(-1),
        0.0: (x**p).prod(-1),
        1.0: (p * x).sum(-1),
        INF: x.amax(-1),
    }
    for a, expected in table.items():
        exponent = torch.tensor(a, dtype=torch.float64) if as_tensor else a
        torch.testing.assert_close(power_mean(x, exponent, weights), expected, rtol=1e-13, atol=0)
        logarithm = log_power_mean(x.log(), exponent, w.log() if weighted else None)
        torch.testing.assert_close(logarithm, expected.log(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("a", [a for a in FINITE if abs(a) > 1e-4 or a == 0])
def test_equal_to_scipy(a):
    x, w = problem()
    expected = torch.as_tensor(pmean(x.numpy(), a, axis=-1, weights=w.numpy()))
    torch.testing.assert_close(power_mean(x, a, w), expected, rtol=1e-10, atol=0)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.floats(-30, 30), st.floats(0, 1)), min_size=1, max_size=6),
    st.lists(st.floats(-40, 40) | st.sampled_from([-INF, 0.0, 1e-9, INF]), min_size=2, max_size=2),
)
def test_the_power_mean_inequality(rows, exponents):
    z, w = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    w = w + 1e-3
    lower, upper = sorted(exponents)
    means = [float(log_power_mean(z, a, w.log())) for a in (-INF, lower, upper, INF)]
    assert all(one <= other + 1e-9 for one, other in itertools.pairwise(means))


@settings(deadline=None, max_examples=100)
@given(st.floats(-20, 20), st.floats(-50, 50), st.floats(0.1, 10))
def test_invariances(a, shift, scale):
    """Moving z moves L; the scale of the weights has no effect; L_{ca}(z) = L_a(c z) / c; L_{-a}(z) = -L_a(-z)."""
    torch.manual_seed(0)
    z, w = torch.randn(5, dtype=torch.float64), torch.rand(5, dtype=torch.float64) + 0.01
    base = log_power_mean(z, a, w.log())
    torch.testing.assert_close(log_power_mean(z + shift, a, w.log()), base + shift)
    torch.testing.assert_close(log_power_mean(z, a, w.log() + shift), base)
    torch.testing.assert_close(log_power_mean(scale * z, a, w.log()) / scale, log_power_mean(z, scale * a, w.log()))
    torch.testing.assert_close(log_power_mean(z, -a, w.log()), -log_power_mean(-z, a, w.log()))


@pytest.mark.parametrize("a", FINITE)
def test_gradients_in_values_weights_and_exponent(a):
    x, w = problem()
    exponent = torch.tensor(a, dtype=torch.float64, requires_grad=True)
    inputs = x.requires_grad_(), w.requires_grad_(), exponent
    assert torch.autograd.gradcheck(lambda x, w, a: power_mean(x, a, w), inputs, atol=1e-4)
    assert torch.autograd.gradcheck(lambda x, w, a: log_power_mean(x.log(), a, w.log()), inputs, atol=1e-4)


@pytest.mark.parametrize("a", [-3.0, -1e-3, 1e-3, 0.3, 2.0])
def test_second_derivatives(a):
    x, w = problem()
    inputs = x.requires_grad_(), w.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, w: log_power_mean(x.log(), a, w.log()), inputs)


def test_the_slope_at_zero_is_half_the_variance():
    x, w = problem()
    z, p = x.log(), normalised(w)
    a = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(log_power_mean(z, a, w.log()).sum(), a)
    mean = (p * z).sum(-1, keepdim=True)
    torch.testing.assert_close(slope, (p * (z - mean).square()).sum() / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_is_continuous_through_zero(dtype):
    """In single precision too: no exponent is so small that values or gradients jump."""
    z, w = torch.randn(200, dtype=dtype) * 3, torch.randn(200, dtype=dtype)
    a = torch.cat([-(t := torch.logspace(-1, -30, 300, dtype=torch.float64)), torch.zeros(1), t.flip(0)]).to(dtype)
    a = a[:, None].requires_grad_()
    values, weights = (each.expand(len(a), -1).clone().requires_grad_() for each in (z, w))
    mean = log_power_mean(values, a, weights)
    gradients = torch.autograd.grad(mean.sum(), (values, weights, a))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for each, exponent in ((mean[:, None], a), *((gradient, a) for gradient in gradients)):
        # Between neighbours, no more than a smooth function moves over so small a difference of exponents.
        jumps = each.detach().diff(dim=0).abs() / (each.detach().abs().amax() + 1e-9)
        allowed = 20 * exponent.detach().diff(dim=0).abs() + 20 * tolerance
        assert bool((jumps <= allowed).all())


@pytest.mark.parametrize("a", [-50.0, -1.0, 1.0, 50.0])
def test_nothing_is_lost_far_from_one(a):
    z = torch.tensor([[-5e4, 5e4, 0.0], [1e4, 1e4 + 1e-3, 1e4]], dtype=torch.float64)
    expected = torch.logsumexp(a * z - math.log(3), -1) / a
    torch.testing.assert_close(log_power_mean(z, torch.tensor(a)), expected, rtol=1e-12, atol=0)
    single = log_power_mean(z.float(), torch.tensor(a))
    torch.testing.assert_close(single.double(), expected, rtol=1e-6, atol=0)


def test_a_small_exponent_of_large_differences():
    """To first order in the exponent, L is the mean and half the exponent times the variance."""
    z = torch.tensor([-5e4, 5e4, 0.0], dtype=torch.float64)
    assert float(log_power_mean(z, 1e-8)) == pytest.approx(1e-8 / 2 * 2 / 3 * 2.5e9, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("a", EXPONENTS)
def test_zeros_among_values_and_weights(a, dtype):
    """x = 0 is z = -inf; weights of zero take no part, whatever the value is; gradients are finite."""
    z = torch.tensor([[0.5, -INF, 1.0], [-INF, -INF, -INF], [0.3, 0.2, -INF]], dtype=dtype)
    w = torch.tensor([[0.3, 0.3, 0.4], [0.2, 0.3, 0.5], [0.5, 0.5, 0.0]], dtype=dtype)
    inputs = z.requires_grad_(), w.log().requires_grad_(), torch.tensor(a, dtype=dtype, requires_grad=True)
    mean = log_power_mean(inputs[0], inputs[2], inputs[1])
    if a <= 0:
        assert float(mean[0].detach()) == -INF
    else:
        share = log_power_mean(torch.tensor([0.5, 1.0], dtype=dtype), a, torch.tensor([0.3, 0.4], dtype=dtype).log())
        torch.testing.assert_close(mean[0], share + (math.log(0.7) / a if math.isfinite(a) else 0.0), rtol=1e-5, atol=0)
    assert float(mean[1].detach()) == -INF
    torch.testing.assert_close(mean[2], log_power_mean(z[2, :2], a, inputs[1][2, :2]))
    for gradient in torch.autograd.grad(mean.sum(), inputs):
        assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("a", EXPONENTS)
def test_plain_zeros(a):
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    w = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    mean = power_mean(x, a, w)
    expected = {INF: 2.0, 1.0: 1.3, 2.0: math.sqrt(0.3 + 0.5 * 4)}
    if a <= 0:
        assert float(mean) == 0
    elif a in expected:
        assert float(mean) == pytest.approx(expected[a])
    torch.testing.assert_close(power_mean(x[1:], a, torch.tensor([1.0, 0.0], dtype=torch.float64)), x.new_tensor(1.0))


def test_the_gradient_in_a_weight_that_is_zero():
    x, w = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    w.requires_grad_()
    (gradient,) = torch.autograd.grad(power_mean(x, 2.0, w), w)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 1.5], dtype=torch.float64))


def test_the_extremes_share_their_gradient():
    z = torch.tensor([1.0, 3.0, 3.0], dtype=torch.float64, requires_grad=True)
    for a, expected in ((INF, [0, 0.25, 0.75]), (-INF, [1, 0, 0])):
        mean = log_power_mean(z, a, torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64).log())
        (gradient,) = torch.autograd.grad(mean, z)
        torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64))


def test_an_exponent_for_each_row_and_any_dimension():
    x, w = problem()
    exponents = torch.tensor([-INF, 0.0, 0.5, 3.0], dtype=torch.float64)
    rows = torch.stack([power_mean(x[i], float(exponents[i]), w[i]) for i in range(4)])
    torch.testing.assert_close(power_mean(x, exponents[:, None], w), rows)
    torch.testing.assert_close(power_mean(x.mT, exponents, w.mT, dim=0), rows)
    torch.testing.assert_close(power_mean(x, exponents[:, None], w, keepdim=True), rows[:, None])
    torch.testing.assert_close(power_mean(x, 0.5, w[0]), power_mean(x, 0.5, w[:1].expand(4, -1)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning", "ignore:Guards may run slower")
def test_compiled():
    z = torch.randn(3, 4, dtype=torch.float64)
    a = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    torch.compiler.reset()
    compiled = torch.compile(log_power_mean, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(z, a), log_power_mean(z, a))
    (ours,) = torch.autograd.grad(compiled(z, a).sum(), a)
    (theirs,) = torch.autograd.grad(log_power_mean(z, a).sum(), a)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: power_mean(x, 1.0, dim=2), r"nothing to average along dim=2 of values of shape \(4, 6\)"),
        (lambda x: power_mean(x[:, :0], 1.0), r"nothing to average along dim=-1 of values of shape \(4, 0\)"),
        (lambda x: power_mean(x, 1.0, x[:3]), r"weights of shape \(3, 6\) cannot be broadcast to values of \(4, 6\)"),
        (
            lambda x: power_mean(x, torch.ones(4, 6)),
            r"exponent of shape \(4, 6\) cannot be broadcast to the result, \(4, 1\)",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(problem()[0])
