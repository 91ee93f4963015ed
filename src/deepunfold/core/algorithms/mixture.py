"""Variational EM for a mixture of Gaussians: discrete and continuous variables in one state."""

import math

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


class VariationalMixture(nn.Module):
    """Mean-field inference of labels, means and weights of a mixture of spherical Gaussians, for each data set.

    The model: weights ~ Dirichlet(concentration); mean_c ~ N(prior_mean_c, 1 / (strength_c precision_c));
    a label c ~ weights and a point ~ N(mean_c, 1 / precision_c). The posterior is factorised into labels, means and
    weights, and each step updates the factors of means and weights, then that of the labels, so that the evidence lower
    bound never falls.

    Shapes: x (batch, points, dim); the output, posterior probabilities of the labels, (batch, points, components).
    Parameters: ``prior_mean`` (components, dim), and the logarithms ``log_precision``, ``log_strength``,
    ``log_concentration``, each (components).
    """

    readout_parameters = ()

    def __init__(self, prior_mean: Tensor, precision: float = 1.0, strength: float = 0.1, concentration: float = 1.0):
        super().__init__()
        if prior_mean.dim() != 2:
            raise ValueError(f"prior_mean must have the shape (components, dim), not {tuple(prior_mean.shape)}")
        for name, value in (("precision", precision), ("strength", strength), ("concentration", concentration)):
            if not value > 0:
                raise ValueError(f"{name}={value} must be > 0")
        components = prior_mean.shape[0]
        self.prior_mean = nn.Parameter(prior_mean.detach().clone())
        self.log_precision = nn.Parameter(prior_mean.new_full((components,), math.log(precision)))
        self.log_strength = nn.Parameter(prior_mean.new_full((components,), math.log(strength)))
        self.log_concentration = nn.Parameter(prior_mean.new_full((components,), math.log(concentration)))

    def init(self, x: Tensor) -> State:
        batch = x.shape[0]
        means = self.prior_mean.expand(batch, -1, -1)
        strength, concentration = self.log_strength.exp(), self.log_concentration.exp()
        state = {
            "means": means,
            "strength": strength.expand(batch, -1),
            "concentration": concentration.expand(batch, -1),
        }
        return {**state, "labels": self._scores(x, state).softmax(-1)}

    def step(self, x: Tensor, state: State) -> State:
        labels, prior = state["labels"], self.log_strength.exp()
        counts = labels.sum(1)
        strength = prior + counts
        means = (prior[:, None] * self.prior_mean + labels.mT @ x) / strength[..., None]
        new = {"means": means, "strength": strength, "concentration": self.log_concentration.exp() + counts}
        return {**new, "labels": self._scores(x, new).softmax(-1)}

    def readout(self, x: Tensor, state: State) -> Tensor:
        return state["labels"]

    def bound(self, x: Tensor, state: State) -> Tensor:
        """The evidence lower bound, per data set (equation ``eq:general:obj1`` with its sign turned round)."""
        labels, means, concentration = state["labels"], state["means"], state["concentration"]
        prior_strength, prior = self.log_strength.exp(), self.log_concentration.exp()
        precision, ratio = self.log_precision.exp(), self.log_strength.exp() / state["strength"]
        dim, points = x.shape[2], labels * self._scores(x, state) - torch.xlogy(labels, labels)
        log_two_pi = math.log(2 * math.pi)
        moved = precision * prior_strength * (means - self.prior_mean).square().sum(-1)
        from_means = 0.5 * (dim * (1 + ratio.log() - ratio) - moved).sum(-1)
        expected = digamma(concentration) - digamma(concentration.sum(-1, keepdim=True))
        from_weights = ((prior - concentration) * expected).sum(-1) + _log_beta(concentration) - _log_beta(prior)
        return points.sum((1, 2)) - 0.5 * dim * x.shape[1] * log_two_pi + from_means + from_weights

    def _scores(self, x: Tensor, state: State) -> Tensor:
        """Expected log of weight times density, without the constant: (batch, points, components)."""
        means, concentration = state["means"], state["concentration"]
        precision, dim = self.log_precision.exp(), x.shape[2]
        weight = digamma(concentration) - digamma(concentration.sum(-1, keepdim=True))
        distance = (x[:, :, None, :] - means[:, None]).square().sum(-1)
        spread = dim / state["strength"]
        return (weight + 0.5 * dim * self.log_precision - 0.5 * spread)[:, None] - 0.5 * precision * distance


def digamma(x: Tensor) -> Tensor:
    """The derivative of log Gamma for x > 0, from operations that ONNX has: shifted by ten, then Stirling's series."""
    shift = sum(1 / (x + i) for i in range(10))
    large = x + 10
    series, power = torch.zeros_like(x), torch.ones_like(x)
    for coefficient in (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12):
        power = power / large.square()
        series = series + coefficient * power
    return large.log() - 0.5 / large - series - shift


def _log_beta(concentration: Tensor) -> Tensor:
    """The logarithm of the normaliser of a Dirichlet density."""
    return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))
