"""What the sparse coders share: 1/2 ||x - D z||^2 + sparsity |z|_1 with a dictionary D of shape (m, n)."""

import torch
from torch import Tensor


def soft_threshold(z: Tensor, threshold: Tensor) -> Tensor:
    """The proximal operator of threshold * |z|_1."""
    return z.sign() * torch.relu(z.abs() - threshold)


def objective(dictionary: Tensor, sparsity: float, x: Tensor, code: Tensor) -> Tensor:
    """The lasso objective of codes (batch, n) for x (batch, m), per sample."""
    misfit = x - code @ dictionary.mT
    return 0.5 * misfit.square().sum(-1) + sparsity * code.abs().sum(-1)


def check(dictionary: Tensor, sparsity: float) -> Tensor:
    """The dictionary, detached, if it and the sparsity can be used."""
    if dictionary.dim() != 2 or not dictionary.is_floating_point():
        raise ValueError(
            f"the dictionary must be a real matrix (m, n), not {tuple(dictionary.shape)} {dictionary.dtype}"
        )
    if not bool(torch.isfinite(dictionary).all()) or not bool(dictionary.any()):
        raise ValueError("the dictionary must be finite and not all zero")
    if not sparsity >= 0:
        raise ValueError(f"sparsity={sparsity} must be >= 0")
    return dictionary.detach()


def lipschitz(dictionary: Tensor) -> Tensor:
    """The largest eigenvalue of D^T D, the curvature of the squared error."""
    norm: Tensor = torch.linalg.matrix_norm(dictionary, 2)
    return norm.square()
