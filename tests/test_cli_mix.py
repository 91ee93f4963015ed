"""``deepunfold mix``: a corpus that the loaders read, the same for the same seed, there whole or not at all."""

import json
import sys

import numpy as np
import pytest
import typer

from deepunfold.cli._mix import mix
from deepunfold.speech import _mix_corpus
from deepunfold.speech._audio import AudioError, open_audio, read
from deepunfold.speech._corpus import chime2
from deepunfold.speech._mix_corpus import folder_of, write_corpus
from deepunfold.speech._mixing import Mixer
from deepunfold.speech._tracks import rms
from tests.speech_files import noise, put


@pytest.fixture
def folders(tmp_path):
    for number in range(3):
        put(tmp_path / "in" / "speech" / f"s{number % 2}" / f"u{number}.wav", noise(3000, seed=number))
    put(tmp_path / "in" / "noise" / "a.wav", noise(5000, seed=9))
    put(tmp_path / "in" / "rooms" / "a.wav", np.array([0.5, 0, 0.2, 0, 0.1]))
    return tmp_path / "in"


@pytest.fixture
def run(monkeypatch, capsys):
    """Exit status, standard output and standard error of ``deepunfold mix ARGUMENTS``."""

    def command(*arguments):
        app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        app.command("mix")(mix)
        monkeypatch.setattr(sys, "argv", ["mix", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            app()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return command


def mixer_of(folders, **options):
    return Mixer({"speech": folders / "speech", "noise": folders / "noise"}, **options)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lines_of(folder):
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def test_a_corpus_is_read_by_the_loader(run, folders, tmp_path):
    out = tmp_path / "out"
    arguments = ["--speech", folders / "speech", "--noise", folders / "noise", "--rooms", folders / "rooms"]
    status, said, error = run(*arguments, "-o", out, "--split", "dev")
    assert (status, error) == (0, "")
    assert said == f"18 mixtures in {out}; what each is made of is in {out / 'manifest.jsonl'}\n"
    items = chime2(out)
    assert len(items) == 18
    assert {(item.speaker, item.name) for item in items} == {("s0", "u0"), ("s1", "u1"), ("s0", "u2")}
    assert {item.snr for item in items} == {-6, -3, 0, 3, 6, 9}
    by_path = {line["mixture"]: line for line in lines_of(out)}
    for item in items:
        line = by_path[item.mixture.relative_to(out).as_posix()]
        mixture, reference = (read(path, mono=True)[0].astype(float) for path in (item.mixture, item.reference))
        assert 20 * np.log10(rms(reference) / rms(mixture - reference)) == pytest.approx(item.snr, abs=0.02)
        assert rms(reference) == pytest.approx(0.05 * line["scale"], rel=1e-3)
        assert (line["snr"], line["speaker"], line["utterance"]) == (item.snr, item.speaker, item.name)
        assert out / line["reference"] == item.reference
        assert line["samples"] == len(mixture) == 3000
        assert line["clip"] == f"{item.speaker}/{item.name}.wav"
        assert (line["room"], set(line["others"]["noise"]["bed"])) == ("a.wav", {"a.wav"})
    assert open_audio(items[0].mixture).subtype == "PCM_16"


def test_the_noise_is_another_at_each_snr(folders, tmp_path):
    write_corpus(mixer_of(folders), tmp_path / "out", snrs=(0, 6), count=1)
    one, other = (read(item.mixture)[0] - read(item.reference)[0] for item in chime2(tmp_path / "out"))
    assert abs(np.corrcoef(one[:, 0], other[:, 0])[0, 1]) < 0.1


def test_one_seed_makes_one_corpus(folders, tmp_path):
    for name, seed in (("one", 5), ("two", 5), ("three", 6)):
        write_corpus(mixer_of(folders), tmp_path / name, snrs=(0, 3), seed=seed)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert contents(tmp_path / "one") != contents(tmp_path / "three")


def test_nothing_is_beyond_full_scale(folders, tmp_path):
    write_corpus(mixer_of(folders, level=0.9), tmp_path / "out", count=1)
    loudest = max(np.abs(read(item.mixture)[0]).max() for item in chime2(tmp_path / "out"))
    assert loudest == pytest.approx(0.95, abs=1e-4)
    assert len({line["scale"] for line in lines_of(tmp_path / "out")}) == 1


def test_fewer_and_more_utterances_than_there_are(run, folders, tmp_path):
    source = ["--source", f"talk={folders / 'speech'}", "--source", f"hum={folders / 'noise'}", "--snr", "-2.5"]
    assert run(*source, "-o", tmp_path / "few", "--count", 2)[0] == 0
    assert run(*source, "-o", tmp_path / "many", "--count", 7, "--seconds", 0.1)[0] == 0
    assert len({item.name for item in chime2(tmp_path / "few")}) == 2
    many = chime2(tmp_path / "many")
    assert len({(item.speaker, item.name) for item in many}) == 7
    assert {item.snr for item in many} == {-2.5}
    assert all(open_audio(item.mixture).frames == 1600 for item in many)
    clips = [line["clip"] for line in lines_of(tmp_path / "many")]
    assert sorted(clips[:3]) == sorted(clips[3:6]) == sorted(set(clips))
    assert set(lines_of(tmp_path / "many")[0]["others"]) == {"hum"}


def test_the_target_is_speech_or_else_the_first_source(run, folders, tmp_path):
    talk, hum = f"talk={folders / 'speech'}", folders / "noise"
    assert run("--noise", hum, "--source", talk, "--snr", 0, "-o", tmp_path / "one", "--count", 1)[0] == 0
    assert run("--source", talk, "--noise", hum, "--speech", folders / "speech", "-o", tmp_path / "two")[0] == 0
    assert set(lines_of(tmp_path / "one")[0]["others"]) == {"noise"}
    assert set(lines_of(tmp_path / "two")[0]["others"]) == {"talk", "noise"}


def test_parts_of_long_files_and_files_without_a_speaker(folders, tmp_path):
    put(tmp_path / "book.wav", noise(16000 * 130))
    mixer = Mixer({"reader": tmp_path / "book.wav", "noise": folders / "noise"})
    write_corpus(mixer, tmp_path / "out", snrs=[0])
    assert sorted((item.speaker, item.name) for item in chime2(tmp_path / "out")) == [
        ("reader", "book_0"),
        ("reader", "book_1386666"),
        ("reader", "book_693333"),
    ]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt("stopped"), AudioError("damaged")]
)
def test_a_failure_leaves_nothing(folders, tmp_path, monkeypatch, error):
    real, calls = _mix_corpus._put, []

    def failing(path, *args):
        calls.append(path)
        if len(calls) == 5:
            raise error
        real(path, *args)

    monkeypatch.setattr(_mix_corpus, "_put", failing)
    before = sorted(tmp_path.iterdir())
    expected = AudioError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected, match=str(error.args[-1])):
        write_corpus(mixer_of(folders), tmp_path / "out")
    assert len(calls) == 5
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_is_there_is_not_touched(folders, tmp_path):
    (tmp_path / "out").mkdir()
    write_corpus(mixer_of(folders), tmp_path / "out", snrs=[0])  # empty: fine
    before = contents(tmp_path / "out")
    with pytest.raises(AudioError, match="it is there already; give a new folder"):
        write_corpus(mixer_of(folders), tmp_path / "out")
    assert contents(tmp_path / "out") == before
    with pytest.raises(AudioError, match=r"cannot write .*absent"):
        write_corpus(mixer_of(folders), tmp_path / "absent" / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"snrs": []}, "snrs="),
        ({"snrs": [3, 3.0]}, "snrs="),
        ({"snrs": [np.nan]}, "snrs="),
        ({"split": "a/b"}, "split="),
        ({"split": ""}, "split="),
        ({"split": ".."}, "split="),
        ({"count": 0}, "count=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_settings_are_checked(folders, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        write_corpus(mixer_of(folders), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_progress_goes_from_none_to_all(folders, tmp_path):
    seen = []
    write_corpus(mixer_of(folders), tmp_path / "out", snrs=[0], progress=lambda *numbers: seen.append(numbers))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_folders_of_snrs():
    assert folder_of(-0.0) == "0dB"
    names = {-6: "m6dB", 0: "0dB", 9.0: "9dB", -2.5: "m2.5dB", 1e-3: "0.001dB"}
    assert {snr: folder_of(snr) for snr in names} == names


def test_usage(run, folders, tmp_path):
    status, _, error = run("--speech", folders / "speech")
    assert status == 2
    assert "--output" in error
    status, out, _ = run("--help")
    assert status == 0
    assert "--source" in out
