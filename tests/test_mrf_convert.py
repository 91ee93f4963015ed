"""Models from and to networkx and pgmpy; marginals against variable elimination by pgmpy."""

import itertools
import math
import sys
import warnings

import numpy as np
import pytest
import torch

from deepunfold.mrf import Graph, PairwiseMRF, clamp, grid, log_partition, marginals
from deepunfold.mrf._convert import from_networkx, from_pgmpy, to_networkx, to_pgmpy
from deepunfold.mrf._factors import from_factors, to_factors
from deepunfold.mrf._uai import write_uai


def free(model):
    return torch.zeros(1, model.graph.nodes, model.graph.states, dtype=torch.float64)


def beliefs(model, x=None):
    return marginals(model.graph, *model(free(model) if x is None else x))


def log_z(model):
    return log_partition(model.graph, *model(free(model))).item()


def random_model():
    graph = Graph([(3, 1), (1, 0), (2, 1), (0, 3)], [2, 3, 4, 1], names=["a", "b", "c", "d"])
    pairwise = torch.randn(4, 4, 4).double()
    return PairwiseMRF(graph, pairwise.masked_fill(torch.rand(4, 4, 4) < 0.1, -math.inf), torch.randn(4, 4).double())


def assert_same(one, other):
    """Equal factors, whatever their order and the order of their nodes."""
    assert one.graph.counts == other.graph.counts
    assert one.graph.names == other.graph.names
    tables = []
    for model in (one, other):
        _, factors = to_factors(model)
        tables.append({tuple(sorted(nodes)): values.permute(*np.argsort(nodes)) for nodes, values in factors})
    assert tables[0].keys() == tables[1].keys()
    for nodes, values in tables[0].items():
        torch.testing.assert_close(values, tables[1][nodes], rtol=0, atol=1e-14)


# networkx


def test_networkx_there_and_back():
    pytest.importorskip("networkx")
    model = random_model()
    graph = to_networkx(model)
    assert list(graph.nodes) == ["a", "b", "c", "d"]
    assert graph.edges["b", "d"]["potential"].shape == (3, 1)
    assert graph.nodes["c"]["potential"].dtype == np.float64
    assert_same(from_networkx(graph), model)
    torch.testing.assert_close(beliefs(from_networkx(graph)), beliefs(model))


def test_a_networkx_graph_by_hand():
    """An undirected edge has the node that was added first in front, whichever way round it was added."""
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph()
    graph.add_node("x")
    graph.add_node(7, potential=[0.0, 1.0, 2.0])
    graph.add_edge(7, "x", potential=np.arange(6).reshape(2, 3))
    model = from_networkx(graph)
    assert (model.graph.names, model.graph.counts) == (["x", "7"], [2, 3])
    assert model.graph.edges.tolist() == [[0, 1]]
    assert model.pairwise.dtype == torch.float64
    assert model.pairwise[0, :2, :3].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert model.unary.tolist() == [[0, 0, 0], [0, 1, 2]]


def test_directed_and_repeated_edges_of_networkx():
    networkx = pytest.importorskip("networkx")
    one, other = torch.randn(2, 3).double(), torch.randn(3, 2).double()
    directed = networkx.DiGraph()
    directed.add_edge("u", "v", weight=one)
    directed.add_edge("v", "u", weight=other.requires_grad_())
    several = networkx.MultiGraph()
    several.add_edge("u", "v", weight=one.numpy())
    several.add_edge("u", "v", weight=other.T.tolist())
    for graph in (directed, several):
        model = from_networkx(graph, potential="weight")
        torch.testing.assert_close(model.pairwise[0, :2], (one + other.T).detach())


def test_networkx_of_shared_potentials_without_names():
    pytest.importorskip("networkx")
    shared = PairwiseMRF(grid(2, 2), torch.randn(2, 2, 2), groups=torch.tensor([0, 1, 1, 0]))
    graph = to_networkx(shared)
    assert list(graph.edges) == [("0", "1"), ("0", "2"), ("1", "3"), ("2", "3")]
    again = from_networkx(graph)
    torch.testing.assert_close(beliefs(again), beliefs(shared).double(), rtol=1e-5, atol=1e-6)
    auxiliary = to_networkx(from_factors([2, 2, 2], [((0, 1, 2), torch.randn(2, 2, 2))], "abc"))
    assert list(auxiliary.edges) == [("a", "(a, b, c)"), ("b", "(a, b, c)"), ("c", "(a, b, c)")]
    per_input = PairwiseMRF(grid(1, 2))
    x = torch.randn(1, 2, 2), torch.randn(1, 1, 2, 2)
    assert np.array_equal(to_networkx(per_input, x).edges["0", "1"]["potential"], x[1][0, 0].double().numpy())


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ([("a", None)], [], "node 'a' is in no table, so that its number of states is unknown"),
        ([("a", [0, 0])], [("a", "b", None)], r"edge \('a', 'b'\) has no attribute 'potential'; give it a table"),
        ([("a", [0, 0])], [("a", "b", np.zeros((3, 2)))], "node 'a' has 2 states in one table and 3 in another"),
        ([("a", [[0, 0]])], [], r"the potential of \('a',\) has the shape \(1, 2\); give a vector"),
        ([], [("a", "b", [0.0, 1.0])], r"the potential of \('a', 'b'\) has the shape \(2,\); give a matrix"),
        ([("a", "high")], [], r"the potential of \('a',\) is no array of numbers"),
        ([("a", [math.nan, 0])], [], r"factor 0 has values that are NaN or \+inf"),
        ([("a", [])], [], r"the potential of \('a',\) has the shape \(0,\); give a vector"),
        ([("1", [0, 0]), (1, [0, 0])], [], "1 different names were given for 2 nodes"),
        ([], [("a", "a", np.zeros((2, 2)))], r"factor 0 is over nodes \(0, 0\), of which one is there twice"),
        ([], [], "give at least one node"),
    ],
)
def test_networkx_graphs_that_are_no_models(nodes, edges, message):
    graph = pytest.importorskip("networkx").Graph()
    for node, potential in nodes:
        graph.add_node(node, **({} if potential is None else {"potential": potential}))
    for one, other, potential in edges:
        graph.add_edge(one, other, **({} if potential is None else {"potential": potential}))
    with pytest.raises(ValueError, match=message):
        from_networkx(graph)


def test_what_is_no_graph_or_no_network():
    pytest.importorskip("networkx")
    with pytest.raises(ValueError, match="graph is a list; give a networkx graph"):
        from_networkx([(0, 1)])


@pytest.mark.parametrize("package", ["networkx", "pgmpy"])
def test_a_package_that_is_missing(monkeypatch, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    calls = (from_networkx, to_networkx) if package == "networkx" else (from_pgmpy, to_pgmpy)
    for call in calls:
        with pytest.raises(ImportError, match=f"needs the package {package}, which is not installed: pip install"):
            call(random_model())


# pgmpy


@pytest.fixture
def pgmpy():
    """What of pgmpy is used, by its names."""
    with warnings.catch_warnings(action="ignore"):  # importing it makes it warn of its own deprecated parts
        parts = [pytest.importorskip(f"pgmpy.{part}") for part in ("factors.discrete", "inference", "models")]
    return {name: value for part in parts for name, value in vars(part).items()}


def eliminated(pgmpy, network, nodes, evidence=None):
    elimination = pgmpy["VariableElimination"](network)
    found = {node: elimination.query([node], evidence=evidence, show_progress=False).values for node in nodes}
    # Those of Markov networks are not normalised.
    return {node: torch.as_tensor(values / values.sum()) for node, values in found.items()}


def compare(pgmpy, network, model, evidence=None):
    """Marginals of all variables that are not observed, given states of others by their names."""
    names = model.graph.names[: model.graph.variables]
    assert names == list(network.nodes)
    states = torch.full((1, model.graph.nodes), -1)
    for node, state in (evidence or {}).items():
        states[0, names.index(node)] = state
    ours = beliefs(model, clamp(model.graph, states).double())[0]
    left = [name for name in names if name not in (evidence or {})]
    for name, theirs in eliminated(pgmpy, network, left, evidence).items():
        own = ours[names.index(name)]
        assert model.graph.counts[names.index(name)] == len(theirs)
        torch.testing.assert_close(own[: len(theirs)], theirs, rtol=1e-10, atol=1e-12)
        assert bool((own[len(theirs) :] == 0).all())


SCOPES = [("b", "a"), ("c", "b", "d"), ("d",), ("e", "d"), ("d", "e"), ("a", "e")]
COUNTS = {"a": 2, "b": 3, "c": 2, "d": 2, "e": 4}


def table(scope):
    values = torch.rand([COUNTS[node] for node in scope], dtype=torch.float64)
    return values.masked_fill(torch.rand(values.shape) < 0.1, 0.0).numpy()


def markov_network(pgmpy):
    network = pgmpy["DiscreteMarkovNetwork"]()
    network.add_nodes_from("edcba")
    for scope in SCOPES:
        network.add_edges_from(itertools.combinations(scope, 2))
        network.add_factors(pgmpy["DiscreteFactor"](scope, [COUNTS[node] for node in scope], table(scope)))
    return network


@pytest.mark.parametrize("evidence", [None, {"b": 2}, {"d": 1, "a": 0}])
def test_a_markov_network(pgmpy, evidence):
    network = markov_network(pgmpy)
    model = from_pgmpy(network)
    assert model.graph.names == ["e", "d", "c", "b", "a", "(c, b, d)"]
    assert model.graph.counts == [4, 2, 2, 3, 2, 12]
    compare(pgmpy, network, model, evidence)
    assert log_z(model) == pytest.approx(math.log(network.get_partition_function()))


@pytest.mark.parametrize("evidence", [None, {"alarm": 1}, {"alarm": 0, "call": 2}])
def test_a_bayesian_network(pgmpy, evidence):
    network = pgmpy["DiscreteBayesianNetwork"]([("burglar", "alarm"), ("quake", "alarm"), ("alarm", "call")])
    parents = {"burglar": [], "quake": [], "alarm": ["quake", "burglar"], "call": ["alarm"]}
    counts = {"burglar": 2, "quake": 3, "alarm": 2, "call": 3}
    for node, given in parents.items():
        sizes = [counts[parent] for parent in given]
        values = torch.rand(counts[node], math.prod(sizes), dtype=torch.float64).softmax(0).numpy()
        network.add_cpds(pgmpy["TabularCPD"](node, counts[node], values, given or None, sizes or None))
    model = from_pgmpy(network)
    assert log_z(model) == pytest.approx(0, abs=1e-12)
    compare(pgmpy, network, model, evidence)


def test_a_factor_graph(pgmpy):
    network = pgmpy["FactorGraph"]()
    network.add_nodes_from("abcde")
    for scope in SCOPES:
        factor = pgmpy["DiscreteFactor"](scope, [COUNTS[node] for node in scope], table(scope))
        network.add_factors(factor)
        network.add_nodes_from([factor])
        network.add_edges_from((node, factor) for node in scope)
    model = from_pgmpy(network)
    assert model.graph.names == ["a", "b", "c", "d", "e", "(c, b, d)"]
    theirs = eliminated(pgmpy, network.to_markov_model(), "abcde")  # it takes no factor graph itself
    for node, own in zip("abcde", beliefs(model)[0], strict=False):
        torch.testing.assert_close(own[: COUNTS[node]], theirs[node], rtol=1e-10, atol=1e-12)
    assert log_z(model) == pytest.approx(math.log(network.get_partition_function()))


def test_pgmpy_there_and_back(pgmpy):
    model = random_model()
    network = to_pgmpy(model)
    assert list(network.nodes) == ["a", "b", "c", "d"]
    assert dict(network.get_cardinality()) == {"a": 2, "b": 3, "c": 4, "d": 1}
    assert_same(from_pgmpy(network), model)
    compare(pgmpy, network, from_pgmpy(network))
    wide = from_pgmpy(markov_network(pgmpy))
    again = to_pgmpy(wide)
    assert list(again.nodes) == list("edcba")
    assert_same(from_pgmpy(again), wide)
    compare(pgmpy, again, wide)


def test_pgmpy_reads_the_same_from_uai_files(pgmpy, tmp_path):
    reader = pytest.importorskip("pgmpy.readwrite").UAIReader
    model = from_pgmpy(markov_network(pgmpy))
    path = tmp_path / "model.uai"
    write_uai(path, model)
    theirs = reader(str(path)).get_model()
    assert math.log(theirs.get_partition_function()) == pytest.approx(log_z(model), rel=1e-12)
    expected = eliminated(pgmpy, theirs, [f"var_{node}" for node in range(5)])
    for node, count in enumerate(model.graph.counts[:5]):
        torch.testing.assert_close(beliefs(model)[0, node, :count], expected[f"var_{node}"], rtol=1e-10, atol=1e-12)


def test_pgmpy_names_that_are_no_strings(pgmpy):
    network = pgmpy["DiscreteMarkovNetwork"]([(1, (2, 3))])
    network.add_factors(pgmpy["DiscreteFactor"]([1, (2, 3)], [2, 2], np.ones(4)))
    assert from_pgmpy(network).graph.names == ["1", "(2, 3)"]
    assert list(to_pgmpy(PairwiseMRF(grid(1, 2), torch.zeros(1, 2, 2))).nodes) == ["0", "1"]


def test_networks_that_are_no_models(pgmpy):
    factor = pgmpy["DiscreteFactor"]
    network = pgmpy["DiscreteMarkovNetwork"]([("a", "b")])
    with pytest.raises(ValueError, match="network is a Graph; give a DiscreteMarkovNetwork, a"):
        from_pgmpy(grid(2, 2))
    with pytest.raises(ValueError, match="node 'a' is in no table, so that its number of states is unknown"):
        from_pgmpy(network)
    network.add_factors(factor(["a", "b"], [2, 2], [1, 2, -1, 1]))
    with pytest.raises(ValueError, match=r"the factor over \('a', 'b'\) has negative values"):
        from_pgmpy(network)
    names = pgmpy["DiscreteMarkovNetwork"]([("a", "b")])
    names.add_factors(factor(["a", "b"], [2, 2], np.ones(4), {"a": ["no", "yes"], "b": [0, 1]}))
    names.add_factors(factor(["a"], [2], np.ones(2), {"a": ["yes", "no"]}))
    with pytest.raises(ValueError, match=r"the states of 'a' are \['no', 'yes'\] in one table and \['yes', 'no'\]"):
        from_pgmpy(names)


def test_potentials_that_pgmpy_cannot_hold(pgmpy):
    model = PairwiseMRF(grid(1, 2), torch.full((1, 2, 2), 800.0).double())
    with pytest.raises(ValueError, match=r"the factor over nodes \(0, 1\) has logarithms above 709"):
        to_pgmpy(model)
