"""The structure of Markov random fields, and exact inference, against going through all states."""

import itertools
import math

import pytest
import torch

import deepunfold as du
from deepunfold.mrf import Graph, grid, log_partition, log_score, marginals, most_probable


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


def enumerate_all(graph, fields, pairwise):
    """log Z, marginals and the best states of one sample."""
    states = torch.tensor(list(itertools.product(*map(range, graph.counts))))
    scores = log_score(graph, fields, pairwise, states)
    probabilities = scores.softmax(0)
    chosen = torch.nn.functional.one_hot(states, graph.states).double()
    return scores.logsumexp(0), (probabilities[:, None, None] * chosen).sum(0), states[scores.argmax()]


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_elimination_is_enumeration(graph, per_sample):
    graph = graph()
    fields, pairwise = potentials(graph, per_sample=per_sample)
    log_z, beliefs = log_partition(graph, fields, pairwise), marginals(graph, fields, pairwise)
    best, score = most_probable(graph, fields, pairwise)
    for sample in range(2):
        own = pairwise[sample] if per_sample else pairwise
        expected = enumerate_all(graph, fields[sample], own)
        torch.testing.assert_close(log_z[sample], expected[0])
        torch.testing.assert_close(beliefs[sample], expected[1])
        assert torch.equal(best[sample], expected[2])
        torch.testing.assert_close(score[sample], log_score(graph, fields[sample], own, best[sample]))


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
            "the graph is too dense",
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
