"""``deepunfold evaluate`` as a user meets it."""

import csv
import io
import json
import re

import numpy as np
import pytest
import soundfile
import typer
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

from deepunfold.cli._evaluate import evaluate
from deepunfold.speech._enhancer import Enhancer
from deepunfold.speech._frontend import Frontend
from deepunfold.speech._metrics import sdr
from deepunfold.speech._model import Model

RATE = 8000
FAST = ("--metric", "sdr", "--metric", "si_sdr")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Matrices of this size gain little from threads, and lose much where tests run side by side."""
    with threadpool_limits(1):
        yield


def run(*arguments):
    app = typer.Typer()
    app.command()(evaluate)
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "120"})


def write(path, signal):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, signal, RATE, subtype="FLOAT")
    return path


def draw(seed):
    return np.random.default_rng(seed).standard_normal(3000) * 0.05


@pytest.fixture
def corpus(tmp_path):
    for seed, name in enumerate(("ann/a1", "bob/b1")):
        write(tmp_path / "corpus/reverberated/dev" / f"{name}.wav", draw(seed))
        for folder, gain in {"m6dB": 2, "6dB": 0.5}.items():
            noisy = draw(seed) + gain * draw(seed + 10)
            write(tmp_path / "corpus/isolated/dev" / folder / f"{name}.wav", noisy)
    return tmp_path / "corpus"


def test_estimates_against_references(corpus):
    done = run("--reference", corpus / "reverberated", "--estimate", corpus / "isolated", *FAST)
    assert done.exit_code == 0
    assert done.stderr == ""
    rows = [re.split("  +", line.strip()) for line in done.stdout.splitlines()[-3:]]
    assert [row[:2] for row in rows] == [["-6 dB", "2"], ["6 dB", "2"], ["all", "4"]]
    expected = np.mean([sdr(draw(seed), draw(seed) + 2 * draw(seed + 10)) for seed in (0, 1)])
    assert rows[0][2].startswith(f"{expected:.2f} [")


def test_files_and_a_missing_partner(corpus, tmp_path):
    (corpus / "isolated/dev/6dB/bob/b1.wav").unlink()
    (corpus / "isolated/dev/m6dB/bob/b1.wav").write_bytes(b"nonsense")
    write(corpus / "isolated/dev/6dB/ann/odd.wav", draw(0))
    targets = {"csv": tmp_path / "rows.csv", "json": tmp_path / "all.json"}
    options = [f"--{name}={path}" for name, path in targets.items()]
    done = run("--reference", corpus / "reverberated", "--estimate", corpus / "isolated", *FAST, *options)
    assert done.exit_code == 1
    assert "dev/m6dB/bob/b1.wav: not scored: " in done.stderr
    assert "dev/6dB/ann/odd.wav: not scored: " in done.stderr
    assert done.stderr.count("\n") == 2
    rows = list(csv.DictReader(io.StringIO(targets["csv"].read_text())))
    assert [row["name"] for row in rows if not row["failure"]] == ["dev/6dB/ann/a1.wav", "dev/m6dB/ann/a1.wav"]
    content = json.loads(targets["json"].read_text())
    assert len(content["files"]) == len(content["failures"]) == 2
    assert content["metrics"] == ["sdr", "si_sdr"]
    assert content["model"] is None


class Halve:
    """A stand-in for the enhancer."""

    model = None

    @classmethod
    def load(cls, path):
        made = cls()
        made.model = path
        return made

    def enhance(self, array, rate):
        return array / 2 if self.model is None else array + np.roll(array, 1, 0)


def test_mixtures(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("deepunfold.speech._enhancer.Enhancer", Halve)
    done = run("--mixtures", corpus, *FAST, "--json", tmp_path / "all.json")
    assert (done.exit_code, done.stderr) == (0, "")
    for word in ("SDR (dB)", "SI-SDR (dB)", "noisy", "enhanced", "improvement", "0.00 [0.00, 0.00]"):
        assert word in done.stdout
    content = json.loads((tmp_path / "all.json").read_text())
    assert content["model"] == "shipped"
    assert max(abs(each["scores"]["improvement"]["sdr"]) for each in content["files"]) < 1e-6
    other = run("--mixtures", corpus, *FAST, "--model", "own.safetensors", "--json", tmp_path / "all.json")
    assert other.exit_code == 0
    content = json.loads((tmp_path / "all.json").read_text())
    assert content["model"] == "own.safetensors"
    assert max(each["scores"]["improvement"]["si_sdr"] for each in content["files"]) < -0.1


def test_mixtures_with_a_model_in_a_file(corpus, tmp_path):
    """By the enhancer itself, in two processes, and the enhanced files scored as estimates."""
    generator = np.random.default_rng(0)
    frontend = Frontend(rate=RATE, window=64, hop=16, features=32, context=2)
    basis = generator.random((2 * frontend.features, 4)).astype(np.float32)
    own, target = tmp_path / "own.safetensors", tmp_path / "all.json"
    Model(frontend, {"speech": 2, "noise": 2}, 3, basis, [basis[-frontend.features :]]).save(own)
    done = run("--mixtures", corpus, *FAST, "--jobs", 2, "--model", own, "--json", target)
    assert done.exit_code == 0, done.output
    scores = {each["name"]: each["scores"]["estimate"] for each in json.loads(target.read_text())["files"]}
    enhancer = Enhancer.load(own)
    for path in (corpus / "isolated").rglob("*.wav"):
        enhanced = enhancer.enhance(*soundfile.read(path, dtype="float32"))
        write(tmp_path / "enhanced" / path.relative_to(corpus), enhanced)
    run("--reference", corpus / "reverberated", "--estimate", tmp_path / "enhanced/isolated", *FAST, "--json", target)
    files = json.loads(target.read_text())["files"]
    assert len(files) == len(scores) == 4
    for each in files:
        assert each["scores"]["estimate"] == pytest.approx(scores[f"isolated/{each['name']}"], abs=1e-4)


def test_the_seed_makes_the_intervals(corpus, tmp_path):
    target, folders = tmp_path / "all.json", ("--reference", corpus / "reverberated", "--estimate", corpus / "isolated")
    contents = []
    for _ in range(2):
        run(*folders, *FAST, "--json", target, "--seed", 4)
        contents.append(target.read_text())
    assert contents[0] == contents[1]
    assert json.loads(contents[0])["interval"]["seed"] == 4


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--reference", "a"],
        ["--estimate", "a"],
        ["--mixtures", "a", "--reference", "b"],
        ["--reference", "a", "--estimate", "b", "--model", "c"],
    ],
)
def test_which_folders_go_together(arguments):
    done = run(*arguments)
    assert done.exit_code == 2
    assert "give --reference and --estimate, or --mixtures" in " ".join(done.stderr.replace("│", " ").split())


def test_mistakes_are_found_before_the_work(corpus, tmp_path):
    folders = ["--reference", corpus / "reverberated", "--estimate", corpus / "isolated"]
    for arguments, message in (
        ([*folders, "--csv", tmp_path / "missing/rows.csv"], "missing does not exist"),
        ([*folders, "--json", tmp_path], "it is a folder"),
        ([*folders, "--metric", "snr"], "there is no metric 'snr'"),
        (["--reference", corpus, "--estimate", tmp_path / "missing"], "is not there"),
        (["--mixtures", tmp_path / "missing"], "is not there"),
    ):
        done = run(*arguments)
        assert isinstance(done.exception, OSError | ValueError)
        assert message in str(done.exception)
        assert done.stdout == ""
