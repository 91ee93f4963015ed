"""Files of the UAI competitions: written by hand, there and back, and broken in every way."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepunfold.mrf import Graph, PairwiseMRF, _factors, _uai, clamp, grid, log_partition, marginals
from deepunfold.mrf._factors import from_factors, to_factors
from deepunfold.mrf._uai import (
    read_evidence,
    read_marginals,
    read_uai,
    write_evidence,
    write_marginals,
    write_uai,
)

MARKOV = """MARKOV
3
2 2 3
2
2 0 1
2 2 1

4
 0.5 2
 0 1.25

6
 1e-1 0.7
 3 .25
 1. 4E+2
"""
BAYES = """BAYES
4
2 2 2 3
4
1 0
1 1
3 0 1 2
2 2 3

2
 0.4 0.6

2
 0.3 0.7

8
 0.9 0.1
 0.5 0.5
 0.2 0.8
 0 1

6
 0.1 0.2 0.7
 0.5 0.25 0.25
"""
EVIDENCE = "2 1 0 2 2\n"
SAMPLES = "3\n1 0 1\n0\n2 2 2 1 0\n"
MAR = "MAR\n3 2 0.1 0.9 2 0.3 0.7 3 0.2 0.2 0.6\n"


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "file.uai"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def markov(file):
    return read_uai(file(MARKOV)).graph


def log_z(model, x=None):
    x = torch.zeros(1, model.graph.nodes, model.graph.states) if x is None else x
    return log_partition(model.graph, *model(x)).item()


# Examples


@pytest.mark.parametrize("change", [str, lambda text: " ".join(text.split()), lambda text: "\r\n".join(text.split())])
def test_a_markov_network(file, change):
    model = read_uai(file(change(MARKOV)))
    assert (model.graph.counts, model.graph.names, model.graph.variables) == ([2, 2, 3], [], 3)
    assert model.graph.edges.tolist() == [[0, 1], [2, 1]]
    assert model.unary.dtype == model.pairwise.dtype == torch.float64
    expected = torch.tensor([[[0.5, 2], [0, 1.25]], [[0.1, 0.7], [3, 0.25]]], dtype=torch.float64)
    torch.testing.assert_close(model.pairwise[:, :2, :2].exp(), expected)
    total = sum(
        a * b
        for first, second in (((0.5, 0), (0.1, 3, 1)), ((2, 1.25), (0.7, 0.25, 400)))
        for a in first
        for b in second
    )
    assert log_z(model) == pytest.approx(math.log(total))


def test_a_bayesian_network_with_evidence(file):
    model = read_uai(file(BAYES))
    graph = model.graph
    assert (graph.variables, graph.counts, graph.scopes) == (4, [2, 2, 2, 3, 8], [(0, 1, 2)])
    assert log_z(model) == pytest.approx(0, abs=1e-12)
    states = read_evidence(file("2 3 2 0 1"), graph)
    assert states.tolist() == [[1, -1, -1, 2, -1]]
    # p(x0 = 1, x3 = 2), and the posterior of x1
    joint = [0.6 * 0.3 * (0.2 * 0.7 + 0.8 * 0.25), 0.6 * 0.7 * (0 * 0.7 + 1 * 0.25)]
    x = clamp(graph, states).double()
    assert log_z(model, x) == pytest.approx(math.log(sum(joint)))
    beliefs = marginals(graph, *model(x))
    torch.testing.assert_close(beliefs[0, 1, :2], torch.tensor(joint, dtype=torch.float64) / sum(joint))
    path = file("")
    write_marginals(path, beliefs, graph)
    words = path.read_text().split()
    assert words[:2] == ["MAR", "4"]
    assert words[2:5] == ["2", "0.0", "1.0"]
    assert len(words) == 2 + 4 + 9
    assert torch.equal(read_marginals(path, graph), beliefs[:, :4])


def test_constants_and_repeated_functions(file):
    model = read_uai(file("MARKOV 2 2 2  4  0  2 1 0  2 0 1  0   1 3   4 1 2 3 4   4 5 6 7 8   1 0.5"))
    assert model.graph.edges.tolist() == [[1, 0]]
    assert log_z(model) == pytest.approx(math.log(1.5 * (1 * 5 + 2 * 7 + 3 * 6 + 4 * 8)))
    assert log_z(read_uai(file("MARKOV 1 2 1 0 1 0"))) == -math.inf
    assert log_z(read_uai(file("MARKOV\n2\n3 4\n0"))) == pytest.approx(math.log(12))


# There and back


def near(one, other):
    """What `write_uai` promises: exact from 1 on, within 2^-53 below; another machine's logarithm may differ a bit."""
    slack = 2**-52 * torch.clamp(other.abs(), min=1).nan_to_num(posinf=1)
    return bool(((one == other) | ((one - other).abs() <= slack)).all())


def models():
    mixed = Graph([(3, 1), (1, 0), (2, 1), (0, 3)], [2, 3, 4, 1])
    pairwise = 30 * torch.randn(4, 4, 4).double()
    yield "grid", PairwiseMRF(grid(3, 4), torch.randn(17, 2, 2).double(), torch.randn(12, 2).double())
    yield "mixed states, no unary", PairwiseMRF(mixed, pairwise.masked_fill(torch.rand(4, 4, 4) < 0.2, -math.inf))
    yield "groups", PairwiseMRF(grid(2, 2), torch.randn(2, 2, 2).double(), groups=torch.tensor([0, 1, 1, 0]))
    yield "single precision", PairwiseMRF(grid(2, 2), torch.randn(4, 2, 2))
    yield "no edges", PairwiseMRF(Graph([], [2, 3]), torch.zeros(0, 3, 3).double(), torch.randn(2, 3).double())
    scopes = [(0, 1), (3, 1, 0), (2,), (1, 2, 3)]
    counts = [2, 3, 2, 2]
    factors = [(nodes, torch.randn([counts[node] for node in nodes]).double()) for nodes in scopes]
    yield "factors over three", from_factors(counts, factors)
    small = torch.tensor([[1e-300, -1e-17], [0.0, 1e-3]], dtype=torch.float64)
    yield "near zero", PairwiseMRF(Graph([(0, 1)], 2, 2), small[None])
    huge = torch.tensor([[-1e4, 1e9], [-745.2, 709.9]], dtype=torch.float64)
    yield "beyond float64", PairwiseMRF(Graph([(0, 1)], 2, 2), huge[None], -huge * 1e3)


@pytest.mark.parametrize("name", [name for name, _ in models()])
def test_models_there_and_back(tmp_path, name):
    model = dict(models())[name]
    path = tmp_path / "model.uai"
    write_uai(path, model)
    again = read_uai(path)
    states, factors = to_factors(model)
    states_again, factors_again = to_factors(again)
    assert states_again == states == [int(word) for word in path.read_text().split()[2 : 2 + len(states)]]
    assert [tuple(nodes) for nodes, _ in factors_again] == [tuple(nodes) for nodes, _ in factors]
    assert torch.equal(again.graph.edges, model.graph.edges)
    for (_, one), (_, other) in zip(factors_again, factors, strict=True):
        assert near(one, other.double())
    write_uai(tmp_path / "again.uai", again)
    assert (tmp_path / "again.uai").read_bytes() == path.read_bytes()


@settings(deadline=None, max_examples=200)
@given(st.floats(-1e15, 1e15) | st.floats(-1, 1) | st.floats(-1000, 1000))
def test_numbers_there_and_back(logarithm):
    assert near(torch.tensor(parsed(_uai._plain(logarithm))).double(), torch.tensor(logarithm).double())


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 10**15 - 1), st.integers(-30, 15))
def test_numbers_of_up_to_fifteen_digits_are_written_as_they_were(digits, exponent):
    value = float(f"{digits}e{exponent}")
    assert float(_uai._plain(math.log(value))) == pytest.approx(value, rel=1e-14)
    if 0.4 < value < 2.7:
        assert _uai._plain(math.log(value)) == repr(value)


def parsed(text):
    words = object.__new__(_uai._Words)
    words.words, words.lines, words.at = [text.encode()], [1], 0
    return words.logarithm("a test")


def test_numbers_beyond_float64():
    assert parsed("1e-400") == pytest.approx(-400 * math.log(10), rel=1e-15)
    assert parsed("25e400") == pytest.approx(math.log(25) + 400 * math.log(10), rel=1e-15)
    assert parsed("4e-320") == pytest.approx(math.log(4) - 320 * math.log(10), rel=1e-15)
    assert parsed("0e-5") == parsed("-0.0") == parsed("0" * 1000) == -math.inf
    assert parsed("1" + "0" * 5000) == pytest.approx(5000 * math.log(10))


def test_a_potential_that_is_too_large(tmp_path):
    model = PairwiseMRF(Graph([(0, 1)], 2, 2), torch.full((1, 2, 2), -1e30))
    with pytest.raises(ValueError, match=r"a potential is -1.0.*e.30; a file holds those within 1e15, or -inf"):
        write_uai(tmp_path / "model.uai", model)
    assert list(tmp_path.iterdir()) == []


def test_the_potentials_of_an_input(tmp_path):
    model = PairwiseMRF(grid(2, 2))
    x = torch.randn(1, 4, 2).double(), torch.randn(1, 4, 2, 2).double()
    write_uai(tmp_path / "model.uai", model, x)
    again = read_uai(tmp_path / "model.uai")
    assert near(again.unary, x[0][0])
    assert near(again.pairwise, x[1][0])
    with pytest.raises(ValueError, match="potentials come with its input"):
        write_uai(tmp_path / "model.uai", model)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_evidence_there_and_back(tmp_path_factory, data):
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    row = st.tuples(*(st.integers(-1, count - 1) for count in counts))
    states = torch.tensor(data.draw(st.lists(row, min_size=1, max_size=4)))
    graph = Graph([], counts)
    path = tmp_path_factory.mktemp("evidence") / "file.uai.evid"
    write_evidence(path, states, graph)
    assert torch.equal(read_evidence(path, graph), states)
    clamp(graph, states)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_marginals_there_and_back(tmp_path_factory, data):
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    samples = data.draw(st.integers(1, 3))
    graph = Graph([], counts)
    torch.manual_seed(data.draw(st.integers(0, 100)))
    beliefs = (torch.randn(samples, len(counts), max(counts)).double() * 20 + graph.padding).softmax(-1)
    path = tmp_path_factory.mktemp("marginals") / "file.uai.MAR"
    write_marginals(path, beliefs, graph)
    assert torch.equal(read_marginals(path, graph), beliefs)


# Evidence and marginals in both forms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EVIDENCE, [[-1, 0, 2]]),
        ("2\n1 0\n2 2", [[-1, 0, 2]]),
        ("0", [[-1, -1, -1]]),
        ("1\n0\n", [[-1, -1, -1]]),
        ("1 2 1 0 2 2", [[-1, 0, 2]]),
        (SAMPLES, [[1, -1, -1], [-1, -1, -1], [-1, 0, 2]]),
        ("3 1 0 1 0 2 2 2 1 0", [[1, -1, -1], [-1, -1, -1], [-1, 0, 2]]),
        # One sample that could be two, and the other way round: lines decide.
        ("2 0 1 2 1", [[1, -1, 1]]),
        ("2\n0 1\n2 1", [[1, -1, 1]]),
        ("2\n0\n1 2 1", [[-1, -1, -1], [-1, -1, 1]]),
    ],
)
def test_both_forms_of_evidence(file, text, expected):
    graph = markov(file)
    assert read_evidence(file(text), graph).tolist() == expected


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        (MAR, 1),
        (MAR.replace("\n", " "), 1),
        (MAR.replace("MAR", "MAR\n1\n"), 1),
        ("MAR\n2\n3 2 1 0 2 1 0 3 1 0 0\n3 2 0.1 0.9 2 0.3 0.7 3 0.2 0.2 0.6", 2),
        ("MAR\n3 2 1 0 2 1 0 3 1 0 0\n-BEGIN-\nanything\n-BEGIN-" + MAR[3:], 1),
        ("MAR\n-BEGIN-\n1" + MAR[3:], 1),
    ],
)
def test_both_forms_of_marginals(file, text, samples):
    graph = markov(file)
    beliefs = read_marginals(file(text), graph)
    assert beliefs.shape == (samples, 3, 3)
    expected = torch.tensor([[0.1, 0.9, 0], [0.3, 0.7, 0], [0.2, 0.2, 0.6]], dtype=torch.float64)
    assert torch.equal(beliefs[-1], expected)


# Broken files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (" \n\t\n", "is empty"),
        ("MRF 1 2 0", r"line 1 begins with 'MRF'; a model begins with MARKOV or BAYES"),
        (b"\x00\xff\x80PK\n\x03", r"line 1 begins with '.x00.*; a model begins with MARKOV or BAYES"),
        ("MARKOV", "line 1 is the last one, but the number of variables should follow"),
        ("MARKOV\n0\n0", "give at least one node"),
        ("MARKOV\n-2", "line 2 has '-2' for the number of variables; this must be a whole number"),
        ("MARKOV\n2.0", "line 2 has '2.0' for the number of variables; this must be a whole number"),
        ("MARKOV\n99999999999", "line 2 has 99999999999 for the number of variables, but only 0 words follow"),
        ("MARKOV\n" + "9" * 5000, r"line 2 has '9{30}\.\.\.' for the number of variables; this must be a whole"),
        ("MARKOV\n2\n2 0\n0", "line 3 has 0 for the number of states of variable 1; here it must be 1 to "),
        ("MARKOV\n1\n99999999999\n0", "line 3 has 99999999999 for the number of states of variable 0"),
        ("MARKOV\n2\n2 100000000\n0", "padded to the 100000000 states"),
        ("MARKOV\n2\n2 2\n7\n1 0", "line 4 has 7 for the number of functions, but only 2 words follow"),
        ("MARKOV\n2\n2 2\n1\n9 0", "line 5 has 9 for the number of variables of function 0, but only 1 words follow"),
        ("MARKOV\n2\n2 2\n1\n2 0 2\n4 1 1 1 1", "line 5 has 2 for a variable of function 0; here it must be 0 to 1"),
        ("MARKOV\n2\n2 2\n1\n2 1 1\n4 1 1 1 1", "line 5 has variable 1 twice in function 0"),
        (
            "MARKOV\n2\n2 2\n1\n2 0 1\n3 1 1 1 1",
            r"line 6 has 3 for the number of entries of function 0, whose .* have 2, 2 states",
        ),
        ("MARKOV\n2\n2 2\n1\n2 0 1\n4 1 1 1", "line 6 has 4 for the number of entries of function 0, but only 3 words"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n1 -0.5", "line 7 has '-0.5' in the table of function 0; this must not be negative"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n1 -1e-999", "line 7 has '-1e-999' in .*; this must not be negative"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n1 nan", "line 7 has 'nan' in the table of function 0; this must be a number"),
        ("MARKOV\n1\n2\n1\n1 0\n2\ninf 1", "line 7 has 'inf' in the table of function 0; this must be a number"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n1_0 1", "line 7 has '1_0' in the table of function 0; this must be a number"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n1e9999999999999999 1", "line 7 has .* in the table of function 0; this must be"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n\u0661 1", "line 7 has .* in the table of function 0; this must be a number"),
        (MARKOV + "c end", "line 16 has 'c' after the end"),
        (
            "MARKOV\n20\n" + "4 " * 20 + "\n1\n20 " + " ".join(map(str, range(20))) + "\n2 1 1",
            "has 2 for the number of",
        ),
    ],
)
def test_broken_models(file, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_uai(file(text))
    assert "file.uai" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("2 1 0", "line 1 and all after it, 3 numbers, are neither a sample, .* nor a number of samples"),
        ("2\n1 0 0\n1 1", "line 1 and all after it, 6 numbers, are neither"),
        ("1 3 0", "line 1 observes variable 3; there are 0 to 2"),
        ("1\n1\n0 2", "line 3 has variable 0 in state 2; it has the states 0 to 1"),
        ("2 1 0 1 0", "line 1 observes variable 1 twice in sample 0"),
        ("1 0 -1", "line 1 has '-1' for evidence; this must be a whole number"),
        ("one 0 1", "line 1 has 'one' for evidence; this must be a whole number"),
        ("99999999999 0 1", "line 1 has 99999999999 for evidence"),
        ("100000000 0 1", "line 1 and all after it, 3 numbers, are neither"),
    ],
)
def test_broken_evidence(file, text, message):
    graph = markov(file)
    with pytest.raises(ValueError, match=message) as caught:
        read_evidence(file(text), graph)
    assert "file.uai" in str(caught.value)


def test_evidence_for_auxiliary_nodes_is_refused(file):
    graph = read_uai(file(BAYES)).graph
    with pytest.raises(ValueError, match="observes variable 4; there are 0 to 3"):
        read_evidence(file("1 4 0"), graph)
    with pytest.raises(ValueError, match="sample 0 has node 4 in state 3, which a file cannot hold"):
        write_evidence(file(""), torch.tensor([[0, 0, 0, 0, 3]]), graph)


def test_more_samples_than_memory_holds(file, monkeypatch):
    monkeypatch.setattr(_uai, "LARGEST", 1000)
    with pytest.raises(ValueError, match="line 1 and after it has 400 samples, too many for 3 nodes; split the file"):
        read_evidence(file("400\n" + "0\n" * 400), Graph([], 2, 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("MPE\n3 0 1 0", "line 1 begins with 'MPE'; marginals begin with MAR"),
        ("MAR", "line 1 is the last one, but the number of samples or of variables should follow"),
        (MAR + "-BEGIN-", "line 3 is the last one, but the number of samples or of variables should follow"),
        (
            "MAR\n3 2 0.1 0.9",
            r"line 2 begins a solution of 4 words; the marginals of 3 variables need 11 for each",
        ),
        (MAR.replace("\n3", "\n2"), "line 2 has 2 for the number of variables; here it must be 3"),
        (MAR.replace("2 0.3 0.7 3 0.2", "3 0.3 0.7 0 2 0.2"), "line 2 begins a solution of 12 words"),
        (
            MAR.replace("2 0.3 0.7 3", "3 0.3 0.7 3"),
            "has 3 for the number of states of variable 1 of sample 0; .* be 2",
        ),
        (
            MAR.replace("0.6", "-0.6"),
            "line 2 has '-0.6' in the marginals of variable 2 of sample 0; .* not be negative",
        ),
        (MAR.replace("0.6", "1.6"), "line 2 has 1.6 in the marginals of variable 2 of sample 0; this must be a prob"),
        (MAR.replace("0.6", "nan"), "line 2 has 'nan' in the marginals of variable 2 of sample 0; this must be a num"),
        (MAR.replace("MAR", "MAR 2 "), "line 1 begins a solution of 12 words"),
        (MAR.replace("MAR", "MAR 99999999999"), "line 1 has 99999999999 for the number of samples or of variables"),
        (MAR + "1", "line 2 begins a solution of 12 words"),
    ],
)
def test_broken_marginals(file, text, message):
    graph = markov(file)
    with pytest.raises(ValueError, match=message) as caught:
        read_marginals(file(text), graph)
    assert "file.uai" in str(caught.value)


WORDS = [
    "0",
    "1",
    "2",
    "-1",
    "3.5",
    "nan",
    "inf",
    "1e999",
    "-1e-999",
    "9" * 30,
    "50",
    "MAR",
    "BAYES",
    "\x00",
    "\xe9",
    "",
]


def mutated(text, seed, count):
    """The text with words or bytes replaced, removed, repeated and exchanged."""
    random.seed(seed)
    for _ in range(count):
        words = text.split(" ")
        place, other = random.randrange(len(words)), random.randrange(len(words))
        kind = random.randrange(7)
        if kind == 0:
            words[place] = random.choice(WORDS)
        elif kind == 1:
            del words[place:]
        elif kind == 2:
            words.insert(place, words[other])
        elif kind == 3:
            words[place], words[other] = words[other], words[place]
        elif kind == 4:
            del words[place]
        text = " ".join(words) or "0"
        letter = random.randrange(len(text))
        if kind == 5:
            text = text[:letter] + chr(random.randrange(256)) + text[letter + 1 :]
        elif kind == 6:
            text = text[:letter] + random.choice("0123456789.-e \n") + text[letter:]
    return text.encode("latin-1")


@pytest.mark.parametrize("kind", ["model", "evidence", "marginals"])
def test_what_is_broken_is_an_error_and_no_other(tmp_path, monkeypatch, kind):
    """Mutations of valid files are valid too, or a ValueError that names the file."""
    monkeypatch.setattr(_factors, "LARGEST", 1 << 14)
    graph = Graph([], [2, 2, 3])
    path = tmp_path / "file.uai"
    valid = 0

    def read():
        if kind == "model":
            model = read_uai(path)
            for potential in (model.unary, model.pairwise):
                assert bool((potential < math.inf).all())
            assert model(torch.zeros(1, model.graph.nodes, model.graph.states)).fields.shape[0] == 1
            write_uai(path, model)
        elif kind == "evidence":
            assert clamp(graph, read_evidence(path, graph)).shape[1:] == (3, 3)
        else:
            assert bool(((beliefs := read_marginals(path, graph)) >= 0).all())
            assert beliefs.shape[1:] == (3, 3)

    @settings(deadline=None, max_examples=250, database=None)
    @given(
        st.sampled_from({"model": [MARKOV, BAYES], "evidence": [EVIDENCE, SAMPLES], "marginals": [MAR]}[kind]),
        st.integers(0, 2**32),
        st.integers(0, 4),
        st.binary(max_size=20),
    )
    def fuzz(text, seed, count, tail):
        nonlocal valid
        content = mutated(text.replace("\n", " \n "), seed, count)
        path.write_bytes(content + (tail if seed % 10 == 0 else b""))
        message = "file.uai"
        try:
            read()
            valid += 1
        except ValueError as error:
            message = str(error)
        assert "file.uai" in message

    fuzz()
    assert valid > 10


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=60))
def test_binary_junk(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("junk") / "file.uai"
    path.write_bytes(content)
    for read in (read_uai, lambda path: read_marginals(path, grid(2, 2))):
        with pytest.raises(ValueError, match=r"file\.uai"):
            read(path)


# Writing


def test_files_are_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "model.uai"
    model = PairwiseMRF(grid(2, 2), torch.randn(4, 2, 2))
    write_uai(path, model)
    before = path.read_bytes()

    def fails(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(type(path), "replace", fails)
    with pytest.raises(OSError, match="no space left"):
        write_uai(path, model)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing is not there"):
        read_uai(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="is not a file"):
        read_uai(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the folder .*nothing does not exist"):
        write_evidence(tmp_path / "nothing" / "file", torch.tensor([[0]]), Graph([], [2]))


@pytest.mark.parametrize(
    ("write", "value", "message"),
    [
        (write_evidence, torch.zeros(1, 3), r"whole numbers \(samples, 2\), not \(1, 3\) of torch.float32"),
        (write_evidence, torch.zeros(1, 2), r"whole numbers \(samples, 2\), not \(1, 2\) of torch.float32"),
        (write_evidence, torch.zeros(0, 2).long(), r"whole numbers \(samples, 2\), not \(0, 2\) of torch.int64"),
        (write_evidence, torch.tensor([[0, 0], [2, 0]]), "sample 1 has node 0 in state 2, which a file cannot hold"),
        (write_evidence, torch.tensor([[0, -2]]), "sample 0 has node 1 in state -2, which a file cannot hold"),
        (write_marginals, torch.rand(2, 3), r"beliefs have the shape \(2, 3\); give \(samples, 2, 3\)"),
        (write_marginals, torch.rand(1, 2, 2), r"beliefs have the shape \(1, 2, 2\); give \(samples, 2, 3\)"),
        (write_marginals, torch.zeros(0, 2, 3), "beliefs have no sample"),
        (write_marginals, torch.full((1, 2, 3), math.nan), r"node 0 has the belief \[nan, nan\]; give probabilities"),
        (write_marginals, torch.full((1, 2, 3), -1.0), r"node 0 has the belief \[-1.0, -1.0\]; give probabilities"),
    ],
)
def test_what_cannot_be_written(tmp_path, write, value, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "file", value, Graph([], [2, 3]))
    assert list(tmp_path.iterdir()) == []
