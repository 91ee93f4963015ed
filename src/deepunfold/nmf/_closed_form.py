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
from deepunfold.nmf._blocks import run
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
        block: frames that are in memory at a time; what suits the device unless told.
    """

    def __init__(self, beta: float = 2.0, weights: Sequence[float] | None = None, block: int | None = None) -> None:
        super().__init__(beta, weights)
        self.block = block

    def evaluate(self, net: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        """The loss; with a graph that ends in it where gradients are on."""
        if not isinstance(net, Unfolded):
            raise TypeError(f"this takes a network that deep_nmf makes, not a {type(net).__name__}")
        layers = inference_layers(net)
        trained = [each for each in net.parameters() if each.requires_grad and torch.is_grad_enabled()]
        _check(layers, x, target)
        sums = {id(each): Sums(each) for each in trained}
        first = next((k for k, layer in enumerate(layers[:-1]) if _trains(layer, sums)), net.depth)
        value = x.new_zeros((), dtype=torch.float64)
        with torch.no_grad():
            for place, activations in run(layers, first, x, block=self.block):
                value += self._block(layers[first:], x[place], target[place], activations, sums)
            splits = [sums[id(each)].split() for each in trained]
        value = value.to(x.dtype)
        return with_split(value, splits, trained) if trained else value

    def _block(
        self, layers: Sequence[NMFInference], mixture: Tensor, target: Tensor, activations: Tensor, sums: "AllSums"
    ) -> Tensor:
        """The loss of a block, whose split gradients are added to those of the others."""
        updates = []
        for layer in layers[:-1]:
            updates.append(Update(layer, mixture, activations))
            activations = updates[-1].output
        value, split = self._readout(layers[-1], mixture, target, activations, sums)
        while updates:
            split = updates.pop().backward(split, sums, further=bool(updates))
        return value

    def _readout(
        self, layer: NMFInference, mixture: Tensor, target: Tensor, activations: Tensor, sums: "AllSums"
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
        held = sums.get(id(layer.basis))
        for number, side in enumerate(sides):
            if held is not None:
                grown = [side[:, source].mT @ own for source, (own, _) in enumerate(parts)]
                held.parts[number][-layer.features :] += torch.cat(grown, 1)
            below.append(torch.cat([side[:, source] @ columns for source, (_, columns) in enumerate(parts)], 1))
        return value, Split(*below)


class Sums:
    """What all blocks add up to for one parameter; layers that share it add to the same."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self.parts = torch.zeros_like(parameter), torch.zeros_like(parameter)
        self.twice = torch.zeros_like(parameter)

    def split(self) -> Split:
        """The parts without what both hold too much: w times ``twice``."""
        positive, negative = (part.addcmul(self.parameter, self.twice, value=-1).clamp_(min=0) for part in self.parts)
        return Split(positive, negative)


AllSums: TypeAlias = dict[int, Sums]
"""By the parameters' ``id``."""


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

    def backward(self, above: Split, sums: AllSums, further: bool) -> Split:
        """From the split gradient in H^{k+1} to that in H^k, if it goes further; the parameters' own are added."""
        basis, before = self.layer.basis, self.activations
        kept, grown = before * self.scale, self.pulled * self.scale
        through = [side * kept for side in above]
        bend = self.ratio / self.model
        bent = [(side @ basis.mT).mul_(bend) for side in through]
        straight = [side * grown for side in above]
        # W and mu in the denominator make less of H^{k+1}: what is positive above is negative below.
        shrunk = [(side * before).sum(0).mul_(self.scale) for side in straight]
        held = sums.get(id(basis))
        if held is not None:
            held.twice.addmm_(bend.mT, (through[0] + through[1]).mul_(before))
            for part, same, other, less in zip(held.parts, through, bent[::-1], shrunk[::-1], strict=True):
                part.addmm_(self.ratio.mT, same).addmm_(other.mT, before).add_(less)
        held = sums.get(id(self.layer.sparsity))
        if held is not None:
            for part, less in zip(held.parts, shrunk[::-1], strict=True):
                part.add_(less)
        if further:
            above = Split(*(own.addmm_(other, basis) for own, other in zip(straight, bent[::-1], strict=True)))
        return above


def _trains(layer: NMFInference, sums: AllSums) -> bool:
    return id(layer.basis) in sums or id(layer.sparsity) in sums


def _check(layers: Sequence[NMFInference], x: Tensor, target: Tensor) -> None:
    check_frames("the mixture", x, layers[0].basis.shape[0])
    last = layers[-1]
    if not last.sources:
        raise ValueError(
            "the network reads out activations; say which columns belong to which source, as deep_nmf does"
        )
    shape = (len(x), len(last.sources), last.features)
    if target.shape != shape:
        raise ValueError(f"the target has the shape {tuple(target.shape)}; give the sources as {shape}")
    check_non_negative("the target", target)
    for layer in layers:
        if layer.beta != 1:
            raise ValueError(f"the closed form is for layers with beta=1, not {layer.beta:g}; use MultiplicativeLoss")
        if parametrize.is_parametrized(layer):
            raise ValueError("the closed form is for bases without a constraint; use MultiplicativeLoss, or backward()")
