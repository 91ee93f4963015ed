"""The networks of `recipes.mrf_digits`: two hidden layers and a linear one, from pixels to ten logits."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from deepunfold.mrf import BeliefSigmoid, BeliefSoftmax, LogMaxProduct, LogSumProduct, Maxout, SoftMaxout

PIXELS, DIGITS = 64, 10


class BothStates(nn.Module):
    """The beliefs of both states of each pixel, (batch, pixels, 2)."""

    def forward(self, beliefs: Tensor) -> Tensor:
        """That of 0, and that of 1."""
        return torch.stack([1 - beliefs, beliefs], -1)


class Logarithms(nn.Module):
    """The logarithms of beliefs, none of which is taken for certain."""

    def forward(self, beliefs: Tensor) -> Tensor:
        """Of beliefs between 0.02 and 0.98."""
        return beliefs.lerp(torch.full_like(beliefs, 0.5), 0.04).log()


def two(layer: Callable[[int, int], nn.Module], units: int) -> nn.Sequential:
    """Two hidden layers that give a number per unit."""
    return nn.Sequential(layer(PIXELS, units), layer(units, units), nn.Linear(units, DIGITS))


def sigmoid(units: int) -> nn.Sequential:
    """Linear layers and sigmoids, with the first weights of `BeliefSigmoid`."""
    network = two(partial(BeliefSigmoid, lambda_=0.0), units)
    first, second = (layer.to_linear() for layer in with_lambda(network))
    return nn.Sequential(first, nn.Sigmoid(), second, nn.Sigmoid(), network[2])


def with_lambda(network: nn.Module) -> list[BeliefSigmoid]:
    """The hidden layers that have a lambda."""
    return [layer for layer in network.modules() if isinstance(layer, BeliefSigmoid)]


def learnt(units: int) -> nn.Sequential:
    """A lambda in each layer that starts in the middle."""
    return two(lambda ahead, after: BeliefSigmoid(ahead, after, nn.Parameter(torch.tensor(0.5))), units)


def five_states(units: int, lambda_: float) -> nn.Sequential:
    """Units of five states, which have four free numbers each."""
    count = units // 4
    first, second = BeliefSoftmax(PIXELS, count, (2, 5), lambda_), BeliefSoftmax(count, count, 5, lambda_)
    return nn.Sequential(BothStates(), first, second, nn.Flatten(), nn.Linear(5 * count, DIGITS))


def log_form(layer: Callable[[int, int], nn.Module], units: int) -> nn.Sequential:
    """Units of two states, with numbers instead of beliefs."""
    hidden = layer(PIXELS, units), layer(units, units)
    return nn.Sequential(BothStates(), Logarithms(), *hidden, nn.Flatten(), nn.Linear(2 * units, DIGITS))


def converted(network: nn.Sequential) -> nn.Sequential:
    """A sigmoid network as one that has a lambda, 0 at first."""
    first, second, last = (layer for layer in network.modules() if isinstance(layer, nn.Linear))
    return nn.Sequential(BeliefSigmoid.from_linear(first), BeliefSigmoid.from_linear(second), last)


NETWORKS: Mapping[str, Callable[[int], nn.Sequential]] = {
    "sigmoid": sigmoid,
    "belief propagation": partial(two, BeliefSigmoid),
    "lambda learnt": learnt,
    "5 states, lambda = 0": partial(five_states, lambda_=0.0),
    "5 states, lambda = 1": partial(five_states, lambda_=1.0),
    "log sum-product": partial(log_form, LogSumProduct),
    "log max-product": partial(log_form, LogMaxProduct),
    "maxout": partial(two, Maxout),
    "soft maxout": partial(two, SoftMaxout),
}
"""Each from the free numbers of a hidden layer."""
