"""What a network is trained for (equation ``eq:general:obj2``)."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from deepunfold.core._unfolded import Unfolded

Loss: TypeAlias = Callable[..., Tensor]
"""A function of an output and the rest of a batch, such as ``torch.nn.functional.mse_loss``."""


class Objective:
    """A function of the network itself and a batch, for losses that need more than its output."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function

    def __call__(self, net: nn.Module, *batch: Any) -> Tensor:
        return self.function(net, *batch)


def as_objective(loss: Loss | Objective) -> Objective:
    """A loss of outputs as an objective; an objective as it is."""
    return loss if isinstance(loss, Objective) else Objective(lambda net, x, *rest: loss(net(x), *rest))


def deep_supervision(loss: Loss, weights: Mapping[int, float]) -> Objective:
    """A weighted sum of a loss over several layers: ``{4: 0.3, 8: 1.0}`` weighs the readouts after 4 and 8 steps.

    A layer whose output has no graph (below ``train_last``, or cut off by the backward mode) is an error, since its
    loss would teach nothing.
    """
    chosen = {layer: weight for layer, weight in weights.items() if weight != 0}
    if not chosen:
        raise ValueError(f"weights={dict(weights)} leaves no layer; give at least one a weight other than 0")

    def function(net: Unfolded, x: Any, *rest: Any) -> Tensor:
        total: Tensor | None = None
        for (layer, weight), output in zip(chosen.items(), net.outputs(x, list(chosen)), strict=True):
            term = weight * loss(output, *rest)
            if torch.is_grad_enabled() and not term.requires_grad:
                raise ValueError(
                    f"the output of layer {layer} carries no gradient (train_last={net.train_last}, "
                    f"backward={net.backward!r}), so its loss cannot train anything; leave it out of the weights"
                )
            total = term if total is None else total + term
        assert total is not None
        return total

    return Objective(function)
