"""From sigmoid networks to unfolded binary Markov random fields, and back (Section 3 of the paper)."""

from typing import cast

import torch
from torch import Tensor, nn

from deepunfold.core import Unfolded, unfold
from deepunfold.mrf._binary import BinaryMRF


def from_sigmoid_network(network: nn.Sequential) -> Unfolded:
    """The unfolded and untied `BinaryMRF` that is a feed-forward network of sigmoid layers (``eq:sigmoidnet``).

    Step k is the network's layer k. The input enters at the first one alone, as C, and A has nothing to read there,
    since mu^0 has no units; the others have no C. All states are as wide as the widest layer. What a layer leaves
    unused of it is held at 0 and has no parameters: weights that stand for nothing could be moved by training, since
    a sigmoid of nothing is 1/2, or by weight decay. So both networks have the same parameters, outputs and gradients,
    and the same trainings; `to_sigmoid_network` leads back at any time.

    Args:
        network: ``nn.Linear`` and ``nn.Sigmoid`` in turns, of any widths.
    """
    linears = _linears(network)
    hidden = max(linear.out_features for linear in linears)
    before, chain = 0, []
    for number, linear in enumerate(linears):
        weight, units = linear.weight, linear.out_features
        none = weight.new_zeros(units, 0)
        coupling, visible = (none, weight) if number == 0 else (weight, none)
        if number and linear.in_features != before:
            raise ValueError(
                f"layer {number} takes {linear.in_features} numbers, but layer {number - 1} gives {before}"
            )
        layer = BinaryMRF(coupling, linear.bias, visible, hidden=hidden)
        layer.requires_grad_(weight.requires_grad)
        layer.bias.requires_grad_(linear.bias is not None and linear.bias.requires_grad)
        chain.append((layer, 1))
        before = units
    return unfold(chain).train(network.training)


def to_sigmoid_network(net: Unfolded) -> nn.Sequential:
    """The feed-forward network of sigmoid layers that an unfolded `BinaryMRF` is, with parameters of its own.

    The input must enter at the first step alone: C of all others has no columns, or zeros. A mu^0 is a part of the
    first bias.
    """
    if net.gates or not all(isinstance(layer, BinaryMRF) for layer in net.layers):
        kinds = ", ".join(dict.fromkeys(type(layer).__name__ for layer in net.layers))
        raise ValueError(f"a sigmoid network has BinaryMRF layers without gates; this one has {kinds}")
    layers = cast("list[BinaryMRF]", list(net.layers))[: net.depth]
    parts: list[nn.Module] = []
    for number, layer in enumerate(layers):
        weight, bias = _weights(layer, number)
        if number and weight.shape[1] != len(layers[number - 1].bias):
            raise ValueError(
                f"layer {number} reads {weight.shape[1]} units, but the one before has {len(layers[number - 1].bias)}"
            )
        parts += [_linear(weight, bias, layer), nn.Sigmoid()]
    return nn.Sequential(*parts).train(net.training)


def _weights(layer: BinaryMRF, number: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer, which the first one has from C, and others from A."""
    visible = layer.visible
    if visible is None:
        raise ValueError(f"layer {number} takes a field in each step; a feed-forward network has weights C, at first")
    if number:
        if bool(visible.detach().any()):
            raise ValueError(
                f"layer {number} sees the input, C is not zero; a feed-forward network sees it in layer 0 alone"
            )
        return layer.coupling.detach(), layer.bias.detach()
    start = layer.start.expand(layer.hidden)[: layer.coupling.shape[1]]
    return visible.detach(), (layer.bias + layer.coupling @ start).detach()


def _linear(weight: Tensor, bias: Tensor, layer: BinaryMRF) -> nn.Linear:
    fixed = not layer.bias.requires_grad and not bool(bias.any())
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=not fixed).to(weight)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if not fixed:
            linear.bias.copy_(bias)
            linear.bias.requires_grad_(layer.bias.requires_grad)
    linear.weight.requires_grad_(layer.coupling.requires_grad)
    return linear


def _linears(network: nn.Sequential) -> list[nn.Linear]:
    """The linear layers of a network that has nothing else but a sigmoid after each."""
    parts = list(network)
    kinds = [nn.Linear, nn.Sigmoid] * (len(parts) // 2 + 1)
    for number, (part, kind) in enumerate(zip(parts, kinds, strict=False)):
        if not isinstance(part, kind):
            raise ValueError(f"module {number} is {type(part).__name__}; give nn.Linear and nn.Sigmoid in turns")
    if not parts or len(parts) % 2:
        raise ValueError(f"the network has {len(parts)} modules; give nn.Linear and nn.Sigmoid in turns, at least one")
    return cast("list[nn.Linear]", parts[::2])
