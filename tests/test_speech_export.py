"""Models as ONNX graphs: frame by frame in onnxruntime what the numpy path and the stream compute."""

import json
import sys

import numpy as np
import pytest
import typer

from deepunfold.cli._export import export as command
from deepunfold.speech import _extras
from deepunfold.speech._enhancer import Enhancer, Stream
from deepunfold.speech._export import export, graph
from deepunfold.speech._frontend import Analysis, Frontend, Synthesis
from deepunfold.speech._inference import Separator
from tests.speech_files import noise
from tests.test_speech_inference import model, spectra

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def session(one):
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(graph(one).SerializeToString(), options, providers=["CPUExecutionProvider"])


def frame_by_frame(net, magnitudes, context):
    """Masks (frames, channels, sources, F) of magnitudes (channels, frames, F), and the state in the end."""
    found = []
    for frame in magnitudes.swapaxes(0, 1):
        masks, context = net.run(["masks", "next_context"], {"magnitudes": frame, "context": context})
        found.append(masks)
    return np.stack(found), context


def zeros(front, channels=1):
    return np.zeros((channels, front.context - 1, front.features), np.float32)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("trained", [0, 1, 3, 5])
def test_masks_are_those_of_the_separator(trained, beta):
    one = model(trained, beta=beta)
    magnitudes = spectra(60, dtype=np.float32)
    found, state = frame_by_frame(session(one), magnitudes[None], zeros(one.frontend))
    np.testing.assert_allclose(found[:, 0], Separator(one).masks(magnitudes), rtol=0, atol=2e-5)
    np.testing.assert_array_equal(state[0], magnitudes[-2:])


def test_hundreds_of_frames_at_the_size_of_the_paper():
    front = Frontend()
    one = model(4, 25, front, {"speech": 100, "noise": 100}, sparsity=5.0)
    magnitudes = spectra(300, front, np.float32)
    found, _ = frame_by_frame(session(one), magnitudes[None], zeros(front))
    np.testing.assert_allclose(found[:, 0], Separator(one).masks(magnitudes), rtol=0, atol=1e-5)


def test_channels_are_separate_and_the_state_can_be_carried_over():
    one = model(3)
    net = session(one)
    magnitudes = np.stack([spectra(20, dtype=np.float32, seed=seed) for seed in range(3)])
    found, state = frame_by_frame(net, magnitudes[:, :12], zeros(one.frontend, 3))
    rest, _ = frame_by_frame(net, magnitudes[:, 12:], state)
    for channel, given in enumerate(magnitudes):
        both = np.concatenate([found, rest])[:, channel]
        np.testing.assert_allclose(both, Separator(one).masks(given), rtol=0, atol=1e-5)


def test_a_stream_around_the_graph_is_the_stream():
    front = Frontend()
    one = model(2, 6, front, {"speech": 8, "noise": 6})
    signal = noise(16000)[:, 0]
    net, analysis, synthesis, context, parts = session(one), Analysis(front), Synthesis(front), zeros(front), []

    def process(frames):
        nonlocal context
        for frame in frames:
            masks, context = net.run(None, {"magnitudes": np.abs(frame)[None], "context": context})
            parts.append(synthesis.process((masks[0, 0] * frame)[None]))

    for start in range(0, len(signal), 160):
        process(analysis.process(signal[start : start + 160]))
    process(analysis.flush())
    found = np.concatenate([*parts, synthesis.flush()])[: len(signal)]
    stream = Stream(Enhancer(one, above="drop"), 16000)
    chunks = [stream.process(signal[start : start + 160]) for start in range(0, len(signal), 160)]
    np.testing.assert_allclose(found, np.concatenate([*chunks, stream.flush()]), rtol=0, atol=1e-6)


def test_silence_is_shared_and_finite():
    one = model(2)
    masks, state = frame_by_frame(session(one), np.zeros((1, 3, 16), np.float32), zeros(one.frontend))
    np.testing.assert_allclose(masks, 0.5, atol=0.5)
    np.testing.assert_allclose(masks.sum(2), 1, atol=1e-6)
    assert not state.any()


def test_each_basis_is_in_the_file_once(tmp_path):
    one = model(4, 25, Frontend(), {"speech": 20, "noise": 10})
    export(one, tmp_path / "m.onnx")
    assert one.numbers * 4 < (tmp_path / "m.onnx").stat().st_size < one.numbers * 4 + 100_000


def test_the_file_tells_its_front_end(tmp_path):
    one = model(2)
    export(one, tmp_path / "m.onnx")
    loaded = onnx.load(tmp_path / "m.onnx")
    (entry,) = loaded.metadata_props
    assert json.loads(entry.value) == one.config
    assert loaded.producer_name == "deepunfold"


def test_the_command(tmp_path, monkeypatch, capsys):
    model(2).save(tmp_path / "m.safetensors")
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command("export")(command)
    out = tmp_path / "m.onnx"
    monkeypatch.setattr(sys, "argv", ["export", str(tmp_path / "m.safetensors"), "-o", str(out)])
    with pytest.raises(SystemExit) as stopped:
        app()
    assert not stopped.value.code
    assert "16 magnitudes of a frame, 2 frames of context, 2 masks (speech, noise)" in capsys.readouterr().out
    assert runtime.InferenceSession(out, providers=["CPUExecutionProvider"]).get_inputs()[0].shape == ["channels", 16]


def test_where_it_cannot_be_written_nothing_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        export(model(2), tmp_path / "nowhere" / "m.onnx")


def test_without_onnx_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(_extras.MissingPackageError, match=r"pip install 'deepunfold\[onnx\]'"):
        export(model(2), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
