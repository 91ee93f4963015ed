"""Files in the formats of the UAI competitions: models (.uai), evidence (.uai.evid) and marginals (.uai.MAR).

All are words between white space; where lines end is of no consequence, but for one thing, see `read_evidence`.
Variables are numbers from 0; there are no names and no comments. Numbers are probabilities or other plain numbers, not
logarithms; they are read and written so that no digit of a float64 is lost.
"""

import decimal
import math
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from deepunfold.core._errors import FileFormatError
from deepunfold.mrf._factors import LARGEST, from_factors, to_factors, variables
from deepunfold.mrf._graph import Graph
from deepunfold.mrf._model import Input, PairwiseMRF

File = str | os.PathLike[str]
_WHOLE = re.compile(rb"[0-9]{1,18}")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,15})?")
_WIDE = decimal.Context(prec=40, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
"""For numbers that are too large or too small for a float64, though their logarithms are not."""


def read_uai(path: File) -> PairwiseMRF:
    """The model of a .uai file, MARKOV or BAYES, in float64.

    Tables over one or two variables are its unary and pairwise potentials. Others make auxiliary nodes, as described
    for `from_factors`: the file's variables are the first ``model.graph.variables`` nodes. log Z is that of the file.
    """
    file = _Words(path)
    kind = file.word("MARKOV or BAYES")
    if kind not in (b"MARKOV", b"BAYES"):
        file.fail(f"begins with {_shown(kind)}; a model begins with MARKOV or BAYES")
    nodes = file.count("variables")
    counts = [file.whole(f"the number of states of variable {node}", 1, LARGEST) for node in range(nodes)]
    scopes = [_scope(file, number, nodes) for number in range(file.count("functions"))]
    factors = []
    for number, scope in enumerate(scopes):
        shape = [counts[node] for node in scope]
        size = file.count(f"entries of function {number}")
        if size != _product(shape, size):
            file.fail(
                f"has {size} for the number of entries of function {number}, whose variables have {_some(shape)} states"
            )
        what = f"the table of function {number}"
        table = [file.logarithm(what) for _ in range(size)]
        factors.append((scope, torch.tensor(table, dtype=torch.float64).reshape(shape)))
    file.end()
    try:
        return from_factors(counts, factors)
    except ValueError as error:
        raise FileFormatError(f"{path}: {error}") from error


def write_uai(path: File, model: PairwiseMRF, x: Input | None = None) -> None:
    """Write a model as a .uai file, MARKOV: a table for each node and each edge, and for each auxiliary node one over
    the variables that it joins. The order of variables stays; names are not part of the format.

    A logarithm comes back from the file as it was, or, where it lies between -1 and 1, within 2^-53. Numbers beyond
    the range of float64 are written as such, like 1e-400; other programs may read them as zero or infinite.

    Args:
        path: the file; it is written whole or not at all.
        model: where potentials come with the input, ``x`` is needed.
        x: an input of one sample, whose potentials are written.
    """
    counts, factors = to_factors(model, x)
    lines = ["MARKOV", str(len(counts)), _row(counts), str(len(factors))]
    lines += [_row([len(scope), *scope]) for scope, _ in factors]
    for _, table in factors:
        lines += ["", str(table.numel())]
        lines += [" ".join(map(_plain, row)) for row in table.double().reshape(-1, table.shape[-1]).tolist()]
    _write(path, lines)


def read_evidence(path: File, graph: Graph) -> Tensor:
    """The observed states of a .uai.evid file, (samples, nodes), -1 where a node is free: what `clamp` takes.

    A sample is how many variables are observed, and for each its number and its state. A file has one sample, or, in
    the older form, the number of samples and then these. Where it could be either, it is the older form if that number
    has a line of its own and each sample begins a line.
    """
    file = _Words(path)
    numbers = [file.whole("evidence", 0, LARGEST) for _ in range(len(file))]
    starts = _sample_starts(numbers)
    one = len(numbers) == 1 + 2 * numbers[0]
    if one and (starts is None or not all(file.begins_line(start) for start in [0, *starts])):
        starts = [0]
    if not starts:
        file.fail(
            f"and all after it, {len(numbers)} numbers, are neither a sample, which is how many variables are observed "
            "and as many pairs of a variable and its state, nor a number of samples and as many of these",
            first=True,
        )
    counts, nodes = graph.counts, variables(graph)
    if len(starts) * graph.nodes > LARGEST:
        file.fail(
            f"and after it has {len(starts)} samples, too many for {graph.nodes} nodes; split the file", first=True
        )
    samples = []
    for sample, start in enumerate(starts):
        states = [-1] * graph.nodes
        for place in range(start + 1, start + 1 + 2 * numbers[start], 2):
            node, state = numbers[place], numbers[place + 1]
            file.at = place + 1
            if node >= nodes:
                file.fail(f"observes variable {node}; there are 0 to {nodes - 1}")
            if state >= counts[node]:
                file.fail(f"has variable {node} in state {state}; it has the states 0 to {counts[node] - 1}")
            if states[node] >= 0:
                file.fail(f"observes variable {node} twice in sample {sample}")
            states[node] = state
        samples.append(states)
    return torch.tensor(samples)


def write_evidence(path: File, states: Tensor, graph: Graph) -> None:
    """Write observed states (samples, nodes), -1 where a node is free, as a .uai.evid file.

    One sample is written as such, several in the older form, which begins with their number.
    """
    nodes = variables(graph)
    if (
        states.dim() != 2
        or states.shape[1] not in (nodes, graph.nodes)
        or states.is_floating_point()
        or not len(states)
    ):
        raise ValueError(
            f"states must be whole numbers (samples, {nodes}), not {tuple(states.shape)} of {states.dtype}"
        )
    for sample, row in enumerate(states.tolist()):
        for node, (state, count) in enumerate(zip(row, graph.counts, strict=False)):
            if not -1 <= state < (count if node < nodes else 0):
                raise ValueError(f"sample {sample} has node {node} in state {state}, which a file cannot hold")
    held = [[(node, state) for node, state in enumerate(row) if state >= 0] for row in states.tolist()]
    lines = [_row([len(pairs), *(number for pair in pairs for number in pair)]) for pairs in held]
    _write(path, lines if len(lines) == 1 else [str(len(lines)), *lines])


def read_marginals(path: File, graph: Graph) -> Tensor:
    """The marginals of a .MAR file, (samples, variables, states), zero for states that a variable does not have.

    The file has MAR, and the marginals of one sample, or the number of samples and those of each. Where a solver has
    written several solutions, each after -BEGIN-, the last one counts. ``graph`` is that of the model; compare with
    the first ``graph.variables`` nodes where it has auxiliary ones.
    """
    file = _Words(path)
    if (task := file.word("MAR")) != b"MAR":
        file.fail(f"begins with {_shown(task)}; marginals begin with MAR")
    file.skip_past(b"-BEGIN-")
    nodes = variables(graph)
    counts = graph.counts[:nodes]
    size = 1 + nodes + sum(counts)
    left = len(file)
    samples = 1 if left == size else file.count("samples or of variables")
    if left != size and left != 1 + samples * size:
        file.fail(f"begins a solution of {left} words; the marginals of {nodes} variables need {size} for each sample")
    beliefs = torch.zeros(samples, nodes, graph.states, dtype=torch.float64)
    for sample in range(samples):
        file.whole("the number of variables", nodes, nodes)
        for node, count in enumerate(counts):
            what = f"variable {node} of sample {sample}"
            file.whole(f"the number of states of {what}", count, count)
            beliefs[sample, node, :count] = torch.tensor(
                [file.probability(f"the marginals of {what}") for _ in range(count)], dtype=torch.float64
            )
    file.end()
    return beliefs


def write_marginals(path: File, beliefs: Tensor, graph: Graph) -> None:
    """Write marginals (samples, nodes, states) as a .MAR file: those of variables, not those of auxiliary nodes.

    One sample is written as such, several after their number. ``graph`` is that of the model.
    """
    nodes = variables(graph)
    if beliefs.dim() != 3 or beliefs.shape[1] not in (nodes, graph.nodes) or beliefs.shape[2] != graph.states:
        raise ValueError(
            f"beliefs have the shape {tuple(beliefs.shape)}; give (samples, {graph.nodes}, {graph.states})"
        )
    counts, rows = graph.counts[:nodes], []
    for sample in beliefs.detach().double().tolist():
        own = [belief[:count] for belief, count in zip(sample, counts, strict=False)]
        wrong = next((node for node, belief in enumerate(own) if not all(map(_is_probability, belief))), None)
        if wrong is not None:
            raise ValueError(f"node {wrong} has the belief {own[wrong]}; give probabilities, 0 to 1")
        rows.append(" ".join([str(nodes), *(_row([len(belief), *belief]) for belief in own)]))
    if not rows:
        raise ValueError("beliefs have no sample; give at least one")
    _write(path, ["MAR", *([] if len(rows) == 1 else [str(len(rows))]), *rows])


class _Words:
    """The words of a file, one after the other, and errors that say where in the file."""

    def __init__(self, path: File) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{path} is not there" if not self.path.exists() else f"{path} is not a file")
        split = [line.split() for line in self.path.read_bytes().splitlines()]
        self.words = [word for line in split for word in line]
        self.lines = [number for number, line in enumerate(split, 1) for _ in line]
        self.at = 0
        if not self.words:
            raise FileFormatError(f"{path} is empty")

    def __len__(self) -> int:
        """How many words are left."""
        return len(self.words) - self.at

    def fail(self, what: str, first: bool = False) -> NoReturn:
        """Raise for the word that was read last, or for the first."""
        raise FileFormatError(f"{self.path}: line {self.lines[0 if first else self.at - 1]} {what}")

    def word(self, what: str) -> bytes:
        if not len(self):
            self.fail(f"is the last one, but {what} should follow; the file is truncated, or a count in it is wrong")
        self.at += 1
        return self.words[self.at - 1]

    def whole(self, what: str, low: int, high: int) -> int:
        """A whole number in a range."""
        word = self.word(what)
        if not _WHOLE.fullmatch(word):
            self.fail(f"has {_shown(word)} for {what}; this must be a whole number")
        number = int(word)
        if not low <= number <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            self.fail(f"has {number} for {what}; here it must be {wanted}")
        return number

    def count(self, what: str) -> int:
        """How many of something follow, each at least a word, so that nothing is allocated for what is not there."""
        number = self.whole(f"the number of {what}", 0, 10**18)
        if number > len(self):
            self.fail(f"has {number} for the number of {what}, but only {len(self)} words follow")
        return number

    def number(self, what: str) -> str:
        """A number that is not negative, as it is written."""
        word = self.word(what)
        if not _NUMBER.fullmatch(word):
            self.fail(f"has {_shown(word)} in {what}; this must be a number")
        text = word.decode()
        if text.startswith("-") and _WIDE.create_decimal(text) < 0:
            self.fail(f"has {_shown(word)} in {what}; this must not be negative")
        return text

    def logarithm(self, what: str) -> float:
        """That of the next number, -inf for zero."""
        text = self.number(what)
        value = float(text)
        if 1e-300 < value < math.inf:
            return math.log(value)
        exact = _WIDE.create_decimal(text)
        return float(_WIDE.ln(exact)) if exact > 0 else -math.inf

    def probability(self, what: str) -> float:
        value = float(self.number(what))
        if not _is_probability(value):
            self.fail(f"has {value} in {what}; this must be a probability, 0 to 1")
        return value

    def begins_line(self, place: int) -> bool:
        return place == 0 or self.lines[place] > self.lines[place - 1]

    def skip_past(self, mark: bytes) -> None:
        """Go on after the last of such words, if there are any."""
        places = [place for place, word in enumerate(self.words) if word == mark]
        self.at = places[-1] + 1 if places else self.at

    def end(self) -> None:
        if len(self):
            word = self.word("nothing")
            self.fail(f"has {_shown(word)} after the end; a count before it is wrong, or it does not belong here")


def _scope(file: _Words, number: int, nodes: int) -> tuple[int, ...]:
    """The variables of a function."""
    what = f"function {number}"
    size = file.count(f"variables of {what}")
    scope: dict[int, None] = {}
    for _ in range(size):
        node = file.whole(f"a variable of {what}", 0, nodes - 1)
        if node in scope:
            file.fail(f"has variable {node} twice in {what}")
        scope[node] = None
    return tuple(scope)


def _sample_starts(numbers: Sequence[int]) -> list[int] | None:
    """Where the samples begin if the first of the numbers is how many there are; None if it cannot be."""
    starts: list[int] = []
    place = 1
    while place < len(numbers) and len(starts) < numbers[0]:
        starts.append(place)
        place += 1 + 2 * numbers[place]
    return starts if starts and len(starts) == numbers[0] and place == len(numbers) else None


def _product(shape: Sequence[int], limit: int) -> int:
    """The number of entries; beyond the limit it is only known to be larger."""
    size = 1
    for count in shape:
        size *= count
        if size > limit:
            break
    return size


def _plain(logarithm: float) -> str:
    """The number with this logarithm; of those that are as near the one with the fewest digits."""
    if logarithm == -math.inf:
        return "0"
    if abs(logarithm) > 690:
        if abs(logarithm) > 1e15:
            raise ValueError(f"a potential is {logarithm}; a file holds those within 1e15, or -inf")
        return f"{_WIDE.exp(decimal.Decimal(logarithm)):.25e}"
    value = math.exp(logarithm)
    near = (float(f"{value:.15g}"), value, math.nextafter(value, 0), math.nextafter(value, math.inf))
    return repr(min(near, key=lambda each: abs(math.log(each) - logarithm)))


def _is_probability(value: float) -> bool:
    """Also where rounding has gone a little beyond 1."""
    return 0 <= value <= 1 + 1e-6


def _row(numbers: Sequence[float]) -> str:
    return " ".join(map(repr, numbers))


def _some(numbers: Sequence[int]) -> str:
    """Not more of them than fit in a message."""
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def _shown(word: bytes) -> str:
    text = word.decode("ascii", "backslashreplace")
    return repr(text if len(text) <= 30 else f"{text[:30]}...")


def _write(path: File, lines: Sequence[str]) -> None:
    """Write a file under a temporary name, then rename it, so that it is there whole or not at all."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text("\n".join([*lines, ""]), encoding="ascii", newline="\n")
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
