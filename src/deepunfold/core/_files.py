"""Writing files whole or not at all, and reading safetensors with clear errors."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from deepunfold.core._errors import FileFormatError

KEY = "deepunfold"
FORMAT = 1


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header as safetensors: under a temporary name, then renamed."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    data = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(handle)
    try:
        save_file(data, temporary, {KEY: json.dumps({"format": FORMAT, **header})})
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str], kind: str, device: str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file of the given kind."""
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"{source} is not there" if not source.exists() else f"{source} is not a file")
    try:
        with safetensors.safe_open(source, framework="pt", device=device) as file:
            header = parse_header(source, file.metadata(), kind)
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise FileFormatError(f"{source} is no safetensors file, or is damaged: {error}") from error


def parse_header(source: Path, metadata: Mapping[str, str] | None, kind: str) -> dict[str, Any]:
    """The header that `write` stored, checked."""
    try:
        header = json.loads((metadata or {})[KEY])
        found, version = header["kind"], header["format"]
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{source} is a safetensors file, but not one of deepunfold: it has no valid header"
        ) from error
    if found != kind:
        raise FileFormatError(f"{source} holds a {found}, not a {kind}")
    if version != FORMAT:
        raise FileFormatError(f"{source} has format {version}, this version reads format {FORMAT}; update deepunfold")
    return header  # type: ignore[no-any-return]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
