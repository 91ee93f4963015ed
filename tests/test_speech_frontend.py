"""The front end: perfect reconstruction, chunks equal to the whole, context as the networks have it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepunfold import nmf
from deepunfold.speech._frontend import Analysis, Frontend, Synthesis

COMPLETE = Frontend(features=201)
PAPER = Frontend()
SMALL = Frontend(rate=8000, window=30, hop=8, features=16, context=3)


def noise(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def cut(signal, sizes):
    """The signal in chunks of these sizes, the rest last."""
    ends = np.cumsum(sizes)
    return np.split(signal, ends[ends < len(signal)])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2000), st.integers(10, 90), st.data())
def test_what_is_not_changed_comes_back(length, window, data):
    front = Frontend(window=window, hop=data.draw(st.integers(1, window - 1)), features=window // 2 + 1)
    signal = noise(length, np.float64)
    spectra = front.analyse(signal)
    assert spectra.shape == (front.count(length), front.features)
    assert spectra.dtype == np.complex128
    # The last sample of a frame weighs little; where the hop leaves it as the only one, it is divided by that little.
    np.testing.assert_allclose(front.synthesise(spectra, length), signal, rtol=0, atol=1e-9)


@pytest.mark.parametrize("length", [0, 1, 159, 160, 161, 400, 5000])
@pytest.mark.parametrize("channels", [(), (1,), (2,)])
def test_at_the_size_of_the_paper_and_in_single_precision(length, channels):
    signal = noise((length, *channels))
    spectra = COMPLETE.analyse(signal)
    assert spectra.shape == (*channels, COMPLETE.count(length), 201)
    assert spectra.dtype == np.complex64
    back = COMPLETE.synthesise(spectra, length)
    assert back.dtype == signal.dtype
    np.testing.assert_allclose(back, signal, rtol=0, atol=1e-6)


def test_a_frame_is_the_transform_of_windowed_samples():
    """The third begins 80 samples after the start; against the definition of the Fourier transform."""
    signal, n = noise(1000, np.float64), np.arange(400)
    window = np.sqrt(0.5 - 0.5 * np.cos(2 * np.pi * n / 400))
    transform = np.exp(-2j * np.pi * np.outer(np.arange(200), n) / 400)
    np.testing.assert_allclose(PAPER.analyse(signal)[2], transform @ (window * signal[80:480]), rtol=0, atol=1e-10)


def test_only_the_highest_bin_is_lost():
    """What the paper's 200 bins leave out is the same in all reconstructions: a projection, small for any signal."""
    signal = noise(4000, np.float64)
    lost = signal - PAPER.synthesise(PAPER.analyse(signal), 4000)
    rest = COMPLETE.analyse(signal)
    rest[:, :200] = 0
    np.testing.assert_allclose(lost, COMPLETE.synthesise(rest, 4000), rtol=0, atol=1e-12)
    assert np.square(lost).mean() < 0.01 * np.square(signal).mean()
    tone = np.sin(2 * np.pi * 0.05 * np.arange(4000))
    assert np.abs(PAPER.synthesise(PAPER.analyse(tone), 4000) - tone)[400:-400].max() < 1e-5


def test_channels_are_signals_side_by_side():
    signal = noise((900, 3))
    spectra = PAPER.analyse(signal)
    back = PAPER.synthesise(spectra, 900)
    for channel in range(3):
        assert np.array_equal(spectra[channel], PAPER.analyse(signal[:, channel]))
        assert np.array_equal(back[:, channel], PAPER.synthesise(spectra[channel], 900))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 700), max_size=12), st.integers(0, 3000), st.sampled_from([PAPER, SMALL]), st.booleans())
def test_chunks_give_the_frames_and_samples_of_the_whole(sizes, length, front, stereo):
    signal = noise((length, 2) if stereo else length)
    analysis = Analysis(front)
    spectra = [*(analysis.process(chunk) for chunk in cut(signal, sizes)), analysis.flush()]
    whole = front.analyse(signal)
    assert np.array_equal(np.concatenate(spectra, axis=-2), whole)
    synthesis = Synthesis(front)
    blocks = [synthesis.process(block) for block in spectra]
    back = np.concatenate([*blocks, synthesis.flush()])
    assert np.array_equal(back[:length], front.synthesise(whole, length))
    assert len(back) == front.count(length) * front.hop


def test_samples_come_as_soon_as_no_later_frame_adds_to_them():
    analysis, synthesis = Analysis(PAPER), Synthesis(PAPER)
    ready = [len(synthesis.process(analysis.process(noise(160)))) for _ in range(5)]
    assert ready == [0, 80, 160, 160, 160]


@pytest.mark.parametrize("lead", [(), (2,)])
def test_context_is_that_of_the_networks(lead):
    magnitudes = noise((*lead, 7, SMALL.features))
    found = SMALL.in_context(magnitudes)
    assert np.array_equal(found, nmf.context(torch.from_numpy(magnitudes), 3).numpy())
    later = SMALL.in_context(magnitudes[..., 4:, :], before=magnitudes[..., 2:4, :])
    assert np.array_equal(later, found[..., 4:, :])
    assert SMALL.in_context(magnitudes[..., :0, :]).shape == (*lead, 0, 3 * SMALL.features)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hop": 0}, "hop=0 of a front end must be a whole number"),
        ({"window": 400.0}, "window=400.0"),
        ({"context": True}, "context=True"),
        ({"hop": 400}, "hop=400 must be less than window=400"),
        ({"features": 202}, "a window of 400 has 201 bins"),
    ],
)
def test_settings_that_make_no_front_end(settings, message):
    with pytest.raises(ValueError, match=message):
        Frontend(**settings)


def test_use_in_the_wrong_order():
    with pytest.raises(ValueError, match="at least one chunk"):
        Analysis(PAPER).flush()
    with pytest.raises(ValueError, match="at least one block"):
        Synthesis(PAPER).flush()
    with pytest.raises(ValueError, match="3 frames are too few for 1000 samples; give 8"):
        PAPER.synthesise(np.zeros((3, 200), np.complex64), 1000)
