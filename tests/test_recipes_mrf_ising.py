"""The recipe of Ising grids: its networks' symmetries, its exact marginals, and a run of it."""

import json

import pytest
import torch

from deepunfold.mrf import BeliefPropagation, Graph, PairwiseMRF, enumeration, grid, infer
from recipes import mrf_ising
from recipes._ising_networks import LocalPotentials, ScaledPotentials, carried_over, network, squares
from recipes._ising_problem import SPINS, Training, draw, solve


def some(graph, count=3, strength=2.0):
    return draw(graph, torch.full((count,), strength), torch.Generator().manual_seed(0))


def shaken(net):
    """A network whose parameters are all different from where they began."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    return net


def test_exact_marginals_are_those_of_all_configurations():
    graph = grid(3, 3)
    x = some(graph)
    expected = enumeration(graph, *(part.double() for part in x)).marginals[..., 1]
    torch.testing.assert_close(solve(graph, x).up.double(), expected, atol=1e-6, rtol=0)


def test_training_graphs_have_strengths_of_the_whole_mixture():
    training = Training.of(grid(3, 3), 0.5, 4.0, 200, seed=0)
    largest = training.solved.x[1].abs().amax((1, 2, 3))
    assert float(largest.max()) <= 4 < 1.1 * float(largest.max())
    assert float(largest.min()) < 1
    (fields, pairwise), up = next(training.batches(1, 5, seed=0))
    torch.testing.assert_close(solve(grid(3, 3), (fields, pairwise)).up, up)


def test_squares_are_the_ways_round():
    graph = grid(3, 4)
    found = squares(graph)
    assert found.shape == (17, 2, 3)
    for edge, ways in enumerate(found.tolist()):
        for way in ways:
            if len(graph.edges) not in way:
                corners = graph.edges[[edge, *way]].flatten()
                assert len({edge, *way}) == 4
                assert torch.bincount(corners).unique().tolist() == [0, 2]  # a closed way through four nodes
    ways_of_edge = (found[..., 0] < 17).sum(1)
    assert int(ways_of_edge.sum()) == 4 * 6  # each of six squares is seen from its four edges
    assert squares(Graph([(0, 1), (1, 2)], 2, 3)).shape == (2, 0)


@pytest.mark.parametrize("potentials", [ScaledPotentials, LocalPotentials])
def test_networks_begin_as_damped_belief_propagation(potentials):
    graph = grid(4, 4)
    x = some(graph)
    expected = infer(BeliefPropagation(PairwiseMRF(graph), alpha=0.5), x, 5)
    torch.testing.assert_close(network(potentials(graph), 5, "each")(x), expected, atol=1e-5, rtol=0)


def test_what_a_spin_is_called_is_of_no_consequence():
    graph = grid(4, 4)
    fields, pairwise = some(graph)
    flips = torch.where(torch.rand(graph.nodes) < 0.5, -1.0, 1.0)
    signs = flips[graph.edges].prod(1)
    flipped = (fields * flips[:, None], pairwise * signs[:, None, None])
    net = shaken(network(LocalPotentials(graph), 4, "each"))
    spins, others = ((net(x) * SPINS).sum(-1) for x in ((fields, pairwise), flipped))
    torch.testing.assert_close(spins * flips, others, atol=1e-5, rtol=1e-4)
    assert float(spins.detach().std()) > 0.1


def test_a_network_is_local_and_fits_any_grid():
    """In the middle of a large grid it finds what it finds on the part that its layers can see."""
    small, large = grid(9, 9), grid(13, 13)
    x = some(large)
    kept = torch.arange(169).reshape(13, 13)[2:11, 2:11].flatten()
    numbers = {pair: edge for edge, pair in enumerate(map(tuple, large.edges.tolist()))}
    edges = [numbers[pair] for pair in map(tuple, kept[small.edges].tolist())]
    net = shaken(network(LocalPotentials(small), 3, "each"))
    other = carried_over(net, network(LocalPotentials(large), 3, "each"))
    inside = net((x[0][:, kept], x[1][:, edges]))
    torch.testing.assert_close(inside[:, 40], other(x)[:, 84], atol=1e-5, rtol=1e-4)


@pytest.fixture
def one_thread():
    """As the recipe runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_recipe_runs_and_its_networks_learn(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "found.json"
    mrf_ising.main(["--small", "--updates", "40", "--json", str(file), "--plots", str(tmp_path)])
    assert (tmp_path / "mrf_ising.png").stat().st_size > 10_000
    results = json.loads(file.read_text())["results"]
    errors = results["errors"]
    assert set(mrf_ising.NETWORKS) | set(mrf_ising.FAMILIES) - {"lambda 0.5"} <= set(errors)
    for sides in errors.values():
        for own in sides.values():
            assert len(own["mean"]) == len(own["interval"]) == 2
            assert all(0 < mean < 0.5 for mean in own["mean"])
    for side in ("4", "6"):
        weak, strong = errors["belief propagation"][side]["mean"]
        assert weak < 0.02 < 0.1 < strong
        assert errors["10 layers, untied"][side]["mean"][1] < 0.7 * strong
    gains = results["below the best of"]["mean field and belief propagation"]["10 layers, untied"]["4"]
    assert gains[1][0] > 0
    assert len(results["learnt"]["10 layers, untied"]["alpha"]) == 10
