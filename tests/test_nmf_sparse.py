"""Sparse NMF: descent, unit columns, scikit-learn, batches, starts, kept columns."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import non_negative_factorization

from deepunfold.nmf import NMFInference, SparseNMF, beta_divergence
from deepunfold.nmf._basis import Statistics, gather, updated

BETAS = [0, 0.5, 1, 1.5, 2, 3]


def data(frames=120, rows=15, components=4):
    basis = torch.rand(rows, components, dtype=torch.float64) ** 4
    return torch.rand(frames, components, dtype=torch.float64) ** 3 @ basis.mT + 1e-3


@pytest.mark.parametrize("start", ["exemplars", "random"])
@pytest.mark.parametrize("sparsity", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("beta", BETAS)
def test_objective_never_increases(beta, sparsity, start):
    frames = data()
    frames[5] = 0
    frames[6, :4] = 0
    learnt = SparseNMF(6, sparsity=sparsity, beta=beta, start=start).fit(frames, steps=60, tolerance=-1)
    values = torch.tensor(learnt.objective, dtype=torch.float64)
    assert len(values) == 61
    assert bool((values[1:] <= values[:-1] + 1e-9 * values[:-1].abs()).all())
    norms = learnt.basis.norm(dim=0)
    assert bool(((norms - 1).abs() < 1e-12)[norms > 0].all())


@pytest.mark.parametrize("beta", BETAS)
def test_the_reported_objective_is_that_of_the_paper(beta):
    frames = data()
    learnt = SparseNMF(5, sparsity=0.2, beta=beta).fit(frames, steps=20, tolerance=-1)
    misfit = beta_divergence(frames, learnt.activations @ learnt.basis.mT, beta).sum()
    assert learnt.objective[-1] == pytest.approx(float(misfit + 0.2 * learnt.activations.sum()), rel=1e-8)


def test_the_update_of_the_basis_is_no_further_from_the_minimum_than_its_majoriser():
    """The majoriser touches the objective and lies above it, in W alone, with the norm of W in the penalty."""
    frames, sparsity = data(30), 0.4
    basis = torch.rand(15, 4, dtype=torch.float64) + 0.1
    basis = basis / basis.norm(dim=0)
    activations = torch.rand(30, 4, dtype=torch.float64)

    def objective(columns, beta):
        misfit = beta_divergence(frames, activations @ columns.mT, beta, floor=0.0).sum()
        return misfit + sparsity * (columns.norm(dim=0) * activations.sum(0)).sum()

    for beta in BETAS:
        seen = gather(basis, frames, activations @ basis.mT, activations, sparsity, beta)
        assert objective(updated(basis, seen, beta), beta) < objective(basis, beta)


def test_equal_to_scikit_learn():
    frames, steps = data(), 15
    basis, start = torch.rand(15, 4, dtype=torch.float64) + 0.1, torch.rand(120, 4, dtype=torch.float64) + 0.1
    basis = basis / basis.norm(dim=0)
    ours = SparseNMF(4, start=basis).fit(frames, steps=steps, tolerance=-1, activations=start)
    theirs_h, theirs_w, _ = non_negative_factorization(
        frames.numpy(),
        W=start.numpy().copy(),
        H=basis.mT.numpy().copy(),
        n_components=4,
        init="custom",
        solver="mu",
        beta_loss="kullback-leibler",
        tol=0,
        max_iter=steps,
    )
    np.testing.assert_allclose((ours.activations @ ours.basis.mT).numpy(), theirs_h @ theirs_w, rtol=1e-6, atol=1e-9)
    columns = theirs_w.T / np.linalg.norm(theirs_w.T, axis=0)
    np.testing.assert_allclose(ours.basis.numpy(), columns, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("beta", BETAS)
def test_one_batch_of_all_data_is_one_step(beta):
    frames = data()
    learnt = SparseNMF(5, sparsity=0.2, beta=beta).partial_fit(frames, steps=1)
    expected = SparseNMF(5, sparsity=0.2, beta=beta).fit(frames, steps=1, tolerance=-1)
    torch.testing.assert_close(learnt.basis, expected.basis)


def test_statistics_of_blocks_add_up():
    frames, basis = data(), torch.rand(15, 4, dtype=torch.float64) + 0.1
    activations = torch.rand(120, 4, dtype=torch.float64)
    model = activations @ basis.mT
    for beta in BETAS:
        whole = gather(basis, frames, model, activations, 0.3, beta)
        parts = Statistics.zeros(basis)
        for place in (slice(0, 50), slice(50, 120)):
            parts.add(gather(basis, frames[place], model[place], activations[place], 0.3, beta))
        for name in ("num", "den", "norm"):
            torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


@pytest.mark.parametrize("beta", BETAS)
def test_statistics_follow_the_scale_of_columns(beta):
    """The update after columns gave their scale to the activations is the scaled update before."""
    frames, basis = data(), torch.rand(15, 4, dtype=torch.float64) + 0.1
    activations = torch.rand(120, 4, dtype=torch.float64)
    norms = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    seen = gather(basis, frames, activations @ basis.mT, activations, 0.3, beta)
    before = updated(basis, seen, beta)
    seen.rescale(norms, beta)
    torch.testing.assert_close(updated(basis / norms, seen, beta), before / norms)


def test_batches_learn_as_well_as_all_at_once():
    frames = data(2000)
    whole = SparseNMF(6, sparsity=0.05).fit(frames, steps=100)
    online = SparseNMF(6, sparsity=0.05)
    for number in range(40):
        online.partial_fit(frames[number % 8 :: 8], forget=0.7)

    def best(learnt):
        algorithm = NMFInference(learnt.basis, sparsity=0.05)
        return float(algorithm.objective(frames, learnt.transform(frames, 200)).detach().sum())

    assert best(online) < 1.1 * best(whole)


def test_kept_columns_are_kept():
    frames = data()
    kept = torch.rand(15, 2, dtype=torch.float64)
    learnt = SparseNMF(3, kept=kept, sparsity=0.1).fit(frames, steps=30, tolerance=-1)
    assert learnt.basis.shape == (15, 5)
    torch.testing.assert_close(learnt.basis[:, :2], kept / kept.norm(dim=0))
    values = torch.tensor(learnt.objective)
    assert bool((values[1:] <= values[:-1] * (1 + 1e-9)).all())


def test_seeds_and_exemplars():
    frames = data()
    one, other = (SparseNMF(4, seed=seed).fit(frames, steps=1).basis for seed in (1, 1))
    assert torch.equal(one, other)
    assert not torch.equal(one, SparseNMF(4, seed=2).fit(frames, steps=1).basis)


def test_it_stops_when_it_has_converged_and_goes_on_from_there():
    frames = data()
    learnt = SparseNMF(4).fit(frames, steps=5000, tolerance=1e-4)
    assert learnt.converged
    steps = len(learnt.objective) - 1
    assert steps < 5000
    last = learnt.objective[-1]
    again = learnt.fit(frames, steps=3, tolerance=-1, activations=learnt.activations)
    assert again.objective[0] == pytest.approx(last)
    assert not again.converged


def test_zeros_stay_zero():
    frames = data()
    start = torch.rand(15, 4, dtype=torch.float64)
    start[:5, 2] = 0
    for beta in BETAS:
        learnt = SparseNMF(4, start=start, beta=beta, sparsity=0.1).fit(frames, steps=10)
        assert bool((learnt.basis[:5, 2] == 0).all())
        assert bool(torch.isfinite(learnt.basis).all())


def test_more_components_than_frames():
    frames = data(3)
    assert SparseNMF(8, start="random").fit(frames, steps=5).basis.shape == (15, 8)
    with pytest.raises(ValueError, match="8 exemplars were asked for, but only 3 of 3 frames are not silent"):
        SparseNMF(8).fit(frames)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SparseNMF(0), "components=0 must be a whole number from 1"),
        (lambda: SparseNMF(2, start="svd"), 'start=\'svd\' is unknown; use "exemplars", "random" or a basis'),
        (lambda: SparseNMF(2, start=torch.rand(5, 3)), "start has 3 columns, but components=2"),
        (lambda: SparseNMF(2, kept=-torch.ones(5, 3)), "kept has negative values"),
        (
            lambda: SparseNMF(2, kept=torch.ones(5, 3)).fit(torch.rand(9, 4)),
            "kept has 5 rows, but frames have 4 values",
        ),
        (lambda: SparseNMF(2).fit(-torch.rand(9, 4)), "the data has negative values"),
        (lambda: SparseNMF(2).fit(torch.rand(9)), "must be of shape"),
        (lambda: SparseNMF(2).fit(torch.rand(3, 9, 4)), r"must have the shape \(frames, rows\), not \(3, 9, 4\)"),
        (lambda: SparseNMF(2).fit(torch.rand(9, 4), activations=torch.rand(9, 3)), r"\(9, 3\); give \(9, 2\)"),
        (lambda: SparseNMF(2).partial_fit(torch.rand(9, 4), forget=2.0), "forget=2.0 must be between 0"),
        (lambda: SparseNMF(2).transform(torch.rand(9, 4)), "there is no basis yet"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
