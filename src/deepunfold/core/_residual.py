"""How far one step moved the state, sample by sample."""

import torch
from torch import Tensor

from deepunfold.core import _tree
from deepunfold.core._tree import State


def change(old: State, new: State, batched: bool) -> tuple[Tensor, Tensor]:
    """The length of a step, and the larger of the two states' norms, over all their tensors: each of shape (batch,).

    Counters (tensors without dimensions) take no part. A state that is not finite gives numbers that are not finite.
    """
    before, after = _tree.rows_of(old, batched), _tree.rows_of(new, batched)
    step = _norm([b - a for a, b in zip(before, after, strict=True)])
    return step, torch.maximum(_norm(before), _norm(after))


def relative(step: Tensor, size: Tensor) -> Tensor:
    """||phi^k - phi^{k-1}|| / max(||phi^k||, ||phi^{k-1}||): at most 2, and zero where nothing moved."""
    return torch.where(step == 0, step, step / size)


def _norm(rows: list[Tensor]) -> Tensor:
    parts = torch.stack([torch.linalg.vector_norm(matrix, dim=1) for matrix in rows])
    total: Tensor = torch.linalg.vector_norm(parts, dim=0)
    return total
