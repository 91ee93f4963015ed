"""The structure of Markov random fields, and exact inference, by enumeration and by elimination."""

import itertools
import math

import pytest
import torch

import deepunfold as du
from deepunfold.mrf import Graph, _enumeration, _exact, grid, log_partition, log_score, marginals, most_probable
from deepunfold.mrf._elimination import best_order, eliminate
from deepunfold.mrf._enumeration import enumeration
from deepunfold.mrf._exact import pair_marginals


def tree(nodes):
    return [(int(torch.randint(number, (1,))), number) for number in range(1, nodes)]


GRAPHS = {
    "tree": lambda: Graph(tree(6), 3, 6),
    "mixed states": lambda: Graph([(3, 1), (1, 0), (2, 1), (0, 3)], [2, 3, 4, 1, 2]),
    "complete": lambda: Graph(list(itertools.combinations(range(5), 2)), 2, 5),
    "grid": lambda: grid(3, 3),
    "no edges": lambda: Graph([], [2, 3]),
    "two parts": lambda: Graph([(0, 1), (3, 2)], 3, 4),
}


def potentials(graph, batch=2, per_sample=False):
    shape = (len(graph.edges), graph.states, graph.states)
    pairwise = 2 * torch.randn((batch, *shape) if per_sample else shape, dtype=torch.float64)
    return torch.randn(batch, graph.nodes, graph.states, dtype=torch.float64), pairwise


@pytest.mark.parametrize("block", [7, 1 << 12])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_enumeration_is_the_definition(graph, block, monkeypatch):
    monkeypatch.setattr(_enumeration, "BLOCK", block)
    graph = graph()
    fields, pairwise = potentials(graph)
    states = torch.tensor(list(itertools.product(*map(range, graph.counts))))
    chosen = torch.nn.functional.one_hot(states, graph.states).double()
    found = enumeration(graph, fields, pairwise)
    for sample in range(2):
        scores = log_score(graph, fields[sample], pairwise, states)
        p = scores.softmax(0)
        torch.testing.assert_close(found.log_partition[sample], scores.logsumexp(0))
        torch.testing.assert_close(found.marginals[sample], torch.einsum("n,nis->is", p, chosen))
        for edge, (one, other) in enumerate(graph.edges):
            joint = torch.einsum("n,ns,nt->st", p, chosen[:, one], chosen[:, other])
            torch.testing.assert_close(found.pair_marginals[sample, edge], joint)
        assert torch.equal(found.most_probable[sample], states[scores.argmax()])
        torch.testing.assert_close(found.score[sample], scores.max())


def all_exact(graph, fields, pairwise):
    """By elimination what enumeration gives, in its order."""
    found = [method(graph, fields, pairwise) for method in (log_partition, marginals, pair_marginals)]
    return *found, *most_probable(graph, fields, pairwise)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_elimination_is_enumeration(graph, per_sample):
    graph = graph()
    fields, pairwise = potentials(graph, per_sample=per_sample)
    expected = enumeration(graph, fields, pairwise)
    for one, other in zip(all_exact(graph, fields, pairwise), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_the_order_has_no_effect(graph, largest):
    graph = graph()
    fields, pairwise = potentials(graph)
    found = [eliminate(graph, order, fields, pairwise, largest) for order in (range(graph.nodes), *orders(graph, 3))]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def orders(graph, count):
    return [torch.randperm(graph.nodes).tolist() for _ in range(count)]


def test_work_on_grids_and_trees_is_small():
    """Along a grid no more entries than in a sweep by its shorter side; one table of S entries per node of a tree."""
    for height, width in ((4, 40), (40, 4), (12, 12)):
        order, entries = best_order(grid(height, width))
        assert sorted(order) == list(range(height * width))
        assert entries <= height * width * 2 ** min(height, width)
    assert best_order(Graph(tree(500), 3, 500))[1] == 499 * 3 + 1


def test_a_grid_by_its_transfer_matrix():
    """Rows of a 7x9 grid as one variable with 2^7 states, in plain products of matrices."""
    width, rows = 7, 9
    graph = grid(rows, width)
    fields, pairwise = potentials(graph, 1)
    states = torch.tensor(list(itertools.product(range(2), repeat=width)))
    across, down = pairwise.split([rows * (width - 1), (rows - 1) * width])
    columns = torch.arange(width)

    def row(number):
        own = fields[0, number * width + columns, states].sum(1)
        pairs = across[number * (width - 1) + columns[:-1], states[:, :-1], states[:, 1:]].sum(1)
        return (own + pairs).exp()

    def step(number):
        return down[number * width + columns, states[:, None], states[None]].sum(-1).exp()

    before, after = [row(0)], [torch.ones(2**width, dtype=torch.float64)]
    for number in range(rows - 1):
        before.append(before[-1] @ step(number) * row(number + 1))
    for number in reversed(range(rows - 1)):
        after.insert(0, step(number) @ (row(number + 1) * after[0]))
    torch.testing.assert_close(log_partition(graph, fields, pairwise)[0], before[-1].sum().log())
    ones = torch.stack([(b * a / before[-1].sum()) @ states.double() for b, a in zip(before, after, strict=True)])
    torch.testing.assert_close(marginals(graph, fields, pairwise)[0, :, 1], ones.flatten())


def test_pairs_agree_with_nodes_on_a_larger_grid():
    graph = grid(12, 12)
    fields, pairwise = potentials(graph)
    pairs, nodes = pair_marginals(graph, fields, pairwise), marginals(graph, fields, pairwise)
    torch.testing.assert_close(pairs.sum(-1), nodes[:, graph.edges[:, 0]])
    torch.testing.assert_close(pairs.sum(-2), nodes[:, graph.edges[:, 1]])
    torch.testing.assert_close(nodes.sum(-1), torch.ones(2, 144, dtype=torch.float64))


def test_samples_one_by_one(monkeypatch):
    graph = grid(3, 3)
    fields, pairwise = potentials(graph, 5, per_sample=True)
    together = all_exact(graph, fields, pairwise)
    monkeypatch.setattr(_exact, "TOGETHER", 1)
    for one, other in zip(all_exact(graph, fields, pairwise), together, strict=True):
        torch.testing.assert_close(one, other)
    assert marginals(graph, fields[:0], pairwise[:0]).shape == (0, 9, 2)


def test_of_equal_states_one_is_chosen():
    graph = grid(2, 3, states=3)
    equal = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]).expand(7, 3, 3)
    states, score = most_probable(graph, torch.zeros(1, 6, 3), equal)
    assert torch.equal(states, states[:, :1].expand(1, 6))
    assert float(score) == 7


def test_the_score_is_the_sum_of_the_potentials():
    graph = Graph([(2, 0), (1, 2)], [2, 3, 2])
    fields, pairwise = potentials(graph, 1)
    expected = fields[0, 0, 1] + fields[0, 1, 2] + fields[0, 2, 0] + pairwise[0, 0, 1] + pairwise[1, 2, 0]
    torch.testing.assert_close(log_score(graph, fields, pairwise, torch.tensor([[1, 2, 0]])), expected[None])


def test_the_ising_chain():
    """Z of an open chain of spins +-1 with coupling J and no field: 2 (2 cosh J)^(n-1)."""
    graph = Graph([(i, i + 1) for i in range(29)], 2, 30)
    coupling = torch.tensor([[0.7, -0.7], [-0.7, 0.7]], dtype=torch.float64).expand(29, 2, 2)
    log_z = log_partition(graph, torch.zeros(1, 30, 2, dtype=torch.float64), coupling)
    assert float(log_z) == pytest.approx(math.log(2) + 29 * math.log(2 * math.cosh(0.7)))


def test_impossible_states_have_no_probability():
    graph = Graph([(0, 1), (1, 2)], 2, 3)
    fields, pairwise = potentials(graph, 1)
    pairwise[0, 0, 1] = pairwise[0, 1, 0] = -math.inf  # nodes 0 and 1 are equal
    fields[0, 0, 0] = -math.inf
    beliefs = marginals(graph, fields, pairwise)
    torch.testing.assert_close(beliefs[0, :2], torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64))


def test_impossible_potentials_have_finite_gradients():
    graph = grid(2, 3, states=3)
    fields, pairwise = potentials(graph)
    pairwise[:, 0, 1] = -math.inf
    fields[0, 2, 1:] = -math.inf
    fields.requires_grad_()
    pairwise.requires_grad_()
    first = torch.autograd.grad(log_partition(graph, fields, pairwise).sum(), (fields, pairwise), create_graph=True)
    torch.testing.assert_close(first[0], enumeration(graph, fields, pairwise).marginals)
    torch.testing.assert_close(first[1], enumeration(graph, fields, pairwise).pair_marginals.sum(0))
    second = torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), (fields, pairwise))
    assert all(bool(each.isfinite().all()) for each in second)


def test_where_nothing_is_possible():
    graph = Graph([(0, 1)], 2, 2)
    fields, pairwise = torch.zeros(1, 2, 2), torch.full((1, 2, 2), -math.inf)
    for log_z, nodes, pairs in (all_exact(graph, fields, pairwise)[:3], enumeration(graph, fields, pairwise)[:3]):
        assert log_z.tolist() == [-math.inf]
        assert not nodes.any()
        assert not pairs.any()


def test_gradients_and_second_derivatives():
    """The second derivative of log Z in the fields is the covariance of the states."""
    graph = Graph([(0, 1), (1, 2), (0, 2)], 2, 3)
    fields, pairwise = potentials(graph, 1)
    inputs = fields.requires_grad_(), pairwise.requires_grad_()
    assert torch.autograd.gradcheck(lambda f, p: log_partition(graph, f, p), inputs)
    assert torch.autograd.gradgradcheck(lambda f, p: log_partition(graph, f, p), inputs)


def test_a_tree_of_many_states_and_a_long_grid_are_small_work():
    graph = Graph(tree(40), 20, 40)
    fields, pairwise = potentials(graph)
    torch.testing.assert_close(marginals(graph, fields, pairwise).sum(-1), torch.ones(2, 40, dtype=torch.float64))
    strip = grid(3, 50)
    fields, pairwise = potentials(strip)
    assert bool(torch.isfinite(log_partition(strip, fields, pairwise)).all())


def test_grid_edges():
    graph = grid(2, 3)
    assert graph.edges.tolist() == [[0, 1], [1, 2], [3, 4], [4, 5], [0, 3], [1, 4], [2, 5]]
    assert (graph.nodes, graph.states, graph.counts) == (6, 2, [2] * 6)
    assert repr(graph) == "Graph(6 nodes, 7 edges, up to 2 states)"
    large = grid(200, 200)
    assert len(large.edges) == 2 * 200 * 199


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Graph([(0, 1), (1, 3)], 2, 3), r"edge 1, \(1, 3\), leads to a node that does not exist; .* 0 to 2"),
        (lambda: Graph([(0, -1)], 2, 3), r"edge 0, \(0, -1\), leads to a node that does not exist"),
        (lambda: Graph([(0, 1), (2, 2)], 2, 3), r"edge 1, \(2, 2\), leads from a node to itself"),
        (lambda: Graph([(0, 1), (1, 2), (1, 0)], 2, 3), r"edge 2, \(1, 0\), is there twice"),
        (lambda: Graph([(0, 1, 2)], 2, 3), r"edges must be pairs of node numbers, \(edges, 2\), not \(1, 3\)"),
        (lambda: Graph(torch.rand(2, 2), 2, 3), "not .* torch.float32"),
        (lambda: Graph([], 2), "give at least one node, each with at least one state"),
        (lambda: Graph([(0, 1)], [2, 0]), "give at least one node, each with at least one state"),
        (
            lambda: log_partition(grid(2, 2), torch.zeros(1, 4, 3), torch.zeros(4, 2, 2)),
            r"fields have the shape \(1, 4, 3\); give \(batch, 4, 2\)",
        ),
        (
            lambda: log_partition(grid(2, 2), torch.zeros(1, 4, 2), torch.zeros(3, 2, 2)),
            r"pairwise has the shape \(3, 2, 2\); give \(4, 2, 2\), or these for each sample",
        ),
        (
            lambda: log_partition(grid(30, 30), torch.zeros(1, 900, 2), torch.zeros(1740, 2, 2)),
            "exact inference would need a table of more than .* entries: the graph is too dense",
        ),
        (
            lambda: enumeration(grid(5, 5), torch.zeros(1, 25, 2), torch.zeros(40, 2, 2)),
            "33554432 joint states are too many to go through, at most 4194304; use elimination",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_graph_is_kept_in_files(tmp_path):
    graph = grid(2, 2)
    other = Graph([(0, 1)], 2, 4)
    assert other.padding.shape == graph.padding.shape
    algorithm = du.algorithms.ISTA(torch.eye(4))
    algorithm.graph = graph
    net = du.unfold(algorithm, 2)
    du.save(net, tmp_path / "net.safetensors")
    assert torch.equal(du.load(tmp_path / "net.safetensors").layers[0].graph.edges, graph.edges)
