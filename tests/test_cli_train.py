"""``deepunfold train`` and ``deepunfold adapt`` as a user calls them."""

import sys

import numpy as np
import pytest
import typer

from deepunfold.cli._adapt import adapt
from deepunfold.cli._train import train
from deepunfold.speech._model import Model
from tests.speech_files import noise, put

SMALL = {
    "components": 4,
    "layers": 3,
    "train_last": 2,
    "context": 2,
    "seconds": 0.5,
    "basis_frames": 60,
    "basis_steps": 4,
    "rounds": 1,
    "mixtures": 2,
    "batches": 1,
    "passes": 2,
    "dev_mixtures": 2,
}
FLAGS = [part for name, value in SMALL.items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture
def folders(tmp_path):
    for name, seed in (("speech", 0), ("noise", 10), ("music", 20)):
        for number in range(2):
            put(tmp_path / name / f"{number}.wav", noise(9000, seed=seed + number))
    put(tmp_path / "rooms" / "a.wav", np.array([0.5, 0, 0.2]))
    return tmp_path


@pytest.fixture
def run(monkeypatch, capsys):
    """Standard output of ``deepunfold COMMAND ARGUMENTS``, or what it raises."""

    def call(command, *arguments):
        app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        app.command()(command)
        monkeypatch.setattr(sys, "argv", ["deepunfold", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            app()
        captured = capsys.readouterr()
        assert not stopped.value.code, captured.err
        assert captured.err == ""  # no bar where there is no terminal
        return captured.out

    return call


def test_a_model_from_two_folders_and_its_adaptation(run, folders):
    output, own = folders / "model.safetensors", folders / "own.safetensors"
    said = run(
        train,
        *("--speech", folders / "speech", "--noise", folders / "noise", "--rooms", folders / "rooms", "-o", output),
        *(*FLAGS, "--snr", -3, 3, "--licence", "CC0", "--no-half", "--seed", 5),
    )
    model = Model.load(output)
    assert str(model) in said
    assert f"development SDR {model.record['scores']['model']:.2f} dB" in said
    assert (model.sources, model.layers, model.trained) == ({"speech": 4, "noise": 4}, 3, 2)
    assert model.record["settings"]["snr"] == [-3.0, 3.0]
    assert model.record["licences"] == ["CC0"]
    assert "--seed 5 --no-half" in model.record["command"]

    said = run(adapt, output, "--noise", folders / "music" / "0.wav", "-o", own, "--no-half", "--steps", 3)
    new = Model.load(own)
    assert str(new) in said
    np.testing.assert_array_equal(new.context_basis[:, :4], model.context_basis[:, :4])
    assert not np.array_equal(new.context_basis[:, 4:], model.context_basis[:, 4:])


def test_any_sources_and_a_file_of_settings(run, folders):
    lines = [f"{name} = {value}" for name, value in SMALL.items()]
    (folders / "own.toml").write_text("\n".join([*lines, "seed = 4"]))
    sources = [part for name in ("music", "noise", "speech") for part in ("--source", f"{name}={folders / name}")]
    run(train, *sources, "--config", folders / "own.toml", "-o", folders / "m.safetensors", "--layers", 2)
    model = Model.load(folders / "m.safetensors")
    assert (list(model.sources), model.layers) == (["music", "noise", "speech"], 2)
    assert model.record["settings"]["seed"] == 4


def test_what_is_wrong_is_said(folders, monkeypatch):
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(train)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["deepunfold", *map(str, arguments), "-o", str(folders / "m.safetensors")])
        app()

    with pytest.raises(ValueError, match="give at least two"):
        call("--speech", folders / "speech")
    with pytest.raises(ValueError, match="is not there"):
        call("--speech", folders / "speech", "--noise", folders / "nothing")
    with pytest.raises(ValueError, match="must be NAME=DIR"):
        call("--source", "music")
    assert not (folders / "m.safetensors").exists()
