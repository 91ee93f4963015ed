"""Inference of activations: descent, scikit-learn, the Wiener filter, the fast path, and what may go in."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import non_negative_factorization

import deepunfold as du
from deepunfold.nmf import NMFInference, beta_divergence, infer, wiener
from tests.cases import bases, mixtures, nmf

BETAS = [0, 0.5, 1, 1.5, 2, 3]


def problem(rows=12, components=5, frames=40):
    basis = torch.rand(rows, components, dtype=torch.float64) + 0.01
    mixture = torch.rand(frames, components, dtype=torch.float64) ** 3 @ (basis + 0.1).mT
    return basis / basis.norm(dim=0), mixture


@pytest.mark.parametrize("sparsity", [0.0, 0.5])
@pytest.mark.parametrize("beta", BETAS)
def test_objective_never_increases(beta, sparsity):
    basis, mixture = problem()
    mixture[3] = 0
    mixture[4, :6] = 0
    algorithm = NMFInference(basis, beta=beta, sparsity=sparsity)
    states = du.unfold(algorithm, 60).states(mixture, range(61))
    values = torch.stack([algorithm.objective(mixture, state) for state in states])
    assert bool((values[1:] <= values[:-1] + 1e-10 * values[:-1].abs()).all())
    assert bool((values[-1] < values[0]).any())


@pytest.mark.parametrize(("sparsity", "steps"), [(0.0, 25), (0.3, 1)])
def test_equal_to_scikit_learn(sparsity, steps):
    """With a penalty only the first step: scikit-learn 1.9 adds it to a cached sum again at every further one."""
    basis, mixture = problem()
    ours = infer(NMFInference(basis, sparsity=sparsity), mixture, steps)  # both start from equal activations
    theirs, _, _ = non_negative_factorization(
        mixture.numpy(),
        H=basis.mT.numpy().copy(),
        n_components=basis.shape[1],
        init="random",
        update_H=False,
        solver="mu",
        beta_loss="kullback-leibler",
        tol=0,
        max_iter=steps,
        alpha_W=sparsity / mixture.shape[1],
        l1_ratio=1.0,
    )
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("beta", [1, 1.5, 2])
def test_finds_the_minimum_of_a_convex_problem(beta):
    """At the minimum the gradient is zero where an activation is positive, and not negative where it is zero."""
    basis, mixture = problem(frames=6)
    algorithm = NMFInference(basis, beta=beta, sparsity=0.1)
    found = infer(algorithm, mixture, 20_000).requires_grad_()
    (gradient,) = torch.autograd.grad(algorithm.objective(mixture, found).sum(), found)
    assert float((found.detach() * gradient).abs().max()) < 1e-4
    assert float(gradient.min()) > -1e-3


def test_scaling_the_mixture_scales_the_activations():
    algorithm, mixture = nmf(), mixtures()
    for scale in (1e-6, 1e6):
        torch.testing.assert_close(infer(algorithm, scale * mixture, 9), scale * infer(algorithm, mixture, 9))


def test_the_scale_of_the_start_has_no_effect():
    algorithm, mixture = nmf(), mixtures()
    start = torch.rand(4, 3, dtype=torch.float64) + 0.1
    torch.testing.assert_close(infer(algorithm, mixture, 5, start), infer(algorithm, mixture, 5, 100 * start))


def test_warm_start_goes_on():
    algorithm, mixture = nmf(), mixtures()
    first = infer(algorithm, mixture, 3)
    torch.testing.assert_close(infer(algorithm, mixture, 4, first), infer(algorithm, mixture, 7))
    torch.testing.assert_close(du.unfold(algorithm, 4)((mixture, first)), du.unfold(algorithm, 7)(mixture))


@pytest.mark.parametrize("sources", [(5,), (2, 3), (1, 1, 2, 1)])
def test_wiener_sources_sum_to_the_mixture(sources):
    basis, mixture = problem()
    mixture[0] = 0
    basis[3] = 0  # a row that no source explains
    net = du.unfold(NMFInference(basis, sources), 5)
    output = net(mixture)
    assert output.shape == (40, len(sources), 12)
    assert bool((output >= 0).all())
    torch.testing.assert_close(output.sum(1), mixture, rtol=1e-14, atol=0)
    torch.testing.assert_close(output[:, 0, 3], mixture[:, 3] / len(sources))


def test_wiener_is_the_ratio_of_the_models():
    models = torch.rand(6, 2, 3, dtype=torch.float64) + 0.1
    mixture = torch.rand(6, 3, dtype=torch.float64)
    expected = models[:, 0] / models.sum(1) * mixture
    torch.testing.assert_close(wiener(mixture, models)[:, 0], expected, rtol=1e-10, atol=0)


def test_without_a_filter_sources_are_their_models():
    basis, mixture = problem()
    algorithm = NMFInference(basis, (2, 3), filtered=False)
    activations = infer(algorithm, mixture, 5)
    expected = torch.stack([activations[:, :2] @ basis[:, :2].mT, activations[:, 2:] @ basis[:, 2:].mT], 1)
    torch.testing.assert_close(du.unfold(algorithm, 5)(mixture), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", BETAS)
def test_silence_gives_silence(beta, dtype):
    algorithm = NMFInference(torch.cat(bases(), 1), (2, 1), beta=beta, sparsity=0.1, learn_sparsity=True).to(dtype)
    mixture = mixtures().to(dtype)
    mixture[1] = 0
    net = du.unfold(algorithm, 6)
    output = net(mixture)
    assert bool((output[1] == 0).all())
    output.square().sum().backward()
    assert bool(torch.isfinite(output).all())
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in net.parameters())


@pytest.mark.parametrize("beta", BETAS)
def test_zero_columns_take_no_part(beta):
    basis, mixture = problem()
    with_zero = torch.cat([basis, torch.zeros(12, 1, dtype=torch.float64)], 1)
    found = infer(NMFInference(with_zero, beta=beta), mixture, 20)
    torch.testing.assert_close(found[:, :5], infer(NMFInference(basis, beta=beta), mixture, 20))
    assert float(found[:, 5].max()) < 1e-100


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("frames", [1, 511, 1030])
def test_blocks_give_what_the_network_gives(beta, frames):
    basis, mixture = problem(frames=frames)
    algorithm = NMFInference(basis, beta=beta, sparsity=0.2)
    expected = du.iterate(algorithm, mixture, until=None, max_steps=12).value
    torch.testing.assert_close(infer(algorithm, mixture, 12), expected)


def test_frames_need_not_be_contiguous():
    basis, mixture = problem()
    strided = mixture.mT.contiguous().mT
    torch.testing.assert_close(infer(NMFInference(basis), strided, 5), infer(NMFInference(basis), mixture, 5))


def test_implicit_gradient_is_that_of_the_converged_problem():
    """The bi-level problem (Section 4): the lower level solved, its gradient in W against finite differences."""
    basis, mixture = torch.cat(bases(), 1), mixtures()
    target = torch.rand(4, 2, 7, dtype=torch.float64)

    def loss(columns):
        net = du.unfold(NMFInference(columns, (2, 1), sparsity=0.1), 600, backward=du.Implicit(tolerance=1e-9))
        value = beta_divergence(target, net(mixture), 2).sum()
        return value, net

    value, net = loss(basis)
    value.backward()
    direction = torch.randn_like(basis)
    with torch.no_grad():
        numeric = float(loss(basis + 1e-5 * direction)[0] - loss(basis - 1e-5 * direction)[0]) / 2e-5
    (parameter,) = net.parameters()
    assert float((parameter.grad * direction).sum()) == pytest.approx(numeric, rel=1e-5)


X = mixtures()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nmf().init(-X), r"the mixture has negative values \(down to -1.*give magnitudes"),
        (lambda: nmf().init(X * float("nan")), "the mixture has values that are not finite"),
        (lambda: nmf().init(X + float("inf")), "the mixture has values that are not finite"),
        (lambda: nmf().init(X[:, :5]), "has 5 values per frame, but the basis has 7 rows; give 7 values"),
        (lambda: nmf().init(X[:0]), r"of shape \(frames, rows\) with at least one frame, not \(0, 7\)"),
        (lambda: nmf().init(X.long()), "the mixture is of torch.int64; give float32 or float64"),
        (lambda: NMFInference(X.half()), "basis is of torch.float16; give float32 or float64"),
        (lambda: infer(nmf(), X[0], 3), r"of shape \(frames, rows\) with at least one frame, not \(7,\)"),
        (lambda: NMFInference(-X), "basis has negative values"),
        (lambda: NMFInference(X[0]), r"basis must have the shape \(rows, components\), not \(7,\)"),
        (lambda: NMFInference(X, sparsity=-1), "sparsity=-1.0 must be a number >= 0"),
        (lambda: NMFInference(X, beta=-1), "beta=-1 must be a number >= 0"),
        (lambda: NMFInference(X, (2, 2)), r"sources=\(2, 2\) sum to 4, but the basis has 7 columns"),
        (lambda: NMFInference(X, features=9), "features=9 is out of range: the basis has 4 rows"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
