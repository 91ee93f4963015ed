"""Backward modes: the right gradient, and the memory that each promises."""

import warnings

import pytest
import torch
from torch import nn

import deepunfold as du
from deepunfold.core._solvers import gmres, neumann
from deepunfold.core.algorithms import ADMM, ISTA
from tests.cases import dictionary, linear_recurrence, signals

MODES = ["unroll", "checkpoint", "truncated", "implicit", "jacobian_free"]


class Affine(nn.Module):
    """phi <- A phi + x, whose fixed point is known in closed form."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = nn.Parameter(matrix.clone())

    def init(self, x):
        return torch.zeros_like(x)

    def step(self, x, z):
        return z @ self.matrix.mT + x


def contraction(size=5, radius=0.6):
    matrix = torch.randn(size, size, dtype=torch.float64)
    return radius * matrix / torch.linalg.eigvals(matrix).abs().max()


def saved_bytes(net, x):
    """What autograd keeps between forward and backward, counted once per storage."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    parameters = {p.untyped_storage().data_ptr() for p in net.parameters()} | {x.untyped_storage().data_ptr()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = net(x)
    del output
    return sum(size for place, size in kept.items() if place not in parameters)


@pytest.mark.parametrize("mode", ["implicit", "jacobian_free", "truncated"])
def test_memory_does_not_grow_with_the_layers(mode):
    x = torch.randn(64, 50)
    algorithm = ISTA(torch.nn.functional.normalize(torch.randn(50, 20), dim=0), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", du.ConvergenceWarning)
        short, long = (saved_bytes(du.unfold(algorithm, k, backward=mode), x) for k in (10, 90))
    assert 0 < long == short


def test_checkpoint_keeps_about_a_square_root_of_the_states():
    x = torch.randn(64, 50)
    algorithm = ISTA(torch.nn.functional.normalize(torch.randn(50, 20), dim=0), 0.1)
    plan = du.Checkpoint().plan(0, 100)
    assert len(plan) == 10
    assert max(span.stop - span.start for span in plan) == 10
    unrolled = saved_bytes(du.unfold(algorithm, 100), x)
    checkpointed = saved_bytes(du.unfold(algorithm, 100, backward="checkpoint"), x)
    assert checkpointed < unrolled / 10


def test_memory_of_train_last_follows_c():
    x = torch.randn(64, 50)
    algorithm = ISTA(torch.nn.functional.normalize(torch.randn(50, 20), dim=0), 0.1)
    sizes = [saved_bytes(du.unfold(algorithm, 40, tie="each", train_last=c), x) for c in (3, 5, 9, 17)]
    steps = [c - 1 for c in (3, 5, 9, 17)]
    per_step = [(b - a) / (n - m) for a, b, m, n in zip(sizes, sizes[1:], steps, steps[1:], strict=False)]
    assert max(per_step) - min(per_step) < 0.01 * max(per_step)


@pytest.mark.parametrize("segments", [1, 2, 3, 7, 50])
def test_any_number_of_segments_gives_the_same_gradient(segments):
    x = signals(2, 5)
    nets = [du.unfold(linear_recurrence(), 7, backward=mode) for mode in ("unroll", du.Checkpoint(segments))]
    for net in nets:
        net(x).sum().backward()
    for ours, theirs in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-13)


@pytest.mark.parametrize("last", [1, 3, 9])
def test_truncated_is_unrolling_from_a_detached_state(last):
    x, algorithm = signals(2, 5), linear_recurrence()
    net = du.unfold(algorithm, 6, backward=du.Truncated(last))
    net(x).sum().backward()
    middle = max(6 - last, 0)
    reference = du.unfold(algorithm, 6)
    state = reference.states(x, [middle])[0].detach()
    for _ in range(6 - middle):
        state = reference.layers[0].step(x, state)
    reference.layers[0].readout(x, state).sum().backward()
    for ours, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-13)


def test_jacobian_free_is_the_gradient_of_the_last_step():
    x = signals(3, 5)
    free, short = (du.unfold(Affine(contraction()), 60, backward=mode) for mode in ("jacobian_free", du.Truncated(1)))
    short.load_state_dict(free.state_dict())
    for net in (free, short):
        net(x).square().sum().backward()
    assert torch.equal(free.layers[0].matrix.grad, short.layers[0].matrix.grad)


@pytest.mark.parametrize("solver", ["gmres", "neumann"])
def test_implicit_gradient_in_closed_form(solver):
    matrix, x = contraction(), signals(3, 5).requires_grad_()
    net = du.unfold(Affine(matrix), 120, backward=du.Implicit(solver, tolerance=1e-12, max_steps=300))
    net(x).square().sum().backward()
    free, y = matrix.clone().requires_grad_(), x.detach().clone().requires_grad_()
    torch.linalg.solve(torch.eye(5, dtype=torch.float64) - free, y.mT).square().sum().backward()
    assert torch.allclose(net.layers[0].matrix.grad, free.grad, atol=1e-8)
    assert torch.allclose(x.grad, y.grad, atol=1e-8)
    assert net.backward.report.backward_residual < 1e-11


def test_damping_helps_where_the_plain_iteration_diverges():
    matrix = -1.5 * torch.eye(3, dtype=torch.float64)  # the fixed point exists; neither iteration finds it undamped

    class Damped(Affine):
        def step(self, x, z):
            return 0.5 * z + 0.5 * super().step(x, z)

    x = signals(2, 3)
    net = du.unfold(Damped(3 * matrix), 5, backward="implicit")
    with pytest.warns(du.ConvergenceWarning, match="still moves by"):
        net(x)
    gradient = torch.ones(2, 3, dtype=torch.float64)
    plain = neumann(lambda v: v @ matrix, gradient, None, 1e-10, 200, 1.0)
    damped = neumann(lambda v: v @ matrix, gradient, None, 1e-10, 200, 0.5)
    assert plain.residual > 1
    assert damped.residual < 1e-10
    assert torch.allclose(damped.value, gradient / 2.5)


def test_implicit_says_when_the_forward_pass_has_not_converged():
    net = du.unfold(Affine(contraction(radius=0.99)), 5, backward="implicit")
    with pytest.warns(du.ConvergenceWarning, match=r"still moves by .* a step .*: the gradient is inexact; run more"):
        net(signals(2, 5))
    assert net.backward.report.forward_residual > 1e-5
    assert net.backward.report.backward_residual is None


def test_implicit_says_when_its_own_solver_has_not_converged():
    net = du.unfold(Affine(contraction(radius=0.9)), 300, backward=du.Implicit("neumann", tolerance=1e-9, max_steps=3))
    y = net(signals(2, 5))
    with pytest.warns(du.ConvergenceWarning, match=r"stopped at a residual of .* after 3 products"):
        y.sum().backward()
    assert net.backward.report.backward_steps == 3
    assert net.backward.report.backward_residual > 1e-9


def test_a_warm_start_saves_products():
    x = signals(2, 5)
    net = du.unfold(Affine(contraction(radius=0.9)), 400, backward=du.Implicit("neumann", 1e-8, 500, warm_start=True))
    steps = []
    for _ in range(2):
        net(x).sum().backward()
        steps.append(net.backward.report.backward_steps)
    assert steps[1] == 1 < steps[0]
    net(x[:1]).sum().backward()  # another batch size starts afresh
    assert net.backward.report.backward_steps > 1


def test_implicit_takes_any_solver():
    def exact(transposed, gradient, start, tolerance, max_steps, damping):
        rows = [transposed(torch.eye(5, dtype=torch.float64)[i].expand(3, 5)) for i in range(5)]
        system = torch.eye(5, dtype=torch.float64) - torch.stack(rows, dim=1)[0].mT
        return du.core._solvers.Solution(torch.linalg.solve(system, gradient.mT).mT, 0.0, 5)

    x = signals(3, 5)
    nets = [du.unfold(Affine(contraction()), 100, backward=du.Implicit(solver)) for solver in (exact, "gmres")]
    nets[1].load_state_dict(nets[0].state_dict())
    for net in nets:
        net(x).square().sum().backward()
    assert torch.allclose(nets[0].layers[0].matrix.grad, nets[1].layers[0].matrix.grad, rtol=1e-5)


def test_implicit_works_with_a_problem_without_batch():
    algorithm = (lambda x: (torch.zeros(3), torch.zeros(2)), lambda x, s: (0.5 * s[0] + x, 0.3 * s[1] + s[0][:2]))
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    first, second = du.unfold(algorithm, 60, backward="implicit")(x)
    (first.sum() + second.sum()).backward()
    assert torch.allclose(x.grad, torch.tensor([2 + 2 / 0.7, 2 + 2 / 0.7, 2.0]), atol=1e-4)


def test_backward_can_be_switched_on_a_trained_network():
    net = du.unfold(ADMM(dictionary(), 0.05), 300)
    y = net(signals())
    for mode in MODES:
        net.backward = mode
        assert torch.equal(net(signals()), y)


def test_two_networks_do_not_share_a_report():
    mode = du.Implicit()
    one, other = (du.unfold(Affine(contraction()), 100, backward=mode) for _ in range(2))
    one(signals(2, 5))
    assert one.backward.report is not None
    assert other.backward.report is None is mode.report


def test_no_mode_builds_a_graph_where_none_is_wanted():
    with torch.no_grad():
        for mode in MODES:
            net = du.unfold(ADMM(dictionary(), 0.05), 3, backward=mode)
            assert not net(signals()).requires_grad


@pytest.mark.parametrize("size", [1, 4, 30])
def test_gmres_solves_every_row_at_once(size):
    matrices = 0.4 * torch.randn(6, size, size, dtype=torch.float64) / size**0.5
    gradient = torch.randn(6, size, dtype=torch.float64)
    gradient[2] = 0  # a row that is solved from the start
    solution = gmres(lambda v: torch.einsum("bij,bi->bj", matrices, v), gradient, None, 1e-11, 200, 1.0)
    system = torch.eye(size, dtype=torch.float64) - matrices.mT
    assert solution.residual <= 1e-11
    assert torch.allclose(solution.value, torch.linalg.solve(system, gradient), atol=1e-9)


def test_gmres_restarts_and_starts_warm():
    size = 60
    matrix = torch.diag(torch.linspace(-2, 0.9, size, dtype=torch.float64))
    gradient = torch.randn(3, size, dtype=torch.float64)
    cold = gmres(lambda v: v @ matrix, gradient, None, 1e-10, 400, 1.0)
    assert cold.residual <= 1e-10
    assert cold.steps > 20
    warm = gmres(lambda v: v @ matrix, gradient, cold.value, 1e-9, 400, 1.0)
    assert warm.steps == 1


def test_implicit_of_a_step_that_forgets_its_state():
    x = signals(2, 3).requires_grad_()
    net = du.unfold((torch.zeros_like, lambda x, z: x.square()), 3, backward="implicit")
    net(x).sum().backward()
    assert torch.allclose(x.grad, 2 * x.detach())
