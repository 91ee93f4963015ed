"""Where a training is, as a file: what is needed to go on with the same numbers after a kill."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepunfold.core import _files

_KIND = "speech training"


@dataclass
class State:
    """Of a training that may not have begun.

    ``bases`` are those of the sources that are learnt, ``fitting`` the basis and the activations of the one that is
    being learnt after ``steps`` steps; ``trained`` and ``mean`` those of the last layers after ``updates`` updates and
    their running mean, and ``best`` the mean that was best on the development set; ``history`` holds (updates, SDR in
    dB).
    """

    bases: dict[str, Tensor] = field(default_factory=dict)
    fitting: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    trained: dict[str, Tensor] = field(default_factory=dict)
    mean: dict[str, Tensor] = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)
    updates: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)

    @property
    def best_score(self) -> float:
        """The highest SDR so far."""
        return max((score for _, score in self.history), default=float("-inf"))


_GROUPS = ("bases", "fitting", "trained", "mean", "best")


def store(path: Path, state: State, settings: Mapping[str, Any]) -> None:
    """Write the state, whole or not at all, with the settings that it belongs to."""
    tensors = {
        f"{group}.{name}": tensor.detach().clone()
        for group in _GROUPS
        for name, tensor in getattr(state, group).items()
    }
    header = {"kind": _KIND, "settings": dict(settings), "steps": state.steps, "updates": state.updates}
    _files.write(path, tensors, {**header, "history": state.history})


def resume(path: Path, settings: Mapping[str, Any], device: str) -> State:
    """The state in a file, or a new one if there is none. That of a training with other settings is an error."""
    if not path.exists():
        return State()
    tensors, header = _files.read(path, _KIND)
    own, there = dict(settings), header["settings"]
    other = [name for name in own if own[name] != there.get(name) and name != "device"]
    if other:
        raise ValueError(
            f"{path} is where a training with other settings stopped ({', '.join(other)}); finish that one, remove the "
            "file, or write to another"
        )
    state = State(steps=header["steps"], updates=header["updates"])
    state.history = [(int(update), float(score)) for update, score in header["history"]]
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        getattr(state, group)[rest] = tensor.to(torch.device(device))
    return state
