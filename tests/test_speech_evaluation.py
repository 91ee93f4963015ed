"""Evaluation of files: pairing, what files may differ in, mixtures, several processes, intervals, reports."""

import csv
import io
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rich.console import Console
from threadpoolctl import threadpool_limits

from deepunfold.speech._audio import resample
from deepunfold.speech._cases import mixtures, pairs
from deepunfold.speech._evaluation import Case, Evaluation, Failure, FileScores, evaluate
from deepunfold.speech._metrics import LIMIT, sdr, si_sdr
from deepunfold.speech._report import Report, bootstrap

RATE = 8000
FAST = ["sdr", "si_sdr"]
SNRS = {"m6dB": -6.0, "0dB": 0.0, "9dB": 9.0}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Matrices of this size gain little from threads, and lose much where tests run side by side."""
    with threadpool_limits(1):
        yield


def draw(seed=0, samples=3000, channels=1):
    signal = np.random.default_rng(seed).standard_normal((samples, channels)) * 0.05
    signal[:200] = signal[-200:] = 0
    return signal


def write(path, signal, rate=RATE):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, signal, rate, subtype="FLOAT" if path.suffix == ".wav" else "PCM_24")
    return path


def scores(tmp_path, reference, estimate, rates=(RATE, RATE), **options):
    """What `evaluate` finds for one pair of signals."""
    case = Case(
        "one", write(tmp_path / "reference.wav", reference, rates[0]), write(tmp_path / "e.wav", estimate, rates[1])
    )
    found = evaluate([case], metrics=FAST, **options)
    assert len(found.files) + len(found.failures) == 1
    return found.files[0] if found.files else found.failures[0]


@dataclass
class Mix:
    """A stand-in for an enhancer: it averages neighbouring samples, which takes away half of white noise."""

    weight: float = 0.5

    def enhance(self, array, rate):
        assert rate == RATE
        assert array.ndim == 2
        return (1 - self.weight) * array + self.weight * np.roll(array, 1, axis=0)


@pytest.fixture
def corpus(tmp_path):
    """Three utterances of two speakers at three SNRs, in the layout of CHiME-2."""
    root = tmp_path / "corpus"
    for seed, (speaker, name) in enumerate([("ann", "a1"), ("ann", "a2"), ("bob", "b1")]):
        clean = np.cumsum(draw(seed), axis=0) * 0.2
        write(root / "reverberated/dev" / speaker / f"{name}.wav", clean)
        for folder, snr in SNRS.items():
            noise = draw(100 + seed) * 10 ** (-snr / 20)
            write(root / "isolated/dev" / folder / speaker / f"{name}.wav", clean + noise)
    return root


def test_pairs_have_the_same_path_but_for_the_suffix(tmp_path):
    for name in ("a.wav", "ann/b.flac", "ann/alone.wav"):
        write(tmp_path / "reference" / name, draw())
    for name in ("a.flac", "ann/b.flac", "odd/c.wav"):
        write(tmp_path / "estimate" / name, draw())
    (tmp_path / "estimate/notes.txt").write_text("not audio")
    cases, failures = pairs(tmp_path / "reference", tmp_path / "estimate")
    assert [(each.name, each.reference.name, each.speaker, each.snr) for each in cases] == [
        ("a.flac", "a.wav", None, None),
        ("ann/b.flac", "b.flac", "ann", None),
    ]
    assert [each.name for each in failures] == ["odd/c.wav", "ann/alone.wav"]
    assert "has no reference in" in failures[0].reason
    assert "has no estimate in" in failures[1].reason


def test_estimates_at_several_snrs_share_a_reference(corpus):
    cases, failures = pairs(corpus / "reverberated", corpus / "isolated")
    assert not failures
    assert len(cases) == 9
    for each in cases:
        assert each.snr == SNRS[each.estimate.parts[-3]]
        assert each.speaker == each.estimate.parent.name == each.reference.parent.name
        assert each.reference.name == each.estimate.name


def test_a_reference_of_the_very_path_is_taken_first(corpus):
    own = write(corpus / "reverberated/dev/9dB/bob/b1.wav", draw())
    cases, _ = pairs(corpus / "reverberated", corpus / "isolated")
    assert [each.snr for each in cases if each.reference == own] == [9.0]


def test_folders_that_cannot_be_paired(tmp_path):
    one, folder = write(tmp_path / "folder/a.wav", draw()), tmp_path / "folder"
    assert pairs(one, one)[0] == [Case("a.wav", one, one)]
    with pytest.raises(ValueError, match="is not there"):
        pairs(folder, tmp_path / "missing")
    with pytest.raises(ValueError, match=r"is a file; to compare needs two folders, or two files"):
        pairs(folder, one)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no audio files"):
        pairs(folder, tmp_path / "empty")
    write(folder / "a.flac", draw())
    with pytest.raises(ValueError, match="differ in their suffix only"):
        pairs(folder, folder)


def test_mixtures_of_a_corpus(corpus):
    (corpus / "reverberated/dev/bob/b1.wav").unlink()
    cases, failures = mixtures(corpus)
    assert sorted({each.snr for each in cases}) == [-6, 0, 9]
    assert {each.speaker for each in cases} == {"ann"}
    assert len(cases) == 6
    assert sorted(each.name for each in failures) == sorted(f"isolated/dev/{snr}/bob/b1.wav" for snr in SNRS)


def test_scores_are_those_of_the_signals(tmp_path):
    reference, noise = draw(1), draw(2)
    found = scores(tmp_path, reference, reference + noise)
    signals = [soundfile.read(path)[0] for path in (found.case.reference, found.case.estimate)]
    assert found.estimate == {"sdr": sdr(*signals), "si_sdr": si_sdr(*signals)}
    assert (found.rate, found.seconds, found.noisy, found.improvement, found.remarks) == (
        RATE,
        3000 / RATE,
        None,
        None,
        (),
    )


def test_a_small_difference_in_length_is_cut_and_told(tmp_path):
    reference, noise = draw(1), draw(2)
    expected = scores(tmp_path, reference[:2500], (reference + noise)[:2500]).estimate
    for one, other, told in ((None, 2500, "500 samples shorter"), (2500, None, "500 samples longer")):
        found = scores(tmp_path, reference[:one], (reference + noise)[:other])
        assert found.estimate == expected
        assert len(found.remarks) == 1
        assert told in found.remarks[0]


def test_a_large_difference_in_length_is_a_failure(tmp_path):
    found = scores(tmp_path, draw(1), draw(1)[:2199])
    assert isinstance(found, Failure)
    assert "801 samples shorter than its reference, more than 0.1 s" in found.reason
    assert isinstance(scores(tmp_path, draw(1), draw(1)[:2200]), FileScores)


def test_another_rate_is_resampled_and_told(tmp_path):
    reference = np.convolve(draw(1)[:, 0], np.hanning(9))  # so that little is close to half the rate
    found = scores(tmp_path, reference, resample(reference, RATE, 2 * RATE), (RATE, 2 * RATE))
    assert found.remarks == (f"the estimate was resampled from {2 * RATE} to the {RATE} Hz of its reference",)
    assert min(found.estimate.values()) > 40
    assert found.rate == RATE


@pytest.mark.parametrize("late", [-100, -1, 1, 100])
def test_a_delay_is_told_and_forgiven_by_sdr_if_the_estimate_is_late(tmp_path, late):
    reference = draw(1)
    found = scores(tmp_path, reference, np.roll(reference, late))
    assert found.remarks == (f"the estimate is {abs(late)} samples {'late' if late > 0 else 'early'}",)
    assert found.estimate["si_sdr"] < -10
    assert (found.estimate["sdr"] == LIMIT) == (late > 0)


def test_channels_are_scored_each_or_averaged_first(tmp_path):
    reference, noise = draw(1, channels=2), draw(2, channels=2) * [0.1, 1]
    found = scores(tmp_path, reference, reference + noise).estimate["si_sdr"]
    each = [scores(tmp_path, reference[:, i], (reference + noise)[:, i]).estimate["si_sdr"] for i in (0, 1)]
    assert found == pytest.approx(sum(each) / 2)
    single = scores(tmp_path, reference.mean(1), (reference + noise).mean(1)).estimate["si_sdr"]
    assert scores(tmp_path, reference, reference + noise, mono=True).estimate["si_sdr"] == pytest.approx(
        single, abs=1e-4
    )
    failed = scores(tmp_path, reference, reference[:, :1])
    assert failed.reason == "the estimate has 1 channels, its reference 2"


def test_silence(tmp_path):
    signal, silence = draw(1), 0 * draw(1)
    found = scores(tmp_path, signal, silence)
    assert found.estimate == {"sdr": -LIMIT, "si_sdr": -LIMIT}
    assert found.remarks == ("the estimate is silent",)
    found = scores(tmp_path, silence, signal)
    assert all(math.isnan(value) for value in found.estimate.values())
    assert found.remarks == ("the reference is silent",)


def test_what_has_no_score_is_told(tmp_path):
    pytest.importorskip("pystoi")
    path = write(tmp_path / "short.wav", draw(1))
    (found,) = evaluate([Case("one", path, path)], metrics=["stoi", "sdr"]).files
    assert math.isnan(found.estimate["stoi"])
    assert found.estimate["sdr"] == LIMIT
    assert found.remarks == ("stoi is not defined: it needs at least 0.4 s of speech",)


def test_broken_files_are_failures_and_the_others_are_done(corpus):
    cases, _ = mixtures(corpus)
    cases[0].mixture.write_bytes(b"nonsense")
    cases[4].mixture.unlink()
    found = evaluate(cases, Mix(), metrics=FAST)
    assert [each.name for each in found.failures] == [cases[0].name, cases[4].name]
    assert str(cases[0].mixture) in found.failures[0].reason
    assert [each.case for each in found.files] == [case for i, case in enumerate(cases) if i not in (0, 4)]


def test_mixtures_are_enhanced_and_compared(corpus):
    cases, _ = mixtures(corpus)
    seen = []
    found = evaluate(cases, Mix(), metrics=FAST, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i + 1, 9) for i in range(9)]
    for each in found.files:
        mixture, clean = (soundfile.read(path)[0] for path in (each.case.mixture, each.case.reference))
        assert each.noisy["si_sdr"] == si_sdr(clean, mixture)
        enhanced = Mix().enhance(mixture.astype(np.float32)[:, None], RATE)[:, 0]
        assert each.estimate == {"sdr": sdr(clean, enhanced), "si_sdr": si_sdr(clean, enhanced)}
        for metric in FAST:
            assert each.improvement[metric] == each.estimate[metric] - each.noisy[metric]
        assert each.improvement["si_sdr"] > 0.5
    unchanged = evaluate(cases, Mix(0.0), metrics=FAST)
    assert {value for each in unchanged.files for value in each.improvement.values()} == {0.0}


def test_an_estimate_that_is_there_can_be_compared_with_its_mixture(corpus):
    (case, *_), _ = mixtures(corpus)
    (found,) = evaluate([Case("x", case.reference, case.reference, case.mixture)], metrics=FAST).files
    assert found.estimate == {"sdr": LIMIT, "si_sdr": LIMIT}
    assert found.improvement["sdr"] == LIMIT - found.noisy["sdr"]


def test_several_processes_give_the_same(corpus):
    cases, _ = mixtures(corpus)
    cases[3].mixture.write_bytes(b"nonsense")
    settings = dict(os.environ)
    alone, together = (evaluate(cases, Mix(), metrics=FAST, jobs=jobs) for jobs in (1, 2))
    assert dict(os.environ) == settings
    assert alone == together
    assert len(together.failures) == 1


class Crash:
    def enhance(self, array, rate):
        raise RuntimeError("a mistake in the program")


def test_mistakes_in_the_program_are_not_hidden(corpus):
    with pytest.raises(RuntimeError, match="a mistake in the program"):
        evaluate(mixtures(corpus)[0], Crash(), metrics=FAST)


class Die:
    def enhance(self, array, rate):
        os._exit(3)


def test_a_process_that_dies_is_told(corpus):
    with pytest.raises(ChildProcessError, match="a process ended before its work was done"):
        evaluate(mixtures(corpus)[0], Die(), metrics=FAST, jobs=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobs": 0}, "jobs=0"),
        ({"metrics": ["x"]}, "no metric 'x'"),
        ({}, "one has no estimate; give one, or a mixture"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        evaluate([Case("one", Path("r.wav"), None, Path("m.wav"))], **options)


def test_intervals_of_independent_values_are_those_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(5, 2, 400).tolist()
    mean, low, high = bootstrap(values, range(400))
    half = 1.96 * np.std(values) / 20
    assert mean == pytest.approx(np.mean(values))
    assert (mean - low, high - mean) == (pytest.approx(half, rel=0.1), pytest.approx(half, rel=0.1))


def test_values_of_a_group_are_drawn_together():
    values = np.random.default_rng(0).normal(5, 2, 30).tolist()
    assert bootstrap(values * 4, list(range(30)) * 4) == pytest.approx(bootstrap(values, range(30)))
    assert bootstrap(values, range(30), seed=1) == bootstrap(values, "abcdefghijklmnopqrstuvwxyzABCD", seed=1)
    assert bootstrap(values, range(30), seed=1) != bootstrap(values, range(30), seed=2)
    mean, low, high = bootstrap(values, ["one"] * 30)
    assert mean == pytest.approx(np.mean(values))
    assert math.isnan(low)
    assert math.isnan(high)
    assert all(map(math.isnan, bootstrap([], [])))


def made(values, snrs=(-6.0, 9.0), noisy=0.0):
    """An evaluation with the given SDRs, each of its own reference, at SNRs in turn."""
    files = [
        FileScores(
            Case(f"f{i}", Path(f"r{i}"), None, Path(f"m{i}"), snrs[i % len(snrs)]),
            RATE,
            1.0,
            {"sdr": value},
            None if noisy is None else {"sdr": noisy},
        )
        for i, value in enumerate(values)
    ]
    return Evaluation(["sdr"], files)


def test_summaries_are_per_snr_and_overall():
    report = Report(made([1.0, 5.0, 3.0, math.nan], noisy=2.0))
    means = {(each.snr, each.stage): (each.mean, each.count, each.undefined) for each in report.summaries}
    assert means[-6.0, "estimate"] == (2.0, 2, 0)
    assert means[9.0, "estimate"] == (5.0, 1, 1)
    assert means[None, "estimate"] == (3.0, 3, 1)
    assert means[None, "noisy"] == (2.0, 4, 0)
    assert means[None, "improvement"] == (1.0, 3, 1)
    assert all(each.low <= each.mean <= each.high for each in report.summaries if each.count > 1)


def text(report):
    console = Console(width=100, file=io.StringIO())
    for table in report.tables():
        console.print(table)
    return console.file.getvalue()


def test_tables():
    shown = text(Report(made([1.0, 5.0, 3.0, math.nan], noisy=2.0)))
    rows = [re.split("  +", line.strip()) for line in shown.splitlines() if re.search(r"\d  ", line)]
    assert [row[:2] for row in rows] == [["-6 dB", "2"], ["9 dB", "2"], ["all", "4"]]
    assert rows[0][3].startswith("2.00 [1.00, 3.00]")
    assert rows[1][3] == "5.00"
    assert "means leave out what has no score: 1 of the files" in shown
    alone = text(Report(made([1.0, 2.0], snrs=(None,), noisy=None)))
    assert "SDR (dB)" in alone
    assert "1.50 [1.00, 2.00]" in alone
    assert "noisy" not in alone
    assert "-" in text(Report(made([math.nan])))
    assert "-0" not in text(Report(made([-1e-5])))


def test_files_of_results(tmp_path):
    evaluation = made([1.0, math.nan])
    evaluation.failures.append(Failure("bad, file", "it is broken"))
    report = Report(evaluation, 3, {"mono": False})
    report.write(tmp_path / "rows.csv", tmp_path / "all.json")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text(encoding="utf-8"))))
    assert [row["name"] for row in rows] == ["f0", "f1", "bad, file"]
    assert [row["estimate_sdr"] for row in rows] == ["1.0", "", ""]
    assert [row["noisy_sdr"] for row in rows] == ["0.0", "0.0", ""]
    assert [row["failure"] for row in rows] == ["", "", "it is broken"]
    content = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    assert content["mono"] is False
    assert content["interval"] == {"level": 0.95, "draws": 2000, "seed": 3}
    assert [each["scores"]["estimate"]["sdr"] for each in content["files"]] == [1.0, None]
    assert content["failures"] == [{"name": "bad, file", "reason": "it is broken"}]
    assert content["summary"][-1]["mean"] == 1.0


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    target = tmp_path / "all.json"
    target.write_text("before")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        Report(made([1.0])).write(json_file=target)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(FileNotFoundError, match=r"the folder .*missing does not exist"):
        Report(made([1.0])).write(csv_file=tmp_path / "missing" / "rows.csv")


def test_only_the_first_remarks_are_shown():
    evaluation = made([1.0] * 12)
    files = [FileScores(**{**vars(each), "remarks": (f"remark {i}",)}) for i, each in enumerate(evaluation.files)]
    lines = Report(Evaluation(["sdr"], files, [Failure("x", "why")])).remarks()
    assert lines[:2] == ["f0: remark 0", "f1: remark 1"]
    assert lines[10:] == ["... and 2 more remarks, which --csv and --json list", "x: not scored: why"]
