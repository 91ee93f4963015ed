"""How far one step moved the state, sample by sample."""

import torch
from torch import Tensor

from deepunfold.core import _tree
from deepunfold.core._tree import State


def change(old: State, new: State) -> tuple[Tensor, Tensor]:
    """The norms of the step and of the new state over all its tensors, each of shape (batch,).

    Counters (tensors without dimensions) take no part. A state that is not finite gives a norm that is not finite.
    """
    steps, sizes = [], []
    for before, after in zip(_tree.rows_of(old), _tree.rows_of(new), strict=True):
        steps.append(torch.linalg.vector_norm(after - before, dim=1))
        sizes.append(torch.linalg.vector_norm(after, dim=1))
    return _root_of_squares(steps), _root_of_squares(sizes)


def relative(step: Tensor, size: Tensor) -> Tensor:
    """||phi^k - phi^{k-1}|| / ||phi^k||, and zero where nothing moved (also from zero to zero)."""
    return torch.where(step == 0, step, step / size)


def _root_of_squares(norms: list[Tensor]) -> Tensor:
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return total
