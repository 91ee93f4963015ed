"""The enhancer and the stream: equal, of the right length, and defined for whatever comes."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepunfold.speech import _enhancer
from deepunfold.speech._enhancer import ABOVE, Enhancer, Stream
from deepunfold.speech._frontend import Frontend
from deepunfold.speech._inference import Separator
from deepunfold.speech._model import Model

RATES = [8000, 16000, 44100, 48000, 96000]


def model(sources=("speech", "noise"), components=3, layers=4, trained=2, slope=6.0):
    """Of the paper's front end: the first source has its energy below, the second above."""
    random, front = np.random.default_rng(0), Frontend()
    slopes = np.linspace(slope, -slope, 200)[:, None] * np.linspace(1, -1, len(sources) * components)

    def basis(frames):
        found = random.random((frames * 200, slopes.shape[1])) * np.exp(np.tile(slopes, (frames, 1)))
        return found / np.linalg.norm(found, axis=0)

    bases = [basis(1) for _ in range(trained)]
    return Model(front, dict.fromkeys(sources, components), layers, basis(9), bases, sparsity=1.0)


MODEL = model()


def noise(shape, dtype=np.float32, seed=0):
    """In bursts, as loud as samples can be."""
    random = np.random.default_rng(seed)
    found = random.uniform(-1, 1, shape)
    found *= (np.sin(np.arange(len(found)) / 3000) ** 4).reshape(-1, *[1] * (found.ndim - 1))
    return found.astype(dtype)


def streamed(stream, signal, sizes):
    ends = np.cumsum(sizes)
    chunks = np.split(signal, ends[ends < len(signal)])
    return np.concatenate([*(stream.process(chunk) for chunk in chunks), stream.flush()])


# -- a stream is the file --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", RATES)
@settings(deadline=None, max_examples=15)
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=12),
    length=st.integers(0, 12000),
    stereo=st.booleans(),
    strength=st.sampled_from([0.0, 0.6, 1.0]),
    floor=st.sampled_from([None, -10.0]),
    above=st.sampled_from(ABOVE),
)
def test_a_stream_gives_what_the_whole_gives(rate, sizes, length, stereo, strength, floor, above):
    signal = noise((length, 2) if stereo else length)
    enhancer = Enhancer(MODEL, strength=strength, floor_db=floor, above=above)
    whole = enhancer.enhance(signal, rate)
    assert (whole.shape, whole.dtype) == (signal.shape, signal.dtype)
    found = streamed(Stream(enhancer, rate, 2 if stereo else 1), signal, sizes)
    assert (found.shape, found.dtype) == (signal.shape, signal.dtype)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-6)
    if strength == 0:
        np.testing.assert_array_equal(whole, signal)


def test_frame_by_frame_at_the_size_of_the_paper():
    enhancer = Enhancer(model(components=100, layers=25, trained=4))
    signal = noise(9000)
    found = streamed(Stream(enhancer, 16000), signal, [160] * 60)
    np.testing.assert_allclose(found, enhancer.enhance(signal, 16000), rtol=0, atol=1e-6)


def test_long_signals_go_through_in_blocks(monkeypatch):
    signal, enhancer = noise((30000, 2)), Enhancer(MODEL)
    whole = enhancer.enhance(signal, 44100)
    monkeypatch.setattr(_enhancer, "BLOCK", 1)
    np.testing.assert_allclose(enhancer.enhance(signal, 44100), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", RATES)
def test_latency_is_the_most_that_the_output_is_behind(rate):
    stream, given, behind = Stream(Enhancer(MODEL), rate), 0, []
    silence = np.zeros(rate // 100, np.float32)
    for step in range(160):
        chunk = silence[: 1 + 37 * step % len(silence)]
        given += len(chunk) - len(stream.process(chunk))
        behind.append(given)
    assert 0.5 * stream.latency < max(behind) <= stream.latency
    assert rate != 16000 or stream.latency == 399


def test_reset_and_flush_begin_anew():
    stream, signal = Stream(Enhancer(MODEL), 48000), noise(6000)
    first = streamed(stream, signal, [1000, 3000])
    stream.process(noise(5000, seed=1))
    stream.reset()
    np.testing.assert_array_equal(streamed(stream, signal, [1000, 3000]), first)
    assert stream.flush().shape == (0,)
    assert Stream(Enhancer(MODEL), 16000, 3).flush().shape == (0, 3)


# -- what comes out --------------------------------------------------------------------------------------------------


def by_hand(signal, enhancer, mask_of):
    """At the model's rate: analysis, mask, synthesis."""
    front = enhancer.model.frontend
    spectra = front.analyse(signal)
    masks = Separator(enhancer.model, np.float64).masks(np.abs(spectra))
    return front.synthesise(spectra * mask_of(masks), len(signal))


def test_at_the_rate_of_the_model_it_is_analysis_mask_and_synthesis():
    signal = noise(8000, np.float64)
    for strength, floor in ((1.0, None), (0.7, None), (1.0, -6.0)):
        enhancer = Enhancer(MODEL, strength=strength, floor_db=floor, above="drop")
        least = 0 if floor is None else 10 ** (floor / 20)
        wet = by_hand(signal, enhancer, lambda masks, least=least: np.maximum(masks[:, 0], least))
        expected = strength * wet + (1 - strength) * signal
        np.testing.assert_allclose(enhancer.enhance(signal, 16000), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shape", [(9000,), (9000, 3)])
def test_sources_sum_to_the_input(rate, shape):
    enhancer, signal = Enhancer(model(("speech", "fan", "street"))), noise(shape)
    parts = enhancer.separate(signal, rate)
    assert list(parts) == ["speech", "fan", "street"]
    np.testing.assert_allclose(sum(parts.values()), signal, rtol=0, atol=2e-6)
    np.testing.assert_allclose(parts["speech"], enhancer.enhance(signal, rate), rtol=0, atol=1e-6)
    both = Enhancer(enhancer.model, sources=["street", "speech"])
    assert both.sources == ("speech", "street")
    np.testing.assert_allclose(both.enhance(signal, rate), signal - parts["fan"], rtol=0, atol=2e-6)
    everything = Enhancer(enhancer.model, sources=list(parts))
    np.testing.assert_allclose(everything.enhance(signal, rate), signal, rtol=0, atol=2e-6)


@pytest.mark.parametrize("rate", [44100, 48000])
def test_each_channel_by_itself(rate):
    signal, enhancer = noise((7000, 2)), Enhancer(MODEL)
    both = enhancer.enhance(signal, rate)
    for channel in range(2):
        np.testing.assert_allclose(both[:, channel], enhancer.enhance(signal[:, channel], rate), rtol=0, atol=1e-6)


def tone(frequency, rate, length):
    return 0.5 * np.sin(2 * np.pi * frequency / rate * np.arange(length)).astype(np.float32)


def test_above_the_frequencies_of_the_model():
    """A tone of 12 kHz beside one that the model halves or so: kept, lowered like the bins below 8 kHz, or gone."""
    high, low, gentle = tone(12000, 48000, 24000), tone(7500, 48000, 24000), model(slope=0.1)
    middle, masks = slice(8000, 16000), {}
    for above in ABOVE:
        found = Enhancer(gentle, above=above).enhance(high + low, 48000)[middle]
        masks[above] = float(found @ high[middle] / (high[middle] @ high[middle]))
    assert masks["keep"] == pytest.approx(1, abs=1e-3)
    assert masks["drop"] == pytest.approx(0, abs=1e-3)
    spectra = np.abs(Frontend().analyse(tone(7500, 16000, 8000)))
    share = Separator(gentle).masks(spectra)[20:30, 0, -25:].mean()
    assert 0.1 < share < 0.9
    assert masks["attenuate"] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("rate", RATES)
def test_it_is_aligned_at_any_rate(rate):
    """Half of everything: a model whose sources are alike gives half the input, sample by sample."""
    basis = np.random.default_rng(0).random((1800, 3))
    alike = Model(Frontend(), {"one": 3, "other": 3}, 3, np.concatenate([basis, basis], 1))
    signal = noise((9000, 2))
    np.testing.assert_allclose(Enhancer(alike).enhance(signal, rate), signal / 2, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("dtype", "scale"), [(np.int16, 2**15), (np.int32, 2**31)])
def test_whole_numbers(dtype, scale):
    enhancer, signal = Enhancer(MODEL), noise(5000, np.float64)
    whole = (signal * (scale - 1)).astype(dtype)
    found = enhancer.enhance(whole, 16000)
    assert found.dtype == dtype
    np.testing.assert_allclose(found / scale, enhancer.enhance(whole / scale, 16000), rtol=0, atol=1 / scale + 1e-6)
    np.testing.assert_array_equal(Enhancer(MODEL, strength=0).enhance(whole, 44100), whole)
    stream = Stream(enhancer, 16000)
    parts = [stream.process(whole[:3000]), stream.process(whole[3000:]), stream.flush()]
    assert {part.dtype for part in parts} == {np.dtype(dtype)}
    assert np.abs(np.concatenate(parts).astype(float) - found).max() <= 1 + 1e-6 * scale
    full = np.full(4000, np.iinfo(dtype).max, dtype)
    assert Enhancer(MODEL, sources=["speech", "noise"]).enhance(full, 16000).min() > 0  # it does not wrap around


# -- whatever comes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 100, 401])
def test_short_signals(rate, length):
    for shape in ((length,), (length, 2)):
        for kind in (np.zeros(shape, np.float32), np.ones(shape), noise(shape)):
            found = Enhancer(MODEL).enhance(kind, rate)
            assert (found.shape, found.dtype) == (kind.shape, kind.dtype)
            assert np.isfinite(found).all()
            assert np.abs(found).max(initial=0) <= 1.5 * np.abs(kind).max(initial=0)
            np.testing.assert_allclose(sum(Enhancer(MODEL).separate(kind, rate).values()), kind, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", [16000, 48000])
def test_silence_stays_silent_and_all_levels_are_treated_alike(rate):
    enhancer = Enhancer(MODEL)
    assert not enhancer.enhance(np.zeros(5000, np.float32), rate).any()
    late = np.concatenate([np.zeros(5000, np.float32), noise(5000)])
    assert np.isfinite(enhancer.enhance(late, rate)).all()
    assert not enhancer.enhance(late[::-1], rate)[-2000:].any()
    found = enhancer.enhance(noise(5000), rate)
    for level in (1e-6, 1e4):
        scaled = enhancer.enhance(level * noise(5000), rate) / level
        np.testing.assert_allclose(scaled, found, rtol=0, atol=1e-5)
    faint = enhancer.enhance(noise(5000) * np.float32(1e-40), rate)
    assert np.isfinite(faint).all()
    constant = enhancer.enhance(np.full(5000, 0.5, np.float32), rate)
    assert np.isfinite(constant).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers(bad):
    signal = noise(4000)
    stream = Stream(Enhancer(MODEL), 16000)
    first = stream.process(signal[:2000])
    broken = signal.copy()
    broken[3000] = bad
    with pytest.raises(ValueError, match="samples that are NaN or infinite"):
        Enhancer(MODEL).enhance(broken, 16000)
    with pytest.raises(ValueError, match="samples that are NaN or infinite"):
        stream.process(broken[2000:])
    found = np.concatenate([first, stream.process(signal[2000:]), stream.flush()])  # as if nothing had happened
    np.testing.assert_allclose(found, Enhancer(MODEL).enhance(signal, 16000), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strength": 1.5}, "strength=1.5 must be a number from 0"),
        ({"strength": float("nan")}, "strength=nan"),
        ({"floor_db": 3}, "floor_db=3 must be 0 or less"),
        ({"above": "mute"}, "above='mute' is unknown; use one of keep, attenuate, drop"),
        ({"sources": ["music"]}, r"sources=.* must be among those of the model, speech, noise"),
        ({"sources": []}, "must be among those of the model"),
    ],
)
def test_settings_that_are_none(change, message):
    with pytest.raises(ValueError, match=message):
        Enhancer(MODEL, **change)


@pytest.mark.parametrize(
    ("signal", "rate", "message"),
    [
        (np.zeros((10, 2, 2)), 16000, r"shape \(10, 2, 2\): give \(samples,\) or \(samples, channels\)"),
        (np.zeros((10, 0)), 16000, r"shape \(10, 0\)"),
        (np.zeros(10, np.uint8), 16000, "a signal of uint8: give float32"),
        (np.zeros(10), 0, "rate=0 must be a whole number"),
        (np.zeros(10), 44100.5, "rate=44100.5 must be a whole number"),
    ],
)
def test_signals_that_are_none(signal, rate, message):
    with pytest.raises(ValueError, match=message):
        Enhancer(MODEL).enhance(signal, rate)


def test_streams_and_their_channels():
    with pytest.raises(ValueError, match="channels=0 must be"):
        Stream(Enhancer(MODEL), 16000, 0)
    with pytest.raises(ValueError, match="does not have the stream's 2 channels"):
        Stream(Enhancer(MODEL), 16000, 2).process(noise(100))


def test_without_a_pretrained_model(monkeypatch, tmp_path):
    monkeypatch.setattr(_enhancer, "PRETRAINED", tmp_path / "pretrained.safetensors")
    with pytest.raises(FileNotFoundError, match="this installation has no pretrained model"):
        Enhancer()
    MODEL.save(_enhancer.PRETRAINED)
    assert Enhancer(strength=0.5).model.config == MODEL.config


def test_a_file_of_a_model_and_settings(tmp_path):
    MODEL.save(tmp_path / "a")
    enhancer = Enhancer.load(tmp_path / "a", strength=0.5, sources="noise")
    assert (enhancer.strength, enhancer.sources) == (0.5, ("noise",))


def test_it_runs_without_torch(tmp_path):
    MODEL.save(tmp_path / "a")
    script = """
import json, sys
import numpy as np
from deepunfold.speech._enhancer import Enhancer, Stream
enhancer = Enhancer.load(sys.argv[1])
found = enhancer.enhance(np.ones((5000, 2), np.float32), 48000)
stream = Stream(enhancer, 44100)
count = len(stream.process(np.ones(5000, np.float32))) + len(stream.flush())
print(json.dumps([len(found), count, "torch" in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "a"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [5000, 5000, False]
