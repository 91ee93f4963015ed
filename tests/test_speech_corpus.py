"""Folders of audio, and the sets that enhancers are evaluated on."""

import pickle
import threading

import numpy as np
import pytest

from deepunfold.speech import _corpus
from deepunfold.speech._audio import AudioError, open_audio, read
from deepunfold.speech._corpus import Clips, audio_files, chime2, paired, single
from tests.speech_corpus import corpus
from tests.speech_files import noise, put


@pytest.fixture
def decoded(monkeypatch):
    """The names of the files that are decoded, as it happens."""
    names = []
    real = _corpus.read
    monkeypatch.setattr(
        _corpus, "read", lambda path, *args, **options: names.append(path.name) or real(path, *args, **options)
    )
    return names


def test_audio_files_are_listed_recursively_and_sorted(tmp_path):
    for name in ("b/2.wav", "b/10.FLAC", "a/z/1.ogg", "c.mp3", ".hidden/1.wav", "a/._1.wav", "notes.txt", "a.wav.part"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.wav").mkdir()
    found = [path.relative_to(tmp_path).as_posix() for path in audio_files(tmp_path)]
    assert found == ["a/z/1.ogg", "b/10.FLAC", "b/2.wav", "c.mp3"]
    assert audio_files(tmp_path / "c.mp3") == [tmp_path / "c.mp3"]


def test_folders_without_audio_are_errors(tmp_path):
    with pytest.raises(AudioError, match=r"has no audio files, which end in \.wav"):
        Clips(tmp_path)
    with pytest.raises(AudioError, match="absent is not there"):
        Clips(tmp_path / "absent")
    put(tmp_path / "a.wav", noise(10)).write_bytes(b"nonsense")
    with pytest.raises(AudioError, match=r"a\.wav is not audio"):
        Clips(tmp_path)


def test_clips_are_mono_and_at_the_rate(tmp_path):
    put(tmp_path / "x" / "a.wav", noise(800, 2), 8000)
    put(tmp_path / "y" / "b.flac", noise(300), 16000, "flac")
    clips = Clips(tmp_path / "x", tmp_path / "y" / "b.flac")
    assert [clip.name for clip in clips.clips] == ["a.wav", "b.flac"]
    assert [len(clip) for clip in clips] == [1600, 300]
    assert clips.seconds == pytest.approx(0.1 + 300 / 16000)
    np.testing.assert_array_equal(clips[0], read(tmp_path / "x" / "a.wav", 16000, mono=True)[0])
    np.testing.assert_array_equal(clips[-1], clips[1])
    assert len(clips[:]) == 2
    with pytest.raises(IndexError):
        clips[2]
    with pytest.raises(ValueError, match="read-only"):
        clips[0][0] = 1


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_a_long_file_is_cut_into_clips(tmp_path, kind):
    signal = noise(16000 * 5 + 3)
    path = put(tmp_path / f"a.{kind}", signal, kind=kind)
    clips = Clips(tmp_path, longest=2)
    assert [clip.name for clip in clips.clips] == [f"a.{kind}@{start}" for start in (0, 26667, 53335)]
    assert max(len(clip) for clip in clips) <= 32000
    np.testing.assert_array_equal(np.concatenate(clips[:]), read(path, mono=True)[0])
    assert len(Clips(tmp_path, longest=5.0002)) == 1


def test_decoded_clips_are_kept_up_to_the_memory(tmp_path, decoded):
    for name in "abcd":
        put(tmp_path / f"{name}.wav", noise(1000))
    clips = Clips(tmp_path, memory=3 * 4000 / 1e6)
    first = [clips[index] for index in (0, 1, 2)]
    assert all(clips[index] is first[index] for index in (1, 2, 0))
    assert decoded == ["a.wav", "b.wav", "c.wav"]
    clips[3]  # b was used least recently
    assert clips[0] is first[0]
    assert decoded == ["a.wav", "b.wav", "c.wav", "d.wav"]
    np.testing.assert_array_equal(clips[1], first[1])
    assert decoded[-1] == "b.wav"
    assert clips._held == sum(signal.nbytes for signal in clips._decoded.values()) == 12000


def test_what_is_larger_than_the_memory_is_not_kept(tmp_path, decoded):
    put(tmp_path / "a.wav", noise(1000))
    clips = Clips(tmp_path, memory=0.001)
    np.testing.assert_array_equal(clips[0], clips[0])
    assert decoded == ["a.wav"] * 2
    assert clips._held == 0


def test_clips_go_to_other_processes_without_what_was_decoded(tmp_path):
    put(tmp_path / "a.wav", noise(100000))
    clips = Clips(tmp_path)
    before = clips[0]
    data = pickle.dumps(clips)
    assert len(data) < 2000
    np.testing.assert_array_equal(pickle.loads(data)[0], before)


def test_threads_share_clips(tmp_path):
    for number in range(5):
        put(tmp_path / f"{number}.wav", noise(1000, seed=number))
    clips = Clips(tmp_path, memory=0.009)
    expected = [read(path, mono=True)[0] for path in audio_files(tmp_path)]
    wrong = []

    def use(seed):
        for index in np.random.default_rng(seed).integers(5, size=100):
            if not np.array_equal(clips[index], expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert clips._held == sum(signal.nbytes for signal in clips._decoded.values()) <= 9000


def test_settings_of_clips_are_checked(tmp_path):
    with pytest.raises(ValueError, match="longest=0"):
        Clips(tmp_path, longest=0)


# Evaluation sets


def names(items):
    return [(item.name, item.speaker, item.snr) for item in items]


def test_chime2(tmp_path):
    for snr in ("m6dB", "0dB", "9dB"):
        for speaker, name in (("s1", "u1"), ("s2", "u2")):
            put(tmp_path / "isolated" / "dev" / snr / speaker / f"{name}.wav", noise(10))
    put(tmp_path / "reverberated" / "dev" / "s1" / "u1.flac", noise(10), kind="flac")
    put(tmp_path / "embedded" / "0dB" / "s1" / "u1.wav", noise(10))
    items = chime2(tmp_path)
    assert names(items) == [(f"u{n}", f"s{n}", snr) for snr in (0.0, 9.0, -6.0) for n in (1, 2)]
    assert items[0].mixture == tmp_path / "isolated" / "dev" / "0dB" / "s1" / "u1.wav"
    assert items[0].reference == tmp_path / "reverberated" / "dev" / "s1" / "u1.flac"
    assert items[1].reference is None
    assert names(chime2(tmp_path / "isolated" / "dev" / "m6dB")) == [("u1", "s1", -6.0), ("u2", "s2", -6.0)]
    assert chime2(tmp_path / "isolated" / "dev" / "m6dB")[0].reference == items[0].reference


@pytest.mark.parametrize("inside", ["dev/{snr}/s1", "{snr}/dev/s1", "dev/s1/{snr}", "{snr}"])
@pytest.mark.parametrize(("snr", "value"), [("m6dB", -6.0), ("9dB", 9.0), ("m2.5dB", -2.5), ("-3dB", -3.0), ("6db", 6)])
def test_any_folder_can_be_the_snr(tmp_path, inside, snr, value):
    folder = inside.format(snr=snr)
    put(tmp_path / "isolated" / folder / "u.wav", noise(10))
    put(tmp_path / "reverberated" / "somewhere" / "u.wav", noise(10))
    [item] = chime2(tmp_path)
    assert item.snr == value
    assert item.speaker == (None if folder.endswith(snr) else "s1")
    assert item.reference == tmp_path / "reverberated" / "somewhere" / "u.wav"


@pytest.mark.parametrize("folder", ["dB", "m6dBs", "x6dB", "6", "mdB", "m-6dB"])
def test_other_folders_are_no_snr(tmp_path, folder):
    put(tmp_path / "isolated" / folder / "s1" / "u.wav", noise(10))
    assert chime2(tmp_path)[0].snr is None


def test_references_of_the_same_name_are_told_apart(tmp_path):
    for split in ("dev", "test"):
        for speaker in ("s1", "s2"):
            put(tmp_path / "reverberated" / split / speaker / "u.wav", noise(10))
            put(tmp_path / "isolated" / split / "0dB" / speaker / "u.wav", noise(10))
    for item in chime2(tmp_path):
        below = item.mixture.relative_to(tmp_path / "isolated")
        assert item.reference == tmp_path / "reverberated" / below.parts[0] / item.speaker / "u.wav"
    put(tmp_path / "reverberated" / "dev" / "s1" / "u.flac", noise(10), kind="flac")
    with pytest.raises(AudioError, match="has several references"):
        chime2(tmp_path)


def test_a_set_that_is_not_laid_out_so_is_an_error(tmp_path):
    put(tmp_path / "0dB" / "u.wav", noise(10))
    with pytest.raises(AudioError, match="has no audio in a folder named isolated"):
        chime2(tmp_path)


def test_paired_folders(tmp_path):
    for name in ("p1_001", "p1_002", "deep/p2.1"):
        put(tmp_path / "noisy" / f"{name}.wav", noise(10))
        put(tmp_path / "clean" / f"{name}.flac", noise(10), kind="flac")
    put(tmp_path / "clean" / "more.wav", noise(10))
    items = paired(tmp_path / "noisy", tmp_path / "clean")
    assert names(items) == [("deep/p2.1", "deep", None), ("p1_001", None, None), ("p1_002", None, None)]
    assert [item.reference for item in items] == [tmp_path / "clean" / f"{item.name}.flac" for item in items]
    (tmp_path / "clean" / "p1_001.flac").unlink()
    with pytest.raises(AudioError, match=r"p1_001\.wav has no counterpart p1_001 in"):
        paired(tmp_path / "noisy", tmp_path / "clean")


def test_single_folders_and_files(tmp_path):
    put(tmp_path / "s1" / "a.wav", noise(10))
    assert names(single(tmp_path)) == [("s1/a", "s1", None)]
    [item] = single(tmp_path / "s1" / "a.wav")
    assert (item.name, item.reference) == ("a", None)


def test_the_open_corpus():
    items = chime2(corpus() / "mixtures")
    assert len(items) == 108
    assert {item.snr for item in items} == {-6, -3, 0, 3, 6, 9}
    assert {item.speaker for item in items} == {"ibf_008", "ibf_011", "ibm_003", "ibm_007"}
    for item in items:
        assert item.reference is not None
        assert item.reference.stem == item.name
        assert item.reference.parent.name == item.speaker
        assert open_audio(item.reference).frames == open_audio(item.mixture).frames
    assert len(Clips(corpus() / "noise" / "dev" / "bed")) + len(Clips(corpus() / "noise" / "dev" / "event")) > 200
