"""FISTA (Beck and Teboulle, 2009): ISTA with momentum, a state of two codes and a counter."""

import torch
from torch import Tensor

from deepunfold.core.algorithms import _lasso
from deepunfold.core.algorithms.ista import ISTA


class FISTA(ISTA):
    """`ISTA` from a point extrapolated beyond the last code. Its parameters are those of `ISTA`.

    The state is (code, point, momentum), the last without dimensions, since all samples share it.
    """

    readout_parameters = ()

    def init(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        zero = super().init(x)
        return zero, zero, x.new_ones(())

    def step(  # type: ignore[override]
        self, x: Tensor, state: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        code, point, momentum = state
        new = super().step(x, point)
        grown = (1 + torch.sqrt(1 + 4 * momentum.square())) / 2
        return new, new + (momentum - 1) / grown * (new - code), grown

    def readout(self, x: Tensor, state: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return state[0]

    def objective(self, x: Tensor, state: tuple[Tensor, Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """The lasso objective of the code, per sample."""
        return _lasso.objective(self.dictionary, self.sparsity, x, state[0])
