"""``deepunfold enhance``, as a user meets it."""

import io
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import soundfile as sf
import typer

from deepunfold.cli._enhance import enhance
from deepunfold.cli._main import main
from deepunfold.speech._audio import open_audio, read
from deepunfold.speech._enhancer import Enhancer
from tests.speech_files import noise, put
from tests.test_speech_enhancer import MODEL
from tests.test_speech_enhancer import model as model_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    MODEL.save("model.safetensors")
    put(tmp_path / "a.wav", noise(9000, 2), 44100)
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Exit status, standard output and standard error of ``deepunfold enhance ARGUMENTS --model ...``."""

    def command(*arguments, model="model.safetensors"):
        app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        app.command("enhance")(enhance)
        monkeypatch.setattr("deepunfold.cli._main.app", app)  # with `main`, which turns errors into one line
        chosen = ["--model", model] if model else []
        monkeypatch.setattr(sys, "argv", ["deepunfold", *map(str, arguments), *chosen])
        try:
            main()
            status = 0
        except SystemExit as stopped:
            status = stopped.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


def test_a_file_becomes_another_beside_it(run, folder):
    before = (folder / "a.wav").read_bytes()
    assert run("a.wav") == (0, "", "")
    assert (folder / "a.wav").read_bytes() == before
    assert open_audio("a.enhanced.wav") == open_audio("a.wav")
    expected = Enhancer(MODEL).enhance(read("a.wav")[0], 44100)
    np.testing.assert_allclose(read("a.enhanced.wav")[0], expected, rtol=0, atol=2e-5)


def test_options_reach_the_enhancer(run):
    assert run("a.wav", "-o", "b.flac", "--strength", 0.5, "--floor", -12, "--above", "keep")[0] == 0
    expected = Enhancer(MODEL, strength=0.5, floor_db=-12, above="keep").enhance(read("a.wav")[0], 44100)
    np.testing.assert_allclose(read("b.flac")[0], expected, rtol=0, atol=2e-5)
    assert open_audio("b.flac").format == "FLAC"


def test_a_folder_with_a_broken_file(run, folder):
    for name in ("in/x.wav", "in/deep/y.wav"):
        put(folder / name, noise(4000))
    (folder / "in" / "bad.wav").write_bytes(b"nothing of use")
    status, out, error = run("in", "-o", "out", "--jobs", 2, "--json", "report.json")
    assert (status, out) == (1, "")
    assert error == "deepunfold: in/bad.wav is not audio that can be read: Format not recognised\n"
    written = [path.relative_to(folder / "out").as_posix() for path in (folder / "out").rglob("*.*")]
    assert sorted(written) == ["deep/y.wav", "x.wav"]
    files = {each["source"]: each for each in json.loads((folder / "report.json").read_text())["files"]}
    assert {name: each["status"] for name, each in files.items()} == {
        "in/bad.wav": "failed",
        "in/deep/y.wav": "done",
        "in/x.wav": "done",
    }
    assert files["in/x.wav"]["seconds"] == 0.25
    assert files["in/x.wav"]["real_time_factor"] > 0
    assert (files["in/x.wav"]["clipped"], files["in/x.wav"]["error"]) == (0, None)
    assert "Format not recognised" in files["in/bad.wav"]["error"]
    status, out, _ = run("in", "-o", "out", "--skip-existing", "--json", "-")
    assert status == 1
    assert [each["status"] for each in json.loads(out)["files"]] == ["failed", "skipped", "skipped"]


def test_sources(run):
    assert run("a.wav", "--sources") == (0, "", "")
    total = read("a.speech.wav")[0] + read("a.noise.wav")[0]
    np.testing.assert_allclose(total, read("a.wav")[0], rtol=0, atol=5e-5)
    status, _, error = run("a.wav", "--sources", "--strength", 0.5)
    assert status == 2
    assert "--sources are whole" in " ".join(error.replace("│", "").split())


def test_through_a_pipe(folder):
    """FLAC in, WAV out; its sizes are right, as it was complete before it was written."""
    signal = noise(6000)
    packed = io.BytesIO()
    sf.write(packed, signal, 16000, format="FLAC")
    command = [sys.executable, "-m", "deepunfold", "enhance", "-", "--model", "model.safetensors"]
    done = subprocess.run(command, input=packed.getvalue(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    found, rate = sf.read(io.BytesIO(done.stdout), dtype="float32")
    assert (len(found), rate) == (6000, 16000)
    expected = Enhancer(MODEL).enhance(sf.read(io.BytesIO(packed.getvalue()), dtype="float32")[0], 16000)
    np.testing.assert_allclose(found, expected, rtol=0, atol=4e-5)
    done = subprocess.run(command, input=b"no audio", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"deepunfold: standard input is not audio that can be read")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["absent.wav"], 1, "absent.wav is not there"),
        (["a.wav", "-o", "a.wav"], 1, "a.wav would be overwritten; give another output with -o"),
        (["a.wav", "-o", "absent/b.wav"], 1, "the folder absent does not exist"),
        (["a.wav", "--strength", "2"], 1, "strength=2.0 must be a number from 0"),
        (["a.wav", "--above", "up"], 1, "above='up' is unknown; use one of keep, attenuate, drop"),
        (["a.wav", "--json", "absent/r.json"], 1, "cannot write absent/r.json: its folder does not exist"),
        (["a.wav", "-o", "-", "--json", "-"], 2, "cannot both go to standard output"),
        (["a.wav", "--jobs", "0"], 2, "jobs"),
        (["model.safetensors"], 1, "model.safetensors is not audio that can be read"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(run, folder, arguments, status, message):
    before = sorted(folder.rglob("*"))
    found, out, error = run(*arguments)
    assert (found, out) == (status, "")
    assert message in " ".join(error.replace("│", "").split())
    assert "Traceback" not in error
    assert sorted(folder.rglob("*")) == before


def test_a_model_that_is_none(run, folder):
    status, _, error = run("a.wav", model="a.wav")
    assert status == 1
    assert error.startswith("deepunfold: a.wav is no file of a model")
    assert run("a.wav", model="absent")[2] == "deepunfold: absent is not there\n"


def test_clipped_samples_are_told(run, folder):
    put(folder / "loud.wav", np.full((1000, 1), 1.5), 16000, "float")
    assert run("loud.wav", "-o", "loud.flac", "--strength", 0)[2] == (
        "deepunfold: loud.wav: 1000 samples were beyond full scale\n"
    )


def test_on_a_terminal_there_is_a_bar_and_a_line(run, folder, monkeypatch):
    put(folder / "in" / "b.wav", noise(16000))
    put(folder / "in" / "c.wav", noise(16000))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    status, out, error = run("in/b.wav")
    assert (status, out) == (0, "")
    assert "in/b.enhanced.wav: 1.0 s of audio in " in error.splitlines()[-1]
    (folder / "in" / "d.wav").write_bytes(b"nothing of use")
    status, _, error = run("in", "-o", "out", "--skip-existing")
    assert status == 1
    assert "3 files: 3.0 s of audio in " in error.splitlines()[-1]
    assert error.splitlines()[-1].endswith(", 1 failed")


def test_it_starts_without_torch_and_without_rich(folder):
    """The slow imports: neither is needed to enhance a file when nobody watches."""
    script = """
import sys
import time
from deepunfold.cli._enhance import enhance
enhance(["a.wav"], model="model.safetensors")
print([name for name in ("torch", "scipy", "rich", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("request_", [signal.SIGINT, signal.SIGTERM])
def test_when_it_is_stopped_nothing_half_written_is_left(folder, jobs, request_):
    """Stopped as soon as files are being written, while there is work for much longer."""
    model_of(components=100, layers=25, trained=4).save("big.safetensors")
    for number in range(3):
        put(folder / "in" / f"{number}.wav", np.tile(noise(160000), (60, 1)))
    command = [sys.executable, "-m", "deepunfold", "enhance", "in", "-o", "out", "--jobs", jobs, "--model"]
    process = subprocess.Popen([*command, "big.safetensors"], stderr=subprocess.PIPE)
    while not list(folder.glob("out/.*.tmp")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(request_)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 130
    assert list((folder / "out").iterdir()) == []
