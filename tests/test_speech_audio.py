"""Audio files: what is written is read, whole or not at all; resampling does not depend on how a stream is cut."""

import io
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile as sf
from hypothesis import given, settings
from hypothesis import strategies as st

from deepunfold.speech import _audio, _writing
from deepunfold.speech._audio import (
    SUFFIXES,
    AudioError,
    AudioInfo,
    Resampler,
    on_disk,
    open_audio,
    read,
    read_blocks,
    resample,
    resampled_length,
    writer,
)
from tests.speech_files import KINDS, name_of, noise, put, save, tone

BITS = {"PCM_U8": 8, "PCM_16": 16, "PCM_24": 24, "PCM_32": 32}
WRITTEN = [kind for kind in KINDS if kind != "alac"]
INTEGER = [kind for kind, (_, subtype) in KINDS.items() if subtype in BITS]
EXACT = [*INTEGER, "float", "double"]
RATES = [(44100, 16000), (16000, 44100), (48000, 16000), (16000, 48000), (8000, 16000), (96000, 16000), (16001, 16000)]


def left_behind(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


# Reading


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reads_the_same_in_blocks_and_whole(tmp_path, kind):
    rate = 48000 if kind == "opus" else 16000
    path = put(tmp_path / name_of(kind), noise(5000, 2), rate, kind)
    info = open_audio(path)
    assert (info.rate, info.channels, info.format, info.subtype) == (rate, 2, *KINDS[kind])
    assert info.frames == 5000 or kind == "adpcm"  # which has blocks
    blocks = list(read_blocks(path, 999))
    assert all(block.dtype == np.float32 and block.shape[1] == 2 for block in blocks)
    assert [len(block) for block in blocks[:-1]] == [999] * (len(blocks) - 1)
    whole, found = read(path)
    assert found == rate
    assert whole.shape == (info.frames, 2)
    np.testing.assert_allclose(np.concatenate(blocks), whole, atol=1e-6)
    np.testing.assert_allclose(whole, sf.read(path, dtype="float32")[0], atol=1e-6)


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3"])
def test_a_part_of_a_file(tmp_path, kind):
    path = put(tmp_path / name_of(kind), noise(30000), kind=kind)
    whole, _ = read(path, mono=True)
    part, _ = read(path, mono=True, start=12345, frames=1000)
    np.testing.assert_allclose(part, whole[12345:13345], atol=1e-3 if kind == "mp3" else 1e-6)
    assert len(read(path, start=29000, frames=5000)[0]) == 1000


def test_mono_is_the_mean_and_rate_is_the_one_wanted(tmp_path):
    signal = np.stack([tone(44100, 440, 44100), np.zeros(44100, np.float32)], axis=1)
    path = put(tmp_path / "a.wav", signal, 44100, "float")
    found, rate = read(path, 16000, mono=True)
    assert (found.shape, rate) == ((16000,), 16000)
    np.testing.assert_allclose(found[200:-200], tone(16000, 440, 16000)[200:-200] / 2, atol=1e-4)
    assert read(path, 16000)[0].shape == (16000, 2)


def test_the_content_tells_the_container_and_not_the_name(tmp_path):
    path = put(tmp_path / "a.mp3", noise(100), kind="flac")
    assert open_audio(path).format == "FLAC"
    assert open_audio(str(path)).seconds == 100 / 16000


def test_memory_does_not_grow_with_the_file(tmp_path):
    like = AudioInfo(48000, 8, 0, "WAV", "PCM_16")
    with writer(tmp_path / "long.wav", like) as sink:
        for _ in range(100):
            sink.write(np.zeros((10000, 8), np.float32))
    tracemalloc.start()
    with writer(tmp_path / "copy.wav", like) as sink:
        for block in read_blocks(tmp_path / "long.wav", 10000):
            sink.write(block)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sink.frames == 1_000_000
    assert most < 10 * 10000 * 8 * 4  # ten blocks; the file has a hundred


def test_blocks_of_many_channels_stay_small(tmp_path):
    path = put(tmp_path / "a.wav", np.zeros((20000, 1000), np.float32))
    assert max(block.nbytes for block in read_blocks(path, 1 << 16)) <= 4 << 23


def test_an_iterator_that_is_dropped_closes_the_file(tmp_path, monkeypatch):
    path = put(tmp_path / "a.wav", noise(1000))
    opened = []
    real = _audio._Sequential
    monkeypatch.setattr(_audio, "_Sequential", lambda path: opened.append(real(path)) or opened[-1])
    blocks = read_blocks(path, 10)
    next(blocks)
    assert not opened[0].closed
    blocks.close()
    assert opened[0].closed


# What cannot be read


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


@pytest.mark.parametrize("kind", ["wav", "rf64", "w64", "flac", "mp3", "aiff", "au", "alac"])
def test_a_truncated_file_is_an_error(tmp_path, kind):
    path = cut(put(tmp_path / name_of(kind), noise(50000, 2), kind=kind), 0.6)
    with pytest.raises(AudioError, match=r"truncated|damaged|cannot be|can be read") as raised:
        read(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("size", [0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE])
def test_a_recorder_that_did_not_know_the_length_is_understood(tmp_path, size):
    path = put(tmp_path / "a.wav", noise(1000))
    data = bytearray(path.read_bytes())
    place = data.index(b"data") + 4
    data[place : place + 4] = size.to_bytes(4, "little")
    path.write_bytes(data)
    assert read(path)[0].shape == (1000, 1)


def test_a_flac_stream_of_unknown_length(tmp_path):
    path = put(tmp_path / "a.flac", noise(30000, 2), kind="flac")
    expected, _ = read(path)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)  # STREAMINFO: the number of samples
    path.write_bytes(data)
    assert open_audio(path).frames == 30000
    np.testing.assert_array_equal(read(path)[0], expected)
    with pytest.raises(AudioError, match="damaged"):
        open_audio(cut(path, 0.6))


@pytest.mark.parametrize(("value", "shown"), [(np.nan, "nan"), (-np.inf, "-inf"), (2e9, r"2e\+09")])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_samples_that_are_no_numbers_are_found(tmp_path, kind, value, shown):
    signal = noise(32000, 2)
    signal[24000, 1] = value
    path = put(tmp_path / "a.wav", signal, kind=kind)
    blocks = read_blocks(path, 8000)
    assert [len(next(blocks)) for _ in range(3)] == [8000] * 3
    with pytest.raises(AudioError, match=rf"a\.wav has the sample {shown} after 1.50 s"):
        next(blocks)


def test_a_number_too_large_for_float32_is_infinite(tmp_path):
    path = put(tmp_path / "a.wav", np.full(10, 1e300), kind="double")
    with pytest.raises(AudioError, match="the sample inf"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.wav", b"", "is not audio"),
        ("a.wav", b"RIFF", "is not audio"),
        ("a.wav", b"hello " * 1000, "is not audio"),
        ("a.flac", b"fLaC" + bytes(100), "is not audio"),
        ("a.mp3", bytes(1000), "is not audio"),
        ("a.raw", bytes(1000), "audio without a header"),
        ("a.vox", b"hello " * 1000, "is RAW, which is not read"),
        ("a.txt", b"hello " * 1000, "is not audio"),
        ("a.wav", None, "is not there"),
        ("a" * 300, None, "too long"),
        ("", None, "is not a file"),
    ],
)
def test_what_is_not_audio(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    for use in (open_audio, read, lambda path: list(read_blocks(path))):
        with pytest.raises(AudioError, match=message) as raised:
            use(path)
        assert str(path) in str(raised.value)


def test_no_samples_and_rates_beyond_reason(tmp_path):
    with pytest.raises(AudioError, match="has no samples"):
        open_audio(put(tmp_path / "a.wav", noise(0)))
    with pytest.raises(AudioError, match="has 1 samples a second"):
        open_audio(put(tmp_path / "b.wav", noise(10), rate=1))
    assert read(put(tmp_path / "c.wav", noise(1)))[0].shape == (1, 1)


def test_blocks_and_starts_are_checked(tmp_path):
    path = put(tmp_path / "a.wav", noise(10))
    with pytest.raises(ValueError, match="blocks of 0"):
        next(read_blocks(path, 0))
    with pytest.raises(ValueError, match="from 11; it has 10"):
        next(read_blocks(path, start=11))


# Writing


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_is_written_is_like_what_was_read(tmp_path, kind):
    rate = 48000 if kind == "opus" else 22050
    source = put(tmp_path / name_of(kind), noise(3000, 2), rate, kind)
    info = open_audio(source)
    target = tmp_path / f"new {name_of(kind)}"
    with writer(target, info) as sink:
        for block in read_blocks(source, 700):
            sink.write(block)
    assert open_audio(target) == info
    assert (sink.frames, sink.clipped) == (info.frames, 0)
    if kind in EXACT:
        np.testing.assert_array_equal(read(target)[0], read(source)[0])
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("kind", INTEGER)
def test_samples_are_rounded_to_the_nearest(tmp_path, kind):
    signal = noise(4000)
    found, _ = read(save(tmp_path / name_of(kind), signal, kind=kind))
    half = 0.5 ** BITS[KINDS[kind][1]]
    assert np.abs(found - signal).max() <= half * 1.001 + 2e-8
    assert abs(np.mean(found - signal)) < half / 5 + 1e-9


@pytest.mark.parametrize("kind", WRITTEN)
def test_beyond_full_scale_is_full_scale(tmp_path, kind):
    rate = 16000
    signal = 3 * tone(4000, 200, rate, level=1.0)[:, None]
    like = AudioInfo(rate, 1, len(signal), *KINDS[kind])
    with writer(tmp_path / name_of(kind), like) as sink:
        sink.write(signal)
    found = read(sink_path := tmp_path / name_of(kind))[0]
    unbounded = kind in ("float", "double", "ogg", "opus", "mp3")
    assert sink.clipped == (0 if unbounded else np.count_nonzero(np.abs(signal) > 1))
    if not unbounded:
        assert open_audio(sink_path).subtype == KINDS[kind][1]
        loud = np.abs(signal) > 1
        if kind != "adpcm":  # which follows steep slopes slowly
            np.testing.assert_allclose(found[loud], np.sign(signal[loud]), atol=0.04)
        assert np.abs(found).max() <= 1
    elif kind in EXACT:
        np.testing.assert_array_equal(found, signal)


def test_a_container_is_asked_for_by_name(tmp_path):
    like = AudioInfo(16000, 1, 100, "OGG", "VORBIS")
    for suffix, containers in SUFFIXES.items():
        path = tmp_path / f"a{suffix}"
        with writer(path, replace(like, rate=48000) if suffix == ".opus" else like) as sink:
            sink.write(noise(100))
        found = open_audio(path)
        expected = ("OGG", "OPUS" if suffix == ".opus" else "VORBIS") if containers[0] == "OGG" else (containers[0],)
        assert (found.format, found.subtype)[: len(expected)] == expected
    with writer(tmp_path / "no suffix", like) as sink:
        sink.write(noise(100))
    assert open_audio(tmp_path / "no suffix").format == "OGG"


@pytest.mark.parametrize(
    ("container", "subtype", "name", "expected"),
    [
        ("WAV", "FLOAT", "a.flac", "PCM_24"),
        ("WAV", "PCM_32", "a.flac", "PCM_24"),
        ("WAV", "PCM_U8", "a.flac", "PCM_S8"),
        ("FLAC", "PCM_24", "a.wav", "PCM_24"),
        ("MP3", "MPEG_LAYER_III", "a.wav", "PCM_16"),
        ("OGG", "VORBIS", "a.flac", "PCM_16"),
        ("WAV", "DOUBLE", "a.rf64", "DOUBLE"),
    ],
)
def test_the_nearest_encoding_in_another_container(tmp_path, container, subtype, name, expected):
    with writer(tmp_path / name, AudioInfo(16000, 1, 100, container, subtype)) as sink:
        sink.write(noise(100))
    assert open_audio(tmp_path / name).subtype == expected


@pytest.mark.parametrize(
    ("container", "subtype", "channels", "becomes"),
    [
        ("WAV", "MPEG_LAYER_III", 1, "PCM_16"),
        ("MP3", "MPEG_LAYER_II", 1, "MPEG_LAYER_III"),
        ("WAV", "GSM610", 2, "PCM_16"),
        ("CAF", "ALAC_16", 1, "PCM_16"),  # libsndfile could, but crashes where the disk is full
        ("CAF", "ALAC_24", 1, "PCM_24"),
    ],
)
def test_an_encoding_that_cannot_be_written_becomes_the_nearest_one(tmp_path, container, subtype, channels, becomes):
    like = AudioInfo(16000, channels, 1000, container, subtype)
    path = tmp_path / f"a.{container.lower()}"
    with (
        pytest.warns(UserWarning, match=f"{subtype} cannot be written in {container}; it becomes {becomes}") as said,
        writer(path, like) as sink,
    ):
        sink.write(noise(1000, channels))
    assert len(said) == 1
    assert said[0].filename == __file__
    assert open_audio(path).subtype == becomes


def test_a_wav_file_beyond_four_gigabytes_is_rf64(tmp_path, monkeypatch):
    monkeypatch.setattr(_writing, "_WAV_LIMIT", 1000)
    for frames, container in ((500, "WAV"), (501, "RF64")):
        with writer(tmp_path / "a.wav", AudioInfo(16000, 1, frames, "WAV", "PCM_16")) as sink:
            sink.write(noise(frames))
        assert open_audio(tmp_path / "a.wav").format == container


def test_what_a_container_cannot_hold_is_an_error(tmp_path):
    with (
        pytest.raises(AudioError, match=r"a\.mp3: MP3 with 5 channels at 96000 Hz: .*choose another container"),
        writer(tmp_path / "a.mp3", AudioInfo(96000, 5, 10, "WAV", "PCM_16")),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", [None, b"what was there before"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_a_failure_leaves_what_was_there_before(tmp_path, error, before):
    path = tmp_path / "a.wav"
    if before is not None:
        path.write_bytes(before)
    with (  # noqa: PT012
        pytest.raises(error, match="by itself"),
        writer(path, AudioInfo(16000, 1, 10, "WAV", "PCM_16")) as sink,
    ):
        sink.write(noise(1000))
        raise error("by itself")
    assert (path.read_bytes() if path.exists() else None) == before
    assert left_behind(tmp_path) == []


def test_a_file_can_take_its_own_place(tmp_path):
    path = put(tmp_path / "a.wav", noise(1000))
    signal, _ = read(path)
    with writer(path, open_audio(path)) as sink:
        for block in read_blocks(path, 100):
            sink.write(-block)
    np.testing.assert_array_equal(read(path)[0], -signal)


@pytest.mark.parametrize("broken", ["write", "close"])
def test_a_disk_that_is_full(tmp_path, monkeypatch, broken):
    def full(*args, **kwargs):
        raise AssertionError if broken == "write" else sf.LibsndfileError(2)

    like = AudioInfo(16000, 1, 1000, "WAV", "PCM_16")
    with pytest.raises(AudioError, match=r"a\.wav"), writer(tmp_path / "a.wav", like) as sink:  # noqa: PT012
        sink.write(noise(1000))
        closing = sink._sound.close
        monkeypatch.setattr(sf.SoundFile, broken, full)
        if broken == "write":
            sink.write(noise(1000))
    monkeypatch.undo()
    closing()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3", "aiff"])
def test_a_file_that_may_not_grow_is_like_a_disk_that_is_full(tmp_path, kind):
    """For real: the system refuses to write beyond a limit."""
    pytest.importorskip("resource")
    script = f"""
import resource, signal, sys
import numpy as np
from deepunfold.speech._audio import AudioError, AudioInfo, writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
noise = np.random.default_rng(0).uniform(-0.5, 0.5, (100000, 2)).astype(np.float32)
try:
    with writer(sys.argv[1], AudioInfo(16000, 2, len(noise), *{KINDS[kind]})) as sink:
        for start in range(0, len(noise), 1000):
            sink.write(noise[start : start + 1000])
except AudioError as error:
    print(error)
"""
    path = tmp_path / name_of(kind)
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert done.stdout == f"cannot write {path}: not all of it could be written; is the disk full?\n"
    assert list(tmp_path.iterdir()) == []


def test_targets_that_cannot_be_written(tmp_path):
    like = AudioInfo(16000, 1, 10, "WAV", "PCM_16")
    for path, message in (
        (tmp_path, "it is a folder"),
        (tmp_path / "absent" / "a.wav", "absent does not exist"),
        (tmp_path / ("a" * 300), "too long"),
    ):
        with pytest.raises(AudioError, match=message), writer(path, like) as sink:
            sink.write(noise(10))
    assert list(tmp_path.iterdir()) == []


def test_blocks_to_write_are_checked(tmp_path):
    like = AudioInfo(16000, 2, 10, "WAV", "PCM_16")
    for block, error in ((noise(10), "shape"), (noise(20)[:, 0], "shape"), (np.full((10, 2), np.nan), "not numbers")):
        with pytest.raises(ValueError, match=error), writer(tmp_path / "a.wav", like) as sink:
            sink.write(block)
    assert list(tmp_path.iterdir()) == []


# Pipes


def test_standard_input_and_output(tmp_path, monkeypatch):
    data = put(tmp_path / "a.flac", noise(1000, 2), kind="flac").read_bytes()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=(out := io.BytesIO())))
    with on_disk("-") as path:
        info = open_audio(path)
        signal, _ = read(path)
        with writer("-", info) as sink:
            for block in read_blocks(path, 99):
                sink.write(block)
    assert not path.exists()
    written = tmp_path / "out.wav"
    written.write_bytes(out.getvalue())
    assert open_audio(written) == replace(info, format="WAV")
    np.testing.assert_array_equal(read(written)[0], signal)


def test_a_file_is_on_disk_already(tmp_path):
    with on_disk(tmp_path / "a.wav") as path:
        assert path == tmp_path / "a.wav"


def test_a_pipe_that_is_closed(monkeypatch):
    class Closed(io.BytesIO):
        def write(self, _):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=Closed()))
    with (
        pytest.raises(AudioError, match="cannot write standard output: Broken pipe"),
        writer("-", AudioInfo(16000, 1, 10, "WAV", "PCM_16")) as sink,
    ):
        sink.write(noise(10))


# Resampling


@pytest.mark.parametrize(("source", "target"), RATES)
def test_a_tone_stays_a_tone_without_delay(source, target):
    found = resample(tone(source, 1000, source), source, target)
    assert len(found) == target
    np.testing.assert_allclose(found[500:-500], tone(target, 1000, target)[500:-500], atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    rates=st.sampled_from([*RATES, (16000, 16000)]),
    channels=st.integers(1, 3),
    samples=st.integers(0, 3000),
    chunks=st.lists(st.integers(0, 900), min_size=1, max_size=8),
)
def test_a_stream_is_the_array_however_it_is_cut(rates, channels, samples, chunks):
    signal = noise(samples, channels)
    resampler = Resampler(*rates, channels)
    for _ in range(2):  # flush begins anew
        parts, start, given_so_far, taken, index = [], 0, 0, 0, 0
        while start < samples:
            size = max(chunks[index % len(chunks)], 1)
            parts.append(resampler.process(signal[start : start + size]))
            start += size
            index += 1
            taken, given_so_far = min(start, samples), given_so_far + len(parts[-1])
            assert taken * rates[1] / rates[0] - given_so_far <= resampler.latency
        found = np.concatenate([*parts, resampler.flush()])
        np.testing.assert_array_equal(found, resample(signal, *rates))
        assert len(found) == resampled_length(samples, *rates)


def test_lengths_are_rounded():
    assert [resampled_length(n, 2, 1) for n in range(5)] == [0, 1, 1, 2, 2]
    assert resampled_length(44100, 44100, 16000) == 16000
    assert resampled_length(10**12 + 1, 3, 2) == 666666666667  # in whole numbers: no digit is lost


def test_one_channel_can_be_flat_and_chunks_are_checked():
    assert Resampler(8000, 16000).process(np.zeros(4000, np.float32)).ndim == 1
    assert resample(np.zeros((0, 2)), 8000, 16000).shape == (0, 2)
    with pytest.raises(ValueError, match=r"shape \(3, 2\); give \(samples, 1\)"):
        Resampler(8000, 16000).process(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="must be positive"):
        Resampler(0, 16000)


def test_reading_audio_does_not_import_torch():
    script = "import sys, deepunfold.speech._mixing; assert not {'torch', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
