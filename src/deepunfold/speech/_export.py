"""A model as an ONNX graph: one frame of each channel in, masks out, and the frames before it as its state.

    masks, next_context = graph(magnitudes, context)

with magnitudes (channels, F), masks (channels, sources, F), and context (channels, T-1, F), oldest first, which begins
as zeros and after that is what the graph gave the last time. The graph is written node by node from the equations, so
that each basis is in the file once. Short-time spectra are the caller's part; the front end is in the file's metadata.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from deepunfold.speech._extras import extra
from deepunfold.speech._frontend import Array
from deepunfold.speech._inference import FLOOR, SILENT, TINY
from deepunfold.speech._model import Model, _write

OPSET, IR = 17, 8
"""Old enough for every onnxruntime since 1.14."""


def export(model: Model, path: str | os.PathLike[str]) -> None:
    """Write the graph to a file, whole or not at all. Needs onnx, which comes with the extra of that name."""
    _write(Path(path), graph(model).SerializeToString())


def graph(model: Model) -> Any:
    """The graph as an ``onnx.ModelProto``."""
    onnx = extra("onnx", "onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    front, sources = model.frontend, len(model.sources)
    nodes = _Nodes(onnx)
    _write_graph(nodes, model)
    frame, before = ["channels", front.features], ["channels", front.context - 1, front.features]
    shapes = {"magnitudes": frame, "context": before}
    results = {"masks": ["channels", sources, front.features], "next_context": before}
    made = helper.make_model(
        helper.make_graph(
            nodes.nodes,
            "deepunfold",
            [helper.make_tensor_value_info(name, float32, shape) for name, shape in shapes.items()],
            [helper.make_tensor_value_info(name, float32, shape) for name, shape in results.items()],
            nodes.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="deepunfold",
        doc_string=(__doc__ or "").strip(),
    )
    helper.set_model_props(made, {"deepunfold": json.dumps(model.config)})
    onnx.checker.check_model(made, full_check=True)
    return made


class _Nodes:
    """Nodes and constants of a graph that is being written; what a node gives is known by its name."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """The name of a constant."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(value, dtype), name))
        return name

    def __call__(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Append a node; the name of what it gives."""
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name


def _write_graph(nodes: _Nodes, model: Model) -> None:
    """From the inputs to the outputs."""
    front, own = model.frontend, model.bases
    one = nodes.constant([1], np.int64)
    frame = nodes("Unsqueeze", "magnitudes", one)
    window = nodes("Concat", "context", frame, axis=1)
    end = nodes.constant([front.context], np.int64)
    nodes("Slice", window, one, end, one, name="next_context")
    wide = nodes("Reshape", window, nodes.constant([-1, front.context * front.features], np.int64))
    activations = nodes("Mul", _level(nodes, wide), nodes.constant(np.ones((1, model.context_basis.shape[1]))))
    first = _Update(nodes, model.context_basis, wide, model)
    for _ in range(model.layers - max(len(own) - 1, 0)):
        activations = first.write(activations)
    for basis in own[:-1]:
        activations = _Update(nodes, basis, "magnitudes", model).write(activations)
    _write_readout(nodes, activations, own[-1] if own else model.context_basis[-front.features :], model)


class _Update:
    """Updates with one basis (equation ``eq:nmf_updates``): the push is known before if beta = 1."""

    def __init__(self, nodes: _Nodes, basis: Array, mixture: str, model: Model) -> None:
        self._nodes, self._mixture, self._model = nodes, mixture, model
        self._basis, self._floor = nodes.constant(basis), _floor(nodes, mixture)
        if model.beta == 1:
            self._push = nodes.constant(basis.sum(0, keepdims=True) + np.float32(model.sparsity + TINY))
        else:
            self._sparsity, self._tiny = nodes.constant(model.sparsity), nodes.constant(TINY)

    def write(self, activations: str) -> str:
        """Append one update; the name of the new activations."""
        nodes, beta = self._nodes, self._model.beta
        model = nodes("Add", nodes("Gemm", activations, self._basis, transB=1), self._floor)
        if beta == 1:
            pull = nodes("MatMul", nodes("Div", self._mixture, model), self._basis)
            return nodes("Mul", activations, nodes("Div", pull, self._push))
        data = nodes("Add", self._mixture, self._floor) if beta < 1 else self._mixture
        pull = nodes("MatMul", nodes("Mul", self._power(model, beta - 2), data), self._basis)
        push = nodes("Add", nodes("MatMul", self._power(model, beta - 1), self._basis), self._sparsity)
        factor = nodes("Div", pull, nodes("Add", push, self._tiny))
        exponent = 1 / (2 - beta) if beta < 1 else 1 if beta <= 2 else 1 / (beta - 1)
        if exponent != 1:
            factor = self._power(nodes("Add", factor, self._tiny), exponent)
        return nodes("Mul", activations, factor)

    def _power(self, base: str, exponent: float) -> str:
        return self._nodes("Pow", base, self._nodes.constant(exponent))


def _write_readout(nodes: _Nodes, activations: str, basis: Array, model: Model) -> None:
    """The share of each source (equation ``eq:wiener``): (channels, sources, F)."""
    parts, axis = [], nodes.constant([1], np.int64)
    floor = _floor(nodes, "magnitudes")
    for columns in np.split(np.arange(basis.shape[1]), np.cumsum(list(model.sources.values()))[:-1]):
        own = nodes("Gather", activations, nodes.constant(columns, np.int64), axis=1)
        estimate = nodes("Add", nodes("MatMul", own, nodes.constant(basis[:, columns].T)), floor)
        parts.append(nodes("Unsqueeze", estimate, axis))
    models = nodes("Concat", *parts, axis=1)
    nodes("Div", models, nodes("ReduceSum", models, axis, keepdims=1), name="masks")


def _level(nodes: _Nodes, frames: str) -> str:
    return nodes("ReduceMean", frames, axes=[1], keepdims=1)


def _floor(nodes: _Nodes, frames: str) -> str:
    """What is added to the models of each frame, 1 in silence."""
    level = _level(nodes, frames)
    scaled = nodes("Mul", level, nodes.constant(FLOOR))
    return nodes("Where", nodes("Greater", level, nodes.constant(SILENT)), scaled, nodes.constant(1))
