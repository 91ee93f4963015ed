"""Networks in files: safetensors with each tensor once, and the structure in the header."""

import os
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from deepunfold.core import _files
from deepunfold.core._backward import Backward, Checkpoint, JacobianFree, Truncated, Unroll
from deepunfold.core._errors import FileFormatError
from deepunfold.core._implicit import Implicit
from deepunfold.core._layers import build_layers
from deepunfold.core._snapshot import decode, encode, rebuild, snapshot
from deepunfold.core._tying import Slot
from deepunfold.core._unfolded import Unfolded

_MODES = {mode.__name__: mode for mode in (Unroll, Checkpoint, Truncated, JacobianFree, Implicit)}
_KIND = "network"


def save(net: Unfolded, path: str | os.PathLike[str], **notes: Any) -> None:
    """Write a network to a safetensors file that `load` rebuilds.

    Keyword arguments (plain values) go into the header as notes: a licence, scores, how it was trained.
    """
    header = {"kind": _KIND, "structure": _structure(net), "notes": encode(notes, "notes")}
    _files.write(path, _tensors(net), header)


def load(
    path: str | os.PathLike[str], *, classes: Sequence[type] = (), device: str = "cpu", allow_non_finite: bool = False
) -> Unfolded:
    """The network of a file that `save` wrote. Nothing in a file is ever executed.

    Args:
        path: the file.
        classes: algorithms of your own that the network is made of.
        device: where the tensors go.
        allow_non_finite: take parameters that are infinite or NaN instead of refusing them.
    """
    tensors, header = _files.read(path, _KIND)
    try:
        net = _assemble(header["structure"], classes)
    except FileFormatError as error:
        raise FileFormatError(f"{os.fspath(path)}: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FileFormatError(f"{os.fspath(path)}: its header does not describe a network ({error!r})") from error
    _fill(net, tensors, os.fspath(path), allow_non_finite)
    return net.to(device)


def notes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The notes that were saved with a network."""
    _, header = _files.read(path, _KIND)
    return decode(header["notes"])  # type: ignore[no-any-return]


def _structure(net: Unfolded) -> dict[str, Any]:
    kinds = sorted(set(net._kinds))
    numbers: dict[Hashable, int] = {}
    return {
        "kinds": [snapshot(net.layers[net._kinds.index(kind)]) for kind in kinds],
        "layers": net._kinds,
        "table": [
            {name: [numbers.setdefault(slot.label, len(numbers)), slot.trained] for name, slot in slots.items()}
            for slots in net._table
        ],
        "learnable": [[kind, name, value] for (kind, name), value in net._learnable.items()],
        "parameters": [name for name, _ in net.named_parameters()],
        "trained": [name for name, parameter in net.named_parameters() if parameter.requires_grad],
        "groups": [vars(group) for group in net.groups()],
        "train_last": net.train_last,
        "gates": sorted(net.gates),
        "backward": _describe_mode(net.backward),
    }


def _describe_mode(mode: Backward) -> dict[str, Any]:
    name = type(mode).__name__
    if name not in _MODES:
        raise FileFormatError(f"the backward mode {name} is not one of deepunfold; set net.backward to one that is")
    settings = {key: value for key, value in vars(mode).items() if not key.startswith("_") and key != "report"}
    return {"class": name, "settings": {key: encode(value, f"{name}.{key}") for key, value in settings.items()}}


def _tensors(net: Unfolded) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def _assemble(structure: dict[str, Any], classes: Sequence[type]) -> Unfolded:
    """The network that a header describes, with zeros in its tensors."""
    kinds = structure["layers"]
    parts = [rebuild(record, classes) for record in structure["kinds"]]
    table = [{name: Slot(label, trained) for name, (label, trained) in slots.items()} for slots in structure["table"]]
    layers = build_layers([parts[kind] for kind in kinds], kinds, table, lambda _k, _name, _parameter: True)
    mode = structure["backward"]
    settings = {key: decode(value) for key, value in mode["settings"].items()}
    net = Unfolded(
        layers,
        kinds,
        table,
        train_last=structure["train_last"],
        backward=_MODES[mode["class"]](**settings),
        learnable={(kind, name): value for kind, name, value in structure["learnable"]},
        gates={key: nn.Parameter(torch.zeros(())) for key in structure["gates"]},
    )
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in structure["trained"])
    return net


def _fill(net: Unfolded, tensors: dict[str, Tensor], path: str, allow_non_finite: bool) -> None:
    own = _tensors(net)
    if own.keys() != tensors.keys():
        missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
        raise FileFormatError(
            f"{path} does not fit its own header: missing {missing or 'none'}, too many {extra or 'none'}"
        )
    for name, tensor in tensors.items():
        target = own[name]
        gate = name.startswith("gates.")
        if target.shape != tensor.shape or (target.dtype != tensor.dtype and not gate):
            raise FileFormatError(
                f"{path}: {name} is {tuple(tensor.shape)} {tensor.dtype}, "
                f"its header says {tuple(target.shape)} {target.dtype}"
            )
        is_parameter = isinstance(target, nn.Parameter)
        bad = ~torch.isfinite(tensor) if is_parameter else torch.isnan(tensor)
        if tensor.is_floating_point() and not allow_non_finite and bool(bad.any()):
            raise FileFormatError(
                f"{path}: {int(bad.sum())} of {tensor.numel()} values of {name} are not finite; "
                "train again from a sound state, or pass allow_non_finite=True"
            )
        target.data = tensor
