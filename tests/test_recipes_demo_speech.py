"""The speech part of the demo, and the recording that comes with it."""

import numpy as np
import pytest

from deepunfold.speech import Enhancer, open_audio, read
from recipes import _demo_mixture, _demo_speech
from tests.speech_corpus import corpus
from tests.speech_files import noise, put
from tests.test_speech_enhancer import MODEL


def test_it_leaves_both_recordings_and_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    MODEL.save(tmp_path / "model.safetensors")
    out = tmp_path / "new" / "out"
    _demo_speech.main(["--out", str(out), "--model", str(tmp_path / "model.safetensors")])
    assert "Speech: 6.5 s enhanced in " in capsys.readouterr().out
    assert (out / "noisy.flac").read_bytes() == _demo_speech.NOISY.read_bytes()
    expected = Enhancer(MODEL).enhance(read(_demo_speech.NOISY)[0], 16000)
    np.testing.assert_allclose(read(out / "enhanced.flac")[0], expected, rtol=0, atol=2e-5)
    assert (out / "speech.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_enhanced_is_told(tmp_path):
    MODEL.save(tmp_path / "model.safetensors")
    (tmp_path / "bad.wav").write_bytes(b"nothing of use")
    with pytest.raises(ValueError, match=r"noisy\.wav is not audio"):
        _demo_speech.enhance(tmp_path / "bad.wav", tmp_path, tmp_path / "model.safetensors")


def test_pictures_of_other_rates_and_of_silence(tmp_path):
    pytest.importorskip("matplotlib")
    MODEL.save(tmp_path / "model.safetensors")
    (tmp_path / "out").mkdir()
    for name, signal in (("a", noise(9000, 2)), ("b", 0 * noise(9000))):
        source = put(tmp_path / f"{name}.wav", signal, 44100)
        assert "0.2 s enhanced" in _demo_speech.enhance(source, tmp_path / "out", tmp_path / "model.safetensors")


def test_the_recording_is_small_and_says_whose_it_is():
    info = open_audio(_demo_speech.NOISY)
    assert (info.rate, info.channels, info.subtype, info.frames) == (16000, 1, "PCM_16", 104080)
    assert _demo_speech.NOISY.stat().st_size < 300_000
    text = _demo_speech.NOISY.with_name("README.md").read_text()
    for used in (_demo_mixture.SPEECH, _demo_mixture.BED, _demo_mixture.EVENT):
        assert used.rsplit("/", 1)[1].removesuffix(".ogg") in text


def test_the_recording_is_what_its_script_makes(tmp_path):
    _demo_mixture.main([str(corpus()), "--out", str(tmp_path)])
    made, bundled = read(tmp_path / "noisy.flac")[0], read(_demo_speech.NOISY)[0]
    np.testing.assert_allclose(made, bundled, rtol=0, atol=1e-4)
