"""Potentials between hidden and observed nodes, against the posterior of the whole model by its definition."""

import itertools
import math

import pytest
import torch

import deepunfold as du
from deepunfold.mrf import Graph, MessagePassing, PairwiseMRF, grid, log_partition, marginals
from deepunfold.mrf import _evidence as module
from deepunfold.mrf._evidence import DiscreteEvidence, RealEvidence

INF = math.inf
GRAPH = Graph([(0, 1), (2, 1), (1, 3)], [2, 3, 2, 3])
EDGES = [(0, 1), (2, 0), (0, 2), (3, 2), (2, 4)]  # node 1 sees nothing, and nothing hangs on observed node 3
GROUPS = torch.tensor([1, 0, 1, 1, 0])


def discrete(groups=None, dtype=torch.float64, **settings):
    tables = torch.randn(len(EDGES) if groups is None else 2, GRAPH.states, 4, dtype=dtype)
    return DiscreteEvidence(GRAPH, EDGES, tables, groups=groups, **settings)


def real(groups=None, dtype=torch.float64, **settings):
    weights = torch.randn(len(EDGES) if groups is None else 2, GRAPH.states, dtype=dtype)
    return RealEvidence(GRAPH, EDGES, weights, groups=groups, **settings)


def observation(evidence, batch=3):
    if isinstance(evidence, DiscreteEvidence):
        return torch.randint(4, (batch, evidence.observed))
    return torch.randn(batch, evidence.observed, dtype=evidence.weights.dtype)


def along(evidence, number, state, value):
    """Psi(h_i, v_l) of one edge, as its definition has it."""
    table = int(evidence.groups[number])
    if isinstance(evidence, DiscreteEvidence):
        return evidence.tables[table, state, int(value)]
    return evidence.weights[table, state] * value


@pytest.mark.parametrize("dense", [0, 16])
@pytest.mark.parametrize("groups", [None, GROUPS], ids=["own", "shared"])
@pytest.mark.parametrize("kind", [discrete, real])
def test_the_posterior_of_the_whole_model(kind, groups, dense, monkeypatch):
    monkeypatch.setattr(module, "DENSE", dense)
    evidence = kind(groups)
    pairwise = torch.randn(3, 3, 3, dtype=torch.float64)
    unary = torch.randn(4, 3, dtype=torch.float64)
    model = PairwiseMRF(GRAPH, pairwise, unary, evidence=evidence)
    x = observation(evidence)
    fields, tables = model(x)
    for sample in range(len(x)):
        total = torch.zeros(4, 3, dtype=torch.float64)
        for h in itertools.product(*map(range, GRAPH.counts)):
            score = sum(unary[node, state] for node, state in enumerate(h))
            score += sum(pairwise[e, h[i], h[j]] for e, (i, j) in enumerate(GRAPH.edges.tolist()))
            score += sum(along(evidence, e, h[i], x[sample, v]) for e, (i, v) in enumerate(EDGES))
            total[range(4), list(h)] += score.exp().detach()
        z = total[0].sum()
        torch.testing.assert_close(log_partition(GRAPH, fields, tables)[sample], z.log())
        torch.testing.assert_close(marginals(GRAPH, fields, tables)[sample], total / z)


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["own", "shared"])
@pytest.mark.parametrize("kind", [discrete, real])
def test_gradients(kind, groups):
    evidence = kind(groups)
    x = observation(evidence)
    ((name, parameter),) = evidence.named_parameters()
    inputs = [parameter.detach().clone().requires_grad_()]
    if kind is real:
        inputs.append(x.requires_grad_())

    def fields(parameter, x=x):
        return torch.func.functional_call(evidence, {name: parameter}, (x,))

    assert torch.autograd.gradcheck(fields, inputs)


def test_both_ways_to_pick_and_to_multiply(monkeypatch):
    """Few and many tables beside the edges; whole matrices and edges alone."""
    graph = grid(4, 5, states=3)
    edges = [(node, node) for node in range(20)]
    table = torch.randn(1, 3, 6, dtype=torch.float64)
    shared = DiscreteEvidence(graph, edges, table, groups=torch.zeros(20, dtype=torch.int64))
    own = DiscreteEvidence(graph, edges, table.expand(20, -1, -1))
    x = torch.randint(6, (7, 20))
    torch.testing.assert_close(shared(x), own(x))
    torch.testing.assert_close(own(x), table[0].T[x])
    weights = torch.randn(20, 3, dtype=torch.float64)
    values = torch.randn(7, 20, dtype=torch.float64)
    for dense in (0, 100):
        monkeypatch.setattr(module, "DENSE", dense)
        torch.testing.assert_close(RealEvidence(graph, edges, weights)(values), weights * values[..., None])


def test_real_evidence_of_every_node_for_every_node_is_a_matrix():
    """C v of equation eq:binary-mrf, where state 1 of a binary node has the weight c and state 0 none."""
    matrix = torch.randn(6, 9, dtype=torch.float64)
    edges = list(itertools.product(range(6), range(9)))
    weights = torch.stack([torch.zeros(54, dtype=torch.float64), matrix.flatten()], 1)
    v = torch.randn(5, 9, dtype=torch.float64)
    fields = RealEvidence(grid(2, 3), edges, weights)(v)
    torch.testing.assert_close(fields[..., 1], v @ matrix.T)
    assert not fields[..., 0].any()


def test_impossible_values():
    """A value that rules a state out, and one that rules all out."""
    tables = torch.tensor([[[0.0, -INF], [1.0, -INF]], [[-INF, 0.0], [0.0, 0.0]]])
    evidence = DiscreteEvidence(Graph([], 2, 2), [(0, 0), (1, 0)], tables)
    fields = evidence(torch.tensor([[0], [1]]))
    assert fields.tolist() == [[[0, 1], [-INF, 0]], [[-INF, -INF], [0, 0]]]
    fields[0].exp().sum().backward()
    assert bool(evidence.tables.grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [discrete, real])
def test_in_networks_and_files(kind, dtype, tmp_path):
    evidence = kind(GROUPS, dtype=dtype, observed=6)
    model = PairwiseMRF(GRAPH, torch.randn(3, 3, 3, dtype=dtype), evidence=evidence)
    net = du.unfold(MessagePassing(model), 2, tie="each")
    x = observation(evidence)
    out = net(x)
    assert out.dtype == dtype
    out.square().sum().backward()
    for layer in net.layers:  # the graph is two edges across, so that each layer counts
        (parameter,) = layer.model.evidence.parameters()
        assert bool(parameter.grad.isfinite().all())
        assert bool(parameter.grad.any())
    du.save(net, tmp_path / "net.safetensors")
    assert torch.equal(du.load(tmp_path / "net.safetensors")(x), out)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
def test_whole_numbers_of_any_type(dtype):
    evidence = discrete()
    x = torch.randint(2, (3, 5))
    assert torch.equal(evidence(x.to(dtype)), evidence(x))


def test_large_ones_are_built_at_once():
    graph = grid(200, 200)
    nodes = torch.arange(40_000)
    pairs = torch.stack([nodes, nodes], 1)
    evidence = DiscreteEvidence(graph, pairs, torch.randn(1, 2, 2), groups=torch.zeros_like(nodes))
    assert evidence(torch.zeros(2, 40_000, dtype=torch.int64)).shape == (2, 40_000, 2)
    assert repr(evidence) == "DiscreteEvidence(40000 observed nodes, 40000 edges to 40000 hidden ones)"


TABLES, WEIGHTS = torch.zeros(5, 3, 4), torch.zeros(5, 3)


def given(kind, x):
    return lambda: kind(dtype=torch.float32)(x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RealEvidence(GRAPH, [(0, 1), (4, 1)], WEIGHTS[:2]), r"edge 1, \(4, 1\), leads to a hidden .* 0 to 3"),
        (lambda: RealEvidence(GRAPH, [(0, 1), (-1, 1)], WEIGHTS[:2]), r"edge 1, \(-1, 1\), leads to a hidden"),
        (lambda: RealEvidence(GRAPH, [(0, -1)], WEIGHTS[:1], observed=2), r"\(0, -1\), leads to an observed .* 0 to 1"),
        (lambda: RealEvidence(GRAPH, [(0, 2)], WEIGHTS[:1], observed=2), r"\(0, 2\), leads to an observed .* 0 to 1"),
        (lambda: RealEvidence(GRAPH, [(0, 1), (1, 0), (0, 1)], WEIGHTS[:3]), r"edge 2, \(0, 1\), is there twice"),
        (lambda: RealEvidence(GRAPH, [], WEIGHTS[:0]), r"\(edges, 2\), at least one, not \(0,\)"),
        (lambda: RealEvidence(GRAPH, torch.zeros(5, 2), WEIGHTS), r"not \(5, 2\) of torch.float32"),
        (lambda: RealEvidence(GRAPH, EDGES, WEIGHTS[:4]), "potentials are 4, but there are 5 edges"),
        (lambda: RealEvidence(GRAPH, EDGES, TABLES), r"weights have the shape \(5, 3, 4\); give \(edges, 3\)"),
        (lambda: RealEvidence(GRAPH, EDGES, WEIGHTS - INF), "weights must be finite"),
        (lambda: DiscreteEvidence(GRAPH, EDGES, WEIGHTS), r"tables have the shape \(5, 3\); give \(edges, 3, values\)"),
        (lambda: DiscreteEvidence(GRAPH, EDGES, TABLES[:, :2]), r"tables have the shape \(5, 2, 4\)"),
        (lambda: DiscreteEvidence(GRAPH, EDGES, TABLES + INF), r"tables must be .* without NaN and \+inf"),
        (lambda: DiscreteEvidence(GRAPH, EDGES, TABLES.long()), "tables must be floating-point"),
        (lambda: DiscreteEvidence(GRAPH, EDGES, TABLES, groups=GROUPS[:4]), r"groups must be 5 whole .*, not \(4,\)"),
        (lambda: DiscreteEvidence(GRAPH, EDGES, TABLES[:1], groups=GROUPS), "groups name the tables 0 to 1; .* 0 to 0"),
        (given(discrete, torch.zeros(2, 4).long()), r"the observation has the shape \(2, 4\); give \(batch, 5\)"),
        (given(discrete, torch.zeros(2, 5)), "the observation is of torch.float32; give whole numbers, 0 to 3"),
        (given(discrete, torch.arange(5)[None]), "sample 0 has the value 4 at observed node 4; there are 0 to 3"),
        (given(discrete, torch.eye(2, 5).long() - 1), "sample 0 has the value -1 at observed node 1; .* missing"),
        (given(real, torch.zeros(2, 6)), r"the observation has the shape \(2, 6\); give \(batch, 5\)"),
        (given(real, torch.zeros(2, 5).double()), "the observation is of torch.float64; give torch.float32"),
        (given(real, torch.zeros(2, 5).fill_diagonal_(math.nan)), "sample 0 has the value nan at observed node 0"),
        (given(real, torch.zeros(2, 5) - INF), "sample 0 has the value -inf at observed node 0; give finite"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
