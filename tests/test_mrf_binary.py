"""Binary Markov random fields: mean field, the two directions of Appendix A, and sigmoid networks."""

import itertools

import pytest
import torch
from torch import nn

import deepunfold as du
from deepunfold.mrf._binary import BinaryMRF
from deepunfold.mrf._exact import log_score
from deepunfold.mrf._graph import Graph, grid
from deepunfold.mrf._model import PairwiseMRF
from deepunfold.mrf._sigmoid import from_sigmoid_network, to_sigmoid_network
from deepunfold.testing import check_algorithm


def symmetric(nodes, density=1.0):
    a = torch.randn(nodes, nodes, dtype=torch.float64).triu(1)
    a = a * (torch.rand(nodes, nodes) < density)
    return a + a.mT


def field(nodes=5, visible=3, density=1.0):
    b, c = torch.randn(nodes, dtype=torch.float64), torch.randn(nodes, visible, dtype=torch.float64)
    return BinaryMRF(symmetric(nodes, density), b, c)


def configurations(nodes):
    return torch.tensor(list(itertools.product((0, 1), repeat=nodes)))


def log_posterior(model, v):
    """log p(h | v) of every h, from A, b and C."""
    h = configurations(len(model.bias)).double()
    score = ((h @ model.coupling) * h).sum(1) / 2 + h @ model.bias + h @ model.visible @ v.double()
    return score.log_softmax(0).detach()


def log_posterior_of_tables(model, links, tables, v):
    """The same from potentials: the pairwise ones, the unary ones, and those of the links at the values of v."""
    h = configurations(model.graph.nodes)
    fields = model.fields(torch.zeros(1, model.graph.nodes, 2, dtype=torch.float64))[0]
    score = log_score(model.graph, fields, model.pairwise, h)
    for (hidden, visible), table in zip(links.tolist(), tables, strict=True):
        score = score + table[h[:, hidden], v[visible]]
    return score.log_softmax(0).detach()


GRAPHS = {
    "chain": lambda: Graph([(0, 1), (2, 1), (2, 3)], 2, 4),
    "complete": lambda: Graph(list(itertools.combinations(range(5), 2)), 2, 5),
    "grid": lambda: grid(2, 3),
    "lonely node": lambda: Graph([(0, 2), (3, 2)], 2, 4),
    "no edges": lambda: Graph([], 2, 3),
}


@pytest.mark.parametrize("unary", [False, True])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_potentials_to_sigmoid_parameters(graph, unary):
    graph = graph()
    own = torch.randn(graph.nodes, 2, dtype=torch.float64) if unary else None
    model = PairwiseMRF(graph, 2 * torch.randn(len(graph.edges), 2, 2, dtype=torch.float64), own)
    links = torch.tensor([[0, 1], [2, 0], [0, 0]])
    tables = torch.randn(3, 2, 2, dtype=torch.float64)
    binary = BinaryMRF.from_potentials(model, links, tables, visible=2)
    for v in configurations(2):
        expected = log_posterior_of_tables(model, links, tables, v)
        torch.testing.assert_close(log_posterior(binary, v), expected, rtol=1e-13, atol=1e-13)
    assert torch.equal(binary.coupling, binary.coupling.mT)
    assert not bool(binary.coupling.diagonal().any())


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("density", [1.0, 0.4, 0.0])
def test_sigmoid_parameters_to_potentials_and_back(spread, density):
    binary = field(density=density)
    model, links, tables = binary.potentials(spread)
    for v in configurations(3):
        found = log_posterior_of_tables(model, links, tables, v)
        torch.testing.assert_close(found, log_posterior(binary, v), rtol=1e-13, atol=1e-13)
    back = BinaryMRF.from_potentials(model, links, tables, visible=3)
    for name, parameter in binary.named_parameters():
        torch.testing.assert_close(back.get_parameter(name), parameter, rtol=1e-14, atol=1e-14)


def test_the_choices_of_the_paper():
    """Biases lie on edges in equal shares, psi_00 = 0; a node without hidden neighbours keeps its own."""
    a = torch.zeros(4, 4, dtype=torch.float64)
    a[0, 1] = a[1, 0] = 2.0
    a[1, 2] = a[2, 1] = -3.0
    binary = BinaryMRF(a, torch.tensor([1.0, 4.0, 5.0, 7.0], dtype=torch.float64), torch.eye(4, dtype=torch.float64))
    model, links, tables = binary.potentials()
    assert model.graph.edges.tolist() == [[0, 1], [1, 2]]
    assert model.pairwise.tolist() == [[[0, 2], [1, 5]], [[0, 5], [2, 4]]]
    assert model.unary.tolist() == [[0, 0], [0, 0], [0, 0], [0, 7]]
    assert links.tolist() == [[i, i] for i in range(4)]
    assert tables.tolist() == [[[0, 0], [0, 1]]] * 4
    model, _, _ = binary.potentials(spread_bias=False)
    assert model.pairwise.tolist() == [[[0, 0], [0, 2]], [[0, 0], [0, -3]]]
    assert model.unary[:, 1].tolist() == [1, 4, 5, 7]


def test_shared_potentials_are_each_counted():
    graph = Graph([(0, 1), (1, 2)], 2, 3)
    table = torch.randn(1, 2, 2, dtype=torch.float64)
    shared = PairwiseMRF(graph, table, groups=torch.tensor([0, 0]))
    single = PairwiseMRF(graph, table.expand(2, 2, 2))
    one, other = BinaryMRF.from_potentials(shared), BinaryMRF.from_potentials(single)
    assert torch.equal(one.coupling, other.coupling)
    assert torch.equal(one.bias, other.bias)
    assert one.visible is None


@pytest.mark.parametrize("spread", [False, True])
def test_synchronous_mean_field_on_the_potentials(spread):
    """q(h_i) = softmax of the sum over neighbours of sum_h q(h_j) Psi(h_i, h_j), all at once (``eq:mfupdate``)."""
    binary = field(6, 2, 0.6)
    model, links, tables = binary.potentials(spread)
    v = torch.tensor([[0, 1], [1, 1], [0, 0]])
    fields = model.unary.expand(3, -1, -1).clone()
    for (hidden, visible), table in zip(links.tolist(), tables, strict=True):
        fields[:, hidden] += table[:, v[:, visible]].mT
    q = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(3, 6, 2)
    net = du.unfold(binary, 7)
    for step in range(1, 8):
        total = fields.clone()
        for (one, other), table in zip(model.graph.edges.tolist(), model.pairwise, strict=True):
            total[:, one] += q[:, other] @ table.mT
            total[:, other] += q[:, one] @ table
        q = total.softmax(-1)
        torch.testing.assert_close(net.states(v.double(), [step])[0], q[..., 1])


def test_the_update_is_that_of_a_sigmoid_network():
    """Untied, with a free diagonal and the input in every layer, equation ``eq:sigmoidnet``."""
    net = du.unfold(field(), 3, tie="each")
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    v = torch.rand(4, 3, dtype=torch.float64)
    mu = torch.zeros(4, 5, dtype=torch.float64)
    for layer in list(net.layers)[:3]:
        mu = torch.stack([torch.sigmoid(layer.coupling @ m + layer.bias + layer.visible @ w) for m, w in zip(mu, v)])  # noqa: B905
    torch.testing.assert_close(net(v), mu)
    assert len(list(net.parameters())) == 9


CASES = {
    "visible": lambda: (field(), torch.rand(3, 3, dtype=torch.float64)),
    "field": lambda: (BinaryMRF(0.3 * symmetric(4)), torch.randn(3, 4, dtype=torch.float64)),
    "start": lambda: (BinaryMRF(0.3 * symmetric(4), start=torch.rand(4)), torch.randn(3, 4, dtype=torch.float64)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_conformance(case):
    algorithm, x = case()
    with torch.no_grad():
        algorithm.coupling.mul_(0.4)
    check_algorithm(algorithm, x, converged=40)


def test_the_start():
    x = torch.randn(2, 4, dtype=torch.float64)
    a = symmetric(4)
    assert torch.equal(BinaryMRF(a).init(x), torch.zeros(2, 4))
    assert torch.equal(BinaryMRF(a, start=0.5).init(x), torch.full((2, 4), 0.5))
    start = torch.rand(4, dtype=torch.float64)
    assert torch.equal(BinaryMRF(a, start=start).init(x), start.expand(2, 4))


# -- sigmoid networks ---------------------------------------------------------------------------------------------


def network(*widths, bias=True):
    parts = []
    for before, after in itertools.pairwise(widths):
        parts += [nn.Linear(before, after, bias=bias, dtype=torch.float64), nn.Sigmoid()]
    return nn.Sequential(*parts)


WIDTHS = [(3, 4), (5, 5, 5), (7, 2, 6, 3), (2, 9, 1), (4, 3, 8)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", WIDTHS)
def test_networks_there_and_back(widths, bias):
    sequential = network(*widths, bias=bias)
    net, x = from_sigmoid_network(sequential), torch.randn(6, widths[0], dtype=torch.float64)
    assert net.depth == len(widths) - 1
    torch.testing.assert_close(net(x), sequential(x), rtol=1e-14, atol=1e-14)
    back = to_sigmoid_network(net)
    assert torch.equal(back(x), sequential(x))
    assert [repr(part) for part in back] == [repr(part) for part in sequential]
    trained = sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
    assert trained == sum(parameter.numel() for parameter in sequential.parameters())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_both_networks_train_alike(optimizer):
    """Also with momentum and weight decay, which move parameters that have no gradient."""
    sequential = network(3, 6, 2, 4)
    net, x = from_sigmoid_network(sequential), torch.randn(8, 3, dtype=torch.float64)
    target = torch.rand(8, 4, dtype=torch.float64)
    for each in (net, sequential):
        if optimizer == "sgd":
            moves = torch.optim.SGD(each.parameters(), lr=1.0, momentum=0.9, weight_decay=0.01)
        else:
            moves = torch.optim.AdamW(each.parameters(), lr=0.05, weight_decay=0.1)
        for _ in range(30):
            moves.zero_grad()
            (each(x) - target).square().sum().backward()
            moves.step()
    torch.testing.assert_close(net(x), sequential(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(to_sigmoid_network(net)(x), net(x), rtol=1e-14, atol=1e-14)
    assert not torch.allclose(sequential(x), network(3, 6, 2, 4)(x))
    states = net.states(x, [1, 2, 3])
    assert [state.shape for state in states] == [(8, 6)] * 3
    assert not bool(states[1][:, 2:].any())


def test_the_input_enters_at_the_first_layer_alone():
    net = from_sigmoid_network(network(3, 4, 2))
    shapes = [(tuple(layer.coupling.shape), tuple(layer.visible.shape)) for layer in list(net.layers)[:2]]
    assert shapes == [((4, 0), (4, 3)), ((2, 4), (2, 0))]


def test_a_network_of_full_matrices_with_zeros_is_plain_too():
    first = BinaryMRF(symmetric(4), torch.randn(4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64))
    second = BinaryMRF(torch.randn(4, 4, dtype=torch.float64), first.bias, torch.zeros(4, 3, dtype=torch.float64))
    for start in (0.0, 0.7):
        first.start.fill_(start)
        net, x = du.unfold([(first, 1), (second, 1)]), torch.randn(5, 3, dtype=torch.float64)
        torch.testing.assert_close(to_sigmoid_network(net)(x), net(x), rtol=1e-14, atol=1e-14)


def test_a_converted_network_is_kept_in_files(tmp_path):
    net, x = from_sigmoid_network(network(3, 5, 2)), torch.randn(2, 3, dtype=torch.float64)
    du.save(net, tmp_path / "net.safetensors")
    assert torch.equal(du.load(tmp_path / "net.safetensors")(x), net(x))


def test_frozen_layers_stay_frozen():
    sequential = network(3, 5, 2)
    sequential[0].requires_grad_(False)
    net = from_sigmoid_network(sequential)
    assert sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad) == 12
    assert [p.requires_grad for p in to_sigmoid_network(net).parameters()] == [False, False, True, True]


A, LINKS, TABLES = torch.zeros(3, 3), torch.tensor([[0, 0]]), torch.zeros(1, 2, 2)
CHAIN = Graph([(0, 1)], 2, 2)
PLAIN = PairwiseMRF(CHAIN, torch.zeros(1, 2, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BinaryMRF(torch.zeros(3)), r"coupling must be a matrix of numbers, not \(3,\)"),
        (lambda: BinaryMRF(A, torch.zeros(2)), r"bias has the shape \(2,\); coupling has 3 rows"),
        (lambda: BinaryMRF(A, None, torch.zeros(2, 4)), r"visible has the shape \(2, 4\); give \(3, visible units\)"),
        (lambda: BinaryMRF(A, start=1.5), r"start must be one number, or 3, in \[0, 1\], not 1.5"),
        (lambda: BinaryMRF(A, hidden=2), r"hidden=2, but coupling is \(3, 3\); give 3"),
        (lambda: du.unfold(BinaryMRF(A), 2)(torch.zeros(2, 4)), r"x has the shape \(2, 4\); give \(batch, 3\)"),
        (lambda: BinaryMRF(A + torch.eye(3)).potentials(), "A must be symmetric with zeros on its diagonal"),
        (lambda: BinaryMRF(torch.ones(3, 3).triu(1)).potentials(), "A must be symmetric"),
        (
            lambda: BinaryMRF.from_potentials(PairwiseMRF(Graph([(0, 1)], [2, 3]), torch.zeros(1, 3, 3))),
            "node 1 has 3 states; a binary model has 2 at every node",
        ),
        (lambda: BinaryMRF.from_potentials(PairwiseMRF(CHAIN)), "potentials that come with each input have no A"),
        (
            lambda: BinaryMRF.from_potentials(PairwiseMRF(CHAIN, torch.full((1, 2, 2), -torch.inf))),
            "the pairwise potentials have entries of -inf",
        ),
        (lambda: BinaryMRF.from_potentials(PLAIN, LINKS), "links and tables belong together"),
        (lambda: BinaryMRF.from_potentials(PLAIN, LINKS, TABLES[0]), r"tables \(2, 2\) be \(L, 2, 2\)"),
        (lambda: BinaryMRF.from_potentials(PLAIN, LINKS, TABLES), "a visible node that does not exist; there are 0"),
        (lambda: BinaryMRF.from_potentials(PLAIN, LINKS + 2, TABLES, 3), "a hidden node that does not exist"),
        (
            lambda: BinaryMRF.from_potentials(PLAIN, LINKS.expand(2, 2), TABLES.expand(2, 2, 2), 1),
            "a pair of a hidden and a visible node is linked twice",
        ),
        (lambda: from_sigmoid_network(nn.Sequential()), "the network has 0 modules"),
        (lambda: from_sigmoid_network(nn.Sequential(nn.Linear(2, 3))), "the network has 1 modules"),
        (
            lambda: from_sigmoid_network(nn.Sequential(nn.Linear(2, 3), nn.ReLU())),
            "module 1 is ReLU; give nn.Linear and nn.Sigmoid in turns",
        ),
        (
            lambda: from_sigmoid_network(nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(4, 1), nn.Sigmoid())),
            "layer 1 takes 4 numbers, but layer 0 gives 3",
        ),
        (
            lambda: to_sigmoid_network(du.unfold(BinaryMRF(A, None, torch.ones(3, 2)), 2)),
            "layer 1 sees the input, C is not zero; a feed-forward network sees it in layer 0 alone",
        ),
        (lambda: to_sigmoid_network(du.unfold(BinaryMRF(A), 2)), "layer 0 takes a field in each step"),
        (
            lambda: to_sigmoid_network(du.unfold(du.algorithms.ISTA(torch.eye(3)), 2)),
            "a sigmoid network has BinaryMRF layers without gates; this one has ISTA",
        ),
        (
            lambda: to_sigmoid_network(from_sigmoid_network(network(2, 3)).grow(1)),
            "a sigmoid network has BinaryMRF layers without gates",
        ),
        (
            lambda: to_sigmoid_network(
                du.unfold([(BinaryMRF(torch.zeros(2, 0), None, A[:2], hidden=3), 1), (BinaryMRF(A, None, A[:, :0]), 1)])
            ),
            "layer 1 reads 3 units, but the one before has 2",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
