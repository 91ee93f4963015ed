"""Losses whose ``backward`` leaves split gradients, for any network."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from deepunfold.core import Objective
from deepunfold.nmf._divergence import beta_divergence, divergence_split
from deepunfold.nmf._split import Split, split_gradients


class _WithSplit(torch.autograd.Function):
    """A value whose gradients are known already; its backward pass also hands the parameters their two parts."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, splits: Sequence[Split], *parameters: Tensor) -> Tensor:
        ctx.splits, ctx.parameters = splits, parameters
        return value.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradients = []
        for parameter, split in zip(ctx.parameters, ctx.splits, strict=True):
            own = Split(*(scale.abs() * part for part in (split if scale >= 0 else split[::-1])))
            before = getattr(parameter, "split_grad", None)
            if before is not None:
                parameter.split_grad = Split(before.positive + own.positive, before.negative + own.negative)
            else:
                parameter.split_grad = own
            gradients.append(own.positive - own.negative)
        return (None, None, *gradients)


def with_split(value: Tensor, splits: Sequence[Split], parameters: Sequence[Tensor]) -> Tensor:
    """The value as the end of a graph: ``backward`` adds to ``grad`` and to ``split_grad`` of each parameter."""
    attach: Callable[..., Tensor] = _WithSplit.apply
    return attach(value, splits, *parameters)


class MultiplicativeLoss(Objective):
    """The loss of a network's output, for training by `MultiplicativeUpdate` with `fit` or with a loop of one's own.

    ``loss(net, x, target)`` is the sum of weighted beta-divergences (equations ``eq:real_dnmf`` and
    ``eq:real_dnmf_wiener``). Its ``backward()`` gives each trained parameter ``split_grad``, the two parts of its
    gradient, and ``grad``, their difference; both add up over calls until they are set to None.

    Args:
        beta: of the divergence of target and output (beta_2 in the paper).
        weights: gamma_l, one per source, where outputs have the shape (frames, sources, features); all 1 unless told.
    """

    def __init__(self, beta: float = 2.0, weights: Sequence[float] | None = None) -> None:
        super().__init__(self.evaluate)
        self.beta, self.weights = beta, weights

    def evaluate(self, net: nn.Module, x: Any, target: Tensor) -> Tensor:
        """The loss; with a graph that ends in it where gradients are on."""
        output = net(x)
        weight = self.weight(output)
        value = (weight * beta_divergence(target, output.detach(), self.beta)).sum()
        if not torch.is_grad_enabled():
            return value
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        parts = [weight * part for part in divergence_split(target, output.detach(), self.beta)]
        positive, negative = (part.expand_as(output) for part in parts)
        return with_split(value, split_gradients([output], [(positive, negative)], trained), trained)

    def weight(self, output: Tensor) -> Tensor:
        """gamma_l in a shape that multiplies outputs."""
        if self.weights is None:
            return output.new_ones(())
        if output.dim() < 2 or output.shape[-2] != len(self.weights) or min(self.weights) < 0:
            raise ValueError(
                f"weights={tuple(self.weights)} must be one number >= 0 per source of the output {tuple(output.shape)}"
            )
        return output.new_tensor(self.weights)[:, None]
