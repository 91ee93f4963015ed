"""state_dict and files: each tensor once, rebuilt as it was, and nothing else accepted."""

import json
import pickle
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import deepunfold as du
from deepunfold.core import _files
from deepunfold.core.algorithms import ISTA, LISTA
from tests.cases import Babylonian, Centre, Spread, constrained_ista, dictionary, linear_recurrence, signals
from tests.test_unfold import perturbed


class Rich(nn.Module):
    """Everything that a module may have: options, buffers of both kinds, submodules, an absent bias."""

    def __init__(self):
        super().__init__()
        self.options = {"widths": (3, 4), "names": ["a", None], "limit": float("inf"), "dtype": torch.float64}
        self.rate = nn.Parameter(torch.rand(3, dtype=torch.float64))
        self.register_buffer("fixed", torch.rand(3, dtype=torch.float64))
        self.register_buffer("cache", torch.rand(3, dtype=torch.float64), persistent=False)
        self.register_parameter("bias", None)
        self.inner = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh()).double()

    def init(self, x):
        return torch.zeros_like(x)

    def step(self, x, z):
        return self.inner(z) * self.rate + x * self.fixed + self.cache.clamp(max=self.options["limit"])


def networks():
    return {
        "tied": du.unfold(ISTA(dictionary()), 3),
        "untied": perturbed(du.unfold(ISTA(dictionary()), 3, tie=[0, 1, 1, 1])),
        "partly trained": perturbed(du.unfold(LISTA(dictionary()), 4, tie="each", train_last=2)),
        "constrained": perturbed(du.unfold(constrained_ista(), 3, tie="each")),
        "chain": perturbed(du.unfold([(ISTA(dictionary()), 2), (LISTA(dictionary()), 2)], tie="each")),
        "grown": perturbed(du.unfold(ISTA(dictionary()), 2).grow(2)),
        "float32": perturbed(du.unfold(ISTA(dictionary().float()), 3, tie="each")),
        "other mode": du.unfold(ISTA(dictionary()), 300, backward=du.Implicit("neumann", tolerance=1e-4)),
    }


@pytest.mark.parametrize("name", networks())
def test_a_network_comes_back_as_it_was(name, tmp_path):
    net = networks()[name]
    path = tmp_path / "net.safetensors"
    du.save(net, path)
    other = du.load(path)
    x = signals().to(next(net.parameters()).dtype)
    assert torch.equal(other(x), net(x))
    assert other.tying_table() == net.tying_table()
    assert repr(other.backward) == repr(net.backward)
    assert other.train_last == net.train_last
    assert list(other.state_dict()) == list(net.state_dict())
    again = other.with_train_last(None)
    assert again.tying_table() == net.with_train_last(None).tying_table()


def test_a_users_class_is_handed_over(tmp_path):
    path = tmp_path / "net.safetensors"
    net = perturbed(du.unfold(Rich(), 2, tie="each"))
    du.save(net, path)
    with pytest.raises(
        du.FileFormatError, match=r"needs the class .*:Rich, which is not part .* pass classes=\[Rich\]"
    ):
        du.load(path)
    other = du.load(path, classes=[Rich])
    x = signals(2, 3)
    assert torch.equal(other(x), net(x))
    assert other.layers[0].options == net.layers[0].options
    assert other.layers[0].bias is None
    assert list(other.layers[0].state_dict()) == list(net.layers[0].state_dict())


def test_schedules_come_back(tmp_path):
    net = perturbed(du.unfold(du.Schedule(Centre(), Spread()), 2, tie="each"))
    du.save(net, tmp_path / "net.safetensors")
    other = du.load(tmp_path / "net.safetensors", classes=[Centre, Spread])
    x = signals(2, 3)
    assert torch.equal(other(x)[0], net(x)[0])


def test_notes_are_kept(tmp_path):
    path = tmp_path / "net.safetensors"
    notes = {"licence": "CC0", "scores": {"sdr": 5.25}, "sizes": (1, 2), "nothing": None}
    du.save(du.unfold(Babylonian(), 2), path, **notes)
    assert du.notes(path) == notes


def test_functions_cannot_be_saved_and_nothing_is_written(tmp_path):
    with pytest.raises(du.FileFormatError, match=r"_functions is a function|is a function, which a file cannot hold"):
        du.save(du.unfold(linear_recurrence(), 2), tmp_path / "net.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "net.safetensors"
    du.save(du.unfold(Babylonian(), 2), path)
    before = path.read_bytes()

    def full(*_arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr("deepunfold.core._files.save_file", full)
    with pytest.raises(OSError, match="No space"):
        du.save(du.unfold(Babylonian(), 3), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.safetensors"]


def test_a_missing_folder_or_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist"):
        du.save(du.unfold(Babylonian(), 2), tmp_path / "nowhere" / "net.safetensors")
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors is not there"):
        du.load(tmp_path / "gone.safetensors")
    with pytest.raises(FileNotFoundError, match="is not a file"):
        du.load(tmp_path)


# -- files that are not ours -----------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "net.safetensors"
    du.save(perturbed(du.unfold(ISTA(dictionary()), 3, tie="each")), path)
    return path


def rewrite(path, change_tensors=lambda tensors: tensors, change_header=lambda header: header):
    """Write a file again, with a fitting checksum, but with other tensors or another header."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(json.loads(file.read(length))["__metadata__"]["deepunfold"])
    _files.write(path, change_tensors(load_file(path)), change_header(header))


def without_first(tensors):
    return dict(list(tensors.items())[1:])


def with_nan(tensors):
    tensors["layers.1.analysis"][0, 0] = torch.nan
    return tensors


def with_infinity(tensors):
    tensors["layers.1.threshold"][0] = torch.inf
    return tensors


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.write_bytes(b""), "is no safetensors file, or is damaged"),
        (lambda p: p.write_text("hello"), "is no safetensors file, or is damaged"),
        (lambda p: p.write_bytes(p.read_bytes()[:-100]), "is no safetensors file, or is damaged"),
        (lambda p: p.write_bytes(pickle.dumps({"a": torch.zeros(2)})), "is no safetensors file, or is damaged"),
        (lambda p: torch.save({"a": torch.zeros(2)}, p), "is no safetensors file, or is damaged"),
        (lambda p: save_file({"a": torch.zeros(2)}, p), "not one of deepunfold: it has no valid header"),
        (lambda p: save_file({"a": torch.zeros(2)}, p, {"deepunfold": "{"}), "it has no valid header"),
        (lambda p: save_file({"a": torch.zeros(2)}, p, {"deepunfold": "[]"}), "it has no valid header"),
        (lambda p: rewrite(p, change_header=lambda h: h | {"kind": "training"}), "holds a training, not a network"),
        (lambda p: rewrite(p, change_header=lambda h: h | {"format": 9}), "has format 9, .* update deepunfold"),
        (lambda p: rewrite(p, change_header=lambda h: h | {"structure": {}}), "header does not describe a network"),
        (lambda p: rewrite(p, without_first), "does not fit its own header: missing .'layers.0.analysis'"),
        (lambda p: rewrite(p, lambda t: t | {"more": torch.zeros(1)}), r"too many \['more'\]"),
        (
            lambda p: rewrite(p, lambda t: t | {"layers.0.threshold": torch.zeros(4)}),
            r"layers.0.threshold is \(4,\) torch.float32, its header says \(5,\) torch.float64",
        ),
        (lambda p: rewrite(p, with_nan), "1 of 35 values of layers.1.analysis are not finite"),
        (lambda p: rewrite(p, with_infinity), "1 of 5 values of layers.1.threshold are not finite"),
    ],
)
def test_other_files_get_a_clear_error(saved, damage, message):
    damage(saved)
    with pytest.raises(du.FileFormatError, match=message) as caught:
        du.load(saved)
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_non_finite_values_are_taken_when_asked_for(saved):
    rewrite(saved, with_infinity)
    assert torch.isinf(du.load(saved, allow_non_finite=True).layers[1].threshold[0])


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:eval", "torch.nn.functional:relu", "torch.nn:Nothing", "evil:E"]
)
def test_a_file_cannot_name_code_to_run(saved, name):
    def change(header):
        header["structure"]["kinds"][0]["class"] = name
        return header

    rewrite(saved, change_header=change)
    with pytest.raises(du.FileFormatError, match=r"needs the class|which is no module"):
        du.load(saved)


def test_flipped_bits_are_found(saved):
    """A damaged file gives the one kind of error, wherever the damage is; what loads is what was saved."""
    original, x = bytearray(saved.read_bytes()), signals()
    expected = du.load(saved)(x)
    generator = torch.Generator().manual_seed(0)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(original)
        position = int(torch.randint(0, len(damaged), (1,), generator=generator))
        damaged[position] ^= 1 << int(torch.randint(0, 8, (1,), generator=generator))
        saved.write_bytes(damaged)
        try:
            assert torch.equal(du.load(saved)(x), expected)
        except du.FileFormatError:
            refused += 1
    assert refused > 990


# -- state_dict ------------------------------------------------------------------------------------------------------


def test_state_dict_names_each_parameter_once():
    net = du.unfold(linear_recurrence(), 3, tie={"matrix": [0, 1, 0, 1]})
    assert list(net.state_dict()) == ["layers.0.matrix", "layers.0.offset", "layers.1.matrix"]
    assert list(net.state_dict()) == [name for name, _ in net.named_parameters()]


def test_state_dict_works_inside_a_larger_module():
    def make():
        return nn.Sequential(nn.Linear(5, 5).double(), du.unfold(linear_recurrence(), 3, tie=[0, 1, 0, 1]))

    one, other = perturbed(make()), make()
    other.load_state_dict(one.state_dict())
    assert "1.layers.0.matrix" in one.state_dict()
    assert "1.layers.2.matrix" not in one.state_dict()
    assert torch.equal(one(signals(2, 5)), other(signals(2, 5)))


def test_load_state_dict_is_strict_and_keeps_ties():
    net = du.unfold(linear_recurrence(), 3, tie=[0, 1, 0, 1])
    state = perturbed(du.unfold(linear_recurrence(), 3, tie=[0, 1, 0, 1])).state_dict()
    net.load_state_dict(state, assign=True)
    assert net.layers[0].matrix is net.layers[2].matrix
    assert torch.equal(net.layers[2].matrix, state["layers.0.matrix"])
    with pytest.raises(RuntimeError, match="Missing key"):
        net.load_state_dict(without_first(state))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        net.load_state_dict(state | {"other": torch.zeros(1)})


def test_ties_survive_casts_and_pickles():
    net = du.unfold(linear_recurrence(), 3, tie=[0, 1, 0, 1])
    for moved in (net.float(), net.double(), pickle.loads(pickle.dumps(du.unfold(Babylonian(), 3)))):
        assert moved.layers[0] is moved.layers[2] or moved.layers[0].rate is moved.layers[2].rate
    net.load_state_dict(net.state_dict())
