"""Split gradients: the general engine on any graph, the closed form of deep NMF, and where the two agree."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import deepunfold as du
from deepunfold.nmf import (
    DeepNMFLoss,
    MultiplicativeLoss,
    NMFInference,
    beta_divergence,
    context,
    deep_nmf,
    divergence_split,
    split_gradients,
)
from tests.cases import bases

T, F = 3, 6


def positive(*shape):
    return (torch.rand(*shape, dtype=torch.float64) + 0.1).requires_grad_()


def seeds(output):
    return torch.rand_like(output), torch.rand_like(output)


def check_difference(output, parameters):
    """Both parts are non-negative, and their difference is what autograd gives."""
    upper, lower = seeds(output)
    splits = split_gradients([output], [(upper, lower)], parameters)
    expected = torch.autograd.grad(output, parameters, upper - lower, allow_unused=True)
    for split, gradient in zip(splits, expected, strict=True):
        assert bool((split.positive >= 0).all())
        assert bool((split.negative >= 0).all())
        gradient = torch.zeros_like(split.positive) if gradient is None else gradient
        torch.testing.assert_close(split.positive - split.negative, gradient)
    return splits, upper, lower


class Scaled(torch.autograd.Function):
    """An operation written in Python, with an argument that is no tensor and one that wants no gradient."""

    @staticmethod
    def forward(ctx, name, scale, x, y):
        ctx.save_for_backward(x, y)
        ctx.scale = scale
        return scale * x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return None, None, ctx.scale * gradient * y, ctx.scale * gradient * x


GRAPHS = {
    "product": lambda a, b: a * b,
    "matrix product": lambda a, b: a @ b.mT,
    "batched product": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "quotient": lambda a, b: a / b,
    "sums": lambda a, b: a.sum(0) + b.mean(1, keepdim=True),
    "powers": lambda a, b: a**1.5 + b**-0.7 + a.sqrt() + b.square() + 1 / a,
    "broadcast": lambda a, b: (a[:1] * b) / (1 + b[:, :1]),
    "pieces": lambda a, b: torch.cat([a[:, 1:].split(1, 1)[1], b.unbind(1)[0][:, None]], 1) * a[:, :1],
    "largest": lambda a, b: torch.maximum(a, b) + a.amax(1, keepdim=True),
    "used twice": lambda a, b: (a * b) * (a / b) + a,
    "difference": lambda a, b: (a + 1) - 0.1 * b,
    "any sign": lambda a, b: torch.softmax(a - b, 1) * torch.sin(5 * a),
    "in Python": lambda a, b: Scaled.apply("name", 3.0, a, b) * Scaled.apply("name", 2.0, a.detach(), b),
    "checkpointed": lambda a, b: checkpoint(lambda x, y: (x * y).sqrt() / y.sum(), a, b, use_reentrant=False),
    "decomposition": lambda a, b: torch.linalg.svdvals(a) + b[:, 0],
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_difference_is_the_gradient(graph):
    a, b, unused = positive(4, 4), positive(4, 4), positive(2)
    check_difference(graph(a, b), [a, b, unused])


def test_parts_follow_the_rules_of_the_appendix():
    a, b = positive(4, 5), positive(4, 5)
    matrix = positive(3, 5)
    (for_a, for_b), upper, lower = check_difference(a / b, [a, b])
    torch.testing.assert_close(for_a.positive, upper / b)
    torch.testing.assert_close(for_b.positive, lower * a / b**2)
    torch.testing.assert_close(for_b.negative, upper * a / b**2)
    (for_a, for_m), upper, lower = check_difference(a @ matrix.mT, [a, matrix])
    torch.testing.assert_close(for_a.positive, upper @ matrix)
    torch.testing.assert_close(for_m.negative, lower.mT @ a)
    (for_a,), upper, lower = check_difference(a**-2.0, [a])
    torch.testing.assert_close(for_a.positive, lower * 2 * a**-3)
    torch.testing.assert_close(for_a.negative, upper * 2 * a**-3)


def test_parts_of_several_paths_add_up():
    a = positive(3)
    (split,), upper, lower = check_difference(a * a, [a])
    torch.testing.assert_close(split.positive, 2 * upper * a)
    torch.testing.assert_close(split.negative, 2 * lower * a)


def test_several_outputs_and_a_parameter_that_is_one():
    a, b = positive(3), positive(3)
    one = torch.ones(3, dtype=torch.float64)
    splits = split_gradients([a * b, a], [(one, 0 * one), (0 * one, 2 * one)], [a, b])
    torch.testing.assert_close(splits[0].positive, b.detach())
    torch.testing.assert_close(splits[0].negative, 2 * one)
    torch.testing.assert_close(splits[1].positive, a.detach())


def test_the_graph_can_be_used_again():
    a = positive(3)
    output = a * a
    first = split_gradients([output], [(torch.ones(3), torch.zeros(3))], [a])[0]
    second = split_gradients([output], [(torch.ones(3), torch.zeros(3))], [a])[0]
    output.sum().backward()
    torch.testing.assert_close(first.positive, second.positive)
    torch.testing.assert_close(a.grad, first.positive)


# -- deep NMF --------------------------------------------------------------------------------------------------------


def problem(sizes=(4, 3, 2), frames=23):
    columns = [torch.rand(T * F, size, dtype=torch.float64) for size in sizes]
    sources = torch.rand(frames, len(sizes), F, dtype=torch.float64)
    return [own / own.norm(dim=0) for own in columns], context(sources.sum(1), T), sources


def gradients(loss, net, x, target):
    net.zero_grad()
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.split_grad = None
    value = loss(net, x, target)
    value.backward()
    return value.detach(), [(parameter.grad, getattr(parameter, "split_grad", None)) for parameter in trained]


def by_autograd(beta, weights):
    def loss(net, x, target):
        weight = torch.tensor(weights or [1.0] * target.shape[1], dtype=torch.float64)[:, None]
        return (weight * beta_divergence(target, net(x), beta)).sum()

    return loss


CASES = list(itertools.product([(1, 4), (4, 5), (5, 5)], [True, False], [1, 2, 0.5], [None, (1.0, 0.0, 0.5)]))


@pytest.mark.parametrize(("depths", "filtered", "beta", "weights"), CASES)
def test_closed_form_engine_and_autograd(depths, filtered, beta, weights):
    columns, x, target = problem()
    train_last, layers = depths
    net = deep_nmf(columns, layers, train_last, context=T, sparsity=0.3, filtered=filtered, learn_sparsity=True)
    value, closed = gradients(DeepNMFLoss(beta, weights, block=7), net, x, target)
    same, engine = gradients(MultiplicativeLoss(beta, weights), net, x, target)
    expected, exact = gradients(by_autograd(beta, weights), net, x, target)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(same, expected)
    for (gradient, split), (gradient_2, split_2), (true, _) in zip(closed, engine, exact, strict=True):
        torch.testing.assert_close(gradient, true, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(gradient_2, true, rtol=1e-9, atol=1e-9)
        for part, other in zip(split, split_2, strict=True):
            assert bool((part >= 0).all())
            assert bool((other >= 0).all())
            # What the paper's form takes out of both parts, the engine leaves in.
            assert float((part - other).max()) < 1e-10


def test_parts_agree_but_for_what_the_appendix_takes_out_of_both():
    """In one update of H: W * ((M / Lambda^2)^T-weighted squares of H) is in both parts of the engine's, or in none."""
    columns, x, target = problem((3, 2), 11)
    whole = torch.cat(columns, 1)
    net = du.unfold([(NMFInference(whole, (3, 2), sparsity=0.3, filtered=False), 1)], tie="each")
    target = torch.rand(11, 2, T * F, dtype=torch.float64)
    _, closed = gradients(DeepNMFLoss(2), net, x, target)
    _, engine = gradients(MultiplicativeLoss(2), net, x, target)
    start = x.mean(1, keepdim=True).expand(-1, 5)
    state = net.layers[0].step(x, start).detach()
    sides = divergence_split(target, torch.stack([state[:, :3] @ columns[0].mT, state[:, 3:] @ columns[1].mT], 1), 2)
    above = sum(torch.cat([side[:, 0] @ columns[0], side[:, 1] @ columns[1]], 1) for side in sides)
    model = start @ whole.mT
    twice = whole * ((x / model**2).mT @ (start**2 * above / (whole.sum(0) + 0.3)))
    for part, other in zip(closed[0][1], engine[0][1], strict=True):
        torch.testing.assert_close(other - part, twice)
    for part, other in zip(closed[1][1], engine[1][1], strict=True):
        torch.testing.assert_close(other, part)


def test_the_printed_formulas_for_one_source_of_two():
    """Section "Top (K-th) layer derivative": gamma = (1, 0), squared error, Wiener filter."""
    columns, x, target = problem((3, 2), 11)
    net = deep_nmf(columns, 3, 1, context=T)
    _, ((_, split),) = gradients(DeepNMFLoss(2, (1.0, 0.0)), net, x, target)
    activations, basis, m = net.states(x, [3])[0], net.layers[3].basis.detach(), x[:, -F:]
    own, rest = activations[:, :3] @ basis[:, :3].mT, activations[:, 3:] @ basis[:, 3:].mT
    total, s = own + rest, target[:, 0]
    upper = torch.cat(
        [(m**2 * own * rest / total**3).mT @ activations[:, :3], (m * s * own / total**2).mT @ activations[:, 3:]], 1
    )
    lower = torch.cat(
        [(m * s * rest / total**2).mT @ activations[:, :3], (m**2 * own**2 / total**3).mT @ activations[:, 3:]], 1
    )
    torch.testing.assert_close(split.positive, upper)
    torch.testing.assert_close(split.negative, lower)


def test_tied_parts_are_the_sum_of_the_untied_ones():
    columns, x, target = problem()
    tied = deep_nmf(columns, 5, 4, context=T, sparsity=0.3, tie=[0, 0, 1, 1, 1, 1])
    untied = deep_nmf(columns, 5, 4, context=T, sparsity=0.3)
    _, ((gradient, split),) = gradients(DeepNMFLoss(2), tied, x, target)
    _, others = gradients(DeepNMFLoss(2), untied, x, target)
    torch.testing.assert_close(gradient, sum(each for each, _ in others))
    for side in (0, 1):
        torch.testing.assert_close(split[side], sum(parts[side] for _, parts in others))


@pytest.mark.parametrize("loss", [DeepNMFLoss(2, block=5), MultiplicativeLoss(2)])
def test_parts_of_batches_add_up(loss):
    columns, x, target = problem()
    net = deep_nmf(columns, 4, 3, context=T)
    _, whole = gradients(loss, net, x, target)
    net.zero_grad()
    for parameter in net.parameters():
        parameter.split_grad = None
    for place in (slice(0, 9), slice(9, 23)):
        loss(net, x[place], target[place]).backward()
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    for parameter, (gradient, split) in zip(trained, whole, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
        torch.testing.assert_close(tuple(parameter.split_grad), tuple(split))


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, dtype=torch.float64))

    def forward(self, x):
        return self.weight * x


def test_a_scaled_and_a_negated_loss():
    net = Weighted()
    a, target = net.weight, torch.rand(3, dtype=torch.float64)
    loss = MultiplicativeLoss(2)
    x = torch.ones(3, dtype=torch.float64)
    for scale in (2.0, -3.0):
        a.grad = a.split_grad = None
        (scale * loss(net, x, target)).backward()
        torch.testing.assert_close(a.grad, scale * (a - target).detach())
        torch.testing.assert_close(a.split_grad.positive - a.split_grad.negative, a.grad)
        assert bool((torch.stack(a.split_grad) >= 0).all())


def test_without_gradients_there_is_only_a_value():
    columns, x, target = problem()
    net = deep_nmf(columns, 3, 2, context=T)
    for loss in (DeepNMFLoss(1), MultiplicativeLoss(1)):
        with torch.no_grad():
            value = loss(net, x, target)
        assert not value.requires_grad
        torch.testing.assert_close(value, loss(net, x, target).detach())


def test_silent_frames_teach_nothing():
    columns, x, target = problem()
    net = deep_nmf(columns, 4, 3, context=T, sparsity=0.3)
    _, before = gradients(DeepNMFLoss(2), net, x, target)
    silence = torch.zeros(4, T * F, dtype=torch.float64), torch.zeros(4, 3, F, dtype=torch.float64)
    for loss in (DeepNMFLoss(2), MultiplicativeLoss(2)):
        _, after = gradients(loss, net, torch.cat([x, silence[0]]), torch.cat([target, silence[1]]))
        for (gradient, _), (other, split) in zip(before, after, strict=True):
            torch.testing.assert_close(gradient, other)
            assert bool(torch.isfinite(torch.stack(split)).all())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda net, x, s: DeepNMFLoss(2)(net, x, s[:, :1]),
            ValueError,
            r"\(23, 1, 6\); give the sources as \(23, 3, 6\)",
        ),
        (lambda net, x, s: DeepNMFLoss(2)(net, x, -s), ValueError, "the target has negative values"),
        (lambda net, x, s: DeepNMFLoss(2)(net, x[:, :4], s), ValueError, "has 4 values per frame"),
        (lambda net, x, s: DeepNMFLoss(2, (1.0,))(net, x, s), ValueError, r"weights=\(1.0,\) must be one number >= 0"),
        (lambda net, x, s: DeepNMFLoss(2, (1.0, -1.0, 0.0))(net, x, s), ValueError, "must be one number >= 0"),
        (
            lambda net, x, s: DeepNMFLoss(2)(du.unfold(NMFInference(torch.ones(18, 4)), 2), x, s),
            ValueError,
            "the network reads out activations",
        ),
        (lambda net, x, s: DeepNMFLoss(2)(net.layers[0], x, s), TypeError, "takes a network that deep_nmf makes"),
        (
            lambda net, x, s: DeepNMFLoss(2)(deep_nmf(bases(), 2, 1, beta=2.0), x[:, :7], s[:, :2]),
            ValueError,
            "the closed form is for layers with beta=1, not 2",
        ),
    ],
)
def test_bad_input(call, error, message):
    columns, x, target = problem()
    if "beta=1" in message:
        target = torch.rand(23, 3, 7, dtype=torch.float64)
    with pytest.raises(error, match=message):
        call(deep_nmf(columns, 3, 2, context=T), x, target)
