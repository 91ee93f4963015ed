"""The beta-divergence: closed forms, limits, zeros, gradients."""

import pytest
import torch

from deepunfold.nmf import beta_divergence, descent_exponent, divergence_split

BETAS = [0, 0.5, 1, 1.5, 2, 3]


def pair():
    return torch.rand(5, 4, dtype=torch.float64) + 0.1, torch.rand(5, 4, dtype=torch.float64) + 0.1


def test_closed_forms():
    x, y = pair()
    for beta, expected in {
        0: x / y - (x / y).log() - 1,
        1: x * (x / y).log() - x + y,
        2: (x - y).square() / 2,
        3: (x**3 + 2 * y**3 - 3 * x * y**2) / 6,
    }.items():
        torch.testing.assert_close(beta_divergence(x, y, beta, floor=0.0), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("beta", [0, 1])
def test_fast_paths_are_the_limits(beta):
    x, y = pair()
    near = beta_divergence(x, y, beta + 1e-6)
    torch.testing.assert_close(beta_divergence(x, y, beta), near, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beta", BETAS)
def test_it_is_a_divergence_of_degree_beta(beta):
    x, y = pair()
    assert bool((beta_divergence(x, y, beta) > 0).all())
    assert float(beta_divergence(x, x, beta).abs().max()) < 1e-14
    scaled = beta_divergence(3 * x, 3 * y, beta, floor=0.0)
    torch.testing.assert_close(scaled, 3**beta * beta_divergence(x, y, beta, floor=0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", BETAS)
def test_zeros_are_finite_with_their_gradients(beta, dtype):
    x = torch.tensor([0.0, 0.0, 2.0, 1e3], dtype=dtype)
    y = torch.tensor([0.0, 2.0, 0.0, 0.0], dtype=dtype, requires_grad=True)
    value = beta_divergence(x, y, beta)
    (gradient,) = torch.autograd.grad(value.sum(), y)
    assert bool(torch.isfinite(value).all())
    assert bool(torch.isfinite(gradient).all())
    assert abs(float(value[0].detach())) < 1e-20


@pytest.mark.parametrize("beta", BETAS)
def test_split_is_the_gradient_in_two_parts(beta):
    x, y = pair()
    y.requires_grad_()
    (gradient,) = torch.autograd.grad(beta_divergence(x, y, beta).sum(), y)
    positive, negative = divergence_split(x, y.detach(), beta)
    assert bool((positive >= 0).all())
    assert bool((negative >= 0).all())
    torch.testing.assert_close(positive - negative, gradient)


def test_exponents_of_descent():
    assert [descent_exponent(beta) for beta in (0, 0.5, 1, 1.5, 2, 3)] == [0.5, 1 / 1.5, 1, 1, 1, 0.5]


@pytest.mark.parametrize("beta", [-1, float("nan"), float("inf")])
def test_a_beta_that_is_none(beta):
    with pytest.raises(ValueError, match="must be a number >= 0"):
        beta_divergence(torch.ones(1), torch.ones(1), beta)
