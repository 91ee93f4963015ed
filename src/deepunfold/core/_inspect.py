"""What a file of ours holds, read from its header alone: no class is needed, and nothing is rebuilt."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepunfold.core import _files
from deepunfold.core._errors import FileFormatError
from deepunfold.core._layers import Group, format_groups
from deepunfold.core._snapshot import decode


@dataclass(frozen=True)
class FileInfo:
    """The structure of a saved network and the notes that were saved with it."""

    kinds: Sequence[str]
    depth: int
    train_last: int | None
    backward: str
    groups: Sequence[Group]
    numbers: int
    notes: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**vars(self), "groups": [vars(group) for group in self.groups]}

    def as_text(self) -> str:
        """For people."""
        chain = " -> ".join(self.kinds)
        lines = [f"{chain}: {self.depth} steps and a readout, {self.numbers:,} numbers in parameters", ""]
        lines += [format_groups(self.groups), ""] if self.groups else []
        lines += [f"train_last {self.train_last}"] if self.train_last is not None else []
        lines += [f"backward {self.backward}", *(f"{key}: {value}" for key, value in self.notes.items())]
        return "\n".join(lines)


def inspect_file(path: str | os.PathLike[str]) -> FileInfo:
    """Read what `save` wrote about a network."""
    tensors, header = _files.read(path, "network")
    try:
        structure = header["structure"]
        groups = _groups(structure)
        classes = [record["class"].rpartition(":")[2] for record in structure["kinds"]]
        counts = [structure["layers"][:-1].count(kind) for kind in range(len(classes))]
        return FileInfo(
            kinds=[f"{name} x {count}" for name, count in zip(classes, counts, strict=True)],
            depth=len(structure["layers"]) - 1,
            train_last=structure["train_last"],
            backward=structure["backward"]["class"],
            groups=groups,
            numbers=sum(tensors[name].numel() for name in structure["parameters"]),
            notes=decode(header["notes"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FileFormatError(f"{os.fspath(path)}: its header does not describe a network ({error!r})") from error


def _groups(structure: dict[str, Any]) -> list[Group]:
    return [
        Group(group["name"], tuple(group["shape"]), tuple(group["layers"]), group["trained"])
        for group in structure["groups"]
    ]
