"""What may go in: non-negative, finite, of the right size; each error says what was given and what would be right."""

import torch
from torch import Tensor


def check_non_negative(name: str, tensor: Tensor) -> None:
    """Raise for values that are negative or not finite, unless a graph is being traced."""
    if torch.compiler.is_compiling() or tensor.numel() == 0:
        return
    low, high = torch.aminmax(tensor.detach())
    if not (bool(low >= 0) and bool(high < float("inf"))):
        least, most = float(low), float(high)
        if least < 0:
            raise ValueError(f"{name} has negative values (down to {least:g}); give magnitudes or powers")
        raise ValueError(f"{name} has values that are not finite ({least:g} to {most:g}); give finite ones")


def check_dtype(name: str, tensor: Tensor) -> None:
    """Raise for whole numbers, and for half precision, whose range is too small for quotients of spectra."""
    if not tensor.is_floating_point() or tensor.dtype == torch.float16:
        raise ValueError(f"{name} is of {tensor.dtype}; give float32 or float64")


def check_basis(basis: Tensor, name: str = "basis") -> None:
    """Raise unless it is a non-negative matrix of bases in columns."""
    if basis.dim() != 2 or 0 in basis.shape:
        raise ValueError(f"{name} must have the shape (rows, components), not {tuple(basis.shape)}")
    check_dtype(name, basis)
    check_non_negative(name, basis)


def check_frames(name: str, frames: Tensor, rows: int | None = None) -> None:
    """Raise unless it is a batch (frames, rows) of non-negative data."""
    if frames.dim() < 2 or frames.shape[0] == 0:
        raise ValueError(f"{name} must be of shape (frames, rows) with at least one frame, not {tuple(frames.shape)}")
    check_dtype(name, frames)
    if rows is not None and frames.shape[-1] != rows:
        raise ValueError(
            f"{name} has {frames.shape[-1]} values per frame, but the basis has {rows} rows; give {rows} values"
        )
    check_non_negative(name, frames)


def check_sparsity(sparsity: float) -> None:
    """Raise where the weight of the L1 norm is no number >= 0."""
    if not 0 <= sparsity < float("inf"):
        raise ValueError(f"sparsity={sparsity} must be a number >= 0")
