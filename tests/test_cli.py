"""The command line, as a user meets it."""

import json
import subprocess
import sys

import pytest

import deepunfold
import deepunfold as du
from deepunfold.cli import main
from deepunfold.core.algorithms import ISTA, LISTA
from tests.cases import dictionary


def run(monkeypatch, capsys, *arguments):
    """Exit status, standard output and standard error of ``deepunfold ARGUMENTS``."""
    monkeypatch.setattr(sys, "argv", ["deepunfold", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "net.safetensors"
    chain = [(ISTA(dictionary()), 3), (LISTA(dictionary()), 2)]
    du.save(du.unfold(chain, tie="each", train_last=2), path, licence="CC0")
    return path


def test_version_and_help(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "--version")[:2] == (0, f"deepunfold {deepunfold.__version__}\n")
    status, out, _ = run(monkeypatch, capsys, "--help")
    assert status == 0
    for command in ("enhance", "train", "adapt", "evaluate", "mix", "explain", "live", "export", "info"):
        assert f" {command} " in out


def test_info_shows_layers_and_notes(monkeypatch, capsys, saved):
    status, out, _ = run(monkeypatch, capsys, "info", saved)
    assert status == 0
    assert out.startswith("ISTA x 3 -> LISTA x 2: 5 steps and a readout, 355 numbers in parameters")
    assert "licence: CC0" in out
    assert "train_last 2" in out
    assert len([line for line in out.splitlines() if line.startswith("analysis")]) == 3


def test_info_as_json(monkeypatch, capsys, saved):
    _, out, _ = run(monkeypatch, capsys, "info", saved, "--json")
    found = json.loads(out)
    assert found["depth"] == 5
    assert found["notes"] == {"licence": "CC0"}
    assert found["groups"][0] == {"name": "dictionary", "shape": [7, 5], "layers": [0], "trained": False}


@pytest.mark.parametrize(
    ("content", "message"), [(b"nonsense", "no safetensors file, or is damaged"), (None, "is not there")]
)
def test_mistakes_end_in_one_line_and_a_status(monkeypatch, capsys, tmp_path, content, message):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    status, out, err = run(monkeypatch, capsys, "info", path)
    assert status == 1
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_wrong_usage_is_explained(monkeypatch, capsys):
    status, _, err = run(monkeypatch, capsys, "info")
    assert status == 2
    assert "FILE" in err


def test_python_m_deepunfold():
    done = subprocess.run([sys.executable, "-m", "deepunfold", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("deepunfold ")
