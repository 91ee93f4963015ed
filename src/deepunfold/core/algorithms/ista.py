"""Iterative soft thresholding for sparse coding, in the two forms that are unfolded in the literature."""

import torch
from torch import Tensor, nn

from deepunfold.core.algorithms import _lasso


class ISTA(nn.Module):
    """z <- soft(z + W (x - D z), threshold), with W = D^T / L and threshold = sparsity / L.

    Converges to the lasso's solution. With the dictionary D tied and fixed, and W and the threshold untied, it is the
    network with coupled weights of Chen, Liu, Wang and Yin (2018).

    Shapes: x (batch, m), state and output z (batch, n). Parameters: ``dictionary`` D (m, n), ``analysis`` W (n, m),
    ``threshold`` (n).
    """

    def __init__(self, dictionary: Tensor, sparsity: float = 0.1) -> None:
        super().__init__()
        dictionary = _lasso.check(dictionary, sparsity)
        curvature = _lasso.lipschitz(dictionary)
        self.sparsity = sparsity
        self.dictionary = nn.Parameter(dictionary.clone())
        self.analysis = nn.Parameter((dictionary.mT / curvature).contiguous())
        self.threshold = nn.Parameter((sparsity / curvature).expand(dictionary.shape[1]).clone())

    def init(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[0], self.dictionary.shape[1])

    def step(self, x: Tensor, z: Tensor) -> Tensor:
        misfit = x - z @ self.dictionary.mT
        return _lasso.soft_threshold(z + misfit @ self.analysis.mT, self.threshold)

    def objective(self, x: Tensor, z: Tensor) -> Tensor:
        """The lasso objective, per sample."""
        return _lasso.objective(self.dictionary, self.sparsity, x, z)


class LISTA(nn.Module):
    """z <- soft(E x + S z, threshold), with E = D^T / L and S = I - D^T D / L: `ISTA` with the product carried out.

    Untied, it is the network of Gregor and LeCun (2010). Parameters: ``encoder`` E (n, m), ``inhibition`` S (n, n),
    ``threshold`` (n).
    """

    def __init__(self, dictionary: Tensor, sparsity: float = 0.1) -> None:
        super().__init__()
        dictionary = _lasso.check(dictionary, sparsity)
        curvature, atoms = _lasso.lipschitz(dictionary), dictionary.shape[1]
        identity = torch.eye(atoms, dtype=dictionary.dtype, device=dictionary.device)
        self.encoder = nn.Parameter((dictionary.mT / curvature).contiguous())
        self.inhibition = nn.Parameter(identity - dictionary.mT @ dictionary / curvature)
        self.threshold = nn.Parameter((sparsity / curvature).expand(atoms).clone())

    def init(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[0], self.inhibition.shape[0])

    def step(self, x: Tensor, z: Tensor) -> Tensor:
        return _lasso.soft_threshold(x @ self.encoder.mT + z @ self.inhibition.mT, self.threshold)
