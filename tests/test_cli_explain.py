"""``deepunfold explain``: what is shown is what the network did, and a page needs nothing but itself."""

import base64
import html.parser
import io
import re
import sys

import numpy as np
import pytest
import soundfile as sf
import typer

from deepunfold.cli._explain import explain as command
from deepunfold.speech import _explain, _explain_page, _extras
from deepunfold.speech._audio import AudioError
from deepunfold.speech._enhancer import Enhancer
from deepunfold.speech._frontend import Frontend
from deepunfold.speech._inference import Separator
from deepunfold.speech._model import Model
from tests.speech_files import noise, put

FRONT = Frontend(rate=8000, window=40, hop=16, features=20, context=3)


def model(trained=3, layers=6, beta=1.0, sources=None):
    random, sources = np.random.default_rng(0), sources or {"speech": 4, "noise": 3}

    def basis(rows):
        found = random.random((rows, sum(sources.values()))) ** 3
        return found / np.linalg.norm(found, axis=0)

    own = [basis(FRONT.features) for _ in range(trained)]
    return Model(FRONT, sources, layers, basis(FRONT.features * FRONT.context), own, sparsity=0.5, beta=beta)


def signal(seconds=0.5, seed=1):
    return noise(round(seconds * FRONT.rate), seed=seed)[:, 0]


@pytest.fixture
def run(monkeypatch, capsys):
    """Standard output of ``deepunfold explain ARGUMENTS``."""

    def call(*arguments):
        app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        app.command("explain")(command)
        monkeypatch.setattr(sys, "argv", ["explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            app()
        assert not stopped.value.code
        return capsys.readouterr().out

    return call


@pytest.fixture
def files(tmp_path):
    model().save(tmp_path / "m.safetensors")
    return put(tmp_path / "street & <park>.wav", noise(44100, channels=2), 44100), tmp_path / "m.safetensors"


class Page(html.parser.HTMLParser):
    """What a page refers to, and what it embeds."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action", "srcset")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def embedded(self, kind):
        return [base64.b64decode(each.partition(",")[2]) for each in self.addresses if each.startswith(f"data:{kind}")]


# -- the numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("trained", [0, 1, 3, 6])
def test_the_last_layer_is_what_the_network_gives(trained, beta):
    one = model(trained, beta=beta)
    found = _explain.explain(one, signal())
    np.testing.assert_allclose(found.masks(6), Separator(one).masks(found.magnitudes), rtol=0, atol=1e-5)
    assert found.states.shape == (7, FRONT.count(4000), 7)
    assert found.layers()[0] == 0
    assert found.layers()[-1] == 6
    assert max(trained - 1, 0) in {6 - layer for layer in found.layers()}


@pytest.mark.parametrize("layer", [1, 2, 4])
def test_a_layer_is_the_last_of_a_shorter_network(layer):
    one = model(0)
    shorter = Model(FRONT, one.sources, layer, one.context_basis, sparsity=one.sparsity)
    found = _explain.explain(one, signal())
    np.testing.assert_allclose(found.masks(layer), Separator(shorter).masks(found.magnitudes), rtol=0, atol=1e-5)


def test_sources_are_those_of_the_enhancer_and_sum_to_the_signal():
    given = signal()
    found = _explain.explain(model(), given)
    expected = Enhancer(model()).separate(given, FRONT.rate)
    assert list(found.sources) == ["speech", "noise"]
    for name, part in expected.items():
        np.testing.assert_array_equal(found.sources[name], part)
    np.testing.assert_allclose(sum(found.sources.values()), given, atol=1e-6)


def test_firing_is_what_bases_add_to_the_estimate():
    found = _explain.explain(model(), signal())
    part = found.columns["noise"]
    sums = np.einsum("tr,fr->tr", found.states[-1][:, part], found.readout[:, part])
    np.testing.assert_allclose(found.firing("noise"), sums, rtol=1e-5)
    strongest = found.strongest("noise", 2)
    assert strongest == list(np.argsort(-found.firing("noise").sum(0))[:2])
    assert len(found.strongest("noise", 100)) == 3


def test_a_basis_that_made_the_signal_is_the_one_that_fires():
    one = model(0, layers=100, sources={"speech": 5})
    random = np.random.default_rng(2)
    given = FRONT.synthesise(
        np.tile(one.context_basis[-20:, 3], (200, 1)) * np.exp(2j * np.pi * random.random((200, 20))), 3000
    )
    steady = np.tile(one.context_basis[-20:], (3, 1))  # bases of a sound that stays
    found = _explain.explain(Model(FRONT, {"speech": 5}, 100, steady), given)
    assert found.strongest("speech", 1) == [3]


def test_distances_fall_to_nothing():
    found = _explain.explain(model(0, layers=30), signal())
    assert found.distances[-1] == 0
    assert (np.diff(found.distances) < 1e-6).all()
    assert found.distances[0] > 0.01


def test_bases_are_ordered_by_pitch():
    found = _explain.explain(model(), signal())
    basis = found.readout[:, :4][:, found.by_pitch("speech")]
    middle = np.arange(20) @ basis / basis.sum(0)
    assert (np.diff(middle) > 0).all()


def test_silence_is_defined():
    found = _explain.explain(model(), np.zeros(1000, np.float32))
    assert np.isfinite(found.masks(6)).all()
    assert found.distances[-1] == 0
    assert found.strongest("speech", 8) == []
    assert not np.isnan(found.distances).any()


@pytest.mark.parametrize("bad", [np.zeros(0, np.float32), np.zeros((10, 2), np.float32)])
def test_a_signal_must_be_one(bad):
    with pytest.raises(ValueError, match="give \\(samples,\\), at least one"):
        _explain.explain(model(), bad)


# -- sounds ----------------------------------------------------------------------------------------------------------


def test_a_basis_sounds_like_its_spectrum():
    front = Frontend()
    spectrum = np.zeros(200, np.float32)
    spectrum[[25, 26, 27]] = 1  # around 1040 Hz
    found = _explain.held(spectrum, front, 0.5)
    assert found.shape == (8000,)
    assert found.dtype == np.float32
    power = np.abs(np.fft.rfft(found)) ** 2
    hertz = np.arange(len(power)) * 2
    assert power[(hertz > 920) & (hertz < 1160)].sum() > 0.95 * power.sum()
    assert abs(found[0]) < 0.01
    assert np.sqrt(np.mean(found**2)) == pytest.approx(_explain.LOUDNESS, rel=0.1)
    np.testing.assert_array_equal(found, _explain.held(spectrum, front, 0.5))


def test_an_empty_basis_is_silent():
    assert not _explain.held(np.zeros(20, np.float32), FRONT).any()


# -- the command -----------------------------------------------------------------------------------------------------


def test_a_page_has_everything_in_it(run, files, tmp_path):
    pytest.importorskip("matplotlib")
    audio, file = files
    out = tmp_path / "page.html"
    assert run(audio, "--model", file, "-o", out).split() == [str(out)]
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert all(each.startswith("data:") for each in page.addresses)
    assert not re.search(r"https?://|url\(|@import", text.partition("data:")[0])
    assert "street &amp; &lt;park&gt;.wav" in text
    assert "<park>" not in text
    pictures, sounds = page.embedded("image/png"), page.embedded("audio/wav")
    assert len(pictures) == 4 + 4 + 3  # four figures, and as many bases as there are
    assert all(each.startswith(b"\x89PNG") for each in pictures)
    heard = [sf.read(io.BytesIO(each), dtype="float32") for each in sounds]
    assert [(len(samples), rate) for samples, rate in heard] == [(8000, 8000)] * 3 + [(4800, 8000)] * 7
    np.testing.assert_allclose(heard[1][0] + heard[2][0], heard[0][0], atol=1e-4)  # speech and noise are the input
    assert all(each[0].any() for each in heard)


@pytest.mark.parametrize(
    ("suffix", "begins"),
    [
        (".png", b"\x89PNG"),
        pytest.param(".svg", b"<?xml", marks=pytest.mark.slow),
        pytest.param(".pdf", b"%PDF", marks=pytest.mark.slow),
    ],
)
def test_a_picture_by_its_ending(run, files, tmp_path, suffix, begins):
    pytest.importorskip("matplotlib")
    audio, file = files
    out = tmp_path / f"picture{suffix}"
    run(audio, "--model", file, "-o", out, "--seconds", "0.2", "--start", "0.3")
    assert out.read_bytes().startswith(begins)


@pytest.mark.slow
@pytest.mark.parametrize("trained", [0, 1, 6])
def test_pictures_of_networks_of_any_shape(trained):
    pytest.importorskip("matplotlib")
    one = model(trained, sources={"voice": 2, "fan": 3, "street": 1})
    found = _explain.explain(one, signal(0.1), start=2.0)
    assert _explain_page.picture(found, "three", "png").startswith(b"\x89PNG")
    assert "fan" in _explain_page.page(found, "three")


@pytest.mark.slow
def test_silence_and_one_sample_have_a_page():
    pytest.importorskip("matplotlib")
    for given in (np.zeros(500, np.float32), np.ones(1, np.float32)):
        Page(_explain_page.page(_explain.explain(model(), given), "quiet"))


@pytest.mark.slow
def test_a_page_is_here_unless_told(run, files, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run(files[0], "--model", files[1], "--seconds", "0.1")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["street & <park>.explained.html"]


def test_the_part_of_the_file_that_is_asked_for(files):
    audio, file = files
    found = _explain.explain_file(audio, file, start=0.25, seconds=0.5)
    whole, _ = sf.read(audio, dtype="float32")
    assert len(found.signal) == 4000
    assert found.start == 0.25
    assert np.abs(found.signal).max() <= np.abs(whole).max()


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["-o", "page.txt"], ValueError, "must end in .html"),
        (["-o", "nowhere/page.html"], FileNotFoundError, "nowhere does not exist"),
        (["--start", "7"], ValueError, "has 1.00 s; start=7 must be less"),
    ],
)
def test_what_cannot_be_done_is_told_before_any_work(files, tmp_path, monkeypatch, arguments, error, says):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command("explain")(command)
    monkeypatch.setattr(sys, "argv", ["explain", str(files[0]), "--model", str(files[1]), *arguments])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=says):
        app()
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_is_no_audio_is_named(files, tmp_path):
    (tmp_path / "text.wav").write_text("no")
    with pytest.raises(AudioError, match=r"text\.wav"):
        _explain.explain_file(tmp_path / "text.wav", files[1])


def test_without_matplotlib_the_message_says_what_to_install(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = _explain.explain(model(), signal())
    with pytest.raises(_extras.MissingPackageError, match=r"pip install 'deepunfold\[plot\]'"):
        _explain_page.write(found, "x", tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()
