"""Writing files whole or not at all, and reading safetensors with clear errors."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from deepunfold.core._errors import FileFormatError

KEY = "deepunfold"
CHECKSUM = "blake2b"
FORMAT = 1


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header as safetensors, with a checksum: under a temporary name, then renamed."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    data = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    text = json.dumps({"format": FORMAT, **header})
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(handle)
    try:
        save_file(data, temporary, {KEY: text, CHECKSUM: _checksum(text, data)})
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file of the given kind."""
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"{source} is not there" if not source.exists() else f"{source} is not a file")
    try:
        with safetensors.safe_open(source, framework="pt") as file:
            metadata = file.metadata() or {}
            header = _parse(source, metadata, kind)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise FileFormatError(f"{source} is no safetensors file, or is damaged: {error}") from error
    if metadata.get(CHECKSUM) != _checksum(metadata[KEY], tensors):
        raise FileFormatError(f"{source} is damaged: its checksum does not fit what it holds; get a fresh copy of it")
    return tensors, header


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """A digest of the header and of every tensor's name, type, shape and bytes."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _parse(source: Path, metadata: Mapping[str, str], kind: str) -> dict[str, Any]:
    """The header that `write` stored, checked."""
    try:
        header = json.loads(metadata[KEY])
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
