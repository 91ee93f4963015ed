"""Inference of activations by multiplicative updates, as an algorithm of the framework, and the Wiener filter."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepunfold.nmf._check import check_basis, check_frames, check_sparsity
from deepunfold.nmf._divergence import FLOOR, check_beta, descent_exponent, divergence, slopes

SILENT = 1e-18
"""The level up to which a frame counts as silent."""

TINY = 1e-30
"""Keeps quotients of zero and zero, where a column of the basis is zero, from being NaN."""

Mixture = Tensor | tuple[Tensor, Tensor]
"""Frames (frames, rows), or these with the activations (frames, components) to start from."""


def floor_of(mixture: Tensor) -> Tensor:
    """What is added to models of each frame before a division: relative to its level, so that scaling has no effect.

    It is a constant component of the model, and updates that descend without it descend with it. In a silent frame,
    whose level is zero or so small that its powers would underflow, it is 1: quotients are zero there, not NaN.
    """
    level = mixture.mean(-1, keepdim=True)
    return torch.where(level > SILENT, FLOOR * level, 1.0)


def start_of(mixture: Tensor, components: int) -> Tensor:
    """Equal activations at the level of each frame; in silence, zero. For beta = 1 their scale has no effect."""
    return mixture.mean(-1, keepdim=True).expand(*mixture.shape[:-1], components)


def wiener(mixture: Tensor, models: Tensor) -> Tensor:
    """Sources from a mixture, in the ratio of their models (equation ``eq:wiener``).

    Shapes: mixture (..., rows), models (..., sources, rows), result like models. The result sums to the mixture; where
    all models are zero, the sources share it equally.
    """
    safe = models + floor_of(mixture)[..., None, :]
    return safe / safe.sum(-2, keepdim=True) * mixture[..., None, :]


class NMFInference(nn.Module):
    """H <- H * (W^T (M * (W H)^(beta-2)) / (W^T (W H)^(beta-1) + sparsity))^exponent (equation ``eq:nmf_updates``).

    It minimises D_beta(M | W H) + sparsity |H|_1 in H (equation ``eq:sup_nmf_obj``); for convex problems, beta from 1
    to 2, it finds the minimum. The exponent, `descent_exponent`, is 1 there as in the paper.

    Frames are the batch: mixture (frames, rows), state H (frames, components), output (frames, sources, features); the
    dimensions before the last can also be several. Without sources, the output is the state. Of a mixture that has
    more rows than the basis, as in the last layers of deep NMF, the last ones count. Sources come from the last
    ``features`` rows of mixture and basis: with context in the rows before, those of the present frame.

    Parameters: ``basis`` W (rows, components), and ``sparsity`` (components) if it is learnt; else it is a buffer.

    Args:
        basis: non-negative, the columns of all sources side by side.
        sources: how many of the columns belong to each source.
        sparsity: the weight of the L1 norm. It is relative to the scale of the columns, and for beta = 1 independent
            of the level of the mixture.
        beta: of the divergence.
        features: the number of rows that are read out; all of them unless told.
        filtered: read out through the Wiener filter, so that the sources sum to the mixture; else as W^l H^l.
        learn_sparsity: make the sparsity a parameter, one number per component.
    """

    sparsity: Tensor
    step_parameters = ("basis", "sparsity")
    readout_parameters: Sequence[str] = ("basis",)

    def __init__(
        self,
        basis: Tensor,
        sources: Sequence[int] = (),
        *,
        sparsity: float | Tensor = 0.0,
        beta: float = 1.0,
        features: int | None = None,
        filtered: bool = True,
        learn_sparsity: bool = False,
    ) -> None:
        super().__init__()
        check_basis(basis)
        check_beta(beta)
        rows, components = basis.shape
        weights = torch.as_tensor(sparsity, dtype=basis.dtype, device=basis.device).expand(components).clone()
        check_sparsity(float(weights.min()))
        check_sparsity(float(weights.max()))
        if sources and (sum(sources) != components or min(sources) < 1):
            raise ValueError(f"sources={tuple(sources)} sum to {sum(sources)}, but the basis has {components} columns")
        if features is not None and not 1 <= features <= rows:
            raise ValueError(f"features={features} is out of range: the basis has {rows} rows")
        self.sources = tuple(int(count) for count in sources)
        self.beta, self.exponent = float(beta), descent_exponent(beta)
        self.features, self.filtered = rows if features is None else features, filtered
        self.basis = nn.Parameter(basis.detach().clone())
        if learn_sparsity:
            self.sparsity = nn.Parameter(weights)
        else:
            self.register_buffer("sparsity", weights)
        if not self.sources:
            self.readout_parameters = ()

    @property
    def components(self) -> int:
        """R, the number of columns of the basis."""
        return int(self.basis.shape[1])

    def init(self, x: Mixture) -> Tensor:
        """All activations at the level of their frame, or those that were given."""
        mixture = _frames(x)
        check_frames("the mixture", mixture, self.basis.shape[0])
        return x[1] if isinstance(x, tuple) else start_of(mixture, self.components)

    def step(self, x: Mixture, activations: Tensor) -> Tensor:
        """One multiplicative update of H (equation ``eq:nmf_updates``)."""
        data, floor = self.data(x)
        return self.moved(data, activations @ self.basis.mT + floor, activations)

    def moved(self, data: Tensor, model: Tensor, activations: Tensor) -> Tensor:
        """The updated activations, where the data and their model, both with what `data` adds, are known already."""
        basis = self.basis
        positive, negative = slopes(data, model, self.beta)
        pull = negative @ basis
        push = (basis.sum(0) if self.beta == 1 else positive @ basis) + self.sparsity
        factor = pull / (push + TINY)
        # A root of zero would have an infinite slope.
        return activations * (factor if self.exponent == 1 else (factor + TINY).pow(self.exponent))

    def readout(self, x: Mixture, activations: Tensor) -> Tensor:
        """The sources; without any, the activations."""
        if not self.sources:
            return activations
        mixture = _frames(x)[..., -self.features :]
        models = self.models(activations)
        return wiener(mixture, models) if self.filtered else models

    def models(self, activations: Tensor) -> Tensor:
        """W^l H^l of each source, before any filter: (frames, sources, features)."""
        basis = self.basis[-self.features :]
        parts = zip(activations.split(self.sources, -1), basis.split(self.sources, -1), strict=True)
        return torch.stack([own @ columns.mT for own, columns in parts], -2)

    def objective(self, x: Mixture, activations: Tensor) -> Tensor:
        """D_beta(M | W H) + |sparsity * H|_1 of each frame (equation ``eq:sup_nmf_obj``)."""
        data, floor = self.data(x)
        return self.cost(data, activations @ self.basis.mT + floor, activations)

    def cost(self, data: Tensor, model: Tensor, activations: Tensor) -> Tensor:
        """The objective, where data and model are known already, as for `moved`."""
        return divergence(data, model, self.beta).sum(-1) + (self.sparsity * activations).sum(-1)

    def data(self, x: Mixture) -> tuple[Tensor, Tensor]:
        """The rows that count, and what is added to their model; below beta = 1 also to them, as d(0 | y) asks."""
        mixture = _frames(x)[..., -self.basis.shape[0] :]
        floor = floor_of(mixture)
        return (mixture + floor if self.beta < 1 else mixture), floor


def _frames(x: Mixture) -> Tensor:
    return x[0] if isinstance(x, tuple) else x
