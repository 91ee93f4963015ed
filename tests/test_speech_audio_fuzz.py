"""Damaged audio files of each kind: what comes out is audio or an `AudioError`, and never anything else."""

import random
import subprocess
import sys
import warnings

import numpy as np
import pytest

from deepunfold.speech._audio import AudioError, open_audio, read, read_blocks
from tests.speech_files import KINDS, name_of, noise, put

LARGEST = 1 << 26


def damage(data, chance):
    """The bytes with a few changed, overwritten with extremes, left out, doubled, or cut off."""
    data = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        # Most of what can go wrong is in the first bytes.
        near = chance.random() < 0.7
        place = chance.randrange(min(len(data), 200) if near else len(data)) if data else 0
        size = chance.choice([1, 1, 2, 4, 8, 30])
        match chance.randrange(6):
            case 0:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                data[place : place + size] = chance.choice([b"\x00", b"\xff", b"\x7f", b"\x80"]) * size
            case 2:
                data[place : place + size] = chance.randbytes(size)
            case 3:
                del data[place : place + size]
            case 4:
                data[place:place] = data[place : place + size]
            case 5:
                del data[chance.randrange(len(data) + 1) :]
    return bytes(data)


def check(path):
    """Read in every way; whether it was audio."""
    try:
        info = open_audio(path)
        total = 0
        for block in read_blocks(path, 1000):
            assert block.dtype == np.float32
            assert 0 < len(block) <= 1000
            assert block.shape[1] == info.channels
            assert np.isfinite(block).all()
            total += block.size
            if total > LARGEST:  # a file may be long, but a test may not
                return True
        signal, rate = read(path, 16000, mono=True)
        assert rate == 16000
        assert signal.ndim == 1
        assert np.isfinite(signal).all()
    except AudioError as error:
        if str(path) not in str(error):
            raise
        return False
    return True


def fuzz(folder, kind, count, seed=0):
    """How many of some damaged files were audio."""
    chance = random.Random(f"{kind} {seed}")
    channels = chance.choice([1, 2])
    path = put(folder / name_of(kind), noise(2000, channels), 48000 if kind == "opus" else 16000, kind)
    data = path.read_bytes()
    assert check(path)
    audio = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(count):
            path.write_bytes(damage(data, chance))
            audio += check(path)
    return audio


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(tmp_path, kind):
    audio = fuzz(tmp_path, kind, 20)
    assert audio < 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files(tmp_path, kind):
    """In a process of their own: a decoder that crashes is a failure of this test, not of all that follow."""
    script = (
        "import sys, pathlib; from tests.test_speech_audio_fuzz import fuzz; "
        "print(fuzz(pathlib.Path(sys.argv[1]), sys.argv[2], 300, seed=1))"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path, kind], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    audio = int(done.stdout)
    assert audio < 300
    assert audio > 0 or KINDS[kind][0] == "OGG"  # every page of which has a checksum


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_audio_whatever_it_is_called(tmp_path, seed):
    chance = random.Random(seed)
    for suffix in ("wav", "flac", "ogg", "aiff", "w64", "caf", "au", "sph"):
        path = tmp_path / f"a.{suffix}"
        path.write_bytes(b"\x01" + chance.randbytes(5000))
        assert not check(path)
