"""The classic algorithm: convergence per sample, honest statuses, warm starts, callbacks."""

import dataclasses

import pytest
import torch

import deepunfold as du
from deepunfold.core.algorithms import ADMM, FISTA, ISTA
from tests.cases import Babylonian, dictionary, signals


def halving():
    """Each sample shrinks towards x at its own rate: z <- x + rate (z - x), with rates in the state."""
    return (
        lambda x: {"z": torch.zeros_like(x), "rate": torch.linspace(0.1, 0.9, len(x), dtype=x.dtype)[:, None]},
        lambda x, s: {"z": x + s["rate"] * (s["z"] - x), "rate": s["rate"]},
        lambda x, s: s["z"],
    )


def test_each_sample_stops_when_it_has_converged():
    x = torch.ones(5, 3, dtype=torch.float64)
    result = du.iterate(halving(), x, until=1e-9)
    assert bool(result.converged.all())
    assert result.steps.tolist() == sorted(result.steps.tolist())
    assert result.steps[0] < 20 < 100 < result.steps[-1]
    for i, count in enumerate(result.steps.tolist()):
        alone = du.iterate(halving(), x, until=None, max_steps=count)
        assert torch.equal(alone.value[i], result.value[i])
        assert torch.isnan(result.history[count:, i]).all()
        assert result.history[count - 1, i] == result.residual[i] <= 1e-9 < result.history[count - 2, i]


def test_samples_that_have_ended_are_no_longer_computed():
    sizes = []

    class Watched(Babylonian):
        def step(self, x, root):
            sizes.append(len(x))
            return super().step(x, root)

    x = torch.tensor([[1.0], [4.0], [1e4]], dtype=torch.float64)
    du.iterate(Watched(), x, until=1e-12)
    assert sizes[0] == 3
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)


def test_all_statuses_in_one_batch():
    def step(x, z):
        # Sample 0 converges, 1 runs on for ever, 2 grows without bound, 3 turns into NaN.
        moves = torch.stack([0.5 * z[0], -z[1], 30.0 * z[2], z[3] - 1.5], dim=0)
        moves[3] = torch.where(moves[3] < -3, torch.nan, moves[3])
        return moves

    def batched(x, z):
        full = torch.zeros(4, 1, dtype=z.dtype)
        full[x[:, 0].long()] = z
        return step(x, full)[x[:, 0].long()]

    x = torch.arange(4, dtype=torch.float64)[:, None]
    result = du.iterate((torch.ones_like, batched), x, until=lambda event: event.state.abs()[:, 0] < 1e-3, max_steps=30)
    names = [du.Status(status).name for status in result.status.tolist()]
    assert names == ["CONVERGED", "MAX_STEPS", "DIVERGED", "NON_FINITE"]
    assert torch.isfinite(result.state).all()
    assert result.state[3] == -2
    assert result.summary() == (
        "1 of 4 converged (10 to 10 steps), 1 of 4 max_steps (30 to 30 steps), "
        "1 of 4 diverged (7 to 7 steps), 1 of 4 non_finite (3 to 3 steps)"
    )


def test_a_result_never_changes():
    algorithm, x = ISTA(dictionary(), 0.05), signals()
    result = du.iterate(algorithm, x, until=1e-8)
    kept = {field.name: getattr(result, field.name).clone() for field in dataclasses.fields(result)}
    du.iterate(algorithm, 3 * x, until=1e-3, state=result.state)
    net = du.unfold(algorithm, 300, backward="implicit")
    net(x).sum().backward()
    for name, value in kept.items():
        assert torch.allclose(getattr(result, name), value, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.status = None


def test_a_warm_start_converges_at_once():
    algorithm, x = ADMM(dictionary(), 0.05), signals()
    cold = du.iterate(algorithm, x, until=1e-10)
    warm = du.iterate(algorithm, x, until=1e-8, state=cold.state)
    assert int(warm.steps.max()) == 1 < int(cold.steps.min())
    assert torch.allclose(warm.value, cold.value, atol=1e-8)


def test_a_warm_start_is_not_written_to():
    algorithm, x = ADMM(dictionary(), 0.05), signals()
    state = algorithm.init(x)
    before = {key: value.clone() for key, value in state.items()}
    du.iterate(algorithm, x, until=1e-6, state=state)
    assert all(torch.equal(state[key], before[key]) for key in state)


def test_counters_are_shared_and_take_no_part_in_the_residual():
    result = du.iterate(FISTA(dictionary(), 0.05), signals(), until=1e-9)
    assert bool(result.converged.all())
    assert result.state[2].dim() == 0


def test_the_callback_sees_each_step_and_can_stop():
    seen = []

    def callback(event):
        seen.append((event.step, event.active.tolist(), float(event.residual.max())))
        return event.step == 5

    result = du.iterate(halving(), torch.ones(3, 2, dtype=torch.float64), until=1e-3, callback=callback)
    assert [step for step, _, _ in seen] == [1, 2, 3, 4, 5]
    assert seen[0][1] == [0, 1, 2]
    assert seen[-1][1] == [1, 2]  # the first had converged
    assert [du.Status(s).name for s in result.status.tolist()] == ["CONVERGED", "STOPPED", "STOPPED"]
    assert seen[2][2] > seen[3][2]


def test_an_algorithm_may_measure_its_own_residual():
    class Own(Babylonian):
        def residual(self, x, old, new):
            return (new.square() - x).abs().amax(dim=1)

    x = torch.tensor([[2.0], [9.0]], dtype=torch.float64)
    result = du.iterate(Own(), x, until=1e-9)
    assert ((result.value.square() - x).abs() <= 1e-9).all()
    assert torch.allclose(result.residual, (result.value.square() - x).abs()[:, 0])


def test_one_problem_without_a_batch():
    matrix = torch.tensor([[0.5, 0.1], [0.0, 0.3]], dtype=torch.float64)
    algorithm = (lambda x: torch.zeros(2, dtype=x.dtype), lambda x, z: matrix @ z + x)
    x = torch.tensor([1.0, 1.0], dtype=torch.float64)
    result = du.iterate(algorithm, x, until=1e-12, batched=False)
    assert result.status.shape == (1,)
    assert torch.allclose(result.value, torch.linalg.solve(torch.eye(2, dtype=torch.float64) - matrix, x))


def test_inputs_of_another_length_are_shared():
    def step(x, z):
        signal, mask = x
        assert mask.shape == (7,)
        return 0.5 * z + 0.5 * signal * mask

    x = (signals(3, 7), torch.ones(7, dtype=torch.float64))
    result = du.iterate((lambda x: torch.zeros_like(x[0]), step), x, until=1e-10)
    assert torch.allclose(result.value, x[0])


def test_discrete_states_converge_when_nothing_moves():
    algorithm = (lambda x: torch.zeros_like(x), lambda x, z: torch.minimum(z + 1, x))
    result = du.iterate(algorithm, torch.tensor([[2], [5]]), until=0.0)
    assert result.value.tolist() == [[2], [5]]
    assert result.steps.tolist() == [3, 6]


def test_zero_stays_zero_and_counts_as_converged():
    result = du.iterate(ISTA(dictionary()), torch.zeros(2, 7, dtype=torch.float64))
    assert result.steps.tolist() == [1, 1]
    assert bool(result.converged.all())


def test_no_graph_is_built():
    result = du.iterate(Babylonian(), torch.ones(2, 1, dtype=torch.float64, requires_grad=True))
    assert not result.value.requires_grad
    assert not result.residual.requires_grad


def test_a_slow_run_reports_that_it_did_not_converge():
    result = du.iterate(ISTA(dictionary(), 0.05), signals(), until=1e-14, max_steps=3)
    assert not bool(result.converged.any())
    assert result.summary().startswith("0 of 4 converged, 4 of 4 max_steps (3 to 3 steps)")


def test_layers_of_a_tied_network_are_algorithms():
    net = du.unfold(ISTA(dictionary(), 0.05), 5)
    result = du.iterate(net.layers[0], signals(), until=None, max_steps=5)
    assert torch.equal(result.value, net(signals()))
