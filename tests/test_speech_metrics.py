"""Metrics: SDR against its definition by least squares, closed forms, invariances, and what has no score."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import qr, toeplitz
from scipy.signal import lfilter
from threadpoolctl import threadpool_limits

from deepunfold.speech import _metrics
from deepunfold.speech._metrics import LIMIT, available, check_metrics, delay, pesq, score, sdr, si_sdr, stoi

RATE = 8000


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Matrices of this size gain little from threads, and lose much where tests run side by side."""
    with threadpool_limits(1):
        yield


def draw(seed=0, samples=2000):
    generator = np.random.default_rng(seed)
    return generator.standard_normal(samples), generator.standard_normal(samples)


def coloured(noise, pole):
    """Noise with a spectrum that falls by far: the copies of it are nearly dependent."""
    return lfilter([1.0], [1.0, -pole], noise)


def speech(seconds=2.0, rate=RATE, seed=0):
    """Noise in syllables, with the spectrum of speech, roughly."""
    time = np.arange(round(seconds * rate)) / rate
    envelope = np.clip(np.sin(2 * np.pi * 3 * time), 0, None) ** 2
    return envelope * coloured(np.random.default_rng(seed).standard_normal(len(time)), 0.9)


def copies(reference, taps):
    """The reference delayed by 0 to taps - 1 samples, as columns, nothing cut off."""
    padded = np.pad(reference, (0, taps - 1))
    return toeplitz(padded, np.zeros(taps))


def defined_sdr(reference, estimate, taps):
    """SDR by its definition: an explicit projection, on an orthonormal basis of the copies."""
    basis, padded = qr(copies(reference, taps), mode="economic")[0], np.pad(estimate, (0, taps - 1))
    target = basis @ (basis.T @ padded)
    rest = padded - target
    return 10 * np.log10(target @ target / (rest @ rest))


@pytest.mark.parametrize("snr", [-20, -5, 0, 10, 40, 80])
def test_sdr_is_the_least_squares_projection(snr):
    reference, noise = draw()
    room = np.random.default_rng(1).standard_normal(100) * np.exp(-np.arange(100) / 20)
    estimate = lfilter(room, [1.0], reference) + noise * 10 ** (-snr / 20)
    assert sdr(reference, estimate) == pytest.approx(defined_sdr(reference, estimate, 512), abs=1e-6)


@pytest.mark.parametrize("pole", [0.5, -0.9, 0.99, 0.9999])
def test_sdr_of_references_whose_copies_are_nearly_dependent(pole):
    reference, noise = draw(2)
    reference = coloured(reference, pole)
    estimate = reference + coloured(noise, 0.9)
    assert sdr(reference, estimate) == pytest.approx(defined_sdr(reference, estimate, 512), abs=1e-4)


def test_sdr_and_si_sdr_are_those_of_torchmetrics():
    torch = pytest.importorskip("torch")
    audio = pytest.importorskip("torchmetrics.functional.audio")
    reference = speech()
    for snr in (-10, 0, 25):
        estimate = lfilter([0.7, 0.2, -0.1], [1.0], reference) + draw(11, len(reference))[0] * 10 ** (-snr / 20)
        theirs = [torch.from_numpy(each) for each in (estimate, reference)]
        expected = float(audio.signal_distortion_ratio(*theirs))
        assert sdr(reference, estimate) == pytest.approx(expected, abs=1e-5)
        expected = float(audio.scale_invariant_signal_distortion_ratio(*theirs))
        assert si_sdr(reference, estimate) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("taps", [1, 2, 31, 700])
def test_sdr_for_other_filters_and_short_signals(taps):
    reference, noise = draw(3, 600)
    expected = defined_sdr(reference, reference + noise, taps)
    assert sdr(reference, reference + noise, taps) == pytest.approx(expected, abs=1e-6)


def test_sdr_in_single_precision_is_that_of_the_same_numbers_in_double():
    reference, noise = (each.astype(np.float32) for each in draw(4))
    estimate = reference + noise * np.float32(1e-4)
    expected = defined_sdr(reference.astype(float), estimate.astype(float), 512)
    assert sdr(reference, estimate) == pytest.approx(expected, abs=1e-6)


def test_with_one_tap_it_is_si_sdr_whose_value_is_known():
    reference, noise = draw(5)
    noise -= (noise @ reference) / (reference @ reference) * reference
    noise *= np.linalg.norm(reference) / np.linalg.norm(noise)
    for snr in (-30, 0, 12.5, 70):
        estimate = 3 * reference + 3 * noise * 10 ** (-snr / 20)
        assert si_sdr(reference, estimate) == pytest.approx(snr, abs=1e-9)
        assert sdr(reference, estimate, taps=1) == pytest.approx(snr, abs=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.floats(1e-6, 1e6), st.floats(-1e6, -1e-6))
def test_gains_do_not_matter_and_more_taps_never_hurt(seed, gain, other):
    reference, estimate = draw(seed, 800)
    values = [sdr(reference, estimate, taps) for taps in (1, 8, 64, 512)]
    assert values == sorted(values)
    assert sdr(gain * reference, other * estimate) == pytest.approx(values[-1], abs=1e-8)
    assert si_sdr(gain * reference, other * estimate) == pytest.approx(si_sdr(reference, estimate), abs=1e-8)


def test_identity_and_what_a_filter_of_512_taps_can_do_is_the_limit():
    reference, _ = draw(6)
    reference[-600:] = 0
    room = np.random.default_rng(7).standard_normal(512)
    for estimate in (reference, -0.1 * reference, np.roll(reference, 511), lfilter(room, [1.0], reference)):
        assert sdr(reference, estimate) == LIMIT
    assert si_sdr(reference, -0.1 * reference) == LIMIT
    assert sdr(reference, np.roll(reference, 512)) < 0
    assert si_sdr(reference, np.roll(reference, 1)) < 0


def test_an_early_estimate_is_wrong():
    reference, _ = draw(8)
    reference[:600] = 0
    assert sdr(reference, np.roll(reference, -1)) < 0


@pytest.mark.parametrize("make", [np.ones_like, lambda t: np.sin(0.1 * t), lambda t: t == 5.0])
def test_references_of_a_single_frequency_or_sample(make):
    """Their copies are dependent, or few: still a number, and the limit for themselves."""
    reference, (noise, _) = make(np.arange(2000.0)).astype(float), draw(9)
    assert sdr(reference, reference) == LIMIT
    assert math.isfinite(sdr(reference, noise))
    assert sdr(reference, reference + 0.1 * noise * reference.std()) > 15


def test_an_estimate_without_any_of_the_reference_is_minus_the_limit():
    reference, estimate = np.zeros(4000), np.zeros(4000)
    reference[2000:2400], estimate[100:500] = draw(10, 400)
    assert sdr(reference, estimate) < -90
    assert si_sdr(reference, estimate) == -LIMIT


def test_silence():
    signal, silence = speech(), np.zeros(2 * RATE)
    for metric in (sdr, si_sdr):
        assert math.isnan(metric(silence, signal))
        assert math.isnan(metric(silence, silence))
        assert metric(signal, silence) == -LIMIT


def test_tiny_and_huge_samples():
    reference, estimate = draw(11)
    expected = sdr(reference, estimate), si_sdr(reference, estimate)
    for scale in (1e-200, 1e-310, 1e200):
        found = sdr(scale * reference, estimate), si_sdr(reference, scale * estimate)
        assert found == pytest.approx(expected, abs=1e-6 if scale > 1e-300 else 1e-2)


@pytest.mark.parametrize("metric", [sdr, si_sdr, lambda r, e: delay(r, e, 10)])
@pytest.mark.parametrize(
    ("reference", "estimate", "message"),
    [
        (np.ones(5), np.ones(6), r"of shape \(5,\) and an estimate of \(6,\)"),
        (np.ones((5, 2)), np.ones((5, 2)), r"both have to be \(samples\)"),
        (np.ones(0), np.ones(0), "without a sample"),
        (np.ones(2), np.array([1, np.nan]), "NaN or infinite"),
        (np.array([1, np.inf]), np.ones(2), "NaN or infinite"),
    ],
)
def test_what_is_no_pair_of_signals(metric, reference, estimate, message):
    with pytest.raises(ValueError, match=message):
        metric(reference, estimate)


def test_a_filter_without_taps():
    with pytest.raises(ValueError, match="taps=0"):
        sdr(*draw(), taps=0)


@pytest.mark.parametrize("late", [-300, -1, 0, 1, 299, 300])
def test_delay_is_found_in_noise_and_through_a_change_of_sign(late):
    signal, noise = draw(12)
    signal[:400] = signal[-400:] = 0
    assert delay(signal, noise - np.roll(signal, late), 300) == late


def test_delay_of_silence_of_short_signals_and_of_equal_places():
    signal, _ = draw(13, 20)
    assert delay(signal, np.zeros(20), 10) == 0
    assert delay(np.zeros(20), signal, 10) == 0
    assert delay(signal, signal, 1000) == 0
    impulses = np.zeros(100)
    impulses[20::20] = 1.0
    middle = np.zeros(100)
    middle[60] = 1.0
    assert delay(middle, impulses, 50) == 0


def test_the_mean_over_channels_leaves_out_those_without_a_score():
    reference, noise = draw(14)
    one, other = reference + noise, reference + 0.1 * noise
    both = score(np.stack([reference] * 2, 1), np.stack([one, other], 1), RATE, ["si_sdr", "sdr"])
    assert list(both) == ["sdr", "si_sdr"]
    assert both["si_sdr"] == pytest.approx((si_sdr(reference, one) + si_sdr(reference, other)) / 2)
    assert score(reference, one, RATE, ["sdr"]) == {"sdr": sdr(reference, one)}
    silent = np.stack([reference, 0 * reference], 1)
    assert score(silent, np.stack([one, other], 1), RATE, ["sdr"]) == {"sdr": sdr(reference, one)}
    assert math.isnan(score(0 * silent, silent, RATE, ["sdr"])["sdr"])


@pytest.mark.parametrize("shapes", [((5, 2), (5, 1)), ((5,), (5, 1)), ((0, 1), (0, 1)), ((5, 0), (5, 0))])
def test_shapes_without_a_score(shapes):
    with pytest.raises(ValueError, match=r"alike and not empty"):
        score(*map(np.ones, shapes), RATE, ["sdr"])


def test_which_metrics_there_are(monkeypatch):
    assert {"sdr", "si_sdr"} <= set(available())
    with pytest.raises(ValueError, match="no metric 'snr'; there are sdr, si_sdr, stoi, pesq"):
        check_metrics(["snr"])
    with pytest.raises(ValueError, match="no metric was chosen"):
        check_metrics([])
    monkeypatch.setattr(_metrics, "find_spec", lambda name: None)
    assert available() == ["sdr", "si_sdr"]
    assert _metrics.missing() == {"stoi": "pystoi", "pesq": "pesq"}
    with pytest.raises(ValueError, match="stoi needs the package pystoi: pip install pystoi"):
        check_metrics(["stoi"])


def test_stoi():
    pytest.importorskip("pystoi")
    signal, (noise, _) = speech(), draw(15, 2 * RATE)
    assert stoi(signal, signal, RATE) == pytest.approx(1, abs=1e-6)
    values = [stoi(signal, signal + gain * noise * signal.std(), RATE) for gain in (0.1, 0.5, 2, 10)]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.95
    assert values[-1] < 0.5
    assert stoi(5 * signal, signal + noise, RATE) == pytest.approx(stoi(signal, signal + noise, RATE), abs=1e-6)


def test_stoi_where_there_is_little_to_score():
    pytest.importorskip("pystoi")
    signal = speech()
    silence = np.zeros_like(signal)
    assert stoi(signal, silence, RATE) == pytest.approx(0, abs=1e-6)
    assert math.isnan(stoi(silence, signal, RATE))
    for samples in (1, 100, RATE // 4):
        assert math.isnan(stoi(signal[:samples] + 1, signal[:samples], RATE))
    burst = silence.copy()
    burst[:1000] = signal[:1000]
    assert math.isnan(stoi(burst, signal, RATE))


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_pesq(rate):
    pytest.importorskip("pesq")
    signal = speech(3, rate)
    noise = np.random.default_rng(16).standard_normal(len(signal)) * signal.std()
    values = [pesq(signal, signal + gain * noise, rate) for gain in (0, 0.1, 1)]
    assert values[0] == pytest.approx(4.644, abs=1e-3)
    assert values == sorted(values, reverse=True)
    assert values[-1] > 1


def test_pesq_where_there_is_little_to_score():
    pytest.importorskip("pesq")
    signal = speech()
    silence = np.zeros_like(signal)
    assert pesq(signal, silence, RATE) == 1
    assert math.isnan(pesq(silence, signal, RATE))
    assert math.isnan(pesq(signal[:1000], signal[:1000], RATE))
    assert math.isnan(pesq(np.tile(signal, 11), np.tile(signal, 11), RATE))


def test_pesq_that_finds_no_speech(monkeypatch):
    class PesqError(RuntimeError):
        pass

    def find_none(rate, reference, estimate, mode):
        raise PesqError("no utterances detected")

    monkeypatch.setattr(_metrics, "_package", lambda name: SimpleNamespace(pesq=find_none, PesqError=PesqError))
    assert math.isnan(pesq(speech(), speech(), RATE))


def test_the_level_of_the_signals_does_not_change_pesq():
    package = pytest.importorskip("pesq")
    signal = speech(3, 16000).astype(np.float32) / 20
    noisy = signal + 0.01 * np.random.default_rng(17).standard_normal(len(signal)).astype(np.float32)
    expected = package.pesq(16000, signal, noisy, "wb")
    assert pesq(signal, noisy, 16000) == pytest.approx(expected, abs=1e-3)
    assert pesq(3 * signal, 0.1 * noisy, 16000) == pytest.approx(expected, abs=1e-3)
