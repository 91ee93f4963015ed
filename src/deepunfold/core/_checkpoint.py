"""The whole state of a training as one safetensors file: parameters, optimiser, random numbers, history."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deepunfold.core import _files
from deepunfold.core._errors import FileFormatError
from deepunfold.core._snapshot import decode, encode

if TYPE_CHECKING:
    from deepunfold.core._training import Training

_KIND = "training"


def store(path: str | Path, net: nn.Module, optimizer: torch.optim.Optimizer, data: Any, training: "Training") -> None:
    """Write everything that a resumed training needs."""
    own, moments = optimizer.state_dict(), {}
    plain: dict[str, Any] = {}
    for index, entries in own["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                moments[f"optimizer.{index}.{key}"] = value
            else:
                plain[f"{index}.{key}"] = encode(value, f"the optimiser's {key}")
    tensors = {
        **{f"net.{name}": tensor for name, tensor in net.state_dict().items()},
        **{f"best.{name}": tensor for name, tensor in training.best_state.items()},
        **moments,
        **{f"random.{name}": state for name, state in _random_states(data).items()},
    }
    header = {
        "kind": _KIND,
        "groups": [encode(group, "the optimiser's settings") for group in own["param_groups"]],
        "plain": plain,
        "epochs": [encode(asdict(epoch), "an epoch") for epoch in training.epochs],
        "best": None if training.best is None else training.best.number,
    }
    # Every tensor gets storage of its own: the best parameters may be the present ones.
    _files.write(path, {name: tensor.clone() for name, tensor in tensors.items()}, header)


def resume(path: str | Path, net: nn.Module, optimizer: torch.optim.Optimizer, data: Any) -> "Training":
    """Put network, optimiser and random numbers into the stored state; returns the history."""
    from deepunfold.core._training import Epoch, Training

    tensors, header = _files.read(path, _KIND)

    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    try:
        net.load_state_dict(part("net."))
        optimizer.load_state_dict(_optimizer_state(part("optimizer."), header))
        epochs = [Epoch(**decode(epoch)) for epoch in header["epochs"]]
        best = None if header["best"] is None else epochs[header["best"]]
    except (RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        first = str(error).split("\n", 1)[0]
        raise FileFormatError(
            f"{path} is the checkpoint of another training than this one ({first}); remove it, or give another name"
        ) from error
    _restore_random_states(part("random."), data)
    device = next(net.parameters()).device
    return Training(epochs, best, {name: tensor.to(device) for name, tensor in part("best.").items()})


def _optimizer_state(moments: dict[str, Tensor], header: dict[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {}
    for name, value in [*moments.items(), *((key, decode(value)) for key, value in header["plain"].items())]:
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    return {"state": state, "param_groups": [decode(group) for group in header["groups"]]}


def _generators(data: Any) -> Sequence[tuple[str, torch.Generator]]:
    """Generators that belong to the data: those of a ``DataLoader`` and of its sampler."""
    sampler = getattr(data, "sampler", None)
    found = {"data": getattr(data, "generator", None), "sampler": getattr(sampler, "generator", None)}
    return [(name, generator) for name, generator in found.items() if isinstance(generator, torch.Generator)]


def _random_states(data: Any) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return states | {name: generator.get_state() for name, generator in _generators(data)}


def _restore_random_states(states: dict[str, Tensor], data: Any) -> None:
    torch.set_rng_state(states["cpu"])
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda{index}" in states:
            torch.cuda.set_rng_state(states[f"cuda{index}"], index)
    for name, generator in _generators(data):
        if name in states:
            generator.set_state(states[name])
