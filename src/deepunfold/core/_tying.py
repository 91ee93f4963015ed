"""Which layers share which parameters: theta = {theta^k}, k = 0..K, tied in any pattern.

A pattern is "all", "each", a list of K+1 labels (layers with equal labels share), or a mapping from parameter names
(or a prefix of them) to any of these. Here patterns become a table of labels; `_build` makes the layers from it.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn

from deepunfold.core._algorithm import has_readout, name_of
from deepunfold.core._errors import TieError

Pattern: TypeAlias = str | Sequence[Hashable]
Tie: TypeAlias = Pattern | Mapping[str, Pattern]


@dataclass(frozen=True)
class Slot:
    """One parameter of one layer: the group that it is tied in, and whether it is trained."""

    label: Hashable
    trained: bool


def public_name(name: str) -> str:
    """A parameter's name as the user knows it, without the bookkeeping of constrained parameters."""
    return name.replace("parametrizations.", "").removesuffix(".original")


def parameter_names(algorithm: nn.Module) -> list[str]:
    """The public names of an algorithm's parameters."""
    return [public_name(name) for name, _ in algorithm.named_parameters()]


def label_table(sources: Sequence[nn.Module], tie: Tie, train_last: int | None) -> list[dict[str, Slot]]:
    """For each layer 0..K, a slot for each of its parameters."""
    depth = len(sources) - 1
    names = list(dict.fromkeys(name for source in sources for name in parameter_names(source)))
    labels = {name: _labels(_pattern_for(name, tie), depth, name) for name in names}
    if isinstance(tie, Mapping):
        _check_names(tie, names, sources)
    if train_last is not None and not 0 <= train_last <= depth + 1:
        raise ValueError(f"train_last={train_last} is out of range: {depth} steps and a readout allow 0 to {depth + 1}")
    table = []
    for k, source in enumerate(sources):
        slots = {}
        for name in parameter_names(source):
            home = _home(source, name, k, depth)
            slots[name] = Slot(labels[name][home], train_last is None or home > depth - train_last)
        table.append(slots)
    return table


def _home(source: nn.Module, name: str, k: int, depth: int) -> int:
    """The layer whose parameter this one is, where the step or the readout does not use it (see `Algorithm`)."""
    in_step = getattr(source, "step_parameters", None)
    in_readout = getattr(source, "readout_parameters", None if has_readout(source) else ())
    stepping = in_step is None or _listed(name, in_step)
    reading = in_readout is None or _listed(name, in_readout)
    if stepping:
        return k if reading else max(min(k, depth - 1), 0)
    return depth if reading else 0


def _listed(name: str, prefixes: Sequence[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _pattern_for(name: str, tie: Tie) -> Pattern:
    if not isinstance(tie, Mapping):
        return tie
    matching = [key for key in tie if _listed(name, [key])]
    return tie[max(matching, key=len)] if matching else "all"


def _labels(pattern: Pattern, depth: int, name: str) -> list[Hashable]:
    layers = depth + 1
    if isinstance(pattern, str):
        if pattern == "all":
            return [0] * layers
        if pattern == "each":
            return list(range(layers))
        raise TieError(f'tie={pattern!r} is unknown; use "all", "each", a list of {layers} labels, or a mapping')
    if len(pattern) != layers:
        raise TieError(
            f"tie has {len(pattern)} labels for {name!r}, but {depth} steps and a readout make {layers} layers "
            f"(theta^0 to theta^{depth}); give {layers} labels"
        )
    return list(pattern)


def _check_names(tie: Mapping[str, Pattern], names: Sequence[str], sources: Sequence[nn.Module]) -> None:
    for key in tie:
        if not any(_listed(name, [key]) for name in names):
            kinds = ", ".join(dict.fromkeys(name_of(source) for source in sources))
            raise TieError(
                f"tie names {key!r}, which is no parameter of {kinds}; there are: {', '.join(names) or 'none'}"
            )
