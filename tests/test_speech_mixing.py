"""Mixtures: the SNR is hit, a seed is a mixture, and the corpus's own mixtures are met on average."""

import hashlib
import itertools
import subprocess
import sys

import numpy as np
import pytest

from deepunfold.speech._audio import AudioError
from deepunfold.speech._corpus import Clips, chime2
from deepunfold.speech._mixing import Mixer, named_places
from deepunfold.speech._tracks import Track, convolve, rms
from tests.speech_corpus import corpus
from tests.speech_files import noise, put, tone

RATE = 16000


@pytest.fixture
def folders(tmp_path):
    """Three utterances, beds and events, and two rooms."""
    for number in range(3):
        put(tmp_path / "speech" / f"s{number}" / "u.wav", noise(8000 + 1000 * number, seed=number), kind="float")
    for number in range(4):
        put(tmp_path / "noise" / "bed" / f"{number}.wav", noise(5000, seed=10 + number), kind="float")
        put(tmp_path / "noise" / "event" / f"{number}.wav", noise(600, seed=20 + number), kind="float")
    for number in range(2):
        response = noise(400, seed=30 + number)[:, 0] * np.exp(-np.arange(400) / 80).astype(np.float32)
        put(tmp_path / "rooms" / f"{number}.wav", response, kind="float")
    return tmp_path


@pytest.fixture
def mixer(folders):
    return Mixer({"speech": folders / "speech", "noise": folders / "noise"}, folders / "rooms")


def ratio(mixture):
    target = mixture.sources[0].astype(np.float64)
    others = mixture.sources[1:].astype(np.float64).sum(axis=0)
    return 10 * np.log10(np.sum(target**2) / np.sum(others**2))


def same(one, other):
    return np.array_equal(one.sources, other.sources) and one.record == other.record and one.snr == other.snr


# Mixtures


def test_a_mixture_is_the_sum_of_its_sources_at_the_snr(mixer):
    for seed in range(20):
        mixture = mixer.draw(seed)
        assert mixture.mixture.dtype == mixture.sources.dtype == np.float32
        assert mixture.sources.shape == (2, len(mixture.mixture))
        assert mixture.names == ("speech", "noise")
        np.testing.assert_array_equal(mixture.mixture, mixture.sources[0] + mixture.sources[1])
        assert ratio(mixture) == pytest.approx(mixture.snr, abs=1e-5)
        assert rms(mixture.sources[0]) == pytest.approx(0.05 * mixture.record["scale"], rel=1e-5)
        assert np.abs(mixture.mixture).max() <= 0.95 * (1 + 1e-6)


@pytest.mark.parametrize("snr", [-30.0, -6.0, 0.0, 2.5, 40.0])
def test_a_wanted_snr_is_hit(mixer, snr):
    assert ratio(mixer.draw(3, snr=snr)) == pytest.approx(snr, abs=1e-4)


def test_snrs_are_uniform_in_their_range(folders):
    mixer = Mixer({"speech": folders / "speech", "noise": folders / "noise"}, snr=(-2, 3), seconds=0.05)
    snrs = np.sort([mixer.draw(seed).snr for seed in range(300)])
    assert snrs[0] >= -2
    assert snrs[-1] <= 3
    assert np.abs(snrs - np.linspace(-2, 3, 300)).max() < 0.1 * 5  # Kolmogorov-Smirnov: beyond 0.094 in 1 of 100 cases


def test_a_loud_mixture_is_scaled_down_as_a_whole(folders):
    sources = {"speech": folders / "speech", "noise": folders / "noise"}
    loud, plain = (Mixer(sources, level=0.3, peak=peak).draw(1, snr=-6) for peak in (0.5, np.inf))
    assert np.abs(loud.mixture).max() == pytest.approx(0.5, rel=1e-5)
    np.testing.assert_allclose(loud.sources, plain.sources * loud.record["scale"], atol=1e-6)
    assert plain.record["scale"] == 1


def test_levels_are_drawn_in_decibels(folders):
    sources = {"speech": folders / "speech", "noise": folders / "noise"}
    mixer = Mixer(sources, level=(0.001, 0.1), seconds=0.05, peak=np.inf)
    levels = 20 * np.log10([rms(mixer.draw(seed).sources[0]) for seed in range(200)])
    assert levels.min() >= -60.001
    assert levels.max() <= -19.999
    assert np.median(levels) == pytest.approx(-40, abs=4)


# Seeds


def test_a_seed_is_a_mixture_whatever_was_drawn_before(folders, mixer):
    forwards = [mixer.draw((7, index)) for index in range(6)]
    fresh = Mixer({"speech": folders / "speech", "noise": folders / "noise"}, folders / "rooms")
    for index in reversed(range(6)):
        assert same(fresh.draw((7, index)), forwards[index])
    small = Clips(folders / "speech", memory=0)
    assert same(Mixer({"speech": small, "noise": folders / "noise"}, folders / "rooms").draw((7, 2)), forwards[2])
    assert len({mixture.snr for mixture in forwards}) == 6


def test_a_seed_is_a_mixture_in_any_process(folders, mixer):
    script = """
import sys, hashlib
from deepunfold.speech._mixing import Mixer
root = sys.argv[1]
mixer = Mixer({"speech": root + "/speech", "noise": root + "/noise"}, root + "/rooms")
print(hashlib.sha256(mixer.draw((7, 3)).sources.tobytes()).hexdigest())
"""
    done = subprocess.run([sys.executable, "-c", script, folders], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(mixer.draw((7, 3)).sources.tobytes()).hexdigest()


def test_seeds_that_look_alike_differ(mixer):
    seeds = [0, 1, (0, 0), (0, 1), (1, 0), (0, 0, 0)]
    drawn = [mixer.draw(seed).snr for seed in seeds]
    assert len(set(drawn)) == len(seeds)
    assert same(mixer.draw(5), mixer.draw([5]))
    for seed in (-1, (), (1, -1)):
        with pytest.raises(ValueError, match="seed="):
            mixer.draw(seed)


def test_clip_and_snr_change_nothing_else(mixer):
    mixture = mixer.draw(11)
    louder = mixer.draw(11, snr=mixture.snr + 6)
    assert {**louder.record, "scale": 0} == {**mixture.record, "scale": 0}
    np.testing.assert_allclose(
        louder.sources[1] / louder.record["scale"],
        mixture.sources[1] / mixture.record["scale"] * 10 ** (-6 / 20),
        atol=1e-6,
    )
    clip = next(index for index in range(3) if mixer.target_clips.clips[index].name != mixture.record["clip"])
    other = mixer.draw(11, clip=clip)
    assert other.record["clip"] == mixer.target_clips.clips[clip].name
    assert other.record["room"] == mixture.record["room"]
    assert other.snr == mixture.snr


def test_another_source_does_not_change_those_before_it(folders):
    put(folders / "music" / "m.wav", tone(9000, 440, RATE), kind="float")
    two = {"speech": folders / "speech", "noise": folders / "noise"}
    three = {**two, "music": folders / "music"}
    one, other = Mixer(two).draw(4), Mixer(three).draw(4)
    assert other.names == ("speech", "noise", "music")
    assert ratio(other) == pytest.approx(other.snr, abs=1e-5)
    unit = [mixture.sources[1] / rms(mixture.sources[1]) for mixture in (one, other)]
    np.testing.assert_allclose(*unit, atol=1e-5)
    levels = [rms(source) for source in other.sources[1:]]
    assert abs(20 * np.log10(levels[0] / levels[1])) < 20


# Rooms and segments


def test_the_target_is_the_clip_in_the_room_and_keeps_its_length(folders, mixer):
    mixture = mixer.draw(2)
    names = [clip.name for clip in mixer.target_clips.clips]
    dry = mixer.target_clips[names.index(mixture.record["clip"])]
    response = mixer.rooms[[clip.name for clip in mixer.rooms.clips].index(mixture.record["room"])]
    wet = np.convolve(dry.astype(float), response.astype(float))[: len(dry)]
    np.testing.assert_allclose(mixture.sources[0], wet * (0.05 * mixture.record["scale"] / rms(wet)), atol=1e-6)


def test_a_segment_is_a_part_of_the_whole_with_what_reverberates_into_it(folders):
    sources = {"speech": folders / "speech", "noise": folders / "noise"}
    mixer = Mixer(sources, folders / "rooms", seconds=0.1)
    starts = set()
    for seed in range(10):
        mixture = mixer.draw(seed)
        assert mixture.sources.shape == (2, 1600)
        names = [clip.name for clip in mixer.target_clips.clips]
        dry = mixer.target_clips[names.index(mixture.record["clip"])]
        response = mixer.rooms[[clip.name for clip in mixer.rooms.clips].index(mixture.record["room"])]
        start = mixture.record["start"]
        wet = np.convolve(dry.astype(float), response.astype(float))[start : start + 1600]
        target = mixture.sources[0]
        np.testing.assert_allclose(target / rms(target), wet / rms(wet), atol=1e-4)
        starts.add(start)
    assert len(starts) == 10
    assert len(Mixer(sources, seconds=9).draw(0).mixture) in (8000, 9000, 10000)


def test_a_pause_is_no_segment(tmp_path):
    signal = np.zeros((16000, 1), np.float32)
    signal[8000:8800] = noise(800)
    put(tmp_path / "speech" / "a.wav", signal, kind="float")
    put(tmp_path / "noise" / "a.wav", noise(3000), kind="float")
    mixer = Mixer({"speech": tmp_path / "speech", "noise": tmp_path / "noise"}, seconds=0.1)
    for seed in range(20):
        start = mixer.draw(seed).record["start"]
        assert 8000 - 1600 < start < 8800


def test_convolution_is_that_of_numpy():
    generator = np.random.default_rng(0)
    for length, other in ((1, 1), (7, 3), (1000, 77), (10, 500)):
        one, two = generator.standard_normal(length), generator.standard_normal(other)
        np.testing.assert_allclose(convolve(one, two), np.convolve(one, two), atol=1e-12)


# Tracks


def track_of(folder, **files):
    for name, signal in files.items():
        put(folder / f"{name}.wav", signal, kind="float")
    return Track.of([folder], RATE)


def test_a_bed_has_its_level_throughout(tmp_path):
    """Also at the joins, as clips have nothing to do with each other."""
    clips = {f"c{number}": noise(4000, level=0.05 * (number + 1), seed=number) for number in range(5)}
    track = track_of(tmp_path, **clips)
    power = np.mean([track.draw(np.random.default_rng(seed), 20000)[0] ** 2 for seed in range(200)], axis=0)
    blocks = np.sqrt(power.reshape(-1, 400).mean(axis=1))
    np.testing.assert_allclose(blocks, 0.7, rtol=0.03)


def test_clips_change_at_a_third_of_the_joins(tmp_path):
    clips = {f"c{number}": noise(2000, seed=number) for number in range(20)}
    track = track_of(tmp_path, **clips)
    names = track.draw(np.random.default_rng(0), 1200 * 1500)[1]["bed"]
    changes = np.mean([one != other for one, other in itertools.pairwise(names)])
    assert len(names) == pytest.approx(1500, abs=2)  # 800 of 2000 samples are faded
    assert changes == pytest.approx(0.35 * 19 / 20, abs=4 * np.sqrt(0.35 * 0.65 / 1500))


def test_a_bed_is_the_clip_where_nothing_fades(tmp_path):
    signal = noise(9000)
    track = track_of(tmp_path, only=signal)
    tries = (track.draw(np.random.default_rng(seed), 2000) for seed in range(20))
    drawn, record = next((drawn, record) for drawn, record in tries if len(record["bed"]) == 1)
    place = int(np.argmax(np.correlate(signal[:, 0], drawn[:800].astype(np.float32), "valid")))
    expected = 0.7 * signal[place : place + 2000, 0] / rms(signal)
    assert record == {"bed": ["only.wav"]}
    np.testing.assert_allclose(drawn, expected, atol=1e-6)


def test_events_come_every_four_seconds_at_gains_between(tmp_path):
    put(tmp_path / "bed" / "silence.wav", np.zeros((5000, 1)), kind="float")
    put(tmp_path / "event" / "click.wav", np.ones((1, 1)), kind="float")
    track = Track.of([tmp_path], RATE)
    drawn, record = track.draw(np.random.default_rng(0), 1000 * RATE)
    count = len(record["events"])
    assert count == pytest.approx(250, abs=4 * np.sqrt(250))
    gains = np.sort(drawn[drawn > 0])
    assert len(gains) > count - 5  # some fall on the same sample
    assert gains[0] >= 0.3
    assert gains[int(0.99 * len(gains))] <= 2
    assert gains.mean() == pytest.approx(1.15, abs=4 * 0.49 / np.sqrt(250))


@pytest.mark.parametrize("length", [1, 2, 3, 100])
def test_very_short_clips_make_a_track(tmp_path, length):
    track = track_of(tmp_path, tiny=np.ones((length, 1), np.float32))
    drawn, _ = track.draw(np.random.default_rng(0), 1000)
    assert np.isfinite(drawn).all()
    assert 0.69 < rms(drawn) < 0.7 * np.sqrt(2)  # what is the same on both sides of a join adds up


def test_folders_bed_and_event_are_what_they_say(folders):
    track = Track.of([folders / "noise"], RATE)
    assert (len(track.bed), len(track.events)) == (4, 4)
    assert len(track.clips) == 2
    all_bed = Track.of([folders / "noise" / "bed", folders / "noise" / "event"], RATE)
    assert (len(all_bed.bed), all_bed.events) == (8, None)


# Mistakes


def test_silence_cannot_be_brought_to_a_level(tmp_path):
    put(tmp_path / "silent" / "a.wav", np.zeros((2000, 1)))
    put(tmp_path / "loud" / "a.wav", noise(2000))
    with pytest.raises(AudioError, match=r"speech is silent, as in .*a\.wav"):
        Mixer({"speech": tmp_path / "silent", "noise": tmp_path / "loud"}).draw(0)
    with pytest.raises(AudioError, match=r"noise is silent, as in .*silent"):
        Mixer({"speech": tmp_path / "loud", "noise": tmp_path / "silent"}).draw(0)
    with pytest.raises(AudioError, match="no impulse response"):
        Mixer({"speech": tmp_path / "loud", "noise": tmp_path / "loud"}, tmp_path / "silent").draw(0)


def test_one_silent_clip_among_others_is_passed_over(folders):
    put(folders / "speech" / "silent.wav", np.zeros((2000, 1)))
    mixer = Mixer({"speech": folders / "speech", "noise": folders / "noise"})
    assert "silent.wav" not in {mixer.draw(seed).record["clip"] for seed in range(30)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"snr": (3, -3)}, "snr="),
        ({"snr": (0, np.inf)}, "snr="),
        ({"seconds": 0}, "seconds=0"),
        ({"level": 0}, "level="),
        ({"level": (0.2, 0.1)}, "level="),
        ({"peak": 0}, "peak=0"),
    ],
)
def test_settings_are_checked(folders, options, message):
    with pytest.raises(ValueError, match=message):
        Mixer({"speech": folders / "speech", "noise": folders / "noise"}, **options)


def test_sources_are_checked(folders):
    with pytest.raises(ValueError, match="needs at least two"):
        Mixer({"speech": folders / "speech"})
    with pytest.raises(ValueError, match="are at 8000 Hz, the mixer is at 16000"):
        Mixer({"speech": Clips(folders / "speech", rate=8000), "noise": folders / "noise"})


def test_sources_of_a_command_line():
    found = named_places({"speech": ["a", "b"], "noise": []}, ["music=c=d", "music=e", "speech=f"])
    assert found == {"speech": ["a", "b", "f"], "music": ["c=d", "e"]}
    for wrong in ("music", "=c", "music="):
        with pytest.raises(ValueError, match="must be NAME=DIR"):
            named_places({}, [wrong])


# The open corpus


def profile(signal):
    """How the level of 10 ms moves around the mean, in dB: quantiles, and the peak."""
    unit = signal / rms(signal)
    levels = 10 * np.log10(np.mean(unit[: len(unit) // 160 * 160].reshape(-1, 160) ** 2, axis=1) + 1e-6)
    return np.array([*np.percentile(levels, [25, 50, 75, 95]), 20 * np.log10(np.abs(unit).max())])


def test_noise_is_like_that_of_the_fixed_mixtures():
    """Means of quantiles of the level, over 108 tracks each, agree within three standard errors."""
    root = corpus()
    items = chime2(root / "mixtures")
    pairs = [(Clips(item.mixture)[0], Clips(item.reference)[0]) for item in items[::2]]
    fixed = np.array([profile(mixture.astype(float) - reference) for mixture, reference in pairs])
    mixer = Mixer({"speech": root / "speech" / "dev", "noise": root / "noise" / "dev"}, root / "rooms" / "dev")
    drawn = np.array([profile(mixer.draw((0, index)).sources[1].astype(float)) for index in range(len(pairs))])
    error = np.sqrt(fixed.var(axis=0) / len(fixed) + drawn.var(axis=0) / len(drawn))
    assert (np.abs(fixed.mean(axis=0) - drawn.mean(axis=0)) < 3 * error).all()
    assert np.abs(fixed[:, 1:4].mean(axis=0) - drawn[:, 1:4].mean(axis=0)).max() < 3


def test_the_fixed_mixtures_have_the_snr_that_their_folder_says():
    for item in chime2(corpus() / "mixtures")[::9]:
        mixture, reference = (Clips(path)[0].astype(float) for path in (item.mixture, item.reference))
        found = 20 * np.log10(rms(reference) / rms(mixture - reference))
        assert found == pytest.approx(item.snr, abs=1e-3)
        assert rms(reference) <= 0.05 * (1 + 1e-3)
        assert np.abs(mixture).max() <= 0.951
