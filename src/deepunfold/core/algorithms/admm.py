"""ADMM for the lasso: a state of three, primal, split and (scaled) dual variable."""

import torch
from torch import Tensor, nn

from deepunfold.core.algorithms import _lasso


class ADMM(nn.Module):
    """primal = P (D^T x + penalty (split - dual)); split = soft(primal + dual, threshold); dual += primal - split.

    P is the inverse of D^T D + penalty I, and the threshold is sparsity / penalty. Shapes: x (batch, m), output
    (batch, n). Parameters: ``encoder`` P D^T (n, m), ``projection`` penalty P (n, n), ``threshold`` (n).
    """

    readout_parameters = ()

    def __init__(self, dictionary: Tensor, sparsity: float = 0.1, penalty: float = 1.0) -> None:
        super().__init__()
        dictionary = _lasso.check(dictionary, sparsity)
        if not penalty > 0:
            raise ValueError(f"penalty={penalty} must be > 0")
        atoms = dictionary.shape[1]
        identity = torch.eye(atoms, dtype=dictionary.dtype, device=dictionary.device)
        inverse = torch.linalg.inv(dictionary.mT @ dictionary + penalty * identity)
        self.encoder = nn.Parameter((inverse @ dictionary.mT).contiguous())
        self.projection = nn.Parameter((penalty * inverse).contiguous())
        self.threshold = nn.Parameter(dictionary.new_full((atoms,), sparsity / penalty))

    def init(self, x: Tensor) -> dict[str, Tensor]:
        zero = x.new_zeros(x.shape[0], self.threshold.shape[0])
        return {"primal": zero, "split": zero, "dual": zero}

    def step(self, x: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        primal = x @ self.encoder.mT + (state["split"] - state["dual"]) @ self.projection.mT
        split = _lasso.soft_threshold(primal + state["dual"], self.threshold)
        return {"primal": primal, "split": split, "dual": state["dual"] + primal - split}

    def readout(self, x: Tensor, state: dict[str, Tensor]) -> Tensor:
        return state["split"]
