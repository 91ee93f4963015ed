"""Estimates of log Z from beliefs, by their bounds and where they are exact; edges in random spanning trees."""

import itertools
import math

import pytest
import torch

from deepunfold.mrf import Graph, grid, log_partition, log_score, marginals
from deepunfold.mrf._appearances import edge_appearances
from deepunfold.mrf._energies import energy_estimate
from deepunfold.mrf._enumeration import enumeration
from deepunfold.mrf._exact import pair_marginals

INF = math.inf
# Two triangles on a bridge, with branches, another part, and a node alone.
SEVERAL = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 3), (5, 8), (7, 6)]


def tree(nodes):
    return [(int(torch.randint(number, (1,))), number) for number in range(1, nodes)]


def complete(nodes):
    return Graph(list(itertools.combinations(range(nodes), 2)), 2, nodes)


def cycle(nodes):
    return Graph([(number, (number + 1) % nodes) for number in range(nodes)], 2, nodes)


def potentials(graph, batch=3, scale=2.0):
    pairwise = scale * torch.randn(batch, len(graph.edges), graph.states, graph.states, dtype=torch.float64)
    return torch.randn(batch, graph.nodes, graph.states, dtype=torch.float64), pairwise


def random_beliefs(graph, batch=3):
    return (torch.randn(batch, graph.nodes, graph.states, dtype=torch.float64) + graph.padding).softmax(-1)


def exact(graph, fields, pairwise):
    return marginals(graph, fields, pairwise), pair_marginals(graph, fields, pairwise)


def test_bethe_is_exact_on_trees():
    for graph in (Graph(tree(12), 5, 12), Graph([(1, 0), (1, 2)], [2, 4, 3]), Graph([(0, 1), (3, 2)], 3, 5)):
        fields, pairwise = potentials(graph)
        estimate = energy_estimate(graph, fields, pairwise, *exact(graph, fields, pairwise))
        torch.testing.assert_close(estimate, log_partition(graph, fields, pairwise))


def test_mean_field_falls_short_by_the_divergence():
    """L = log Z - KL(q | p), for any product q."""
    for graph in (grid(2, 3, states=3), Graph([(1, 0), (1, 2), (2, 0)], [2, 4, 3])):
        fields, pairwise = potentials(graph)
        beliefs = random_beliefs(graph)
        bound = energy_estimate(graph, fields, pairwise, beliefs)
        log_z = log_partition(graph, fields, pairwise)
        states = torch.tensor(list(itertools.product(*map(range, graph.counts))))
        for sample in range(3):
            q = beliefs[sample].log().expand(len(states), -1, -1).gather(-1, states[..., None]).sum((1, 2))
            p = log_score(graph, fields[sample], pairwise[sample], states) - log_z[sample]
            divergence = (q.exp() * (q - p)).sum()
            assert divergence > 0
            torch.testing.assert_close(bound[sample], log_z[sample] - divergence)


def test_information_is_what_parts_mean_field_from_bethe():
    """With products as pairs every weight gives the same; no pairs at all, too."""
    graph = grid(3, 3)
    fields, pairwise = potentials(graph)
    beliefs = random_beliefs(graph)
    first, second = (beliefs[:, graph.edges[:, end]] for end in (0, 1))
    products = first[..., None] * second[..., None, :]
    bound = energy_estimate(graph, fields, pairwise, beliefs)
    for weights in (0.0, 1.0, edge_appearances(graph)):
        torch.testing.assert_close(energy_estimate(graph, fields, pairwise, beliefs, products, weights), bound)


@pytest.mark.parametrize("scale", [0.3, 2.0, 10.0])
def test_trees_bound_log_z_from_above(scale):
    """At the exact marginals, and so at the largest value over consistent beliefs."""
    for graph in (complete(6), grid(4, 4), grid(3, 3, states=3), Graph(SEVERAL, 2, 10)):
        fields, pairwise = potentials(graph, scale=scale)
        beliefs = exact(graph, fields, pairwise)
        estimate = energy_estimate(graph, fields, pairwise, *beliefs, edge_appearances(graph))
        assert bool((estimate > log_partition(graph, fields, pairwise) - 1e-10).all())


def spanning_trees(graph):
    """As the edges that they have, by trying all sets of the right size."""
    edges = graph.edges.tolist()
    for chosen in itertools.combinations(range(len(edges)), graph.nodes - 1):
        part = list(range(graph.nodes))
        for one, other in (edges[number] for number in chosen):
            part = [part[one] if each == part[other] else each for each in part]
        if len(set(part)) == 1:
            yield chosen


def test_tree_reweighting_is_the_mean_of_trees():
    """Counted over all spanning trees: how often they have an edge, and the mean of their estimates."""
    graph = Graph([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 0), (1, 3), (5, 4)], 2, 6)
    trees = torch.zeros(0, 8, dtype=torch.float64)
    for chosen in spanning_trees(graph):
        trees = torch.cat([trees, torch.zeros(1, 8, dtype=torch.float64).index_fill(1, torch.tensor(chosen), 1)])
    torch.testing.assert_close(edge_appearances(graph), trees.mean(0))
    fields, pairwise = potentials(graph)
    beliefs = exact(graph, fields, pairwise)
    each = torch.stack([energy_estimate(graph, fields, pairwise, *beliefs, weights) for weights in trees])
    estimate = energy_estimate(graph, fields, pairwise, *beliefs, edge_appearances(graph))
    torch.testing.assert_close(estimate, each.mean(0))


@pytest.mark.parametrize("nodes", [3, 4, 9, 50])
def test_closed_forms_of_appearances(nodes):
    for graph, expected in (
        (Graph(tree(nodes), 2, nodes), 1.0),
        (cycle(nodes), 1 - 1 / nodes),
        (complete(nodes), 2 / nodes),
    ):
        found = edge_appearances(graph)
        torch.testing.assert_close(found, torch.full_like(found, expected))


def test_appearances_are_resistances():
    """By the pseudo-inverse of the whole Laplacian, with several parts, branches and bridges."""
    pairs = torch.randint(60, (110, 2)).sort(1).values.unique(dim=0)
    graphs = (grid(5, 7), Graph(SEVERAL, 2, 10), Graph(pairs[pairs[:, 0] < pairs[:, 1]], 2, 60))
    for graph in graphs:
        first, second = graph.edges.T
        incidence = torch.zeros(len(first), graph.nodes, dtype=torch.float64)
        incidence[torch.arange(len(first)), first], incidence[torch.arange(len(first)), second] = 1.0, -1.0
        inverse = torch.linalg.pinv(incidence.T @ incidence, hermitian=True)
        torch.testing.assert_close(edge_appearances(graph), (incidence @ inverse @ incidence.T).diag())


def test_appearances_sum_to_the_edges_of_a_tree():
    several = edge_appearances(Graph(SEVERAL, 2, 10))
    assert float(several.sum()) == pytest.approx(10 - 3)  # nodes minus parts
    assert bool((several <= 1).all())
    assert several[[3, 7, 8]].tolist() == pytest.approx([1.0, 1.0, 1.0])  # the bridge and the branches
    assert float(edge_appearances(grid(20, 30)).sum()) == pytest.approx(599)
    assert edge_appearances(Graph([], 2, 3)).shape == (0,)


@pytest.mark.parametrize("pairs", [False, True])
def test_gradients(pairs):
    graph = Graph([(0, 1), (1, 2), (2, 0)], [2, 3, 2])
    fields, pairwise = potentials(graph, 2)
    joint = pair_marginals(graph, fields, pairwise)
    present = graph.padding == 0
    inputs = [fields, pairwise, random_beliefs(graph, 2)[:, present], *([joint + 0.1, torch.rand(3).double()] * pairs)]

    def estimate(fields, pairwise, own, *rest):
        spread = torch.zeros(2, 3, 3, dtype=torch.float64).masked_scatter(present, own)
        return energy_estimate(graph, fields, pairwise, spread, *rest)

    assert torch.autograd.gradcheck(estimate, [each.requires_grad_() for each in inputs])


def test_zero_beliefs_and_impossible_states():
    graph = grid(2, 2)
    fields, pairwise = potentials(graph, 1)
    pairwise[:, 0, 0, 1] = pairwise[:, 0, 1, 0] = -INF  # nodes 0 and 1 are equal
    fields[0, 3, 1] = -INF
    expected = enumeration(graph, fields, pairwise)
    beliefs = [each.requires_grad_() for each in (expected.marginals, expected.pair_marginals)]
    inputs = [fields.requires_grad_(), pairwise.requires_grad_(), *beliefs]
    estimate = energy_estimate(graph, *inputs, edge_appearances(graph))
    assert bool((estimate >= expected.log_partition).all())
    assert all(bool(each.isfinite().all()) for each in torch.autograd.grad(estimate.sum(), inputs))
    held = torch.tensor([[1.0, 0], [1, 0], [0, 1], [1, 0]], dtype=torch.float64)[None]
    score = log_score(graph, fields[0], pairwise[0], held[0].argmax(-1))
    torch.testing.assert_close(energy_estimate(graph, fields, pairwise, held)[0], score)  # of one state, no entropy
    for wrong in (held.flip(-1), held[:, [1, 2, 3, 0]]):  # node 3 in state 1; nodes 0 and 1 different
        assert energy_estimate(graph, fields, pairwise, wrong).tolist() == [-INF]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fields": torch.zeros(1, 4, 3)}, r"fields have the shape \(1, 4, 3\); give \(batch, 4, 2\)"),
        ({"beliefs": torch.zeros(2, 4, 2)}, r"beliefs have the shape \(2, 4, 2\); give \(1, 4, 2\)"),
        ({"pair_beliefs": torch.zeros(4, 2, 2)}, r"pair_beliefs have the shape \(4, 2, 2\); give \(1, 4, 2, 2\)"),
        ({"weights": torch.ones(3)}, r"weights have the shape \(3,\); give one number, or one per edge, \(4,\)"),
    ],
)
def test_bad_input(changes, message):
    right = {"fields": torch.zeros(1, 4, 2), "pairwise": torch.zeros(4, 2, 2), "beliefs": torch.full((1, 4, 2), 0.5)}
    assert float(energy_estimate(grid(2, 2), **right)) == pytest.approx(4 * math.log(2))
    with pytest.raises(ValueError, match=message):
        energy_estimate(grid(2, 2), **(right | changes))


def test_too_wide_a_graph():
    star = Graph([(0, number) for number in range(1, 5001)] + [(number, 5001) for number in range(1, 5001)], 2, 5002)
    with pytest.raises(ValueError, match=r"5000 nodes are at the same distance .* too long with more than 4096"):
        edge_appearances(star)
