"""Sparse NMF: bases learnt from examples of one kind of data (Section 5.3 of the paper, equation ``eq:snmf_obj``)."""

import torch
from torch import Tensor

from deepunfold.core._progress import bar
from deepunfold.nmf._basis import Statistics, gather, updated
from deepunfold.nmf._blocks import block_of, blocks, infer
from deepunfold.nmf._check import check_basis, check_frames, check_sparsity
from deepunfold.nmf._divergence import check_beta
from deepunfold.nmf._inference import NMFInference, start_of


class SparseNMF:
    """Learn W and H with S ~ W H: columns of W of unit L2 norm, H sparse, both non-negative.

    Minimises D_beta(S | W H) + sparsity |H|_1; no update ever increases it (see `_basis`).

    Args:
        components: R, the number of columns to learn.
        sparsity: the weight of the L1 norm of the activations.
        beta: of the divergence: 1 for Kullback-Leibler, 2 for half the squared error, 0 for Itakura-Saito.
        start: "exemplars", frames drawn from the data; "random"; or a basis (rows, components).
        kept: a basis (rows, any) that is used beside the learnt one and not changed, but for the scale of its columns.
        seed: for the draw of exemplars, or of random numbers.

    Attributes:
        basis: W (rows, components), the kept columns first.
        activations: H (frames, components), of the last `fit`.
        objective: the value at the start of `fit` and after each of its steps, summed over the frames.
        converged: whether the last `fit` ended because it had converged.
    """

    def __init__(
        self,
        components: int,
        *,
        sparsity: float = 0.0,
        beta: float = 1.0,
        start: str | Tensor = "exemplars",
        kept: Tensor | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(components, bool) or not isinstance(components, int) or components < 1:
            raise ValueError(f"components={components!r} must be a whole number from 1")
        check_sparsity(sparsity)
        check_beta(beta)
        if isinstance(start, str) and start not in ("exemplars", "random"):
            raise ValueError(f'start={start!r} is unknown; use "exemplars", "random" or a basis')
        for name, given in (("start", start), ("kept", kept)):
            if isinstance(given, Tensor):
                check_basis(given, name)
        if isinstance(start, Tensor) and start.shape[1] != components:
            raise ValueError(f"start has {start.shape[1]} columns, but components={components}")
        self.components, self.sparsity, self.beta, self.seed = components, float(sparsity), float(beta), seed
        self.start, self.kept = start, kept
        self.basis: Tensor | None = None
        self.activations: Tensor | None = None
        self.objective: list[float] = []
        self.converged = False
        self._seen: Statistics | None = None

    @torch.no_grad()
    def fit(
        self,
        frames: Tensor,
        *,
        steps: int = 200,
        tolerance: float = 1e-5,
        activations: Tensor | None = None,
        progress: bool | None = None,
    ) -> "SparseNMF":
        """Learn from frames (frames, rows), updating H and then W at each step.

        Args:
            frames: the data. A second `fit` goes on with the basis of the first.
            steps: the most steps that are taken.
            tolerance: converged when a step lowers the objective by less than this fraction of it; a negative one
                takes all steps.
            activations: (frames, components), to start from instead of equal ones, such as those of an earlier fit.
            progress: show a bar; by default where standard error is a terminal.
        """
        basis = self._ready(frames)
        shape = (len(frames), basis.shape[1])
        if activations is not None and activations.shape != shape:
            raise ValueError(f"activations have the shape {tuple(activations.shape)}; give {shape}")
        current = (start_of(frames, shape[1]) if activations is None else activations).clone()
        self.objective, self.converged, self._seen = [], False, None
        with bar("sparse NMF", steps, progress) as advance:
            for _ in range(steps):
                cost, seen = self._pass(basis, frames, current)
                basis, norms = self._moved(basis, seen)
                current *= norms
                self.objective.append(cost)
                advance(f"objective {cost:.6g}")
                if len(self.objective) > 1 and self.objective[-2] - cost < tolerance * abs(cost):
                    self.converged = True
                    break
        self.objective.append(self._cost(basis, frames, current))
        self.basis, self.activations = basis, current
        return self

    @torch.no_grad()
    def partial_fit(self, frames: Tensor, *, steps: int = 20, forget: float = 1.0) -> "SparseNMF":
        """Learn from one batch of data that do not fit into memory; call it for each batch, as often as wanted.

        What the update of W needs to know of earlier batches is kept as statistics of the size of W.

        Args:
            frames: a batch (frames, rows).
            steps: updates of the batch's activations before W is updated once.
            forget: how much earlier batches still count. Over several passes through the data, take less than 1, so
                that what was found with an older W fades.
        """
        if not 0 <= forget <= 1:
            raise ValueError(f"forget={forget} must be between 0 (only this batch counts) and 1 (all count alike)")
        basis = self._ready(frames)
        current = infer(self._layer(basis), frames, steps)
        _cost, new = self._pass(basis, frames, current, infer_first=False)
        seen = Statistics.zeros(basis) if self._seen is None else self._seen
        seen.add(new, forget)
        self.basis, norms = self._moved(basis, seen)
        seen.rescale(norms, self.beta)
        self._seen, self.activations = seen, None
        return self

    def transform(self, frames: Tensor, steps: int = 100) -> Tensor:
        """The activations (frames, components) of other data, with W as it is."""
        if self.basis is None:
            raise ValueError("there is no basis yet; call fit or partial_fit first")
        return infer(self._layer(self.basis), frames, steps)

    def _pass(
        self, basis: Tensor, frames: Tensor, activations: Tensor, infer_first: bool = True
    ) -> tuple[float, Statistics]:
        """Go through the data once: the objective, activations updated in place after that, and statistics for W."""
        layer = self._layer(basis)
        cost, seen = frames.new_zeros((), dtype=torch.float64), Statistics.zeros(basis)
        for place in blocks(len(frames), block_of(frames)):
            own = activations[place]
            data, floor = layer.data(frames[place])
            model = own @ basis.mT + floor
            if infer_first:
                cost += layer.cost(data, model, own).sum(dtype=torch.float64)
                own.copy_(layer.moved(data, model, own))
                model = own @ basis.mT + floor
            seen.add(gather(basis, data, model, own, self.sparsity, self.beta))
        return float(cost), seen

    def _cost(self, basis: Tensor, frames: Tensor, activations: Tensor) -> float:
        layer = self._layer(basis)
        parts = (layer.objective(frames[part], activations[part]) for part in blocks(len(frames), block_of(frames)))
        return sum(float(part.sum(dtype=torch.float64)) for part in parts)

    def _layer(self, basis: Tensor) -> NMFInference:
        return NMFInference(basis, sparsity=self.sparsity, beta=self.beta)

    def _moved(self, basis: Tensor, seen: Statistics) -> tuple[Tensor, Tensor]:
        """The updated basis with columns of unit norm, and the norms that they had."""
        new = updated(basis, seen, self.beta)
        kept = 0 if self.kept is None else self.kept.shape[1]
        new[:, :kept] = basis[:, :kept]
        norms = _norms(new)
        norms[:kept] = 1.0
        return new / norms, norms

    def _ready(self, frames: Tensor) -> Tensor:
        """The basis to go on with, or the one to start from; the data are checked."""
        check_frames("the data", frames, None if self.basis is None else self.basis.shape[0])
        if frames.dim() != 2:
            raise ValueError(f"the data must have the shape (frames, rows), not {tuple(frames.shape)}")
        if self.basis is not None:
            return self.basis.to(frames)
        for name, given in (("start", self.start), ("kept", self.kept)):
            if isinstance(given, Tensor) and given.shape[0] != frames.shape[1]:
                raise ValueError(f"{name} has {given.shape[0]} rows, but frames have {frames.shape[1]} values")
        kept = [] if self.kept is None else [self.kept.to(frames)]
        basis = torch.cat([*kept, self._first(frames)], dim=1)
        return basis / _norms(basis)

    def _first(self, frames: Tensor) -> Tensor:
        """The columns that learning starts from."""
        if isinstance(self.start, Tensor):
            return self.start.to(frames)
        generator = torch.Generator().manual_seed(self.seed)
        if self.start == "random":
            return torch.rand(frames.shape[1], self.components, generator=generator, dtype=frames.dtype).to(frames)
        sounding = (frames.amax(1) > 0).nonzero().squeeze(1)
        if len(sounding) < self.components:
            raise ValueError(
                f"{self.components} exemplars were asked for, but only {len(sounding)} of {len(frames)} frames are not "
                'silent; give more frames, fewer components, or start="random"'
            )
        chosen = torch.randperm(len(sounding), generator=generator)[: self.components]
        # An entry that is zero could never grow: an exemplar gets a little of the mean frame.
        return (frames[sounding[chosen.to(frames.device)]] + 1e-3 * frames.mean(0)).mT


def _norms(basis: Tensor) -> Tensor:
    """The L2 norm of each column, to divide by: 1 for those that are zero."""
    norms = basis.norm(dim=0)
    return torch.where(norms > 0, norms, 1.0)
