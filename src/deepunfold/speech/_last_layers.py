"""The layers that are trained, for frames whose activations after the layers before them are known already.

Those before are not trained and take most of the time: for a set of mixtures they are run once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepunfold.core import Unfolded
from deepunfold.nmf import DeepNMFLoss, infer
from deepunfold.nmf._blocks import blocks
from deepunfold.nmf._closed_form import Sums
from deepunfold.nmf._deep import inference_layers
from deepunfold.nmf._inference import NMFInference
from deepunfold.nmf._loss import with_split

BLOCK = 1024


def first_layers(net: Unfolded) -> int:
    """How many updates come before those that are trained; all of them if none is."""
    layers = inference_layers(net)
    return next((k for k, layer in enumerate(layers[:-1]) if layer.basis.requires_grad), net.depth)


def activations_of(net: Unfolded, mixture: Tensor) -> Tensor:
    """The activations (frames, components) of mixtures in context after the layers that are not trained."""
    return infer(inference_layers(net)[0], mixture, first_layers(net))


@torch.no_grad()
def outputs(net: Unfolded, mixture: Tensor, activations: Tensor) -> Tensor:
    """The sources (frames, n, F) from what `activations_of` gave; the mixture (frames, F) is without context."""
    layers = inference_layers(net)
    for layer in layers[first_layers(net) : -1]:
        activations = layer.step(mixture, activations)
    return layers[-1].readout(mixture, activations)


class LastLayersLoss(DeepNMFLoss):
    """`DeepNMFLoss` of pairs (mixture (frames, F), activations), as for `outputs`."""

    def evaluate(self, net: nn.Module, x: tuple[Tensor, Tensor], target: Tensor) -> Tensor:  # type: ignore[override]
        """The loss; with a graph that ends in it where gradients are on."""
        assert isinstance(net, Unfolded)
        mixture, start = x
        layers: Sequence[NMFInference] = inference_layers(net)[first_layers(net) :]
        trained = [each for each in net.parameters() if each.requires_grad and torch.is_grad_enabled()]
        sums = {id(each): Sums(each) for each in trained}
        value = mixture.new_zeros((), dtype=torch.float64)
        with torch.no_grad():
            for place in blocks(len(mixture), self.block or BLOCK):
                value += self._block(layers, mixture[place], target[place], start[place], sums)
            splits = [sums[id(each)].split() for each in trained]
        value = value.to(mixture.dtype)
        return with_split(value, splits, trained) if trained else value
