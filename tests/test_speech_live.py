"""Microphone to loudspeaker, with a device that plays a signal and keeps what it hears."""

import sys
import threading
import time
import types
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from deepunfold.cli._live import live as command
from deepunfold.speech import _extras, _live
from deepunfold.speech._enhancer import Enhancer
from deepunfold.speech._live import Counts, Live, run
from tests.speech_files import noise
from tests.test_speech_enhancer import model

MODEL = model()
ENHANCER = Enhancer(MODEL)


class FakeError(Exception):
    pass


class FakeStream:
    """Gives a callback the module's signal, block by block, in a thread of its own."""

    def __init__(self, module, *, blocksize, callback, finished_callback, **others):
        if module.fails:
            raise FakeError(module.fails)
        module.opened.append({"blocksize": blocksize, **others})
        self.module, self.thread = module, threading.Thread(target=self.play, args=(blocksize, callback))
        self.finished = finished_callback

    def play(self, size, callback):
        signal = self.module.signal
        for number, start in enumerate(range(0, len(signal) - size + 1, size)):
            heard = np.full((size, signal.shape[1]), np.nan, np.float32)
            callback(signal[start : start + size], heard, size, object(), number in self.module.gaps)
            self.module.played.append(heard)
        self.finished()

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.thread.join()


def fake(signal, rate=16000, fails=None, gaps=(), only=None):
    """A module like sounddevice; settings of its streams are in ``opened``, what has been played in ``played``.

    ``only`` names what can have the device's own rate and no other.
    """
    module = types.ModuleType("sounddevice")
    module.signal, module.fails, module.gaps, module.opened, module.played = signal, fails, gaps, [], []

    def query_devices(which=None, kind=None):
        if which == "none":
            raise ValueError("No input device matching 'none'")
        return {"default_samplerate": float(rate)} if kind else "0 a microphone"

    def check(place, device, channels, dtype, *, samplerate):
        if place == only and samplerate != rate:
            raise FakeError("Invalid sample rate")

    module.PortAudioError, module.query_devices = FakeError, query_devices
    module.Stream = partial(FakeStream, module)
    module.check_input_settings, module.check_output_settings = partial(check, "input"), partial(check, "output")
    return module


def blocks(live, signal, sizes):
    """What ``live`` gives for blocks of these sizes in turn."""
    parts, start, number = [], 0, 0
    while start < len(signal):
        block = signal[start : start + sizes[number % len(sizes)]]
        wanted = np.full(block.shape, np.nan, np.float32)
        live(block, wanted, len(block), None, 0)
        parts.append(wanted)
        start, number = start + len(block), number + 1
    return np.concatenate(parts)


def late(signal, delay):
    return np.concatenate([np.zeros((delay, signal.shape[1]), np.float32), signal])[: len(signal)]


@settings(deadline=None, max_examples=20)
@given(
    rate=st.sampled_from([8000, 16000, 44100, 48000]),
    sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=5),
    channels=st.integers(1, 2),
)
def test_the_output_is_the_enhanced_input_later(rate, sizes, channels):
    signal = noise(6000, channels)
    live = Live(ENHANCER, rate, channels)
    found = blocks(live, signal, sizes)
    expected = late(ENHANCER.enhance(signal, rate), live.delay)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_bypass_is_the_input_as_late():
    signal = noise(5000)
    live = Live(ENHANCER, 16000, bypass=True)
    np.testing.assert_array_equal(blocks(live, signal, [160]), late(signal, live.delay))


def test_switching_fades_within_a_block_and_shifts_nothing():
    signal = noise(4800)
    live, wet, dry = (Live(ENHANCER, 16000, bypass=bypass) for bypass in (False, False, True))
    enhanced, plain = blocks(wet, signal, [160]), blocks(dry, signal, [160])
    first = blocks(live, signal[:1600], [160])
    live.toggle()
    second = blocks(live, signal[1600:3200], [160])
    live.toggle()
    third = blocks(live, signal[3200:], [160])
    found = np.concatenate([first, second, third])
    np.testing.assert_allclose(found[:1600], enhanced[:1600], atol=1e-6)
    np.testing.assert_allclose(found[1760:3200], plain[1760:3200], atol=1e-6)
    np.testing.assert_allclose(found[3360:], enhanced[3360:], atol=1e-6)
    fade = np.linspace(1, 0, 160)[:, None]
    middle = slice(1600, 1760)
    np.testing.assert_allclose(found[middle], fade * enhanced[middle] + (1 - fade) * plain[middle], atol=1e-6)


def test_missed_deadlines_and_gaps_are_counted(monkeypatch):
    signal = noise(1600)
    live = Live(ENHANCER, 16000)
    slow, next_block = iter([0, 0.03, 0, 0.03, 0, 0, 0, 0, 0, 0]), live._next

    def delayed(block):
        time.sleep(next(slow))
        return next_block(block)

    monkeypatch.setattr(live, "_next", delayed)
    counts = run(live, fake(signal, gaps=(0, 5, 9)), 0.02)
    assert counts.blocks == 5
    assert counts.missed == 2
    assert counts.interrupted == 1
    assert 0.03 <= counts.worst <= counts.total
    assert "5 blocks, 2 missed deadlines, 1 gaps" in str(counts)


def test_no_blocks_are_no_error():
    assert "0 blocks" in str(Counts())


def test_a_run_plays_all_of_it():
    signal = noise(48000, 2)
    module = fake(signal)
    live = Live(ENHANCER, 48000, 2)
    counts = run(live, module, 0.01, microphone=1, loudspeaker="phones")
    assert counts.blocks == 100
    expected = late(ENHANCER.enhance(signal, 48000), live.delay)
    np.testing.assert_allclose(np.concatenate(module.played), expected, rtol=0, atol=1e-6)
    (opened,) = module.opened
    assert (opened["samplerate"], opened["blocksize"], opened["channels"]) == (48000, 480, 2)
    assert opened["device"] == (1, "phones")


def test_samples_that_are_no_numbers_are_taken_as_silence():
    signal = noise(3200)
    broken = signal.copy()
    broken[500:520] = [[np.nan]] * 10 + [[np.inf]] * 10
    mended = np.where(np.isfinite(broken), broken, 0)
    np.testing.assert_array_equal(
        blocks(Live(ENHANCER, 16000), broken, [160]), blocks(Live(ENHANCER, 16000), mended, [160])
    )


def test_an_error_in_the_device_s_thread_reaches_the_caller(monkeypatch):
    live, module = Live(ENHANCER, 16000), fake(noise(1600))
    monkeypatch.setattr(live, "_next", lambda block: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(live, module)
    assert not np.concatenate(module.played).any()


def test_what_is_typed_is_obeyed():
    live = Live(ENHANCER, 16000)
    live.obey(["\n"])
    assert live.bypass
    live.obey(["\n", "q\n", "\n"])
    assert not live.bypass
    assert live.done.is_set()


def test_it_ends_in_time_or_when_told():
    module = fake(noise(160))
    module.Stream = lambda **_: nullcontext()  # a device that goes on
    begun = time.monotonic()
    seen = []
    run(Live(ENHANCER, 16000), module, seconds=0.7, watch=seen.append)
    assert 0.7 <= time.monotonic() - begun < 3
    assert len(seen) in (1, 2)
    run(Live(ENHANCER, 16000), module, lines=["q\n"])


def test_a_device_that_cannot_be_used_is_told():
    with pytest.raises(OSError, match="cannot be used: Invalid sample rate; --list"):
        run(Live(ENHANCER, 16000), fake(noise(160), fails="Invalid sample rate"))
    with pytest.raises(ValueError, match="block=0 must be"):
        run(Live(ENHANCER, 16000), fake(noise(160)), 0)


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def program(monkeypatch, tmp_path):
    MODEL.save(tmp_path / "m.safetensors")

    def call(module, *arguments):
        app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        app.command("live")(command)
        monkeypatch.setitem(sys.modules, "sounddevice", module)
        monkeypatch.setattr(sys, "argv", ["live", "--model", str(tmp_path / "m.safetensors"), *arguments])
        with pytest.raises(SystemExit) as stopped:
            app()
        return stopped.value.code or 0

    return call


@pytest.mark.parametrize(("only", "expected"), [(None, 16000), ("input", 48000), ("output", 48000)])
def test_the_rate_is_the_model_s_where_both_devices_have_it(only, expected):
    assert _live.usable_rate(fake(noise(160), 48000, only=only), 16000) == expected


def test_the_command_uses_the_microphone_s_rate_and_tells_counts(program, capsys):
    signal = noise(4410)
    module = fake(signal, 44100, only="output")
    assert program(module, "--microphone", "2", "--bypass") == 0
    error = capsys.readouterr().err
    assert "44100 Hz; the sound is" in error
    assert "10 blocks" in error
    assert module.opened[0]["device"] == (2, None)
    found = np.concatenate(module.played)
    delay = Live(ENHANCER, 44100).delay
    np.testing.assert_array_equal(found, late(signal, delay)[: len(found)])


def test_the_command_lists_devices(program, capsys):
    assert program(fake(noise(160)), "--list") == 0
    assert capsys.readouterr().out == "0 a microphone\n"


def test_a_microphone_that_is_not_there(program):
    with pytest.raises(OSError, match="no such microphone: No input device matching 'none'"):
        program(fake(noise(160)), "--microphone", "none")


def test_without_sounddevice_the_message_says_what_to_install(program):
    with pytest.raises(_extras.MissingPackageError, match=r"pip install 'deepunfold\[live\]'"):
        program(None)


def test_without_the_system_s_library_the_message_says_so(monkeypatch):
    def fails(name):
        raise OSError("PortAudio library not found")

    monkeypatch.setattr(_extras.importlib, "import_module", fails)
    with pytest.raises(_extras.MissingPackageError, match="PortAudio library not found"):
        _live.device()
