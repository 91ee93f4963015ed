"""Message passing against exact inference, against itself message by message, and in its limits."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

import deepunfold as du
from deepunfold.mrf import (
    BeliefPropagation,
    Fractional,
    Graph,
    Grouped,
    MaxProduct,
    MeanField,
    MessagePassing,
    PairwiseMRF,
    Residual,
    Turns,
    checkerboard,
    clamp,
    grid,
    infer,
    layered,
    marginals,
    most_probable,
    per_degree,
    random_turns,
    sequential,
)

DOUBLE = {"dtype": torch.float64}


def tree(nodes):
    return [(int(torch.randint(number, (1,))), number) for number in range(1, nodes)]


def model_on(graph, scale=1.0, **settings):
    return PairwiseMRF(graph, scale * torch.randn(len(graph.edges), graph.states, graph.states, **DOUBLE), **settings)


def fields_on(graph, batch=2):
    return torch.randn(batch, graph.nodes, graph.states, **DOUBLE)


TREES = {
    "five states": lambda: Graph(tree(12), 5, 12),
    "mixed states": lambda: Graph(tree(9), [2, 3, 4, 1, 2, 5, 3, 2, 2]),
    "star": lambda: Graph([(number, 0) for number in range(1, 8)], 3, 8),
    "two parts and a node": lambda: Graph([(0, 1), (3, 2), (3, 4)], 2, 6),
    "no edges": lambda: Graph([], [2, 3]),
}


# -- exactness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("graph", TREES.values(), ids=TREES)
def test_belief_propagation_is_exact_on_trees(graph, scale):
    graph = graph()
    model, fields = model_on(graph, scale), fields_on(graph)
    result = du.iterate(BeliefPropagation(model), fields, until=1e-13)
    assert bool(result.converged.all())
    torch.testing.assert_close(result.value, marginals(graph, fields, model.pairwise), atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("graph", TREES.values(), ids=TREES)
def test_max_product_finds_the_most_probable_states_of_trees(graph):
    graph = graph()
    model, fields = model_on(graph, 3.0), fields_on(graph, 5)
    result = du.iterate(MaxProduct(model), fields, until=1e-13)
    assert torch.equal(result.value.argmax(-1), most_probable(graph, fields, model.pairwise)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_impossible_states_and_clamped_nodes(dtype):
    """On a tree: equality along one edge, a forbidden state, and two nodes that are observed."""
    graph = Graph([(0, 1), (1, 2), (2, 3), (1, 4)], 3, 5)
    pairwise = torch.randn(4, 3, 3, dtype=dtype)
    pairwise[1] = torch.where(torch.eye(3) > 0, 0.0, -math.inf)
    pairwise[0, 2, :] = -math.inf
    fields = clamp(graph, torch.tensor([[-1, -1, -1, 1, -1], [-1, -1, -1, -1, -1], [-1, 2, -1, -1, 0]])).to(dtype)
    exact = marginals(graph, fields.double(), pairwise.double())
    net = du.unfold(BeliefPropagation(PairwiseMRF(graph, pairwise)), 6)
    found = net(fields)
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-4)
    found[..., 0].square().sum().backward()
    assert bool(torch.isfinite(net.layers[0].model.pairwise.grad).all())


def test_potentials_of_each_sample_and_shared_ones():
    graph = grid(3, 3, 2)
    groups = torch.tensor([0] * 6 + [1] * 6)
    shared, fields = torch.randn(2, 2, 2, **DOUBLE), fields_on(graph, 4)
    pairwise = torch.randn(4, 12, 2, 2, **DOUBLE)
    pairwise[2] = shared[groups]
    together = infer(BeliefPropagation(PairwiseMRF(graph)), (fields, pairwise), 7)
    for sample in range(4):
        alone = infer(BeliefPropagation(PairwiseMRF(graph, pairwise[sample])), fields[sample, None], 7)
        torch.testing.assert_close(together[sample], alone[0])
    by_group = infer(BeliefPropagation(PairwiseMRF(graph, shared, groups=groups)), fields, 7)
    torch.testing.assert_close(by_group[2], together[2])


# -- message by message ---------------------------------------------------------------------------------------------


def written_down(model, fields, steps, lambda_=1.0, kappa=1.0, alpha=1.0, rho=0.0, reverse=True):
    """One sample by the formulas of Appendix C (its exponent mended), each message by itself, without logarithms."""
    graph, pairwise = model.graph, model.pairwise.detach()
    edges = {}
    for number, (one, other) in enumerate(graph.edges.tolist()):
        edges[one, other], edges[other, one] = pairwise[number].exp(), pairwise[number].exp().T
    local, ones = fields.exp(), torch.ones(graph.states, **DOUBLE)
    messages = dict.fromkeys(edges, ones / graph.states)

    def beliefs():
        products = [
            torch.stack([m for (_, to), m in messages.items() if to == node] or [ones]).prod(0) * local[node]
            for node in range(graph.nodes)
        ]
        return [each / each.sum() for each in products]

    for _ in range(steps):
        known, fresh = beliefs(), {}
        for (sender, receiver), table in edges.items():
            heard = messages[receiver, sender] if reverse else ones
            ratio = table.T / heard  # receiver's states in rows
            if lambda_ == 0:
                new = (known[sender] * ratio.log()).sum(1).exp()
            elif kappa == math.inf:
                new = (known[sender] * ratio).amax(1)
            else:
                new = (known[sender] ** kappa * ratio ** (lambda_ * kappa)).sum(1) ** (1 / (lambda_ * kappa))
            new, old = new / new.sum(), messages[sender, receiver]
            mixed = (
                new**alpha * old ** (1 - alpha)
                if rho == 0
                else (alpha * new**rho + (1 - alpha) * old**rho) ** (1 / rho)
            )
            fresh[sender, receiver] = mixed / mixed.sum()
        messages = fresh
    return torch.stack(beliefs())


FORMS = [
    {},
    {"reverse": False},
    {"lambda_": 0.0},
    {"lambda_": 0.5},
    {"lambda_": 0.03},
    {"lambda_": -0.7},
    {"lambda_": 2.5, "reverse": False},
    {"kappa": 2.0},
    {"kappa": math.inf},
    {"lambda_": 0.6, "kappa": 1.7},
    {"alpha": 0.3},
    {"alpha": 0.3, "rho": 1.0},
    {"lambda_": 0.5, "alpha": 0.8, "rho": -2.0},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_is_what_is_written_down(form):
    graph = grid(2, 3, 3)
    model, fields = model_on(graph), fields_on(graph)
    found = infer(MessagePassing(model, **form), fields, 4)
    for sample in range(2):
        torch.testing.assert_close(found[sample], written_down(model, fields[sample], 4, **form))


@pytest.mark.parametrize("scale", [1.0, 40.0])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_all_ways_to_compute_agree(form, scale):
    """By products, by logarithms (large potentials), and with exponents as tensors: all, per edge, per message."""
    graph = grid(2, 3, 3)
    model, fields = model_on(graph, scale), fields_on(graph)
    found = infer(MessagePassing(model, **form), fields, 3)
    assert bool(torch.isfinite(found).all())
    changed = dict(form)
    for name, value in form.items():
        if name in ("lambda_", "alpha", "rho") or (name == "kappa" and value < math.inf):
            changed[name] = torch.full((7 if name == "lambda_" else 14,), value, **DOUBLE)
    torch.testing.assert_close(infer(MessagePassing(model, **changed), fields, 3), found)
    raw = MessagePassing(model, **{k: v for k, v in form.items() if k != "rho"}, normalised=False)
    if "rho" not in form:
        torch.testing.assert_close(infer(raw, fields, 3), found)


def test_sums_of_products_and_of_logarithms_are_one_function():
    """At the size of potentials where one takes over from the other, in float32."""
    graph = grid(3, 3, 3)
    table = torch.zeros(12, 3, 3)
    table[:, 0, 1], table[:, 2, 2] = -69.0, 0.5
    fields = torch.randn(2, 9, 3)
    exact = infer(BeliefPropagation(PairwiseMRF(graph, table.double())), fields.double(), 9)
    below = infer(BeliefPropagation(PairwiseMRF(graph, table)), fields, 9)
    table[0, 0, 1] = -90.0
    above = infer(BeliefPropagation(PairwiseMRF(graph, table)), fields, 9)
    torch.testing.assert_close(below.double(), exact, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(above.double(), exact, atol=1e-5, rtol=1e-4)


# -- limits ---------------------------------------------------------------------------------------------------------


def gradients(model, fields, **settings):
    net = du.unfold(MessagePassing(model, **settings), 4)
    weights = torch.arange(fields.numel(), **DOUBLE).reshape(fields.shape).cos()
    output = net(fields)
    (output * weights).sum().backward()
    return output.detach(), net.layers[0].model.pairwise.grad


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_mean_field_is_the_limit_of_lambda(sign, as_tensor):
    graph = grid(3, 3, 3)
    model, fields = model_on(graph), fields_on(graph)
    small = sign * 1e-8
    lambda_ = torch.tensor(small, **DOUBLE) if as_tensor else small
    for near, limit in zip(gradients(model, fields, lambda_=lambda_), gradients(model, fields, lambda_=0), strict=True):
        torch.testing.assert_close(near, limit, atol=1e-6, rtol=1e-6)


def test_the_derivative_in_lambda_is_continuous_through_zero():
    graph = grid(2, 2, 3)
    model, fields = model_on(graph), fields_on(graph, 1)

    def slope(value):
        net = du.unfold(MessagePassing(model, lambda_=nn.Parameter(torch.tensor(value, **DOUBLE))), 3)
        net(fields)[0, 0, 0].backward()
        return float(net.layers[0].lambda_.grad)

    def output(value):
        return float(infer(MessagePassing(model, lambda_=value), fields, 3)[0, 0, 0])

    for value in (0.0, 0.05, -0.05, 0.3, 1.0):
        numeric = (output(value + 1e-4) - output(value - 1e-4)) / 2e-4
        assert slope(value) == pytest.approx(numeric, rel=1e-5, abs=1e-8)


def test_max_product_is_the_limit_of_kappa():
    graph = Graph(tree(8), 3, 8)
    model, fields = model_on(graph, 2.0), fields_on(graph)
    near = infer(MessagePassing(model, kappa=3000.0), fields, 8)
    torch.testing.assert_close(near, infer(MaxProduct(model), fields, 8), atol=1e-2, rtol=1e-2)


def test_fractional_weights_are_exponents():
    """Weight 1 is belief propagation; large weights come to mean field."""
    graph = grid(3, 3)
    model, fields = model_on(graph), fields_on(graph)
    weights = torch.full((12,), 1.0, **DOUBLE)
    torch.testing.assert_close(infer(Fractional(model, weights), fields, 5), infer(BeliefPropagation(model), fields, 5))
    near, limit = infer(Fractional(model, 1e7), fields, 5), infer(MessagePassing(model, lambda_=0), fields, 5)
    torch.testing.assert_close(near, limit, atol=1e-6, rtol=1e-6)


def test_mean_field_is_message_passing_with_lambda_zero():
    """Marginals after k steps are those of messages that are as old."""
    graph = Graph([(0, 1), (1, 2), (2, 0), (3, 1)], [2, 3, 2, 4])
    model, fields = model_on(graph), fields_on(graph)
    by_messages = du.unfold(MessagePassing(model, lambda_=0), 6).outputs(fields, range(7))
    by_marginals = du.unfold(MeanField(model), 6).outputs(fields, range(7))
    for ours, theirs in zip(by_marginals, by_messages, strict=True):
        torch.testing.assert_close(ours, theirs)


# -- invariances ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [{}, {"lambda_": 0.4}, {"lambda_": 0.0}, {"kappa": math.inf}], ids=str)
def test_constants_orientations_and_names_do_not_matter(form):
    graph = grid(3, 3, 3)
    model, fields = model_on(graph), fields_on(graph)
    pairwise = model.pairwise.detach()
    expected = infer(MessagePassing(model, **form), fields, 5)
    shifted = PairwiseMRF(graph, pairwise + torch.randn(12, 1, 1, **DOUBLE))
    torch.testing.assert_close(infer(MessagePassing(shifted, **form), fields + 3.0, 5), expected)
    order, turned = torch.randperm(9), torch.rand(12) < 0.5
    edges = order[torch.where(turned[:, None], graph.edges.flip(1), graph.edges)]
    tables = torch.where(turned[:, None, None], pairwise.mT, pairwise)
    renamed = PairwiseMRF(Graph(edges, 3, 9), tables)
    moved = torch.empty_like(fields)
    moved[:, order] = fields
    torch.testing.assert_close(infer(MessagePassing(renamed, **form), moved, 5)[:, order], expected)


def test_padding_is_of_no_consequence():
    graph = Graph([(0, 1), (1, 2), (2, 0)], [2, 3, 2])
    model, fields = model_on(graph), fields_on(graph)
    expected = infer(BeliefPropagation(model), fields, 4)
    absent = graph.padding < 0
    beyond = absent[graph.edges[:, 0]][:, :, None] | absent[graph.edges[:, 1]][:, None]
    other = PairwiseMRF(graph, model.pairwise.detach().masked_fill(beyond, 123.0))
    assert torch.equal(infer(BeliefPropagation(other), fields.masked_fill(absent, 7.0), 4), expected)
    assert not bool(expected[:, absent].any())


# -- schedules ------------------------------------------------------------------------------------------------------


SCHEDULES = {
    "sequential": sequential,
    "backwards": lambda graph: sequential(graph, range(graph.nodes - 1, -1, -1)),
    "checkerboard": checkerboard,
    "layered": lambda graph: layered(torch.arange(graph.nodes) // 3),
    "random": lambda graph: random_turns(graph, 4, rounds=20),
    "residual": lambda graph: Residual(0.2),
    "damped": lambda graph: 0.5,
    "some messages": lambda graph: torch.linspace(0.2, 1.0, 2 * len(graph.edges), **DOUBLE),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_every_schedule_finds_the_marginals_of_a_tree(schedule):
    graph = Graph(tree(9), 3, 9)
    model, fields = model_on(graph), fields_on(graph)
    found = infer(BeliefPropagation(model, alpha=schedule(graph)), fields, 120)
    torch.testing.assert_close(found, marginals(graph, fields, model.pairwise), atol=1e-9, rtol=1e-9)


def test_a_sweep_through_a_chain_is_exact():
    """Forward and backward once, each node at its turn."""
    graph = Graph([(i, i + 1) for i in range(7)], 3, 8)
    model, fields = model_on(graph), fields_on(graph)
    found = infer(BeliefPropagation(model, alpha=layered(torch.arange(8))), fields, 14)
    torch.testing.assert_close(found, marginals(graph, fields, model.pairwise))


def test_only_those_send_whose_turn_it_is():
    graph = grid(2, 2)
    algorithm = BeliefPropagation(model_on(graph), alpha=sequential(graph, [2, 0, 1, 3]))
    fields = fields_on(graph)
    state = algorithm.init(fields)
    for node in (2, 0, 1, 3, 2):
        before, state = state[0], algorithm.step(fields, state)
        changed = ((state[0] - before).abs() > 1e-12).any(0).any(0)
        assert bool(changed.any())
        assert bool((graph.sources[changed] == node).all())
    assert int(state[1]) == 5


@pytest.mark.parametrize("kind", [BeliefPropagation, MeanField])
def test_in_turns_no_run_ends_at_a_turn_that_changes_nothing(kind):
    """The first node has nothing to say, but others have."""
    graph = Graph([(0, 1), (1, 2), (2, 3)], 2, 4)
    model = model_on(graph)
    model.pairwise.data[0] = 0.0
    fields = fields_on(graph)
    fields[:, 0] = 0.0
    result = du.iterate(kind(model, alpha=sequential(graph)), fields, until=1e-12)
    assert bool((result.steps > 3).all())
    torch.testing.assert_close(result.value, du.iterate(kind(model), fields, until=1e-13).value)
    whole = du.iterate(kind(model, alpha=sequential(graph)), fields, until=1e-12, batched=False)
    assert int(whole.steps) == int(result.steps.max())


def test_checkerboards_have_no_neighbours_of_one_colour():
    for graph, colours in (
        (grid(5, 6), 2),
        (Graph(list(itertools.combinations(range(5), 2)), 2, 5), 5),
        (Graph([], 2, 3), 1),
    ):
        turns = checkerboard(graph)
        assert turns.period == colours
        assert not bool((turns.groups[graph.edges[:, 0]] == turns.groups[graph.edges[:, 1]]).any())


def test_the_residual_schedule_renews_what_would_change_most():
    graph = grid(3, 3)
    fields = fields_on(graph)
    full, some = BeliefPropagation(model := model_on(graph)), BeliefPropagation(model, alpha=Residual(0.25))
    state = full.step(fields, full.init(fields))
    new, found = full.step(fields, state), some.step(fields, state)
    size = (new - state).abs().amax(1)
    renewed = (found != state).any(1)
    assert renewed.sum(1).tolist() == [6, 6]
    for sample in range(2):
        assert size[sample, renewed[sample]].min() >= size[sample, ~renewed[sample]].max()


# -- training -------------------------------------------------------------------------------------------------------


def test_settings_are_tied_per_edge_degree_and_layer():
    graph = grid(2, 3)
    model = model_on(graph)
    lambda_ = per_degree(graph, 0.5).double()
    assert len(lambda_.values) == 2
    assert lambda_().shape == (14,)
    alpha = du.constrain(
        MessagePassing(model, lambda_=lambda_, alpha=nn.Parameter(torch.full((14,), 0.9, **DOUBLE))),
        alpha=du.Interval(),
    )
    net = du.unfold(alpha, 3, tie={"model": "all", "lambda_": "each", "alpha": "each"})
    sizes = {group.name: (group.shape, group.layers) for group in net.groups()}
    assert sizes["model.pairwise"] == ((7, 2, 2), (0, 1, 2, 3))
    assert [group.shape for group in net.groups() if group.name == "lambda_.values"] == [(2,)] * 3
    net(fields_on(graph)).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())


def test_untied_networks_learn_what_the_algorithm_misses():
    """Exact marginals of a frustrated cycle as targets: the loss falls far below that of belief propagation."""
    torch.manual_seed(0)
    graph = Graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], 2, 4)
    model, fields = model_on(graph, 2.0), fields_on(graph, 200)
    target = marginals(graph, fields, model.pairwise)
    loss = nn.functional.mse_loss
    classic = float(loss(infer(BeliefPropagation(model), fields, 5), target))
    net = du.unfold(BeliefPropagation(model, alpha=0.8), 5, tie="each")
    du.fit(net, [(fields, target)], loss, epochs=60, optimizer=lambda p: torch.optim.Adam(p, lr=0.03), progress=False)
    with torch.no_grad():
        assert float(loss(net(fields), target)) < 0.2 * classic


def test_an_estimator_sees_the_logarithms():
    graph = grid(2, 2)
    model, fields = model_on(graph), fields_on(graph)
    for kind in (BeliefPropagation, MeanField):
        logarithms = infer(kind(model, estimator=nn.Identity()), fields, 3)
        torch.testing.assert_close(logarithms.exp(), infer(kind(model), fields, 3))
        head = kind(model, estimator=nn.Sequential(nn.Flatten(), nn.Linear(8, 1).double()))
        assert infer(head, fields, 3).shape == (2, 1)


def test_infer_is_iterate_without_its_measurements():
    graph = grid(3, 3, 3)
    model, fields = model_on(graph), fields_on(graph)
    for algorithm in (MessagePassing(model, lambda_=0.3, alpha=checkerboard(graph)), MeanField(model, alpha=0.5)):
        expected = du.iterate(algorithm, fields, until=None, max_steps=9)
        assert torch.equal(infer(algorithm, fields, 9), expected.value)
        halfway = du.iterate(algorithm, fields, until=None, max_steps=4).state
        assert torch.equal(infer(algorithm, fields, 5, halfway), expected.value)


@pytest.mark.parametrize("scale", [1.0, 25.0, 60.0])
@pytest.mark.parametrize(
    "form",
    [*FORMS, {"alpha": "checkerboard"}, {"alpha": Residual(0.3)}, {"alpha": "tensor", "lambda_": "tensor"}],
    ids=str,
)
def test_binary_inference_by_ratios_is_that_by_messages(form, scale):
    """Also where nodes are held to a state, and where tables are too large for it."""
    graph = grid(4, 4)
    model = model_on(graph, scale)
    fields = fields_on(graph, 3)
    fields[1] = clamp(graph, torch.tensor([[0, -1, 1, -1] * 4]))[0]
    made = {
        "checkerboard": checkerboard(graph),
        "tensor": torch.linspace(0.3, 1.0, 48, **DOUBLE),
    }
    settings = {name: made.get(value, value) if isinstance(value, str) else value for name, value in form.items()}
    algorithm = MessagePassing(model, **settings)
    expected = du.iterate(algorithm, fields, until=None, max_steps=7)
    torch.testing.assert_close(infer(algorithm, fields, 7), expected.value, atol=1e-11, rtol=1e-9)
    halfway = du.iterate(algorithm, fields, until=None, max_steps=3).state
    torch.testing.assert_close(infer(algorithm, fields, 4, halfway), expected.value, atol=1e-11, rtol=1e-9)
    single = copy.deepcopy(algorithm).float()
    if scale == 1:
        torch.testing.assert_close(infer(single, fields.float(), 7).double(), expected.value, atol=1e-4, rtol=1e-3)


# -- stability ------------------------------------------------------------------------------------------------------


EXTREMES = {
    "large potentials": lambda: (grid(4, 4, 3), 50.0),
    "many states": lambda: (Graph([(0, 1), (1, 2), (2, 0)], 512, 3), 5.0),
    "large degree": lambda: (Graph([(0, number) for number in range(1, 1001)], 2, 1001), 5.0),
}


@pytest.mark.parametrize(
    "form", [{}, {"lambda_": 0.0}, {"lambda_": 0.01}, {"lambda_": 0.5}, {"kappa": math.inf}], ids=str
)
@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES)
def test_single_precision_holds(extreme, form):
    graph, size = extreme()
    model = PairwiseMRF(graph, size * (2 * torch.rand(len(graph.edges), graph.states, graph.states) - 1))
    fields = torch.randn(2, graph.nodes, graph.states)
    net = du.unfold(MessagePassing(model, **form), 4)
    output = net(fields)
    output.square().sum().backward()
    for tensor in (output, *(p.grad for p in net.parameters())):
        assert bool(torch.isfinite(tensor).all())
    torch.testing.assert_close(output.sum(-1), torch.ones(output.shape[:2]))
    if graph.states < 512:
        exact = du.unfold(MessagePassing(model, **form), 4).double()(fields.double())
        assert bool(((output - exact).abs() < 2e-2).all())


# -- bad input ------------------------------------------------------------------------------------------------------

GRID = grid(2, 2)
TABLES = torch.zeros(4, 2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PairwiseMRF(GRID, torch.zeros(3, 2, 2)), r"pairwise has the shape \(3, 2, 2\); give \(4, 2, 2\)"),
        (lambda: PairwiseMRF(GRID, TABLES, torch.zeros(3, 2)), r"unary has the shape \(3, 2\); give \(4, 2\)"),
        (lambda: PairwiseMRF(GRID, TABLES.long()), "pairwise is of torch.int64; give float32 or float64"),
        (lambda: PairwiseMRF(GRID, TABLES + math.nan), "NaN"),
        (lambda: PairwiseMRF(GRID, TABLES + math.inf), r"\+inf"),
        (lambda: PairwiseMRF(GRID, groups=torch.zeros(4).long()), "groups share potentials of the model"),
        (lambda: PairwiseMRF(GRID, TABLES, groups=torch.zeros(3).long()), "4 whole numbers, one per edge"),
        (
            lambda: PairwiseMRF(GRID, TABLES[:1], groups=torch.tensor([0, 1, 0, 0])),
            "groups name table 1, .* there are 1",
        ),
        (lambda: PairwiseMRF(GRID, TABLES, groups=torch.tensor([0, -1, 0, 0])), "from 0, but the least is -1"),
        (lambda: infer(BeliefPropagation(PairwiseMRF(GRID, TABLES)), torch.zeros(1, 4, 3), 2), r"give \(1, 4, 2\)"),
        (
            lambda: infer(BeliefPropagation(PairwiseMRF(GRID)), torch.zeros(1, 4, 2), 2),
            "this model takes .observation, pairwise",
        ),
        (
            lambda: infer(BeliefPropagation(PairwiseMRF(GRID)), (torch.zeros(1, 4, 2), TABLES), 2),
            r"pairwise has the shape \(4, 2, 2\); give \(1, 4, 2, 2\)",
        ),
        (
            lambda: infer(BeliefPropagation(PairwiseMRF(GRID, TABLES)), (torch.zeros(1, 4, 2), TABLES), 2),
            "x is a tuple; this model takes the observation alone",
        ),
        (
            lambda: infer(BeliefPropagation(PairwiseMRF(GRID, TABLES)), torch.full((1, 4, 2), -math.inf), 2),
            "sample 0 leaves node 0 no state that is possible",
        ),
        (lambda: infer(BeliefPropagation(PairwiseMRF(GRID, TABLES)), torch.zeros(1, 4, 2), -1), "steps=-1"),
        (lambda: clamp(GRID, torch.tensor([[0, 2, 0, 0]])), "node 1 in state 2; it has the states 0 to 1"),
        (lambda: clamp(GRID, torch.tensor([[0, 0, 0]])), r"whole numbers \(batch, 4\), not \(1, 3\)"),
        (lambda: clamp(GRID, torch.zeros(1, 4)), "not .* torch.float32"),
        (
            lambda: BeliefPropagation(PairwiseMRF(GRID, TABLES), alpha=1.5),
            r"alpha lies outside of \[0, 1\]: 1.5 to 1.5",
        ),
        (lambda: BeliefPropagation(PairwiseMRF(GRID, TABLES), alpha=torch.tensor([0.5] * 7 + [-0.1])), "-0.1 to 0.5"),
        (lambda: BeliefPropagation(PairwiseMRF(GRID, TABLES), alpha=torch.zeros(5)), r"give one number, 4 .* or 8"),
        (lambda: BeliefPropagation(PairwiseMRF(GRID, TABLES), alpha=math.nan), r"alpha lies outside of \[0, 1\]"),
        (lambda: MeanField(PairwiseMRF(GRID, TABLES), alpha=-0.1), r"alpha lies outside of \[0, 1\]"),
        (lambda: MeanField(PairwiseMRF(GRID, TABLES), alpha=torch.ones(8)), "one for each node: 4"),
        (
            lambda: MeanField(PairwiseMRF(GRID, TABLES), alpha=sequential(grid(1, 3))),
            "those of 3 nodes, the graph has 4",
        ),
        (lambda: MessagePassing(PairwiseMRF(GRID, TABLES), kappa=0.0), "kappa=0.0 must be above 0"),
        (lambda: MessagePassing(PairwiseMRF(GRID, TABLES), lambda_=math.inf), "must be finite"),
        (lambda: MessagePassing(PairwiseMRF(GRID, TABLES), lambda_=math.nan), "NaN is no exponent"),
        (lambda: MessagePassing(PairwiseMRF(GRID, TABLES), lambda_=0, kappa=math.inf), "no maximum over states"),
        (lambda: MessagePassing(PairwiseMRF(GRID, TABLES), kappa=torch.tensor(math.inf)), "given as a number"),
        (lambda: MessagePassing(PairwiseMRF(GRID, TABLES), rho=1.0, normalised=False), "give rho=0"),
        (lambda: Fractional(PairwiseMRF(GRID, TABLES), 0.0), "weights of edges must be above 0"),
        (lambda: Turns(torch.tensor([0, 1, 2]), [0, 1]), "some nodes would never send"),
        (lambda: Turns(torch.zeros(3), [0]), "whole numbers"),
        (lambda: Residual(0.0), "share=0.0"),
        (lambda: random_turns(GRID, 5), "groups=5 is out of range"),
        (lambda: Grouped(0.5, torch.tensor([-1, 0])), "whole numbers from 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
