"""Files and folders through an enhancer: what is planned, what comes out, what fails, and in how much memory."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deepunfold.speech import _batch, _writing
from deepunfold.speech._audio import AudioError, open_audio, read
from deepunfold.speech._batch import Settings, enhance_file, enhance_files
from deepunfold.speech._enhancer import Enhancer
from deepunfold.speech._plan import Job, plan
from tests.speech_files import KINDS, name_of, noise, put
from tests.test_speech_enhancer import MODEL


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(folder):
    MODEL.save(folder / "model.safetensors")
    return "model.safetensors"


def tree(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def touch(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"")


def planned(inputs, output=None, sources=()):
    return {job.source: "|".join(job.outputs.values()) for job in plan(inputs, output, sources)}


# -- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "output", "expected"),
    [
        (["a.wav"], None, {"a.wav": "a.enhanced.wav"}),
        (["in/b.flac"], None, {"in/b.flac": "in/b.enhanced.flac"}),
        (["a.wav"], "x.ogg", {"a.wav": "x.ogg"}),
        (["a.wav"], "new/", {"a.wav": "new/a.wav"}),
        (["a.wav"], "there", {"a.wav": "there/a.wav"}),
        (["a.wav"], "-", {"a.wav": "-"}),
        (["a.wav", "in/b.flac"], "new", {"a.wav": "new/a.wav", "in/b.flac": "new/b.flac"}),
        (["a.wav", "a.wav", "./a.wav"], "x.wav", {"a.wav": "x.wav"}),
        (["in"], "new", {"in/b.flac": "new/b.flac", "in/c/d.MP3": "new/c/d.MP3"}),
        (["in/"], None, {"in/b.flac": "in.enhanced/b.flac", "in/c/d.MP3": "in.enhanced/c/d.MP3"}),
        (["in", "a.wav"], "new", {"in/b.flac": "new/b.flac", "in/c/d.MP3": "new/c/d.MP3", "a.wav": "new/a.wav"}),
        (["in/**/*.*"], "new", {"in/b.flac": "new/b.flac", "in/c/d.MP3": "new/c/d.MP3"}),
        (["i?/c/*"], "new", {"in/c/d.MP3": "new/in/c/d.MP3"}),
        (["in/*"], None, {"in/b.flac": "in/b.enhanced.flac"}),
        (["absent.wav"], None, {"absent.wav": "absent.enhanced.wav"}),
        (["-"], None, {"-": "-"}),
        (["-"], "x.flac", {"-": "x.flac"}),
    ],
)
def test_where_results_go(folder, inputs, output, expected):
    touch("a.wav", "in/b.flac", "in/notes.txt", "in/.hidden.wav", "in/c/d.MP3")
    Path("there").mkdir()
    assert planned(inputs, output) == expected


def test_where_sources_go(folder):
    touch("a.wav", "in/b/c.wav")
    names = ["speech", "noise"]
    assert planned(["a.wav"], None, names) == {"a.wav": "a.speech.wav|a.noise.wav"}
    assert planned(["a.wav"], "x.flac", names) == {"a.wav": "x.speech.flac|x.noise.flac"}
    assert planned(["in"], "new", names) == {"in/b/c.wav": "new/speech/b/c.wav|new/noise/b/c.wav"}
    assert planned(["-"], "x.wav", names) == {"-": "x.speech.wav|x.noise.wav"}
    with pytest.raises(ValueError, match="several sources cannot go to standard output"):
        plan(["-"], None, names)


def test_results_are_not_enhanced_again(folder):
    touch("a.wav", "b.wav", "a.enhanced.wav", "a.enhanced.enhanced.wav", "c.enhanced.wav")
    assert planned(["*.wav"]) == {
        "a.wav": "a.enhanced.wav",
        "b.wav": "b.enhanced.wav",
        "c.enhanced.wav": "c.enhanced.enhanced.wav",
    }
    touch("in/d.wav", "in/out/d.wav")
    assert planned(["in"], "in/out") == {"in/d.wav": "in/out/d.wav"}
    assert planned(["in/**/*.wav"], "in/out") == {"in/d.wav": "in/out/d.wav"}
    assert planned(["."], "in/out", ()).keys() == {*map(str, Path().glob("*.wav")), "in/d.wav"}


def test_the_folder_one_is_in(folder, monkeypatch):
    touch("in/a.wav")
    monkeypatch.chdir(folder / "in")
    assert planned(["."]) == {"a.wav": str(folder / "in.enhanced" / "a.wav")}


@pytest.mark.parametrize(
    ("inputs", "output", "message"),
    [
        (["a.wav"], "a.wav", "a.wav would be overwritten; give another output"),
        (["a.wav"], "./in/../a.wav", "a.wav would be overwritten"),
        (["a.wav"], "link.wav", "a.wav would be overwritten"),
        (["in"], "in", "in/a.wav would be overwritten"),
        (["a.wav", "in/b.wav"], "in", "in/b.wav would be overwritten"),
        (["in", "a.wav"], "new", "in/a.wav and a.wav would both become new/a.wav; give their folder, or a pattern"),
        (["in"], "a.wav", "a.wav can take one file; several need a folder"),
        (["in"], "-", "- can take one file"),
        (["-", "a.wav"], None, "cannot be mixed"),
        (["none"], None, "none has no audio files"),
        (["*.mp3"], None, r"no audio file is like \*\.mp3"),
        (["in/**/*.wav"], "new/../in", "would be overwritten"),
    ],
)
def test_plans_that_would_do_harm(folder, inputs, output, message):
    touch("a.wav", "in/a.wav", "in/b.wav", "none/notes.txt")
    Path("new").mkdir()
    Path("link.wav").symlink_to("a.wav")
    with pytest.raises(ValueError, match=message):
        plan(inputs, output)


# -- the work --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "alac"])
def test_all_kinds_of_files_stay_what_they_are(folder, kind):
    rate = 48000 if kind == "opus" else 22050
    source = put(folder / name_of(kind), noise(9000, 2), rate, kind)
    target = folder / f"out{source.suffix}"
    report = enhance_file(Enhancer(MODEL), Job(str(source), {"enhanced": str(target)}))
    assert (report.status, report.error, report.remarks) == ("done", None, [])
    assert open_audio(target) == open_audio(source)
    signal, _ = read(source)
    found, _ = read(target)
    expected = Enhancer(MODEL).enhance(signal, rate)
    lossy = kind in ("ogg", "opus", "mp3", "adpcm", "ulaw")
    tolerance = 0.02 if kind == "wav8" else 1e-4
    if lossy:  # white noise is what codecs keep worst
        assert np.corrcoef(found[:, 0], expected[:, 0])[0, 1] > 0.9
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
    assert report.seconds == pytest.approx(len(found) / rate, abs=1e-6)
    assert report.real_time_factor == pytest.approx(report.elapsed / report.seconds)


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_block_by_block_is_at_once(folder, monkeypatch, rate):
    """Blocks of a frame or so, and one block, give the same."""
    signal = noise(20000, 2)
    put(folder / "a.wav", signal, rate, "float")
    enhancer = Enhancer(MODEL, strength=0.8, floor_db=-15)
    monkeypatch.setattr(_batch, "BLOCK", 1)
    enhance_file(enhancer, Job("a.wav", {"enhanced": "b.wav"}))
    np.testing.assert_allclose(read("b.wav")[0], enhancer.enhance(signal, rate), rtol=0, atol=1e-6)


def test_sources_sum_to_the_file(folder, model):
    signal = noise(20000, 2)
    put(folder / "in" / "a.wav", signal, 44100, "float")
    jobs = plan(["in"], "out", ["speech", "noise"])
    (report,) = enhance_files(jobs, Settings(model, separate=True))
    assert report.outputs == {"speech": "out/speech/a.wav", "noise": "out/noise/a.wav"}
    parts = {name: read(path)[0] for name, path in report.outputs.items()}
    np.testing.assert_allclose(parts["speech"] + parts["noise"], signal, rtol=0, atol=1e-6)
    np.testing.assert_allclose(parts["speech"], Enhancer(MODEL).enhance(signal, 44100), rtol=0, atol=1e-6)


def broken_folder(folder):
    put(folder / "in" / "a.wav", noise(5000))
    put(folder / "in" / "deep" / "b.flac", noise(7000), 44100, "flac")
    (folder / "in" / "c.wav").write_bytes(b"this is no audio")
    whole = (folder / "in" / "deep" / "b.flac").read_bytes()
    (folder / "in" / "d.flac").write_bytes(whole[: len(whole) // 2])
    put(folder / "in" / "e.wav", noise(3000), 16000, "mp3")


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_broken_is_reported_and_the_rest_is_done(folder, model, processes):
    broken_folder(folder)
    reports = enhance_files(plan(["in"], "out"), Settings(model), processes=processes)
    assert [each.status for each in reports] == ["done", "failed", "failed", "done", "done"]
    assert [each.source for each in reports] == ["in/a.wav", "in/c.wav", "in/d.flac", "in/deep/b.flac", "in/e.wav"]
    assert "in/c.wav is not audio that can be read" in reports[1].error
    assert reports[2].error.startswith("in/d.flac")
    assert all(each.real_time_factor is None for each in reports[1:3])
    assert tree("out") == ["a.wav", "deep/b.flac", "e.wav"]
    np.testing.assert_allclose(
        read("out/deep/b.flac")[0],
        Enhancer(MODEL).enhance(read("in/deep/b.flac")[0], 44100),
        rtol=0,
        atol=4e-5,
    )


@pytest.mark.parametrize("processes", [1, 2])
def test_progress_comes_to_its_end(folder, model, processes):
    broken_folder(folder)
    seen = []
    enhance_files(plan(["in"], "out"), Settings(model), processes=processes, progress=lambda *pair: seen.append(pair))
    done, total = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert done[-1] == pytest.approx(total[-1], abs=0.2)  # that of the damaged file is a guess
    assert total[-1] == pytest.approx((5000 + 3000) / 16000 + 2 * 7000 / 44100, abs=0.2)


def test_existing_results_can_be_skipped(folder, model):
    broken_folder(folder)
    (folder / "out").mkdir()
    (folder / "out" / "a.wav").write_text("here before")
    jobs = plan(["in/*.wav"], "out")
    first = enhance_files(jobs, Settings(model), skip_existing=True)
    assert [each.status for each in first] == ["skipped", "failed", "done"]
    assert (folder / "out" / "a.wav").read_text() == "here before"
    again = enhance_files(jobs, Settings(model))
    assert [each.status for each in again] == ["done", "failed", "done"]
    assert open_audio("out/a.wav").frames == 5000


def test_a_failure_leaves_what_was_there(folder, model, monkeypatch):
    put(folder / "a.wav", noise(9000))
    (folder / "b.wav").write_text("here before")
    real, written = _writing.Writer.write, []

    def full(self, block):
        written.append(len(block))
        if len(written) == 3:
            raise AudioError("cannot write b.wav: is the disk full?")
        real(self, block)

    monkeypatch.setattr(_batch, "BLOCK", 4)
    monkeypatch.setattr(_writing.Writer, "write", full)
    (report,) = enhance_files(plan(["a.wav"], "b.wav"), Settings(model))
    assert (report.status, report.error) == ("failed", "cannot write b.wav: is the disk full?")
    assert len(written) == 3
    assert (folder / "b.wav").read_text() == "here before"
    assert tree(folder) == ["a.wav", "b.wav", "model.safetensors"]


def test_stopping_leaves_nothing(folder, model, monkeypatch):
    put(folder / "a.wav", noise(9000))
    monkeypatch.setattr(_writing.Writer, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        enhance_files(plan(["a.wav"]), Settings(model))
    assert tree(folder) == ["a.wav", "model.safetensors"]


def test_a_process_that_dies_is_told(folder, model, monkeypatch):
    put(folder / "a.wav", noise(3000))
    put(folder / "b.wav", noise(3000))
    monkeypatch.setattr(_batch, "_start", _die)
    reports = enhance_files(plan(["a.wav", "b.wav"], "out"), Settings(model), processes=2)
    assert [each.status for each in reports] == ["failed", "failed"]
    assert "a.wav: its process ended before the work was done" in reports[0].error


def _die(*_):
    os._exit(1)


def test_remarks_and_clipping(folder, model):
    """A file of floating point is beyond full scale, and a container that cannot hold its encoding gets the nearest."""
    put(folder / "a.wav", 3 * noise(4000, level=0.5), 16000, "float")
    jobs = [Job("a.wav", {"enhanced": "a.flac"})]
    (report,) = enhance_files(jobs, Settings(model, strength=0))
    assert report.clipped == np.count_nonzero(np.abs(read("a.wav")[0]) > 1) > 0
    assert report.remarks == []
    put(folder / "b.caf", noise(4000), 16000, "alac")
    (report,) = enhance_files([Job("b.caf", {"enhanced": "c.caf"})], Settings(model))
    assert report.status == "done"
    assert re.match("ALAC_16 cannot be written in CAF; it becomes PCM_16", report.remarks[0])


def test_files_of_one_sample_and_of_silence(folder, model):
    put(folder / "in" / "one.wav", np.ones((1, 1)) / 2)
    put(folder / "in" / "silence.wav", np.zeros((8000, 8)), 96000)
    reports = enhance_files(plan(["in"], "out"), Settings(model))
    assert [each.error for each in reports] == [None, None]
    assert open_audio("out/one.wav").frames == 1
    found, rate = read("out/silence.wav")
    assert (found.shape, rate) == ((8000, 8), 96000)
    assert not found.any()


def test_bad_settings_are_told_before_any_work(folder, model):
    put(folder / "a.wav", noise(3000))
    with pytest.raises(ValueError, match="strength=2"):
        enhance_files(plan(["a.wav"]), Settings(model, strength=2))
    with pytest.raises(OSError, match="absent"):
        enhance_files(plan(["a.wav", "model.safetensors"], "out"), Settings("absent"), processes=2)


MEASURE = """
import sys
from deepunfold.speech._batch import Settings, enhance_files
from deepunfold.speech._plan import plan
(report,) = enhance_files(plan([sys.argv[1]], sys.argv[2]), Settings("model.safetensors"))
assert report.error is None, report.error
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(line.split()[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from Linux")
def test_memory_does_not_grow_with_the_file(folder, model):
    """One minute and twenty, of two channels at 48 kHz: 23 MB of floats and 460 MB."""
    peaks = []
    for minutes in (1, 20):
        put(folder / "long.wav", np.tile(noise(48000, 2), (60 * minutes, 1)), 48000)
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, "long.wav", "out.wav"], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout) / 1024)
        assert open_audio("out.wav").frames == minutes * 60 * 48000
    assert peaks[1] < peaks[0] + 20
    assert peaks[1] < 400
