"""The file of a model: everything comes back, everything damaged or foreign is refused and told apart."""

import json
import stat
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import torch

import deepunfold as du
from deepunfold import nmf
from deepunfold.speech._frontend import Frontend
from deepunfold.speech._model import CHECKSUM, KEY, Model, _checksum

SMALL = Frontend(rate=8000, window=30, hop=8, features=16, context=3)


def model(trained=2, layers=4, seed=0, **settings):
    random = np.random.default_rng(seed)
    return Model(
        SMALL,
        {"speech": 3, "noise": 2},
        layers,
        random.random((48, 5)),
        [random.random((16, 5)) for _ in range(trained)],
        **{"sparsity": 0.5, "record": {"data": ["café", 1.5, None]}, **settings},
    )


def assert_same(one, other):
    assert one.config == other.config
    for mine, theirs in zip([one.context_basis, *one.bases], [other.context_basis, *other.bases], strict=True):
        assert mine.dtype == theirs.dtype == np.float32
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("trained", [0, 1, 4])
def test_a_file_holds_all_of_a_model(tmp_path, trained):
    one = model(trained)
    one.save(tmp_path / "a.safetensors")
    assert_same(Model.load(tmp_path / "a.safetensors"), one)
    assert repr(one) == f"Model(speech: 3, noise: 2; K=4, C={trained}, T=3, {240 + 80 * trained} numbers)"


def test_half_precision_is_float32_again_in_memory(tmp_path):
    one = model()
    one.save(tmp_path / "half", half=True)
    one.save(tmp_path / "full")
    two = Model.load(tmp_path / "half")
    np.testing.assert_allclose(two.context_basis, one.context_basis, rtol=2**-11)
    assert np.array_equal(two.bases[0], one.bases[0].astype(np.float16).astype(np.float32))
    assert (tmp_path / "half").stat().st_size < (tmp_path / "full").stat().st_size - 2 * one.numbers + 100
    one.bases[0][0, 0] = 1e6
    with pytest.raises(ValueError, match=r"bases\.0 has values beyond 65504"):
        one.save(tmp_path / "half", half=True)
    assert_same(Model.load(tmp_path / "half"), two)


def test_the_size_of_the_paper_fits_into_the_wheel(tmp_path):
    random = np.random.default_rng(0)
    bases = [random.random((200, 200)) for _ in range(4)]
    Model(Frontend(), {"speech": 100, "noise": 100}, 25, random.random((1800, 200)), bases).save(
        tmp_path / "a", half=True
    )
    assert (tmp_path / "a").stat().st_size < 1.2e6


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("trained", [0, 1, 3])
def test_to_a_network_and_back(trained, size):
    front = Frontend(window=30, hop=8, features=16, context=size)
    starts = [torch.rand(16 * size, 3), torch.rand(16 * size, 2)]
    net = nmf.deep_nmf(starts, 4, trained, context=size, sparsity=0.5, beta=0.5)
    with torch.no_grad():
        for layer in net.layers[5 - trained :]:
            layer.basis.copy_(torch.rand(16, 5))
    made = Model.from_network(net, front, ["voice", "rest"], {"seed": 1})
    assert (made.sources, made.layers, made.trained) == ({"voice": 3, "rest": 2}, 4, trained)
    assert (made.sparsity, made.beta, made.record) == (0.5, 0.5, {"seed": 1})
    again = made.network()
    x = torch.rand(6, 16 * size)
    assert torch.equal(again(x), net(x))
    assert [group.trained for group in again.groups()] == [group.trained for group in net.groups()]
    assert_same(Model.from_network(again, front, ["voice", "rest"], {"seed": 1}), made)


def test_a_network_under_a_constraint():
    net = nmf.deep_nmf([torch.rand(48, 3), torch.rand(48, 2)], 3, 2, context=3, constraint=du.Positive())
    x = torch.rand(6, 48)
    torch.testing.assert_close(Model.from_network(net, SMALL).network()(x), net(x))


def test_networks_that_are_no_model():
    bases = [torch.rand(48, 3), torch.rand(48, 2)]
    with pytest.raises(ValueError, match=r"names=.* must be 2 different ones"):
        Model.from_network(nmf.deep_nmf(bases, 3, context=3), SMALL, ["speech"])
    with pytest.raises(ValueError, match="without the Wiener filter"):
        Model.from_network(nmf.deep_nmf(bases, 3, context=3, filtered=False), SMALL)
    learnt = nmf.deep_nmf(bases, 3, 2, context=3, sparsity=1.0, learn_sparsity=True)
    with torch.no_grad():
        learnt.layers[-2].sparsity[0] = 2
    with pytest.raises(ValueError, match="has learnt its sparsity"):
        Model.from_network(learnt, SMALL)
    with pytest.raises(ValueError, match=r"context_basis is of shape \(48, 5\); .* ask for \(1800, 5\)"):
        Model.from_network(nmf.deep_nmf(bases, 3, context=3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": {}}, "at least one source"),
        ({"sources": {"speech": 5, "noise": 0}}, "a number of columns for each"),
        ({"layers": 1}, "layers=1 with 2 bases of single frames"),
        ({"layers": 2.0}, "layers=2.0"),
        ({"sparsity": -1.0}, "sparsity=-1.0 must be"),
        ({"beta": float("nan")}, "beta=nan must be"),
        ({"context_basis": np.ones((40, 5))}, r"context_basis is of shape \(40, 5\)"),
        ({"bases": [np.ones((16, 5)), -np.ones((16, 5))]}, r"bases\[1\] has values that are negative"),
        ({"bases": [np.full((16, 5), np.inf)]}, "not finite"),
    ],
)
def test_what_makes_no_model(change, message):
    one = model()
    settings = {name: getattr(one, name) for name in ("frontend", "sources", "layers", "context_basis", "bases")}
    with pytest.raises(ValueError, match=message):
        Model(**{**settings, **change})


def test_a_failed_save_leaves_what_was_there(tmp_path):
    path = tmp_path / "a"
    model().save(path)
    before = path.read_bytes()
    for record in ({"rate": float("nan")}, {"array": np.ones(2)}):
        with pytest.raises(ValueError, match="the record must hold plain, finite values"):
            model(record=record).save(path)
    assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        model().save(tmp_path / "none" / "a")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        model().save(tmp_path / "folder")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "folder"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600


# -- what is no model ------------------------------------------------------------------------------------------------


def refused(path, data):
    path.write_bytes(data)
    with pytest.raises(du.FileFormatError) as caught:
        Model.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def rewritten(path, change=lambda header: None, tensors=None):
    """A file with a right checksum, but another header or other tensors."""
    one = model()
    header = one.config
    change(header)
    text = json.dumps(header)
    data = one._tensors() | (tensors or {})
    data = {name: np.ascontiguousarray(array) for name, array in data.items() if array is not None}
    return safetensors.numpy.save(data, {KEY: text, CHECKSUM: _checksum(text, data)})


def test_other_files(tmp_path):
    path = tmp_path / "a"
    assert "no file of a model" in refused(path, b"")
    assert "no file of a model" in refused(path, b"RIFF" + bytes(2000))
    assert "not one of deepunfold" in refused(path, safetensors.numpy.save({"x": np.ones(3)}))
    assert "no valid header" in refused(path, safetensors.numpy.save({"x": np.ones(3)}, {KEY: "["}))
    assert "no valid header" in refused(path, safetensors.numpy.save({"x": np.ones(3)}, {KEY: "[" * 100_000}))
    du.save(nmf.deep_nmf([torch.rand(48, 3)], 3, context=3), path)
    assert "holds a network, not a speech model" in refused(path, path.read_bytes())
    model().save(path)
    with pytest.raises(du.FileFormatError, match="holds a speech model, not a network"):
        du.load(path)
    with pytest.raises(FileNotFoundError, match="is not there"):
        Model.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="is not a file"):
        Model.load(tmp_path)


def test_other_versions(tmp_path):
    data = rewritten(tmp_path / "a", lambda header: header.update(format=2))
    assert "has format 2, this version reads format 1; update" in refused(tmp_path / "a", data)


@pytest.mark.parametrize(
    ("change", "tensors", "message"),
    [
        (lambda header: header.pop("layers"), None, "'layers' is missing"),
        (lambda header: header.update(trained=3), None, "'bases.2' is missing"),
        (lambda header: header.update(trained="2"), None, "describes no model"),
        (lambda header: header.update(sources=[3, 2]), None, "describes no model"),
        (lambda header: header.update(sources={"speech": 4}), None, r"ask for \(48, 4\)"),
        (lambda header: header["frontend"].update(hop=0), None, "hop=0"),
        (lambda header: header["frontend"].update(colour="red"), None, "colour"),
        (lambda header: None, {"more": np.ones(2)}, "holds what no model has: more"),
        (lambda header: None, {"bases.0": None}, "'bases.0' is missing"),
        (lambda header: None, {"bases.0": np.full((16, 5), np.nan)}, "not finite"),
    ],
)
def test_headers_that_do_not_fit(tmp_path, change, tensors, message):
    path = tmp_path / "a"
    path.write_bytes(rewritten(path, change, tensors))
    with pytest.raises(du.FileFormatError, match=message):
        Model.load(path)


def test_damage_of_any_kind_is_noticed(tmp_path):
    """Flipped bits, changed and missing bytes, and bytes too many: refused, or of no effect, as a tab for a space."""
    path, one = tmp_path / "a", model()
    one.save(path)
    whole, random, harmless = path.read_bytes(), np.random.default_rng(0), 0
    header = 8 + int.from_bytes(whole[:8], "little")
    for number in range(1500):
        data = bytearray(whole)
        for _ in range(1 + number % 3):
            place = int(random.integers(header if number % 2 else len(data)))
            data[place] = data[place] ^ (1 << int(random.integers(8))) if number % 5 else int(random.integers(256))
        if number % 7 == 0:
            data = data[: int(random.integers(len(data)))]
        if number % 11 == 0:
            data += bytes(random.integers(0, 256, 5, np.uint8))
        path.write_bytes(data)
        try:
            found = Model.load(path)
        except du.FileFormatError:
            continue
        assert_same(found, one)
        harmless += 1
    assert harmless < 30


def test_every_byte_of_the_numbers_counts(tmp_path):
    path = tmp_path / "a"
    model().save(path, half=True)
    whole = path.read_bytes()
    for place in range(8 + int.from_bytes(whole[:8], "little"), len(whole), 7):
        data = bytearray(whole)
        data[place] ^= 1
        assert "is damaged: its checksum does not fit" in refused(path, bytes(data))


def test_files_are_read_without_torch(tmp_path):
    model().save(tmp_path / "a")
    script = (
        f"import sys; from deepunfold.speech._model import Model; Model.load({str(tmp_path / 'a')!r}); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
