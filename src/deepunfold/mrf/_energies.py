"""Estimates of log Z from beliefs: mean field, Bethe, tree-reweighted."""

import torch
from torch import Tensor

from deepunfold.mrf._exact import check_potentials
from deepunfold.mrf._graph import Graph


def energy_estimate(
    graph: Graph,
    fields: Tensor,
    pairwise: Tensor,
    beliefs: Tensor,
    pair_beliefs: Tensor | None = None,
    weights: float | Tensor = 1.0,
) -> Tensor:
    """log Z as beliefs have it, (batch): expected potentials + sum_i H_i - sum_e weights_e I_e; minus a free energy.

    H are entropies, and I_e = H_i + H_j - H_ij is the information that the belief of an edge has in common.

    - Without ``pair_beliefs`` it is that of mean field, the bound L of the paper's Section 3.1, which is never above
      log Z: an edge has the product of the beliefs of its nodes, and I_e = 0.
    - With weights of 1 it is that of Bethe, exact on trees and stationary where belief propagation stands still.
    - With weights from `edge_appearances` it is the tree-reweighted one. Its largest value over the beliefs that agree
      with each other is never below log Z.

    0 log 0 is 0. An impossible state counts for nothing where its belief is zero; elsewhere it makes the result -inf.

    Shapes: fields and beliefs (batch, nodes, states), pairwise (E, states, states) or (batch, E, states, states),
    pair_beliefs (batch, E, states, states), weights one number or (E).
    """
    check_potentials(graph, fields, pairwise)
    edges = len(graph.edges)
    for name, tensor, shape in (
        ("beliefs", beliefs, fields.shape),
        ("pair_beliefs", pair_beliefs, (len(fields), edges, graph.states, graph.states)),
    ):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} have the shape {tuple(tensor.shape)}; give {tuple(shape)}")
    factors = torch.as_tensor(weights, dtype=beliefs.dtype, device=beliefs.device)
    if factors.shape not in ((), (edges,)):
        raise ValueError(f"weights have the shape {tuple(factors.shape)}; give one number, or one per edge, ({edges},)")
    first, second = beliefs[:, graph.edges[:, 0]], beliefs[:, graph.edges[:, 1]]
    pairs = first[..., None] * second[..., None, :] if pair_beliefs is None else pair_beliefs
    expected = _expected(beliefs, fields + graph.padding.to(fields)).sum((1, 2)) + _expected(pairs, pairwise).sum(
        (1, 2, 3)
    )
    entropies = _entropy(beliefs).sum(2)
    if pair_beliefs is None:
        return expected + entropies.sum(1)
    shared = entropies[:, graph.edges].sum(2) - _entropy(pairs).sum((2, 3))
    return expected + entropies.sum(1) - (factors * shared).sum(1)


def _expected(beliefs: Tensor, potentials: Tensor) -> Tensor:
    nothing = (beliefs == 0) & (potentials == -torch.inf)
    return beliefs * torch.where(nothing, 0.0, potentials)


def _entropy(beliefs: Tensor) -> Tensor:
    """The term of each state; where the belief is zero, so are the term and its slope."""
    return -beliefs * torch.where(beliefs > 0, beliefs, 1.0).log()
