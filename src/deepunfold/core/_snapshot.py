"""A module as data, and back: class names, plain attributes, and where its tensors go. Nothing in it is code.

A module is rebuilt without calling its ``__init__``: an object of its class gets the attributes, parameters, buffers
and submodules that it had. Only classes of deepunfold and ``torch.nn`` are looked up by name; others are handed over.
"""

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from deepunfold.core._errors import FileFormatError

_OWN = frozenset(nn.Module().__dict__)
_TRUSTED = ("deepunfold.", "torch.nn.")


def encode(value: Any, where: str) -> Any:
    """A plain value as JSON. Tuples, special floats, dtypes and sizes are marked; anything else is an error."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, tuple):
        return {"tuple": [encode(item, where) for item in value]}
    if isinstance(value, list):
        return [encode(item, where) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item, where) for key, item in value.items()}}
    raise FileFormatError(
        f"{where} is a {type(value).__name__}, which a file cannot hold; keep numbers, strings, tuples, lists and "
        "dicts as attributes, tensors as parameters or buffers, and write functions as methods of a class"
    )


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((mark, inner),) = value.items()
    if mark == "tuple":
        return tuple(decode(item) for item in inner)
    if mark == "dict":
        return {key: decode(item) for key, item in inner.items()}
    if mark == "float":
        return float(inner)
    if mark == "dtype" and isinstance(getattr(torch, inner, None), torch.dtype):
        return getattr(torch, inner)
    raise FileFormatError(f"the header has a value of unknown kind {mark!r}")


def snapshot(module: nn.Module) -> dict[str, Any]:
    """A module as JSON, without the values of its tensors."""
    kind = parametrize.type_before_parametrizations(module)
    name = kind.__name__
    record: dict[str, Any] = {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "attributes": {
            key: encode(value, f"{name}.{key}") for key, value in module.__dict__.items() if key not in _OWN
        },
        "parameters": {key: _describe(value) for key, value in module._parameters.items()},
        "buffers": {
            key: _describe(value) | {"persistent": key not in module._non_persistent_buffers_set}
            for key, value in module._buffers.items()
        },
        "modules": {
            key: None if child is None else snapshot(child)
            for key, child in module._modules.items()
            if key != "parametrizations"
        },
    }
    if parametrize.is_parametrized(module):
        record["constraints"] = {
            key: {"free": _describe(stack.original), "by": [snapshot(part) for part in stack]}
            for key, stack in module.parametrizations.items()  # type: ignore[union-attr, operator]
        }
    return record


def _describe(tensor: Tensor | None) -> dict[str, Any]:
    if tensor is None:
        return {"shape": None}
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "trained": tensor.requires_grad,
    }


def rebuild(record: Mapping[str, Any], classes: Sequence[type]) -> nn.Module:
    """The module that `snapshot` was given, with zeros in its tensors."""
    kind = _resolve(record["class"], classes)
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for key, value in record["attributes"].items():
        object.__setattr__(module, key, decode(value))
    for key, value in record["parameters"].items():
        blank = _blank(value)
        module.register_parameter(key, None if blank is None else nn.Parameter(blank, requires_grad=value["trained"]))
    for key, value in record["buffers"].items():
        module.register_buffer(key, _blank(value), persistent=value["persistent"])
    for key, child in record["modules"].items():
        module.add_module(key, None if child is None else rebuild(child, classes))
    for key, constraint in record.get("constraints", {}).items():
        free = _blank(constraint["free"])
        assert free is not None
        module.register_parameter(key, nn.Parameter(free))
        for part in constraint["by"]:
            # Unsafe only skips a check of shapes and of values, which are zeros here.
            parametrize.register_parametrization(module, key, rebuild(part, classes), unsafe=True)
        stack: Any = module.parametrizations
        stack[key].original.requires_grad_(constraint["free"]["trained"])
    return module


def _blank(description: Mapping[str, Any]) -> Tensor | None:
    if description["shape"] is None:
        return None
    dtype = getattr(torch, description["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise FileFormatError(f"the header names the unknown dtype {description['dtype']!r}")
    return torch.zeros(description["shape"], dtype=dtype)


def _resolve(path: str, classes: Sequence[type]) -> type[nn.Module]:
    """The class of a name such as ``deepunfold.core.algorithms.ista:ISTA``."""
    for given in classes:
        if f"{given.__module__}:{given.__qualname__}" == path or given.__qualname__ == path.partition(":")[2]:
            return given
    module, _, name = path.partition(":")
    if not f"{module}.".startswith(_TRUSTED):
        raise FileFormatError(
            f"the file needs the class {path}, which is not part of deepunfold; import it and pass classes=[{name}]"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise FileFormatError(f"the file needs the class {path}, which this version does not have") from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise FileFormatError(f"the file names {path}, which is no module")
    return found
