"""Layers from a table of labels: tied parameters are one `Parameter` object, untied ones have their own storage."""

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepunfold.core._errors import TieError
from deepunfold.core._tying import Slot, public_name

Table = Sequence[dict[str, Slot]]


def build_layers(
    sources: Sequence[nn.Module],
    kinds: Sequence[int],
    table: Table,
    learnable: Callable[[int, str, nn.Parameter], bool],
) -> list[nn.Module]:
    """Copy each source into a layer. Layers that agree in every parameter are one module; buffers are shared by all."""
    made: dict[tuple[Hashable, ...], nn.Parameter] = {}
    shared: dict[tuple[Hashable, ...], nn.Parameter] = {}
    buffers: dict[int, Tensor] = {}
    modules: dict[tuple[Hashable, ...], nn.Module] = {}
    layers = []
    for k, source in enumerate(sources):
        memo: dict[int, object] = {}
        for buffer in source.buffers():
            memo[id(buffer)] = buffers.setdefault(id(buffer), _own(buffer))
        for name, parameter in source.named_parameters():
            slot = table[k][public_name(name)]
            group = (kinds[k], name, slot.label, slot.trained)
            if group in made:
                _check_equal(made[group], parameter, public_name(name), k)
            else:
                # The same object under two names, or in two algorithms of a chain, stays one object in the network.
                identity = (id(parameter), slot.label, slot.trained)
                if identity not in shared:
                    trained = slot.trained and learnable(k, public_name(name), parameter)
                    shared[identity] = nn.Parameter(_own(parameter), requires_grad=trained)
                made[group] = shared[identity]
            memo[id(parameter)] = made[group]
        signature = (kinds[k], *(id(memo[id(p)]) for p in source.parameters()))
        if signature not in modules:
            modules[signature] = copy.deepcopy(source, memo)
        layers.append(modules[signature])
    return layers


def _own(tensor: Tensor) -> Tensor:
    """A copy that is contiguous, as it would be when it comes out of a file: products then round alike."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _check_equal(kept: Tensor, other: Tensor, name: str, k: int) -> None:
    if kept is not other and not (kept.shape == other.shape and torch.equal(kept.to(other.device), other)):
        raise TieError(
            f"layer {k} cannot be tied with an earlier one: their {name!r} differ; "
            "a trained network can be untied further, but only equal parameters can be tied"
        )


@dataclass(frozen=True)
class Group:
    """A parameter with all the layers that share it: a row of `Unfolded.tying`."""

    name: str
    shape: tuple[int, ...]
    layers: tuple[int, ...]
    trained: bool


def groups(layers: Sequence[nn.Module]) -> list[Group]:
    """The distinct parameters of a network, each with the layers that hold it."""
    found: dict[int, tuple[str, nn.Parameter, list[int]]] = {}
    for k, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            found.setdefault(id(parameter), (public_name(name), parameter, []))[2].append(k)
    order = {name: i for i, name in enumerate(dict.fromkeys(name for name, _, _ in found.values()))}
    rows = sorted(found.values(), key=lambda row: (order[row[0]], row[2]))
    return [Group(name, tuple(p.shape), tuple(at), p.requires_grad) for name, p, at in rows]


def format_groups(rows: Sequence[Group]) -> str:
    """The tying table in aligned columns."""
    cells = [("parameter", "shape", "layers", "trained", "numbers")]
    for group in rows:
        count = torch.Size(group.shape).numel()
        trained = "yes" if group.trained else "no"
        cells.append((group.name, str(group.shape), _ranges(group.layers), trained, f"{count:,}"))
    widths = [max(len(row[i]) for row in cells) for i in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as ``0-2, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
