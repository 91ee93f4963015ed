"""Factors over any number of nodes as pairwise models, against enumeration of the original factors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deepunfold as du
from deepunfold.mrf import BeliefPropagation, PairwiseMRF, clamp, grid, infer, log_partition, marginals, most_probable
from deepunfold.mrf import _factors as module
from deepunfold.mrf._factors import FactorGraph, from_factors, to_factors, variables


def table(states, nodes, impossible=0.0):
    values = torch.randn([states[node] for node in nodes], dtype=torch.float64)
    return values.masked_fill(torch.rand(values.shape) < impossible, -math.inf)


def factors_over(states, scopes, impossible=0.0):
    return [(nodes, table(states, nodes, impossible)) for nodes in scopes]


CASES = {
    "pairs in both orders, twice": ([2, 3, 2], [(0,), (0, 1), (1, 0), (2, 1), (0, 1), (1,), (1,)]),
    "three nodes": ([2, 3, 2], [(2, 0, 1)]),
    "a tree of three and four": ([2, 2, 3, 2, 2, 2], [(0, 1, 2), (2, 3), (3, 4, 5), (5,)]),
    "the same three in other orders": ([2, 3, 2, 2], [(0, 1, 2), (2, 0, 1), (1, 2, 0), (1, 3)]),
    "four nodes and a loop": ([2, 2, 2, 2, 2], [(3, 1, 0, 2), (0, 4), (4, 3)]),
    "overlapping": ([2, 2, 2, 2], [(0, 1, 2), (1, 2, 3)]),
    "constants": ([3, 2], [(), (0, 1), ()]),
    "one state": ([1, 3, 2], [(0, 1, 2), (0, 2), (0,)]),
    "free nodes": ([2, 4, 3], [(0,)]),
    "no factors": ([2, 3], []),
}


def score(factors, states):
    """The sum of the factors, for states (configurations, nodes)."""
    return sum(
        (values[tuple(states[:, list(nodes)].T)] for nodes, values in factors), torch.zeros(len(states)).double()
    )


def enumerate_all(counts, factors):
    """log Z, marginals of the nodes (nodes, states), and the largest score."""
    states = torch.cartesian_prod(*map(torch.arange, counts)).reshape(-1, len(counts))
    scores = score(factors, states)
    chosen = torch.nn.functional.one_hot(states, max(counts)).double()
    beliefs = (scores.softmax(0)[:, None, None] * chosen).sum(0)
    return scores.logsumexp(0), beliefs, scores.max()


def free(model):
    return torch.zeros(1, model.graph.nodes, model.graph.states, dtype=torch.float64)


def check(counts, factors):
    """Marginals, the most probable states and log Z of the model are those of the factors."""
    model = from_factors(counts, factors)
    potentials = [each.detach() for each in model(free(model))]
    log_z, expected, highest = enumerate_all(counts, factors)
    torch.testing.assert_close(log_partition(model.graph, *potentials)[0].to(log_z), log_z)
    if log_z == -math.inf:
        return
    beliefs = marginals(model.graph, *potentials)[0].double()
    rounding = 1e-10 if factors else 1e-6  # without factors nothing says that it should be float64
    torch.testing.assert_close(beliefs[: len(counts), : max(counts)], expected, rtol=rounding, atol=1e-12)
    assert bool((beliefs[: len(counts), max(counts) :] == 0).all())
    found, top = most_probable(model.graph, *potentials)
    torch.testing.assert_close(top[0].to(highest), highest)
    torch.testing.assert_close(score(factors, found[:, : len(counts)])[0], highest)


@pytest.mark.parametrize("impossible", [0.0, 0.3])
@pytest.mark.parametrize(("counts", "scopes"), CASES.values(), ids=CASES)
def test_the_model_is_that_of_the_factors(counts, scopes, impossible):
    check(counts, factors_over(counts, scopes, impossible))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_factors(data):
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    scope = st.permutations(range(len(counts))).flatmap(
        lambda nodes: st.integers(0, min(3, len(nodes))).map(lambda count: nodes[:count])
    )
    scopes = data.draw(st.lists(scope, max_size=5))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    check(counts, factors_over(counts, scopes, data.draw(st.sampled_from([0.0, 0.3, 0.8]))))


def test_joint_marginals_of_the_nodes_of_a_factor():
    """An auxiliary node's marginals are the joint ones of its variables, the last of them changing fastest."""
    counts, scopes = [2, 3, 2, 2], [(2, 0, 1), (1, 3)]
    factors = factors_over(counts, scopes, 0.2)
    model = from_factors(counts, factors)
    beliefs = marginals(model.graph, *model(free(model)))[0, 4, :12]
    states = torch.cartesian_prod(*map(torch.arange, counts))
    weights = score(factors, states).softmax(0)
    expected = torch.zeros(2, 2, 3, dtype=torch.float64)
    expected.index_put_(tuple(states[:, [2, 0, 1]].T), weights, accumulate=True)
    torch.testing.assert_close(beliefs, expected.flatten())


@pytest.mark.parametrize("impossible", [0.0, 0.2])
def test_belief_propagation_is_exact_on_a_tree_of_factors(impossible):
    counts, scopes = CASES["a tree of three and four"]
    factors = factors_over(counts, scopes, impossible)
    model = from_factors(counts, factors)
    beliefs = infer(BeliefPropagation(model), free(model), steps=12)[0, : len(counts), : max(counts)]
    torch.testing.assert_close(beliefs, enumerate_all(counts, factors)[1], rtol=1e-10, atol=1e-12)


def test_observed_nodes():
    """What is clamped are the original nodes; log Z is that of the factors with these states."""
    counts, scopes = [2, 3, 2, 2], [(0, 1, 2), (1, 3), (3,)]
    factors = factors_over(counts, scopes)
    model = from_factors(counts, factors)
    held = torch.full((1, model.graph.nodes), -1)
    held[0, 1] = 2
    log_z = log_partition(model.graph, *model(clamp(model.graph, held).double()))
    states = torch.cartesian_prod(*map(torch.arange, counts))
    torch.testing.assert_close(log_z[0], score(factors, states[states[:, 1] == 2]).logsumexp(0))


def test_what_is_where():
    states = [2, 3, 2]
    scopes = [(1, 0), (2,), (0, 2, 1), (0, 1), (), (1, 2)]
    given = dict(zip(scopes, factors_over(states, scopes), strict=True))
    tables = {nodes: values for nodes, (_, values) in given.items()}
    model = from_factors(states, given.values(), ["a", "b", "c"])
    graph = model.graph
    assert isinstance(graph, FactorGraph)
    assert (graph.variables, variables(graph), graph.scopes) == (3, 3, [(0, 2, 1)])
    assert graph.names == ["a", "b", "c", "(a, c, b)"]
    assert graph.counts == [2, 3, 2, 12]
    assert graph.edges.tolist() == [[1, 0], [1, 2], [3, 0], [3, 2], [3, 1]]
    torch.testing.assert_close(model.pairwise[0, :3, :2], tables[1, 0] + tables[0, 1].T)
    assert torch.equal(model.pairwise[1, :3, :2], tables[1, 2])
    assert torch.equal(model.unary[3, :12], tables[0, 2, 1].flatten())
    assert torch.equal(model.unary[0, :2], tables[()].expand(2))
    assert torch.equal(model.unary[2, :2], tables[2,])
    member = torch.tensor([0, 1, 2] * 4)  # the state of b, the last one, in each joint state
    link = model.pairwise[4, :12, :3].detach()
    assert torch.equal(link, torch.zeros(12, 3).double().masked_fill(member[:, None] != torch.arange(3), -math.inf))


@pytest.mark.parametrize(("counts", "scopes"), CASES.values(), ids=CASES)
def test_there_and_back(counts, scopes):
    """A model, as factors, gives the same model to the last bit."""
    model = from_factors(counts, factors_over(counts, scopes, 0.2))
    states, factors = to_factors(model)
    assert states == counts
    assert_same(from_factors(states, factors), model)


def assert_same(one, other):
    assert torch.equal(one.graph.edges, other.graph.edges)
    assert (one.graph.counts, one.graph.scopes) == (other.graph.counts, other.graph.scopes)
    assert torch.equal(one.unary, other.unary.to(one.unary))
    assert torch.equal(one.pairwise, other.pairwise.to(one.pairwise))


def test_factors_of_models_of_all_kinds():
    graph = grid(2, 3)
    shared = PairwiseMRF(graph, torch.randn(2, 2, 2).double(), groups=torch.tensor([0, 1, 1, 0, 1, 0, 0]))
    torch.testing.assert_close(from_factors(*to_factors(shared)).pairwise, shared.tables(torch.zeros(1)))
    per_input = PairwiseMRF(graph, unary=torch.randn(6, 2).double())
    x = torch.randn(1, 6, 2).double(), torch.randn(1, 7, 2, 2).double()
    whole = from_factors(*to_factors(per_input, x))
    assert torch.equal(whole.unary, x[0][0] + per_input.unary)
    assert torch.equal(whole.pairwise, x[1][0])
    assert not any(values.requires_grad for _, values in to_factors(shared)[1])


def test_changed_edges_of_an_auxiliary_node_go_into_its_factor():
    model = from_factors([2, 2, 2], factors_over([2, 2, 2], [(0, 1, 2)]))
    model.pairwise.data += 0.3 * torch.randn_like(model.pairwise)
    states, factors = to_factors(model)
    expected = log_partition(model.graph, *model(free(model))).detach()
    torch.testing.assert_close(enumerate_all(states, factors)[0], expected[0])
    model.pairwise.data[1, 0, 1] = 0.0
    with pytest.raises(ValueError, match="edge 1 of auxiliary node 3 allows states that do not agree"):
        to_factors(model)


def test_single_precision_stays_and_mixed_becomes_double():
    single = [((0,), torch.randn(2)), ((0, 1, 2), torch.randn(2, 2, 2))]
    assert from_factors([2, 2, 2], single).pairwise.dtype == torch.float32
    assert from_factors([2, 2, 2], [*single, ((1,), torch.randn(2).double())]).unary.dtype == torch.float64


def test_names_are_all_different():
    states = [2] * 4
    factors = factors_over(states, [(0, 1, 2), (0, 1, 3)])
    model = from_factors(states, factors, ["a", "b", "(a, b, d)", "d"])
    assert model.graph.names == ["a", "b", "(a, b, d)", "d", "(a, b, (a, b, d))", "(a, b, d)'"]
    assert from_factors(states, factors).graph.names == []


def test_a_trained_model_is_one_of_factors_still():
    model = from_factors([2, 3, 2], factors_over([2, 3, 2], [(0, 1, 2), (1, 2)], 0.2))
    impossible = model.pairwise == -math.inf
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (-probability_of_a_state(model).log()).backward()
        optimizer.step()
    assert torch.equal(model.pairwise == -math.inf, impossible)
    expected = log_partition(model.graph, *model(free(model))).detach()[0]
    torch.testing.assert_close(enumerate_all(*to_factors(model))[0], expected)


def probability_of_a_state(model):
    """The probability of the last state of node 1, as something to train."""
    held = torch.full((1, model.graph.nodes), -1)
    held[0, 1] = 2
    both = torch.cat([clamp(model.graph, held).double(), free(model)])
    observed, total = log_partition(model.graph, *model(both))
    return (observed - total).exp()


def test_gradients_stay_finite_where_states_do_not_agree():
    model = from_factors([2, 3, 2], factors_over([2, 3, 2], [(0, 1, 2), (1, 2)], 0.2))
    log_partition(model.graph, *model(free(model))).sum().backward()
    for parameter in model.parameters():
        assert bool(torch.isfinite(parameter.grad).all())


def test_a_model_with_factors_is_kept_in_files(tmp_path):
    algorithm = du.algorithms.ISTA(torch.eye(4))
    algorithm.model = from_factors([2, 3, 2], factors_over([2, 3, 2], [(0, 1, 2), (1, 2)]), "abc")
    du.save(du.unfold(algorithm, 2), tmp_path / "net.safetensors")
    model = du.load(tmp_path / "net.safetensors", allow_non_finite=True).layers[0].model
    assert_same(model, algorithm.model)
    assert (model.graph.variables, model.graph.names) == (3, ["a", "b", "c", "(a, b, c)"])


@pytest.mark.parametrize(
    ("states", "factor", "message"),
    [
        ([2, 2], ((0, 2), torch.zeros(2, 2)), r"factor 0 is over nodes \(0, 2\), but there are nodes 0 to 1"),
        ([2, 2], ((-1,), torch.zeros(2)), r"factor 0 is over nodes \(-1,\), but there are nodes 0 to 1"),
        ([2, 2], ((1, 0, 1), torch.zeros(2, 2, 2)), r"factor 0 is over nodes \(1, 0, 1\), of which one is there twice"),
        ([2, 3], ((0, 1), torch.zeros(3, 2)), r"factor 0 over nodes \(0, 1\) has the shape \(3, 2\); give \(2, 3\)"),
        ([2, 3], ((1,), torch.zeros(3, 1)), r"factor 0 over nodes \(1,\) has the shape \(3, 1\); give \(3,\)"),
        ([2], ((0,), torch.zeros(2, dtype=torch.int64)), "factor 0 is of torch.int64; give float32 or float64"),
        ([2], ((0,), torch.tensor([0.0, math.inf])), r"factor 0 has values that are NaN or \+inf"),
        ([2], ((0,), torch.tensor([0.0, math.nan])), r"factor 0 has values that are NaN or \+inf"),
        ([2, 0], ((0,), torch.zeros(2)), "give at least one node, each with at least one state"),
        ([], ((), torch.zeros(())), "give at least one node, each with at least one state"),
    ],
)
def test_bad_factors(states, factor, message):
    with pytest.raises(ValueError, match=message):
        from_factors(states, [factor])


def test_bad_names_and_scopes():
    for names in (["a"], ["a", "a", "b"], ["a", "b", "c", "d"]):
        with pytest.raises(ValueError, match="different names were given for 3 nodes"):
            from_factors([2, 2, 2], [((0, 1, 2), torch.zeros(2, 2, 2))], names)
    for scope in ((0, 1), (0, 1, 1), (0, 1, 3), (-1, 0, 1)):
        with pytest.raises(ValueError, match="must be three or more different variables of 0 to 2"):
            FactorGraph([], [2, 2, 2], [scope])


def test_an_input_where_one_is_needed():
    model = PairwiseMRF(grid(2, 2), unary=torch.zeros(4, 2))
    with pytest.raises(ValueError, match="potentials come with its input; give x, the input of one sample"):
        to_factors(model)
    with pytest.raises(ValueError, match="x has 2 samples; give one"):
        to_factors(model, (torch.zeros(2, 4, 2), torch.zeros(2, 4, 2, 2)))


def test_what_would_be_too_large():
    """Nothing is allocated before."""
    states = [4] * 7
    with pytest.raises(ValueError, match=r"8 nodes and 7 edges, padded to the 16384 states .* need 1.88e\+09 numbers"):
        from_factors(states, [(range(7), torch.zeros(states))])
    with pytest.raises(ValueError, match="2 nodes and 0 edges, padded to the 1000000000000 states"):
        from_factors([2, 10**12], [])
    assert module.LARGEST < 1 << 30
