"""What networks of message passing are trained for: marginals that are known, or labels of nodes.

Both take logarithms of marginals, (batch, nodes, states), which a network gives with ``estimator=nn.Identity()``: the
logarithm of a marginal that is rounded to zero would be lost.
"""

import torch
from torch import Tensor, nn


def marginal_loss(log_marginals: Tensor, marginals: Tensor) -> Tensor:
    """The mean over nodes of the divergence KL(marginals || estimate); 0 where they are equal."""
    if log_marginals.shape != marginals.shape:
        raise ValueError(f"marginals have the shape {tuple(marginals.shape)}; give {tuple(log_marginals.shape)}")
    possible = marginals > 0
    known = torch.where(possible, marginals, 1.0).log()
    terms = marginals * (known - torch.where(possible, log_marginals, 0.0))
    return terms.sum(-1).mean()


def label_loss(log_marginals: Tensor, labels: Tensor) -> Tensor:
    """The mean of -log of the marginal of each node's true state; labels (batch, nodes), -1 where none is known."""
    if labels.shape != log_marginals.shape[:-1] or labels.is_floating_point():
        raise ValueError(
            f"labels have the shape {tuple(labels.shape)} and dtype {labels.dtype}; give whole numbers "
            f"{tuple(log_marginals.shape[:-1])}"
        )
    if not bool((labels >= 0).any()):
        raise ValueError("no label is known: all are -1")
    return nn.functional.nll_loss(log_marginals.flatten(0, -2), labels.flatten(), ignore_index=-1)
