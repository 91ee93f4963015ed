"""Training and adaptation of models: the same numbers after a kill, with shares of the data, and as the whole net."""

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from deepunfold.nmf import DeepNMFLoss, MultiplicativeUpdate, context, deep_nmf, separate
from deepunfold.speech import _training
from deepunfold.speech._adaptation import adapted
from deepunfold.speech._audio import read
from deepunfold.speech._corpus import audio_files, chime2
from deepunfold.speech._enhancer import PRETRAINED, Enhancer
from deepunfold.speech._frontend import Frontend
from deepunfold.speech._inference import Separator
from deepunfold.speech._last_layers import LastLayersLoss, activations_of, outputs
from deepunfold.speech._material import Spectra, levelled, material, targets
from deepunfold.speech._metrics import sdr
from deepunfold.speech._model import Model
from deepunfold.speech._settings import Settings, resolve
from deepunfold.speech._training import checkpoint_of, train, trained_of
from tests.speech_corpus import corpus
from tests.speech_files import noise, put

SMALL = {
    "components": 6,
    "layers": 4,
    "train_last": 2,
    "context": 2,
    "seconds": 0.6,
    "basis_frames": 120,
    "basis_steps": 14,
    "rounds": 2,
    "mixtures": 6,
    "batches": 2,
    "passes": 2,
    "dev_mixtures": 4,
}


def write(root):
    """Speech that is made of tones, noise that is not, each in files enough to hold some out."""
    time = np.arange(14000) / 16000
    for number in range(6):
        tones = sum(np.sin(2 * math.pi * (number + 3) * 110 * k * time) / k for k in (1, 2, 3))
        put(root / "speech" / f"u{number}.wav", 0.1 * tones * (1 + np.sin(2 * math.pi * 3 * time)))
        put(root / "noise" / f"n{number}.wav", noise(12000, seed=number))
    for number in range(2):
        put(root / "rooms" / f"r{number}.wav", np.array([0.5, 0, 0.2, 0, 0.1 * number]))
    return root


@pytest.fixture
def folders(tmp_path):
    return write(tmp_path / "in")


def settings_of(folders, **changes):
    sources = {name: [str(folders / name)] for name in ("speech", "noise")}
    return Settings(**{**SMALL, "sources": sources, "rooms": [str(folders / "rooms")], **changes})


def tensors_of(model):
    return [model.context_basis, *model.bases]


# -- the layers that are trained -------------------------------------------------------------------------------------


def problem(train_last):
    generator = torch.Generator().manual_seed(3)
    bases = [torch.rand(12, 3, generator=generator, dtype=torch.float64) + 0.1 for _ in range(2)]
    frames = torch.rand(30, 6, generator=generator, dtype=torch.float64)
    share = torch.rand(30, 1, 6, generator=generator, dtype=torch.float64)
    net = deep_nmf(bases, 5, train_last, context=2, sparsity=0.3)
    return net, frames, torch.cat([share, 1 - share], 1) * frames[:, None]


@pytest.mark.parametrize("train_last", [1, 2, 4])
def test_the_last_layers_alone_have_the_loss_and_the_parts_of_the_whole_network(train_last):
    net, frames, target = problem(train_last)
    wide = context(frames, 2)
    parameters = list(trained_of(net).values())
    whole = DeepNMFLoss(weights=[1.0, 0.0])(net, wide, target)
    whole.backward()
    expected = [(each.split_grad, each.grad) for each in parameters]
    MultiplicativeUpdate(parameters).zero_grad()
    loss = LastLayersLoss(weights=[1.0, 0.0], block=7)(net, (frames, activations_of(net, wide)), target)
    loss.backward()
    torch.testing.assert_close(loss, whole)
    for each, (split, gradient) in zip(parameters, expected, strict=True):
        torch.testing.assert_close(each.grad, gradient)
        torch.testing.assert_close(tuple(each.split_grad), tuple(split))


@pytest.mark.parametrize("train_last", [0, 1, 3])
def test_outputs_from_known_activations_are_those_of_the_network(train_last):
    net, frames, _ = problem(train_last)
    wide = context(frames, 2)
    torch.testing.assert_close(outputs(net, frames, activations_of(net, wide)), separate(net, wide))


# -- material --------------------------------------------------------------------------------------------------------


def test_held_out_files_are_not_trained_on(folders):
    found = material(settings_of(folders, held_out=0.3))
    for name, own, other in (
        ("speech", found.training.target_clips, found.held_out.target_clips),
        ("noise", found.training.tracks[0].bed, found.held_out.tracks[0].bed),
    ):
        assert not set(own.places) & set(other.places)
        assert sorted((*own.places, *other.places)) == audio_files(folders / name)
        assert found.record[name]["files"] == 4
        assert found.record[name]["held out"] == 2
    assert found.record["noise"]["seconds"] == round(4 * 12000 / 16000)


def test_few_files_serve_for_both(folders):
    found = material(settings_of(folders, sources={"a": [str(folders / "speech")], "b": [str(folders / "rooms")]}))
    assert found.record["b"]["held out"] == 0
    assert found.training.tracks[0].bed.places == found.held_out.tracks[0].bed.places


def test_targets_in_phase():
    mixture = np.array([[2.0 + 0j, 1j, 0j]])
    sources = np.array([[[1.0 + 5j, -1j, 0j], [1.0 - 5j, 2j, 0j]]])
    np.testing.assert_allclose(targets(Spectra(mixture, sources), "phase"), [[[1, 0, 0], [1, 1, 0]]])
    np.testing.assert_allclose(targets(Spectra(mixture, sources), "magnitude"), np.abs(sources))


def test_levels_go_half_of_the_way_to_equal_noise():
    sources = np.array([[[3.0, 3j], [1.0, 2j], [1.0, 0j]], [[1.0, 0j], [2.0, 0j], [0.0, 0j]]])
    found, louder = (levelled(Spectra(each.sum(1), each)) for each in (sources, 4 * sources))
    np.testing.assert_allclose(louder.sources, 2 * found.sources)
    np.testing.assert_allclose(found.mixture, found.sources.sum(1))
    np.testing.assert_allclose(found.sources, sources * found.sources[0, 0, 0] / sources[0, 0, 0])


# -- training --------------------------------------------------------------------------------------------------------


def test_a_training_ends_in_a_model_with_its_record(folders, tmp_path):
    output = tmp_path / "model.safetensors"
    settings, said = settings_of(folders, half=False, licences=["all mine"]), []
    model = train(settings, output, lambda *told: said.append(told))
    loaded = Model.load(output)
    for ours, theirs in zip(tensors_of(model), tensors_of(loaded), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    record = loaded.record
    assert record["updates"] == 2 * 2 * 2
    assert record["licences"] == ["all mine"]
    assert record["settings"] == json.loads(json.dumps(settings.plain))
    assert record["scores"]["model"] >= record["scores"]["sparse NMF"]
    assert not checkpoint_of(output).exists()
    assert any("development SDR" in what for what, _, _ in said)
    assert all(0 <= done <= total for _, done, total in said)


def test_the_trained_layers_separate_better_than_sparse_nmf(folders, tmp_path):
    for number in (4, 5):  # so few files are not held out: what is learnt is what is asked for
        (folders / "speech" / f"u{number}.wav").unlink()
    settings = settings_of(folders, rounds=3, passes=4, mixtures=16, exponent=0.5)
    scores = train(settings, tmp_path / "model.safetensors").record["scores"]
    assert scores["model"] > scores["sparse NMF"] + 0.3


def test_without_layers_to_train_the_model_is_sparse_nmf(folders, tmp_path):
    model = train(settings_of(folders, train_last=0), tmp_path / "model.safetensors")
    assert model.trained == 0
    assert model.record["updates"] == 0
    assert model.record["scores"]["model"] == model.record["scores"]["sparse NMF"]


class Killed(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("moment", range(1, 14, 3))
def test_a_training_that_was_killed_ends_with_the_same_numbers(folders, tmp_path, moment):
    """Whenever it is killed: between steps of sparse NMF, between rounds and between updates."""
    settings = settings_of(folders)
    whole, resumed = tmp_path / "whole.safetensors", tmp_path / "resumed.safetensors"
    train(settings, whole)
    calls = 0

    def kill(*_told):
        nonlocal calls
        calls += 1
        if calls == moment:
            raise Killed

    with pytest.raises(Killed):
        train(settings, resumed, kill)
    assert not resumed.exists()
    train(settings, resumed)
    ours, theirs = Model.load(resumed), Model.load(whole)
    assert ours.config == theirs.config
    assert [each.tobytes() for each in tensors_of(ours)] == [each.tobytes() for each in tensors_of(theirs)]


def test_a_resumed_training_repeats_no_update(folders, tmp_path):
    settings, output = settings_of(folders), tmp_path / "model.safetensors"

    def kill(what, done, _total):
        if what.startswith("development") and done == 5:
            raise Killed

    with pytest.raises(Killed):
        train(settings, output, kill)
    updates = []
    train(settings, output, lambda what, done, _: updates.append(done) if what.startswith("development") else None)
    assert updates == [6, 7, 8]


def test_the_checkpoint_of_another_training_is_refused(folders, tmp_path):
    output = tmp_path / "model.safetensors"

    def kill(*_told):
        raise Killed

    with pytest.raises(Killed):
        train(settings_of(folders, basis_steps=30), output, lambda what, done, _: done == 20 and kill())
    with pytest.raises(ValueError, match=r"other settings stopped \(seed\)"):
        train(settings_of(folders, basis_steps=30, seed=1), output)


def test_a_corpus_to_choose_on(folders, tmp_path):
    for number in range(3):
        clean = noise(9600, seed=20 + number)
        put(tmp_path / "dev" / "reverberated" / "dev" / "s1" / f"u{number}.wav", clean)
        put(tmp_path / "dev" / "isolated" / "dev" / "0dB" / "s1" / f"u{number}.wav", clean + noise(9600, seed=number))
    model = train(settings_of(folders, dev=str(tmp_path / "dev"), rounds=1), tmp_path / "model.safetensors")
    assert model.record["development"] == str(tmp_path / "dev")
    assert model.record["data"]["speech"] == {"files": 6, "seconds": 5, "held out": 0}


def test_a_folder_that_is_not_there_is_noticed_at_once(folders, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        train(settings_of(folders), tmp_path / "none" / "model.safetensors")


def _train(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    root = Path(folder)
    train(settings_of(root / "in", half=False), root / "two.safetensors")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_the_same_model_as_one():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root / "in")
        one = train(settings_of(root / "in", half=False), root / "one.safetensors")
        torch.multiprocessing.spawn(_train, (folder,), nprocs=2)
        two = Model.load(root / "two.safetensors")
    assert two.record["processes"] == 2
    for ours, theirs in zip(tensors_of(one), tensors_of(two), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-6)
    assert two.record["scores"]["model"] == pytest.approx(one.record["scores"]["model"], abs=2e-3)


def test_too_few_mixtures_for_the_processes(folders, monkeypatch, tmp_path):
    class Second(_training.Processes):
        pass

    trainer = _training._Training(settings_of(folders), tmp_path / "m", lambda *_: None, Second())
    trainer.group = Second(rank=5, number=6)
    with pytest.raises(ValueError, match="too few for 6 processes"):
        trainer.pool(None, 0, 0)


# -- settings --------------------------------------------------------------------------------------------------------


def test_flags_go_over_the_file(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('rooms = "r"\nlayers = 7\nsnr = [0, 5]\n[sources]\nvoice = "v"\nmusic = ["m", "n"]\n')
    found = resolve(file, {"layers": None, "sources": {}, "seed": 3, "snr": None})
    assert found.sources == {"voice": ["v"], "music": ["m", "n"]}
    assert (found.layers, found.seed, found.rooms, found.snr) == (7, 3, ["r"], (0.0, 5.0))
    assert resolve(file, {"layers": 9}).layers == 9
    assert found.command == (
        "deepunfold train --source voice=v --source music=m --source music=n --rooms r --layers 7 --snr 0.0 5.0 "
        "--seed 3 -o model.safetensors"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers = [", "no TOML"),
        ("layer = 3", "setting 'layer'"),
        ("layers = 0", "layers=0 must be a whole number from 1"),
        ("layers = 2.5", "layers=2.5 must be a whole number"),
        ("layers = 2\ntrain_last = 3", "train_last=3 is more than layers=2"),
        ("seconds = 'long'", "seconds='long' must be a number"),
        ("snr = 3", "two numbers"),
        ("target = 'best'", "target='best' is unknown"),
        ("exponent = 1.5", "exponent=1.5 must be"),
        ("held_out = 1", "held_out=1.0 must be"),
        ("mixtures = 2\nbatches = 3", "batches=3 are more"),
        ("sources = 3", "sources=3 must be a table"),
    ],
)
def test_bad_settings(tmp_path, text, message):
    (tmp_path / "a.toml").write_text(text)
    flags = {} if "sources" in text else {"sources": {"a": ["x"], "b": ["y"]}}
    with pytest.raises(ValueError, match=message):
        resolve(tmp_path / "a.toml", flags)


def test_one_source_is_not_enough():
    with pytest.raises(ValueError, match="give at least two"):
        resolve(None, {"sources": {"speech": ["x"]}})


# -- adaptation ------------------------------------------------------------------------------------------------------


def untrained():
    generator = np.random.default_rng(0)
    front = Frontend(context=2)
    basis = generator.random((400, 10)).astype(np.float32)
    basis /= np.linalg.norm(basis, axis=0)
    bases = [2 * basis[-200:], 3 * basis[-200:]]
    return Model(front, {"speech": 6, "noise": 4}, 5, basis, bases, sparsity=0.5, record={"licences": ["x"]})


def hum(samples=16000):
    return 0.3 * np.sin(2 * math.pi * 1000 * np.arange(samples) / 16000)


def test_adaptation_keeps_the_columns_of_speech(tmp_path):
    put(tmp_path / "hum.wav", hum())
    model = untrained()
    new = adapted(model, [tmp_path / "hum.wav"], steps=10)
    for before, after in zip(tensors_of(model), tensors_of(new), strict=True):
        np.testing.assert_array_equal(after[:, :6], before[:, :6])
        assert not np.array_equal(after[:, 6:], before[:, 6:])
    np.testing.assert_allclose(np.linalg.norm(new.context_basis, axis=0), 1, rtol=1e-5)
    assert new.record["licences"] == ["x"]
    assert new.record["adapted"] == {"source": "noise", "seconds": 1, "steps": 10, "seed": 0}


def test_an_adapted_model_takes_its_noise_for_noise(tmp_path):
    put(tmp_path / "noises" / "hum.wav", hum())
    model = untrained()
    new = adapted(model, [tmp_path / "noises"], steps=30)
    spectrum = np.abs(model.frontend.analyse(hum(8000).astype(np.float32)))
    left = [(Separator(each).separate(spectrum)[:, 0] ** 2).sum() for each in (model, new)]
    assert left[1] < 0.05 * left[0]


def test_any_source_can_be_adapted(tmp_path):
    put(tmp_path / "hum.wav", hum())
    new = adapted(untrained(), [tmp_path / "hum.wav"], name="speech", steps=3)
    np.testing.assert_array_equal(new.context_basis[:, 6:], untrained().context_basis[:, 6:])
    with pytest.raises(ValueError, match=r"no source 'music'; there are speech, noise"):
        adapted(untrained(), [tmp_path / "hum.wav"], name="music")


def test_silence_teaches_nothing(tmp_path):
    put(tmp_path / "silence.wav", np.zeros(8000))
    with pytest.raises(ValueError, match="nothing but silence"):
        adapted(untrained(), [tmp_path / "silence.wav"])


# -- the model that is shipped ---------------------------------------------------------------------------------------


def test_the_shipped_model_is_small_and_tells_how_it_was_made():
    assert PRETRAINED.stat().st_size <= 1.2e6
    model = Model.load(PRETRAINED)
    assert (model.sources, model.layers, model.trained) == ({"speech": 100, "noise": 100}, 25, 4)
    record = model.record
    assert record["command"].startswith("deepunfold train --speech")
    assert Settings(**{**record["settings"], "snr": tuple(record["settings"]["snr"])}).command == record["command"]
    licences = " ".join(record["licences"])
    assert all(part in licences for part in ("CC BY-SA 2.0 France", "public domain", "ESC-50", "CC0"))
    assert record["scores"]["model"] > record["scores"]["sparse NMF"] + 1


@pytest.mark.slow
def test_the_shipped_model_takes_noise_out_of_speech():
    """On every sixth of the development mixtures, which it was not fitted to."""
    items = chime2(corpus() / "mixtures")[::6]
    enhancer, gains = Enhancer(), []
    for item in items:
        (mixture, rate), (reference, _) = read(item.mixture, mono=True), read(item.reference, mono=True)
        gains.append(sdr(reference, enhancer.enhance(mixture, rate)) - sdr(reference, mixture))
    assert np.mean(gains) > 2.5
