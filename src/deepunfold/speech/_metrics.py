"""How close an estimate comes to a reference: SDR, SI-SDR, STOI, PESQ, and the delay between the two.

SDR and SI-SDR are computed here, in double precision, and depend on nothing but numpy. STOI needs the package
``pystoi``, PESQ the package ``pesq``. What each gives where its formula gives nothing:

- A silent reference (all zeros): no score is defined, all are NaN. Means leave NaN out and count it.
- A silent estimate of a reference that is not: everything is lost. SDR and SI-SDR are ``-LIMIT``, STOI is 0, PESQ 1.
- The estimate equal to the reference, but for gain (and for SDR a filter): SDR and SI-SDR are ``LIMIT``, STOI is 1.
- Too short for STOI or PESQ, longer than 20 s for PESQ, or no speech for PESQ to find: NaN.
- A delay: SDR forgives an estimate that is late by less than its taps, and PESQ aligns the two by itself; SI-SDR and
  STOI take it as an error, and so does SDR if the estimate is early. `delay` tells.
"""

import importlib
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

LIMIT = 100.0
"""The largest and, negative, the smallest SDR and SI-SDR in dB: beyond it they tell of rounding only."""

METRICS = {"sdr": "SDR (dB)", "si_sdr": "SI-SDR (dB)", "stoi": "STOI", "pesq": "PESQ"}
"""The metrics and their titles."""

_PACKAGES = {"stoi": "pystoi", "pesq": "pesq"}
_LOADING = 1e-12
"""Added to the power of the reference: a filter of SDR does not amplify what is 120 dB below it."""

_STOI_SHORTEST = 0.4
_PESQ_RATE = 16000
_PESQ_LOWEST = 1.0
_PESQ_SECONDS = (0.25, 20.0)
"""PESQ needs the first. Its code holds 50 utterances, of 0.2 s with 0.2 s between at least, and more make it crash."""

NEEDS = {
    "sdr": "a reference that is not silent",
    "si_sdr": "a reference that is not silent",
    "stoi": f"at least {_STOI_SHORTEST:g} s of speech",
    "pesq": f"{_PESQ_SECONDS[0]:g} to {_PESQ_SECONDS[1]:g} s with speech",
}
"""What a signal needs so as to have a score."""

Signal: TypeAlias = NDArray[np.float64]


def available() -> list[str]:
    """The metrics that can be computed with what is installed."""
    return [name for name in METRICS if name not in missing()]


def missing() -> dict[str, str]:
    """The other metrics, with the package that each needs."""
    return {name: package for name, package in _PACKAGES.items() if not find_spec(package)}


def check_metrics(names: Iterable[str]) -> list[str]:
    """The names in the order of `METRICS`, if each is known and installed."""
    wanted = list(names)
    for name in wanted:
        if name not in METRICS:
            raise ValueError(f"there is no metric {name!r}; there are {', '.join(METRICS)}")
        if name in missing():
            raise ValueError(f"the metric {name} needs the package {_PACKAGES[name]}: pip install {_PACKAGES[name]}")
    if not wanted:
        raise ValueError(f"no metric was chosen; there are {', '.join(METRICS)}")
    return [name for name in METRICS if name in wanted]


def score(
    reference: ArrayLike, estimate: ArrayLike, rate: int, metrics: Sequence[str] | None = None
) -> dict[str, float]:
    """Each metric of an estimate, both (samples) or (samples, channels): the mean over channels that have a score."""
    names = available() if metrics is None else check_metrics(metrics)
    references, estimates = np.asarray(reference), np.asarray(estimate)
    if references.shape != estimates.shape or references.ndim not in (1, 2) or not references.size:
        raise ValueError(
            f"a reference of shape {references.shape} and an estimate of {estimates.shape}: "
            "both have to be (samples) or (samples, channels), alike and not empty"
        )
    channels = zip(np.atleast_2d(references.T), np.atleast_2d(estimates.T), strict=True)
    scores = [[_one(name, *channel, rate) for name in names] for channel in channels]
    return {name: _mean(values) for name, values in zip(names, zip(*scores, strict=True), strict=True)}


def _one(name: str, reference: ArrayLike, estimate: ArrayLike, rate: int) -> float:
    if name in ("sdr", "si_sdr"):
        return {"sdr": sdr, "si_sdr": si_sdr}[name](reference, estimate)
    return {"stoi": stoi, "pesq": pesq}[name](reference, estimate, rate)


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if value == value]
    return float(np.mean(known)) if known else float("nan")


def sdr(reference: ArrayLike, estimate: ArrayLike, taps: int = 512) -> float:
    """Signal-to-distortion ratio in dB of BSS Eval (``bss_eval_sources``), of signals (samples).

    The target is the projection of the estimate on the reference and its copies delayed by 1 to taps - 1 samples: the
    reference through the best filter of that many taps. All else is distortion. Other sources do not change the ratio.
    """
    r, e = _signals(reference, estimate)
    if taps < 1:
        raise ValueError(f"taps={taps}: a filter has at least one tap")
    if not r.any():
        return float("nan")
    length = len(r) + taps - 1
    size = _fast_size(length)
    of_reference, of_estimate = np.fft.rfft(_unit(r), size), np.fft.rfft(e, size)
    power = np.fft.irfft(np.abs(of_reference) ** 2, size)[:taps]
    power[0] *= 1 + _LOADING
    products = np.fft.irfft(of_reference.conj() * of_estimate, size)[:taps]
    lags = np.arange(taps)
    best = np.linalg.solve(power[np.abs(lags[:, None] - lags)], products)
    # Both parts as signals, not as quadratic forms: where little is left, a difference of energies is all rounding.
    target = np.fft.irfft(of_reference * np.fft.rfft(best, size), size)[:length]
    return _decibels(target, np.pad(e, (0, taps - 1)) - target)


def si_sdr(reference: ArrayLike, estimate: ArrayLike) -> float:
    """Scale-invariant signal-to-distortion ratio in dB, of signals (samples): SDR with one tap."""
    r, e = _signals(reference, estimate)
    if not r.any():
        return float("nan")
    r = _unit(r)
    target = (r @ e) * r
    return _decibels(target, e - target)


def stoi(reference: ArrayLike, estimate: ArrayLike, rate: int) -> float:
    """Short-time objective intelligibility, about 0 to 1, of signals (samples); NaN for less than 0.4 s of speech."""
    r, e = _signals(reference, estimate)
    if not r.any() or len(r) < _STOI_SHORTEST * rate:
        return float("nan")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Not enough STFT frames", RuntimeWarning)
        try:
            return float(_package("pystoi").stoi(r, e, rate))
        except RuntimeWarning:
            return float("nan")


def pesq(reference: ArrayLike, estimate: ArrayLike, rate: int) -> float:
    """Wide-band PESQ (MOS-LQO of ITU-T P.862.2, 1 to 4.64), of signals (samples), resampled to 16 kHz."""
    r, e = _signals(reference, estimate)
    shortest, longest = _PESQ_SECONDS
    if not r.any() or not shortest <= len(r) / rate <= longest:
        return float("nan")
    if not e.any():
        return _PESQ_LOWEST
    if rate != _PESQ_RATE:
        from deepunfold.speech._resampling import resample

        at_16_khz = [resample(each, rate, _PESQ_RATE) for each in (r, e)]
    else:
        at_16_khz = [r.astype(np.float32), e.astype(np.float32)]
    package = _package("pesq")
    try:
        return float(package.pesq(_PESQ_RATE, *at_16_khz, "wb"))
    except package.PesqError:
        return float("nan")


def delay(reference: ArrayLike, estimate: ArrayLike, reach: int) -> int:
    """By how many samples an estimate is late (early if negative), at most ``reach``: where the size of the
    cross-correlation is largest, and of equal places the one nearest to zero. Without any correlation it is 0.
    """
    r, e = _signals(reference, estimate)
    size = _fast_size(len(r) + reach)
    product = np.fft.irfft(np.fft.rfft(r, size).conj() * np.fft.rfft(e, size), size)
    lags = np.arange(-reach, reach + 1)
    sizes = np.abs(product[lags])
    near = np.flatnonzero(sizes >= (1 - 1e-6) * sizes.max())
    return int(min(lags[near], key=abs))


def _signals(reference: ArrayLike, estimate: ArrayLike) -> tuple[Signal, Signal]:
    """Both in double precision, checked, with a peak of one where they are not silent."""
    r, e = (np.asarray(each, dtype=np.float64) for each in (reference, estimate))
    if r.ndim != 1 or r.shape != e.shape:
        raise ValueError(f"a reference of shape {r.shape} and an estimate of {e.shape}: both have to be (samples)")
    if not len(r):
        raise ValueError("signals without a sample have no score")
    if not (np.isfinite(r).all() and np.isfinite(e).all()):
        raise ValueError("a signal holds NaN or infinite samples, it has no score")
    return _peak_one(r), _peak_one(e)


def _peak_one(signal: Signal) -> Signal:
    return signal / (np.abs(signal).max() or 1.0)


def _unit(signal: Signal) -> Signal:
    return signal / np.linalg.norm(signal)


def _fast_size(length: int) -> int:
    """The next power of two."""
    return 1 << (length - 1).bit_length()


def _decibels(target: Signal, rest: Signal) -> float:
    with np.errstate(divide="ignore"):
        level = 10 * (np.log10(target @ target) - np.log10(rest @ rest)) if target.any() else -LIMIT
    return float(np.clip(level, -LIMIT, LIMIT))


@cache
def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this metric needs the package {name}: pip install {name}") from error
