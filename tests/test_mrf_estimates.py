"""What messages say of log Z and of pairs, against exact inference, and the bounds that must hold."""

import pytest
import torch

import deepunfold as du
from deepunfold.mrf import (
    BeliefPropagation,
    Graph,
    MeanField,
    MessagePassing,
    PairwiseMRF,
    TreeReweighted,
    checkerboard,
    edge_appearances,
    energy_estimate,
    grid,
    label_loss,
    log_partition,
    marginal_loss,
    marginals,
    pair_marginals,
    sequential,
)

DOUBLE = {"dtype": torch.float64}


def tree(nodes):
    return [(int(torch.randint(number, (1,))), number) for number in range(1, nodes)]


def problem(graph, scale=1.0, batch=3):
    model = PairwiseMRF(graph, scale * torch.randn(len(graph.edges), graph.states, graph.states, **DOUBLE)).double()
    return model, torch.randn(batch, graph.nodes, graph.states, **DOUBLE)


GRAPHS = {
    "grid": lambda: grid(3, 4),
    "mixed": lambda: Graph([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 0)], [2, 3, 2, 4, 3]),
}


@pytest.mark.parametrize("counts", [[4] * 8, [2, 3, 1, 4, 2, 3]])
def test_on_trees_all_is_exact(counts):
    graph = Graph(tree(len(counts)), counts)
    model, x = problem(graph)
    algorithm = BeliefPropagation(model)
    state = du.iterate(algorithm, x, until=1e-13).state
    exact = log_partition(graph, x, model.pairwise)
    torch.testing.assert_close(algorithm.log_partition(x, state), exact)
    torch.testing.assert_close(algorithm.pair_marginals(x, state), pair_marginals(graph, x, model.pairwise))


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_a_fixed_point_is_a_stationary_point(graph, lambda_):
    """Where messages stand still, pairs agree with nodes, and no nearby beliefs that agree change the estimate."""
    graph = graph()
    model, x = problem(graph, 0.3)
    algorithm = MessagePassing(model, lambda_=lambda_)
    result = du.iterate(algorithm, x, until=1e-13)
    assert bool(result.converged.all())
    nodes, pairs = result.value, algorithm.pair_marginals(x, result.state)
    torch.testing.assert_close(pairs.sum(-1), nodes[:, graph.edges[:, 0]])
    torch.testing.assert_close(pairs.sum(-2), nodes[:, graph.edges[:, 1]])

    # Towards other beliefs that agree: those of another random field on the same graph.
    other_model, other_x = problem(graph)
    other = pair_marginals(graph, other_x, other_model.pairwise)
    step = torch.zeros(3, **DOUBLE, requires_grad=True)
    near = pairs + step[:, None, None, None] * (other - pairs).detach()
    ends = near.new_zeros(nodes.shape).index_add(1, graph.edges[:, 0], near.sum(-1))
    near_nodes = ends.index_add(1, graph.edges[:, 1], near.sum(-2)) / graph.degrees[:, None]
    weighted = () if lambda_ == 0 else (near, 1 / lambda_)
    estimate = energy_estimate(graph, x, model.pairwise.detach(), near_nodes, *weighted)
    torch.testing.assert_close(estimate, algorithm.log_partition(x, result.state))
    (slope,) = torch.autograd.grad(estimate.sum(), step)
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-9, rtol=0)


@pytest.mark.parametrize("scale", [0.5, 2.0, 5.0])
def test_tree_reweighting_is_an_upper_bound(scale):
    for graph in (grid(3, 4), grid(3, 3, 3), Graph([(0, 1), (1, 2), (2, 0), (2, 3)], [2, 3, 2, 4])):
        model, x = problem(graph, scale)
        algorithm = TreeReweighted(model, alpha=0.5)
        result = du.iterate(algorithm, x, until=1e-9, max_steps=5000)
        assert bool(result.converged.all())
        bound, exact = algorithm.log_partition(x, result.state), log_partition(graph, x, model.pairwise)
        assert bool((bound >= exact - 1e-6).all())
    on_tree = Graph(tree(6), 3, 6)
    assert torch.equal(edge_appearances(on_tree), torch.ones(5, **DOUBLE))
    model, x = problem(on_tree)
    algorithm = TreeReweighted(model)
    state = du.iterate(algorithm, x, until=1e-13).state
    torch.testing.assert_close(algorithm.log_partition(x, state), log_partition(on_tree, x, model.pairwise))


@pytest.mark.parametrize("schedule", [sequential, checkerboard], ids=["sequential", "checkerboard"])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_mean_field_in_turns_never_lowers_its_bound(graph, schedule):
    graph = graph()
    model, x = problem(graph, 3.0)
    algorithm = MeanField(model, alpha=schedule(graph))
    states = du.unfold(algorithm, 60).states(x, range(61))
    bounds = torch.stack([algorithm.bound(x, state) for state in states])
    assert bool((bounds[1:] >= bounds[:-1] - 1e-10).all())
    assert bool((bounds[-1] > bounds[0]).all())
    assert bool((bounds <= log_partition(graph, x, model.pairwise) + 1e-10).all())


def test_mean_field_stands_still_where_its_bound_does():
    """Its result is a stationary point of the bound over all products of marginals."""
    graph = grid(3, 3, 3)
    model, x = problem(graph, 0.5)
    algorithm = MeanField(model, alpha=checkerboard(graph))
    state = du.iterate(algorithm, x, until=1e-14).state
    logits = state[0].transpose(1, 2).log().requires_grad_()
    energy_estimate(graph, x, model.pairwise, logits.softmax(-1)).sum().backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-9, rtol=0)


def test_on_loops_the_estimate_is_another_number():
    """Or the tests above would prove little."""
    graph = grid(3, 3)
    model, x = problem(graph, 2.0)
    algorithm = BeliefPropagation(model, alpha=0.5)
    result = du.iterate(algorithm, x, max_steps=2000)
    gap = (algorithm.log_partition(x, result.state) - log_partition(graph, x, model.pairwise)).abs()
    assert bool((gap > 1e-4).all())
    assert float((result.value - marginals(graph, x, model.pairwise)).abs().max()) > 1e-3


def test_estimates_are_refused_where_they_have_no_meaning():
    model, x = problem(grid(2, 2))
    for settings in ({"kappa": 2.0}, {"lambda_": torch.linspace(0.1, 1, 8)}):
        algorithm = MessagePassing(model, **settings)
        with pytest.raises(ValueError, match="known for kappa = 1 and a lambda that is the same both ways"):
            algorithm.log_partition(x, algorithm.init(x))
    with pytest.raises(ValueError, match="appearances are probabilities, but the largest is 2"):
        TreeReweighted(model, torch.full((4,), 2.0))


def test_losses_are_divergences():
    """Zero for equal marginals, by its definition otherwise, with gradients where something is impossible."""
    graph = Graph([(0, 1), (1, 2)], [2, 3, 2])
    model, x = problem(graph)
    exact = marginals(graph, x, model.pairwise).detach()
    assert float(marginal_loss(exact.log(), exact)) == pytest.approx(0, abs=1e-12)
    logits = torch.randn(3, 3, 3, **DOUBLE).masked_fill(graph.padding < 0, -torch.inf).requires_grad_()
    estimate = logits.log_softmax(-1)
    expected = torch.special.xlogy(exact, exact / estimate.exp().clamp(min=1e-300)).sum(-1).mean()
    loss = marginal_loss(estimate, exact)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert bool(torch.isfinite(logits.grad).all())
    labels = torch.tensor([[1, 2, -1], [0, -1, 1], [-1, 0, 0]])
    own = [-estimate[b, n, labels[b, n]] for b in range(3) for n in range(3) if labels[b, n] >= 0]
    torch.testing.assert_close(label_loss(estimate, labels), torch.stack(own).mean())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: marginal_loss(torch.zeros(2, 3, 2), torch.zeros(2, 3)), r"give \(2, 3, 2\)"),
        (lambda: label_loss(torch.zeros(2, 3, 2), torch.zeros(2, 3)), r"whole numbers \(2, 3\)"),
        (lambda: label_loss(torch.zeros(2, 3, 2), torch.full((2, 3), -1)), "no label is known"),
    ],
)
def test_losses_of_what_does_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()
