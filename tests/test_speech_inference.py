"""Inference in numpy: what torch computes, for any cutting into blocks and single frames."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepunfold import nmf
from deepunfold.speech import _inference
from deepunfold.speech._frontend import Frontend
from deepunfold.speech._inference import BLOCK, FEW, Separator
from deepunfold.speech._model import Model

SMALL = Frontend(rate=8000, window=30, hop=8, features=16, context=3)
TOLERANCE = {np.float32: {"rtol": 0, "atol": 1e-5}, np.float64: {"rtol": 0, "atol": 1e-10}}


def model(trained=2, layers=5, front=SMALL, sources=None, seed=0, **settings):
    """Random bases with entries of very different sizes, some of them zero, as learnt ones have."""
    random, sources = np.random.default_rng(seed), sources or {"speech": 3, "noise": 2}

    def basis(rows):
        size = (rows, sum(sources.values()))
        found = np.exp(2 * random.standard_normal(size)) * (random.random(size) < 0.8)
        return found / np.linalg.norm(found, axis=0)

    bases = [basis(front.features) for _ in range(trained)]
    wide = basis(front.features * front.context)
    return Model(front, sources, layers, wide, bases, **{"sparsity": 0.5, **settings})


def spectra(frames, front=SMALL, dtype=np.float64, seed=1):
    """Loud and quiet frames, and silence."""
    random = np.random.default_rng(seed)
    found = np.exp(2 * random.standard_normal((frames, front.features))) * np.exp(random.normal(-5, 3, (frames, 1)))
    found[3:7] = 0
    return found.astype(dtype)


def by_torch(one, magnitudes):
    frames = torch.from_numpy(magnitudes)
    return nmf.separate(one.network().to(frames.dtype), nmf.context(frames, one.frontend.context)).numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("trained", [0, 1, 3, 5])
def test_equal_to_torch(trained, beta, dtype):
    one, magnitudes = model(trained, beta=beta), spectra(BLOCK + 40, dtype=dtype)
    found = Separator(one, dtype).separate(magnitudes)
    assert found.shape == (BLOCK + 40, 2, 16)
    assert found.dtype == dtype
    level = magnitudes.max(-1)[:, None, None] + 1e-30
    np.testing.assert_allclose(found / level, by_torch(one, magnitudes) / level, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_to_torch_at_the_size_of_the_paper(dtype):
    one = model(4, 25, Frontend(), {"speech": 100, "noise": 100}, sparsity=5.0)
    magnitudes = spectra(30, Frontend(), dtype)
    separator = Separator(one, dtype)
    level = magnitudes.max(-1)[:, None, None] + 1e-30
    expected = by_torch(one, magnitudes) / level
    np.testing.assert_allclose(separator.separate(magnitudes) / level, expected, **TOLERANCE[dtype])
    alone = np.concatenate([separator.separate(magnitudes[t : t + 1], magnitudes[t - 8 : t]) for t in range(8, 12)])
    np.testing.assert_allclose(alone / level[8:12], expected[8:12], **TOLERANCE[dtype])


@pytest.mark.parametrize("parts", [1, 3])
def test_a_basis_in_parts_gives_the_same(parts, monkeypatch):
    one, magnitudes = model(0), spectra(20)
    monkeypatch.setattr(_inference, "PART", -(-one.context_basis.nbytes * 2 // parts))
    separator = Separator(one, np.float64)
    assert len(separator._updates[0]._parts) == parts
    np.testing.assert_allclose(separator.separate(magnitudes), by_torch(one, magnitudes), rtol=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 2 * FEW), max_size=8), st.sampled_from([0, 2]), st.sampled_from([0.5, 1.0]))
def test_any_cutting_gives_the_same(sizes, trained, beta):
    magnitudes = spectra(40)
    separator = Separator(model(trained, beta=beta), np.float64)
    padded, found, start = np.concatenate([np.zeros((2, 16)), magnitudes]), [], 0
    for size in [*sizes, len(magnitudes)]:
        block = magnitudes[start : start + size]
        found.append(separator.masks(block, padded[start : start + 2]))
        start += len(block)
    np.testing.assert_allclose(np.concatenate(found), separator.masks(magnitudes), rtol=0, atol=1e-10)


@pytest.mark.parametrize("frames", [0, 1, 20])
def test_channels_are_signals_side_by_side(frames):
    magnitudes = np.stack([spectra(30, seed=seed)[:frames] for seed in range(3)])
    before = np.random.default_rng(5).random((3, 2, 16))
    separator = Separator(model(), np.float64)
    found = separator.masks(magnitudes, before)
    assert found.shape == (3, frames, 2, 16)
    for channel in range(3):
        np.testing.assert_array_equal(found[channel], separator.masks(magnitudes[channel], before[channel]))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(-12, 12), st.integers(0, 1000))
def test_masks_are_shares_and_do_not_depend_on_the_level(sources, level, seed):
    """For beta = 1, as everything is relative to the level of a frame, until it counts as silent."""
    one = model(2, sources={f"source {number}": number + 1 for number in range(sources)}, seed=seed)
    separator, magnitudes = Separator(one, np.float64), spectra(10, seed=seed)
    masks = separator.masks(magnitudes)
    assert masks.min() >= 0
    np.testing.assert_allclose(masks.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(separator.masks(magnitudes * 2.0**level), masks, rtol=1e-7, atol=1e-12)


def test_the_course_of_a_source_is_found():
    """Where a mixture is one source alone, nearly all goes to it."""
    front = Frontend(window=30, hop=8, features=16, context=1)
    low, high = np.zeros((16, 2)), np.zeros((16, 2))
    low[:8] = np.random.default_rng(0).random((8, 2))
    high[8:] = np.random.default_rng(1).random((8, 2))
    one = Model(front, {"low": 2, "high": 2}, 20, np.concatenate([low, high], 1))
    magnitudes = np.stack([low @ [1, 2], high @ [3, 1]])
    np.testing.assert_allclose(Separator(one, np.float64).separate(magnitudes)[[0, 1], [0, 1]], magnitudes, rtol=1e-9)


def test_silence_and_the_faintest_signals_are_shared_without_nan():
    separator = Separator(model())
    equal = np.full((4, 2, 16), 0.5, np.float32)
    np.testing.assert_array_equal(separator.masks(np.zeros((4, 16), np.float32)), equal)
    for level in (1e-44, 1e-38, 1e-30, 1e-15, 1e15):
        for frames in (1, 20):
            masks = separator.masks(np.full((frames, 16), level, np.float32))
            np.testing.assert_allclose(masks.sum(1), 1, rtol=1e-6)


def test_columns_of_zeros_take_no_part():
    one = model(2, sparsity=0.0)
    for basis in (one.context_basis, *one.bases):
        basis[:, [0, 4]] = 0
    separator, magnitudes = Separator(one, np.float64), spectra(20)
    np.testing.assert_allclose(separator.separate(magnitudes), by_torch(one, magnitudes), rtol=0, atol=1e-10)
