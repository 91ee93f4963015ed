"""Nests of tensors: the only file that knows how a state is taken apart.

A state is a tensor, or a tuple, list, dict, named tuple (any pytree) of them. By convention every tensor of a state
has the batch as its leading dimension; tensors without dimensions are counters that the whole batch shares.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

State: TypeAlias = Any
"""One tensor, or any nest of tensors."""


def leaves(tree: State) -> list[Any]:
    """The leaves of a nest, in a fixed order."""
    return pytree.tree_leaves(tree)


def flatten(tree: State) -> tuple[list[Any], Callable[[Sequence[Any]], State]]:
    """The leaves of a nest, and the function that makes a nest of the same structure from other leaves."""
    found, spec = pytree.tree_flatten(tree)
    return found, lambda new: pytree.tree_unflatten(list(new), spec)


def map_tensors(function: Callable[..., Any], tree: State, *others: State) -> State:
    """Apply a function to corresponding tensors of nests of the same structure; other leaves stay as they are."""
    return pytree.tree_map(
        lambda leaf, *rest: function(leaf, *rest) if isinstance(leaf, Tensor) else leaf, tree, *others
    )


def detach(tree: State) -> State:
    """The same values, cut off from any graph."""
    return map_tensors(lambda leaf: leaf.detach(), tree)


def is_continuous(leaf: Any) -> bool:
    """Whether a leaf holds numbers that can carry a gradient (and is no counter)."""
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and (leaf.is_floating_point() or leaf.is_complex())


def describe(tree: State) -> str:
    """A nest in one short line, such as ``{'primal': (64, 500) float32, 'dual': (64, 500) float32}``."""
    if isinstance(tree, Tensor):
        return f"{tuple(tree.shape)} {str(tree.dtype).removeprefix('torch.')}"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {describe(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list | tuple):
        return "(" + ", ".join(describe(value) for value in tree) + ")"
    return type(tree).__name__


def same_form(one: State, other: State) -> bool:
    """Whether two nests agree in structure and each pair of leaves in shape, dtype and device."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    first, spec = pytree.tree_flatten(one)
    second, other_spec = pytree.tree_flatten(other)
    if spec != other_spec:
        return False
    return all(
        same_form(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else type(a) is type(b)
        for a, b in zip(first, second, strict=True)
    )


def batch_size(x: State) -> int:
    """The leading dimension of the first tensor that has one."""
    for leaf in leaves(x):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    raise ValueError(
        f"x has no tensor with a batch dimension: {describe(x)}; pass batched=False to take it as one problem"
    )


def select(tree: State, rows: Tensor, size: int) -> State:
    """The given rows of every tensor whose leading dimension is ``size``; the others are shared and stay whole."""
    return map_tensors(lambda leaf: leaf[rows] if leaf.dim() > 0 and leaf.shape[0] == size else leaf, tree)


def write(target: State, rows: Tensor, source: State) -> None:
    """Write the rows of ``source`` into the given rows of ``target``, in place; counters are replaced."""

    def put(into: Tensor, new: Tensor) -> Tensor:
        if into.dim() == 0:
            return into.copy_(new)
        into[rows] = new
        return into

    map_tensors(put, target, source)


def rows_of(tree: State, batched: bool) -> list[Tensor]:
    """Each tensor but the counters as a real matrix with one row per sample, or with one row in all."""
    matrices = []
    for leaf in leaves(tree):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
            rows = leaf.shape[0] if batched else 1
            matrices.append(real.reshape(rows, -1).to(torch.promote_types(real.dtype, torch.float32)))
    return matrices


def shares_batch(tree: State) -> bool:
    """Whether all tensors but the counters agree in their leading dimension."""
    return len({leaf.shape[0] for leaf in leaves(tree) if isinstance(leaf, Tensor) and leaf.dim() > 0}) == 1
