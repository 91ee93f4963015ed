"""Properties that hold for any pattern, any depth, any nest."""

import itertools
import json

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deepunfold as du
from deepunfold.core import _tree
from deepunfold.core._layers import _ranges
from deepunfold.core._snapshot import decode, encode
from tests.cases import linear_recurrence, signals
from tests.test_unfold import perturbed

settings.register_profile("house", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("house")

LABELS = st.integers(1, 6).flatmap(lambda depth: st.lists(st.integers(0, 3), min_size=depth + 1, max_size=depth + 1))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(LABELS)
def test_any_labels_give_one_parameter_per_label(labels):
    net = du.unfold(linear_recurrence(), len(labels) - 1, tie=labels)
    assert len(list(net.parameters())) == 2 * len(set(labels))
    for k, j in itertools.combinations(range(len(labels)), 2):
        assert (net.layers[k].matrix is net.layers[j].matrix) == (labels[k] == labels[j])


@given(LABELS)
def test_the_gradient_of_any_group_is_the_sum_over_its_layers(labels):
    depth, x = len(labels) - 1, signals(2, 5)
    tied, untied = (du.unfold(linear_recurrence(), depth, tie=tie) for tie in (labels, "each"))
    for net in (tied, untied):
        net(x).square().sum().backward()
    for label in set(labels):
        members = [k for k, own in enumerate(labels) if own == label]
        total = sum(untied.layers[k].matrix.grad for k in members)
        assert torch.allclose(tied.layers[members[0]].matrix.grad, total, atol=1e-12)


@given(LABELS, st.data())
def test_any_chain_of_conversions_keeps_the_outputs(labels, data):
    depth, x = len(labels) - 1, signals(2, 5)
    net = perturbed(du.unfold(linear_recurrence(), depth, tie=labels))
    expected = net(x)
    for _ in range(3):
        convert = data.draw(st.sampled_from(["untie", "grow", "train_last", "all"]))
        if convert == "untie":
            net = net.untie()
        elif convert == "grow":
            net = net.grow(data.draw(st.integers(1, 2)))
        elif convert == "train_last":
            net = net.with_train_last(data.draw(st.integers(0, net.depth + 1)))
        else:
            net = net.with_train_last(None)
        assert torch.equal(net(x), expected)


@given(st.integers(0, 40), st.integers(1, 60), st.integers(1, 20))
def test_every_mode_plans_each_step_once_and_in_order(start, steps, number):
    stop = start + steps
    modes = [
        du.Unroll(),
        du.Checkpoint(),
        du.Checkpoint(number),
        du.Truncated(number),
        du.JacobianFree(),
        du.Implicit(),
    ]
    for mode in modes:
        spans = mode.plan(start, stop)
        covered = [k for span in spans for k in range(span.start, span.stop)]
        assert covered == list(range(start, stop))


@given(PLAIN)
def test_plain_values_survive_a_header(value):
    assert decode(json.loads(json.dumps(encode(value, "value")))) == value


@given(st.lists(st.integers(0, 30), unique=True, min_size=1).map(sorted))
def test_ranges_name_each_number_once(numbers):
    found = []
    for part in _ranges(numbers).split(", "):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == numbers


@given(st.sets(st.integers(0, 5), min_size=1).map(sorted))
def test_rows_that_are_selected_and_written_back_change_nothing(rows):
    state = {"a": torch.arange(12.0).reshape(6, 2), "b": (torch.arange(6), torch.tensor(3.0))}
    index = torch.tensor(rows)
    copy = _tree.map_tensors(torch.clone, state)
    _tree.write(copy, index, _tree.select(state, index, 6))
    assert all(torch.equal(a, b) for a, b in zip(_tree.leaves(copy), _tree.leaves(state), strict=True))
