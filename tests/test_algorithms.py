"""The shipped algorithms solve the problems that they are made for."""

import numpy as np
import pytest
import torch

import deepunfold as du
from deepunfold.core.algorithms import ADMM, FISTA, ISTA, LISTA, GradientDescent, VariationalMixture
from deepunfold.core.algorithms.mixture import digamma
from tests.cases import dictionary, mixture, mixture_data, signals

SPARSITY = 0.3
SOLVERS = [ISTA(dictionary(), SPARSITY), LISTA(dictionary(), SPARSITY), FISTA(dictionary(), SPARSITY)]
SOLVERS.append(ADMM(dictionary(), SPARSITY, penalty=0.7))


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_solves_the_lasso_as_scikit_learn_does(solver):
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = signals()
    result = du.iterate(solver, x, until=1e-13, max_steps=20000)
    lasso = linear_model.Lasso(SPARSITY / x.shape[1], fit_intercept=False, tol=1e-14, max_iter=100000)
    expected = np.stack([lasso.fit(dictionary().numpy(), row.numpy()).coef_ for row in x])
    assert torch.allclose(result.value, torch.from_numpy(expected), atol=1e-7)
    assert (result.value == 0).any()


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_meets_the_optimality_conditions_of_the_lasso(solver):
    x = signals(8)
    z = du.iterate(solver, x, until=1e-13, max_steps=20000).value
    correlation = (x - z @ dictionary().mT) @ dictionary()
    assert (correlation.abs() <= SPARSITY + 1e-8).all()
    assert torch.allclose(correlation[z != 0], SPARSITY * z[z != 0].sign(), atol=1e-7)


def test_ista_and_lista_are_one_algorithm():
    x = signals()
    for layers in (1, 2, 9):
        one, other = (du.unfold(kind(dictionary(), SPARSITY), layers) for kind in (ISTA, LISTA))
        assert torch.allclose(one(x), other(x), atol=1e-13)


def test_descent_never_raises_its_objective():
    x = signals(8)
    for algorithm in (ISTA(dictionary(), SPARSITY), GradientDescent(dictionary(), SPARSITY)):
        states = du.unfold(algorithm, 60).states(x, list(range(61)))
        values = torch.stack([algorithm.objective(x, state) for state in states])
        assert (values.diff(dim=0) <= 1e-14).all()


def test_fista_is_ahead_of_ista_on_a_hard_problem():
    hard = dictionary(20, 40)
    x = signals(8, 20)
    values = {}
    for kind in (ISTA, FISTA):
        algorithm = kind(hard, 0.02)
        state = du.unfold(algorithm, 60).states(x, [60])[0]
        values[kind] = algorithm.objective(x, state).mean()
    assert values[FISTA] < values[ISTA]


def test_gradient_descent_reaches_a_stationary_point():
    algorithm, x = GradientDescent(dictionary(), SPARSITY), signals()
    z = du.iterate(algorithm, x, until=1e-14, max_steps=20000).value.requires_grad_()
    (gradient,) = torch.autograd.grad(algorithm.objective(x, z).sum(), z)
    assert gradient.abs().max() < 1e-10


def test_scaling_of_the_lasso():
    """Signal and sparsity scaled together scale the code."""
    x = signals()
    one = du.iterate(ISTA(dictionary(), SPARSITY), x, until=1e-13).value
    two = du.iterate(ISTA(dictionary(), 10 * SPARSITY), 10 * x, until=1e-13).value
    assert torch.allclose(two, 10 * one, atol=1e-9)


def test_digamma():
    x = torch.logspace(-6, 8, 400, dtype=torch.float64)
    assert torch.allclose(digamma(x), torch.digamma(x), rtol=1e-14, atol=1e-15)


def test_the_bound_of_the_mixture_never_falls():
    algorithm, x = mixture(), mixture_data()
    states = du.unfold(algorithm, 40).states(x, list(range(41)))
    bounds = torch.stack([algorithm.bound(x, state) for state in states])
    assert (bounds.diff(dim=0) >= -1e-10).all()
    assert (bounds[-1] > bounds[0]).all()


def test_with_one_component_the_bound_is_the_log_evidence():
    algorithm = VariationalMixture(torch.tensor([[0.3, -0.2]], dtype=torch.float64), precision=1.7, strength=0.4)
    x = mixture_data()
    state = du.iterate(algorithm, x, until=1e-12).state
    points = x.shape[1]
    covariance = torch.eye(points, dtype=torch.float64) / 1.7 + torch.full((points, points), 1 / (0.4 * 1.7)).double()
    evidence = torch.zeros(3, dtype=torch.float64)
    for d in range(2):
        mean = torch.full((points,), float(algorithm.prior_mean[0, d].detach()), dtype=torch.float64)
        evidence += torch.distributions.MultivariateNormal(mean, covariance).log_prob(x[:, :, d])
    assert torch.allclose(algorithm.bound(x, state), evidence, atol=1e-9)


def test_the_mixture_finds_clusters():
    x = torch.cat([torch.randn(1, 30, 2) - 4, torch.randn(1, 30, 2) + 4], dim=1)
    algorithm = VariationalMixture(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    labels = du.iterate(algorithm, x, until=1e-5).value.argmax(-1)[0]
    assert labels[:30].tolist() == [0] * 30
    assert labels[30:].tolist() == [1] * 30


def test_the_mixture_does_not_care_about_the_order_of_points():
    x, order = mixture_data(), torch.randperm(20)
    net = du.unfold(mixture(), 5)
    assert torch.allclose(net(x)[:, order], net(x[:, order]), atol=1e-12)


def test_unfolded_inference_learns_from_labels():
    """Trained discriminatively, the mixture tells apart what its prior alone cannot."""
    generator = torch.Generator().manual_seed(2)
    truth = torch.randint(0, 2, (32, 25), generator=generator)
    x = torch.randn(32, 25, 2, generator=generator) * torch.tensor([0.5, 3.0]) + 2.0 * truth[..., None]
    net = du.unfold(VariationalMixture(torch.tensor([[0.0, 0.0], [1.0, 1.0]])), 4, tie="each")

    def loss(output, target):
        return torch.nn.functional.nll_loss(output.clamp_min(1e-9).log().flatten(0, 1), target.flatten())

    before = loss(net(x), truth).item()
    du.fit(net, [(x, truth)], loss, epochs=60, optimizer=lambda p: torch.optim.Adam(p, lr=0.05))
    assert loss(net(x), truth).item() < 0.6 * before
