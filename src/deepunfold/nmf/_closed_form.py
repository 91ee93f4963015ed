"""The split gradients of deep NMF in matrix form (Appendix ``sec:mult_nmf_nonorm``), block by block of frames.

Going down from layer k+1 to layer k needs the two parts of the gradient in H^{k+1} and nothing else from above. Blocks
of frames are independent: memory grows neither with the number of frames nor, beyond the activations of one block,
with the depth.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from deepunfold.core import Unfolded
from deepunfold.nmf._blocks import BLOCK, run
from deepunfold.nmf._check import check_frames, check_non_negative
from deepunfold.nmf._deep import inference_layers
from deepunfold.nmf._divergence import beta_divergence, divergence_split
from deepunfold.nmf._inference import TINY, NMFInference, floor_of
from deepunfold.nmf._loss import MultiplicativeLoss, with_split
from deepunfold.nmf._split import Split


class DeepNMFLoss(MultiplicativeLoss):
    """`MultiplicativeLoss` for networks that `deep_nmf` makes, in closed form.

    The same loss and, in all activations, the same parts of the gradient as the general one. In the bases both parts
    are smaller by the same amount: the paper takes out what the positive part of a layer's derivative holds twice.

    Args:
        beta: as there.
        weights: as there.
        block: frames that are in memory at a time.
    """

    def __init__(self, beta: float = 2.0, weights: Sequence[float] | None = None, block: int = BLOCK) -> None:
        super().__init__(beta, weights)
        self.block = block

    def evaluate(self, net: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        """The loss; with a graph that ends in it where gradients are on."""
        if not isinstance(net, Unfolded):
            raise TypeError(f"this takes a network that deep_nmf makes, not a {type(net).__name__}")
        layers = inference_layers(net)
        trained = [each for each in net.parameters() if each.requires_grad and torch.is_grad_enabled()]
        _check(layers, x, target)
        splits = {id(each): Split(torch.zeros_like(each), torch.zeros_like(each)) for each in trained}
        first = next((k for k, layer in enumerate(layers[:-1]) if _trains(layer, splits)), net.depth)
        value = x.new_zeros((), dtype=torch.float64)
        with torch.no_grad():
            for place, activations in run(layers, first, x, block=self.block):
                value += self._block(layers[first:], x[place], target[place], activations, splits)
        value = value.to(x.dtype)
        if not trained:
            return value
        return with_split(value, [splits[id(each)] for each in trained], trained)

    def _block(
        self, layers: Sequence[NMFInference], mixture: Tensor, target: Tensor, activations: Tensor, splits: "Splits"
    ) -> Tensor:
        """The loss of a block, whose split gradients are added to those of the others."""
        updates = []
        for layer in layers[:-1]:
            updates.append(Update(layer, mixture, activations))
            activations = updates[-1].output
        value, split = self._readout(layers[-1], mixture, target, activations, splits)
        while updates:
            split = updates.pop().backward(split, splits, further=bool(updates))
        return value

    def _readout(
        self, layer: NMFInference, mixture: Tensor, target: Tensor, activations: Tensor, splits: "Splits"
    ) -> tuple[Tensor, Split]:
        """The loss, and its split gradient in H^K; that in W^K is added."""
        mixture = mixture[:, -layer.features :]
        models = layer.models(activations)
        if layer.filtered:
            safe = models + floor_of(mixture)[:, None]
            total = safe.sum(1, keepdim=True)
            share, gain = safe / total, mixture[:, None] / total
            output = share * mixture[:, None]
        else:
            share, gain, output = models, models, models
        weight = self.weight(output)
        value = (weight * beta_divergence(target, output, self.beta)).sum(dtype=torch.float64)
        sides = [weight * side for side in divergence_split(target, output, self.beta)]
        if layer.filtered:
            # More of a source's model is more of that source, and less of each other one.
            others = 1 - torch.eye(models.shape[1], dtype=models.dtype, device=models.device)
            rest = others @ share
            lost = [others @ (side * share) for side in sides]
            sides = [gain * (own * rest + other) for own, other in zip(sides, lost[::-1], strict=True)]
        else:
            sides = [side.expand_as(models) for side in sides]
        basis, below = layer.basis[-layer.features :], []
        parts = list(zip(activations.split(layer.sources, 1), basis.split(layer.sources, 1), strict=True))
        for side, held in zip(sides, splits.get(id(layer.basis), (None, None)), strict=True):
            if held is not None:
                grown = [side[:, source].mT @ own for source, (own, _) in enumerate(parts)]
                held[-layer.features :] += torch.cat(grown, 1)
            below.append(torch.cat([side[:, source] @ columns for source, (_, columns) in enumerate(parts)], 1))
        return value, Split(*below)


Splits: TypeAlias = dict[int, Split]
"""The split gradients of the trained parameters, by the parameters' ``id``; layers that share one add to the same."""


class Update:
    """One update of a block's activations, with what its backward pass needs."""

    def __init__(self, layer: NMFInference, mixture: Tensor, activations: Tensor) -> None:
        data, floor = layer.data(mixture)
        self.layer, self.activations = layer, activations
        self.model = activations @ layer.basis.mT + floor
        self.ratio = data / self.model
        self.pulled = self.ratio @ layer.basis
        self.scale = 1 / (layer.basis.sum(0) + layer.sparsity + TINY)
        self.output = activations * self.pulled * self.scale

    def backward(self, above: Split, splits: Splits, further: bool) -> Split:
        """From the split gradient in H^{k+1} to that in H^k, if it goes further; those in W^k and the sparsity are added."""
        basis, before = self.layer.basis, self.activations
        kept = before * self.scale
        through = [side * kept for side in above]
        bend = self.ratio / self.model
        bent = [(side @ basis.mT).mul_(bend) for side in through]
        grown = self.pulled * self.scale
        shrunk = [(side * grown).sum(0) for side in through]
        if id(basis) in splits:
            twice = basis * (bend.mT @ (before * (through[0] + through[1])))
            for held, same, other, less in zip(splits[id(basis)], through, bent[::-1], shrunk[::-1], strict=True):
                held += (self.ratio.mT @ same).addmm_(other.mT, before).sub_(twice).add_(less).clamp_(min=0)
        if id(self.layer.sparsity) in splits:
            for held, less in zip(splits[id(self.layer.sparsity)], shrunk[::-1], strict=True):
                held += less
        if not further:
            return above
        positive, negative = (
            torch.addmm(side * grown, other, basis) for side, other in zip(above, bent[::-1], strict=True)
        )
        return Split(positive, negative)


def _trains(layer: NMFInference, splits: Splits) -> bool:
    return id(layer.basis) in splits or id(layer.sparsity) in splits


def _check(layers: Sequence[NMFInference], x: Tensor, target: Tensor) -> None:
    check_frames("the mixture", x, layers[0].basis.shape[0])
    last = layers[-1]
    shape = (len(x), len(last.sources), last.features)
    if target.shape != shape:
        raise ValueError(f"the target has the shape {tuple(target.shape)}; give the sources as {shape}")
    check_non_negative("the target", target)
    for layer in layers:
        if layer.beta != 1:
            raise ValueError(f"the closed form is for layers with beta=1, not {layer.beta:g}; use MultiplicativeLoss")
        if parametrize.is_parametrized(layer):
            raise ValueError("the closed form is for bases without a constraint; use MultiplicativeLoss, or backward()")
