"""The page "Paper to code" has a row for every label of the paper, and names only what exists."""

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "paper-to-code.md").read_text(encoding="utf-8")

# Every \label of the paper's source, in its order; three of them stand there twice.
LABELS = [
    label
    for line in (
        "eq:general:obj1 eq:general:obj2 eq:general:update1",
        "sec:application-mrf eq:mrf_model_hv eq:mfupdate eq:mfupdate eq:mfbelief eq:mfmsg eq:mfbelief_unfold",
        "eq:mfmsg_alpha eq:mfmsg_unfold eq:mfmsg_unfold eq:binary-mrf eq:sigmoidnet eq:bpupdate eq:bpmsg eq:bpbelief",
        "eq:bpmsg_unfold eq:bpmsg_unfold eq:unified_msg eq:unified_msg_mf eq:logsumprod eq:logmaxprod",
        "sec:app:nmf eq:nmf eq:sup_nmf_obj eq:nmf_updates eq:wiener eq:real_dnmf eq:real_dnmf_h eq:real_dnmf_wiener",
        "sec:experiments tab:dnn_results sec:snmf eq:snmf_obj tab:chime_dev",
        "sec:binaryMRF eq:mrf_to_sigmoid eq:generalized-mf-bp-binary eq:bpbelief_binary eq:bpbelief_binary_abc",
        "eq:bpbelief_binary_limit sec:mean sec:generalized_forms eq:generalized-mf-bp eq:generalized-sumprod-maxprod",
        "eq:generalized-combo sec:mult-backprop sec:mult_nmf_nonorm",
    )
    for label in line.split()
]

# What the paper states without a label.
UNLABELLED = [
    "bi-level optimisation",
    "smaller steps",
    "truncated iterations",
    "output layer",
    "untying",
    "∂E/∂φᴷ",
    "∂E/∂θᴷ",
    "∂E/∂φᵏ",
    "∂E/∂θᵏ",
    "L(q) ≤ log p(v)",
    "auxiliary variables",
    "a schedule in [0, 1]",
    "judicious tying",
    "incoming message neglected",
    "λ from 0 to 1",
    "W ⇐ W ∘ [∇E]₋ / [∇E]₊",
    "[∂E/∂h]₊, [∂E/∂h]₋, [∂E/∂w]₊, [∂E/∂w]₋",
]

ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| Label |", "| Equation or sentence |"))
]


def test_every_label_has_its_rows_in_the_order_of_the_paper():
    found = [row[0].strip("`") for row in ROWS if row[0].startswith("`")]
    assert Counter(found) == Counter(LABELS)
    assert found == LABELS


def test_the_unlabelled_equations_have_rows():
    assert [row[0] for row in ROWS if not row[0].startswith("`")] == UNLABELLED


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip("`") for row in ROWS])
def test_a_row_says_what_it_is_and_names_what_exists(row):
    _, meaning, code = row
    assert meaning
    names = re.findall(r"\[`[^`]+`\]\[(deepunfold[\w.]+)\]", code)
    assert bool(names) != (code == "not yet"), f"{code!r} names no function, and does not say 'not yet'"
    for name in names:
        found = importlib.import_module("deepunfold")
        for part in name.split(".")[1:]:
            found = getattr(found, part)
        assert callable(found)


def test_functions_cite_only_labels_that_the_paper_has():
    source = Path(importlib.import_module("deepunfold").__file__ or "").parent
    cited = re.compile(r"\b(?:eq|sec|tab):[\w:-]+")
    for file in source.rglob("*.py"):
        assert set(cited.findall(file.read_text(encoding="utf-8"))) <= set(LABELS), file.name
