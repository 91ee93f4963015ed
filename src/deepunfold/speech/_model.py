"""A trained model of sources, and its file: safetensors with everything that is needed to use it, and a checksum."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
from safetensors.numpy import save

from deepunfold.speech._frontend import Array, Frontend

if TYPE_CHECKING:
    from deepunfold import FileFormatError
    from deepunfold.core import Unfolded

KEY, CHECKSUM = "deepunfold", "sha256"
KIND, FORMAT = "speech model", 1


@dataclass(eq=False)
class Model:
    """Deep NMF (Section 5.4 of the paper) with the front end that it was trained for.

    The first K-C+1 updates use the context basis (T*F, R), the last C-1 and the reconstruction one basis (F, R) each.
    With C = 0, all K updates use the context basis, and the reconstruction its last F rows.

    Args:
        frontend: from signals to frames.
        sources: the name of each source, and how many columns of a basis are its own.
        layers: K, the number of updates.
        context_basis: (T*F, R), non-negative.
        bases: C of them (F, R), that of the reconstruction last.
        sparsity: the weight of the L1 norm of the activations.
        beta: of the divergence.
        record: plain values that tell how the model was made: settings, data, licences, scores.
    """

    frontend: Frontend
    sources: dict[str, int]
    layers: int
    context_basis: Array
    bases: list[Array] = field(default_factory=list)
    sparsity: float = 0.0
    beta: float = 1.0
    record: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = list(self.sources.values())
        if not counts or not all(_whole(count) for count in counts):
            raise ValueError(f"sources={self.sources} must name at least one source, with a number of columns for each")
        if not _whole(self.layers) or len(self.bases) > self.layers:
            raise ValueError(
                f"layers={self.layers} with {len(self.bases)} bases of single frames: at least one update, the first, "
                "uses the context basis, so there are at most as many as layers"
            )
        for name, value in (("sparsity", self.sparsity), ("beta", self.beta)):
            if type(value) not in (int, float) or not (0 <= value < math.inf):
                raise ValueError(f"{name}={value!r} must be a number >= 0")
        columns, features = sum(counts), self.frontend.features
        self.context_basis = _checked("context_basis", self.context_basis, (self.frontend.context * features, columns))
        self.bases = [_checked(f"bases[{c}]", basis, (features, columns)) for c, basis in enumerate(self.bases)]

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}: {count}" for name, count in self.sources.items())
        return (
            f"Model({counts}; K={self.layers}, C={self.trained}, T={self.frontend.context}, {self.numbers:,} numbers)"
        )

    @property
    def trained(self) -> int:
        """C, how many layers have bases of their own, the reconstruction included."""
        return len(self.bases)

    @property
    def numbers(self) -> int:
        """How many numbers the bases hold."""
        return sum(basis.size for basis in (self.context_basis, *self.bases))

    @property
    def config(self) -> dict[str, Any]:
        """All but the bases, as plain values: what the header of the file holds."""
        return {
            "kind": KIND,
            "format": FORMAT,
            "frontend": asdict(self.frontend),
            "sources": dict(self.sources),
            "layers": self.layers,
            "trained": self.trained,
            "sparsity": self.sparsity,
            "beta": self.beta,
            "record": self.record,
        }

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], half: bool = False) -> None:
        """Write the model to a file, whole or not at all; with ``half``, numbers take two bytes each."""
        dtype = np.float16 if half else np.float32
        with np.errstate(over="ignore"):
            tensors = {name: basis.astype(dtype) for name, basis in self._tensors().items()}
        for name, tensor in tensors.items():
            if not np.isfinite(tensor).all():
                raise ValueError(
                    f"{name} has values beyond {np.finfo(dtype).max:g}, the most that half precision holds"
                )
        try:
            text = json.dumps(self.config, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the record must hold plain, finite values, as JSON has them: {error}") from error
        _write(Path(path), save(tensors, {KEY: text, CHECKSUM: _checksum(text, tensors)}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Model":
        """Read a model. A damaged file, or one of another kind or version, raises `deepunfold.FileFormatError`."""
        source = Path(path)
        if not source.is_file():
            raise FileNotFoundError(f"{source} is not there" if not source.exists() else f"{source} is not a file")
        config, tensors = _read(source)
        try:
            bases = [tensors.pop(f"bases.{c}") for c in range(config["trained"])]
            basis = tensors.pop("context_basis")
            if tensors:
                raise ValueError(f"it holds what no model has: {', '.join(sorted(tensors))}")
            settings = {name: config[name] for name in ("sources", "layers", "sparsity", "beta", "record")}
            return cls(Frontend(**config["frontend"]), context_basis=basis, bases=bases, **settings)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise _refusal(f"{source} is whole, but describes no model that can be used: {what}") from error

    def _tensors(self) -> dict[str, Array]:
        return {"context_basis": self.context_basis, **{f"bases.{c}": basis for c, basis in enumerate(self.bases)}}

    # -- networks ----------------------------------------------------------------------------------------------------

    @classmethod
    def from_network(
        cls,
        net: "Unfolded",
        frontend: Frontend | None = None,
        names: Sequence[str] = ("speech", "noise"),
        record: Mapping[str, Any] | None = None,
    ) -> "Model":
        """The model that a network of `deepunfold.nmf.deep_nmf` computes, with names for its sources."""
        from deepunfold.nmf._deep import inference_layers

        frontend, layers = frontend or Frontend(), inference_layers(net)
        first, bases = layers[0], [layer.basis.detach().cpu().numpy().astype(np.float32) for layer in layers]
        weights = np.concatenate([layer.sparsity.detach().cpu().numpy().ravel() for layer in layers[:-1]])
        if len(names) != len(first.sources) or len(set(names)) != len(names):
            raise ValueError(f"names={tuple(names)} must be {len(first.sources)} different ones, one for each source")
        if not first.filtered:
            raise ValueError("the network does without the Wiener filter, which a model has; use filtered=True")
        if np.ptp(weights) != 0:
            raise ValueError("the network has learnt its sparsity, a model has one number for it; train without")
        alike = [basis.shape == bases[0].shape and np.array_equal(basis, bases[0]) for basis in bases]
        wide = alike.index(False) if False in alike else len(alike)
        return cls(
            frontend,
            dict(zip(names, first.sources, strict=True)),
            net.depth,
            bases[0],
            bases[wide:],
            sparsity=float(weights[0]),
            beta=first.beta,
            record=dict(record or {}),
        )

    def network(self) -> "Unfolded":
        """The network with this model's bases, as `deepunfold.nmf.deep_nmf` makes it; it can be trained further."""
        import torch

        from deepunfold.nmf import deep_nmf

        cuts = np.cumsum(list(self.sources.values()))[:-1]
        starts = [torch.tensor(part) for part in np.split(self.context_basis, cuts, axis=1)]
        net = deep_nmf(
            starts,
            self.layers,
            self.trained,
            context=self.frontend.context,
            sparsity=self.sparsity,
            beta=self.beta,
        )
        with torch.no_grad():
            for layer, basis in zip(net.layers[self.layers + 1 - self.trained :], self.bases, strict=True):
                layer.basis.copy_(torch.from_numpy(basis))  # type: ignore[operator]
        return net


def _whole(value: object) -> bool:
    return type(value) is int and value >= 1


def _checked(name: str, basis: Array, shape: tuple[int, int]) -> Array:
    """A basis in float32, of the right shape, finite and non-negative."""
    basis = np.ascontiguousarray(basis, np.float32)
    if basis.shape != shape:
        raise ValueError(f"{name} is of shape {basis.shape}; front end and sources ask for {shape}")
    if not (np.isfinite(basis).all() and (basis >= 0).all()):
        raise ValueError(f"{name} has values that are negative or not finite")
    return basis


def _refusal(message: str) -> "FileFormatError":
    from deepunfold import FileFormatError  # with it comes torch, which a sound file does not need

    return FileFormatError(message)


def _read(source: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The header and the tensors of a model's file, which is what it was when it was written."""
    try:
        with safetensors.safe_open(source, framework="numpy") as file:
            metadata = file.metadata() or {}
            config = _parse(source, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, TypeError, AttributeError, KeyError) as error:
        raise _refusal(f"{source} is no file of a model, or is damaged: {error}") from error
    if metadata.get(CHECKSUM) != _checksum(metadata[KEY], tensors):
        raise _refusal(f"{source} is damaged: its checksum does not fit what it holds; get a fresh copy of it")
    return config, tensors


def _parse(source: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(metadata[KEY])
        kind, version = config["kind"], config["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _refusal(f"{source} is a safetensors file, but not one of deepunfold: it has no valid header") from error
    if kind != KIND:
        raise _refusal(f"{source} holds a {kind}, not a {KIND}")
    if version != FORMAT:
        raise _refusal(f"{source} has format {version}, this version reads format {FORMAT}; update deepunfold")
    return config


def _checksum(text: str, tensors: Mapping[str, Array]) -> str:
    """A digest of the header and of every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}".encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()


def _write(target: Path, data: bytes) -> None:
    """Under a temporary name in the same folder, then renamed."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
