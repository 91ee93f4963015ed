"""Gradient descent on a smoothed lasso: the plainest algorithm that can be unfolded."""

import torch
from torch import Tensor, nn

from deepunfold.core.algorithms import _lasso


class GradientDescent(nn.Module):
    """z <- z - rate * gradient of 1/2 ||x - D z||^2 + sparsity * sum(sqrt(z^2 + smoothing^2)).

    Shapes: x (batch, m), state and output z (batch, n). Parameters: ``dictionary`` (m, n) and ``rate``.
    """

    def __init__(self, dictionary: Tensor, sparsity: float = 0.1, smoothing: float = 0.1) -> None:
        super().__init__()
        dictionary = _lasso.check(dictionary, sparsity)
        self.sparsity, self.smoothing = sparsity, smoothing
        self.dictionary = nn.Parameter(dictionary.clone())
        self.rate = nn.Parameter(1 / (_lasso.lipschitz(dictionary) + sparsity / smoothing))

    def init(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[0], self.dictionary.shape[1])

    def step(self, x: Tensor, z: Tensor) -> Tensor:
        misfit = z @ self.dictionary.mT - x
        slope = self.sparsity * z / torch.sqrt(z.square() + self.smoothing**2)
        return z - self.rate * (misfit @ self.dictionary + slope)

    def objective(self, x: Tensor, z: Tensor) -> Tensor:
        """The smoothed objective, per sample."""
        misfit = x - z @ self.dictionary.mT
        roughness = torch.sqrt(z.square() + self.smoothing**2).sum(-1)
        return 0.5 * misfit.square().sum(-1) + self.sparsity * roughness
