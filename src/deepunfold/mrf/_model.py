"""Pairwise Markov random fields: a graph with potentials, which are parameters or come with each input."""

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from deepunfold.mrf._graph import Graph

Input: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""An observation, or an observation and the pairwise potentials (batch, E, states, states) of each sample."""


class Potentials(NamedTuple):
    """Logarithms of the factors: fields (batch, nodes, states) of single nodes, with -inf for states that a node does
    not have, and pairwise ones (E, states, states) or (batch, E, states, states), the edge's first node first.
    """

    fields: Tensor
    pairwise: Tensor


class PairwiseMRF(nn.Module):
    """p(h | v) is proportional to exp(sum_i unary_i(h_i) + sum_(i,j) Psi(h_i, h_j) + sum_i evidence_i(h_i, v)).

    This is equation ``eq:mrf_model_hv``; what hangs on one hidden node alone has a term of its own. Every potential is
    a logarithm, -inf where a state is impossible, and every one can be trained.

    Called with an input it gives the `Potentials` of each sample. An input is the observation; without ``evidence`` it
    is the fields themselves, (batch, nodes, states), such as those of `clamp`. A model without ``pairwise`` takes the
    potentials of each sample along with it: ``(observation, pairwise)``, pairwise (batch, E, states, states).

    Args:
        graph: the hidden nodes.
        pairwise: Psi of each edge, (E, states, states), the first node's states first; or, with ``groups``, of each
            group, (groups, states, states); or None where they come with each input. Entries beyond the number of
            states of a node are of no consequence.
        unary: a potential of each node, (nodes, states), or none.
        evidence: a module from an observation to fields (batch, nodes, states), such as `DiscreteEvidence`.
        groups: the number of the table that each edge has, (E), so that edges share potentials.
    """

    groups: Tensor | None

    def __init__(
        self,
        graph: Graph,
        pairwise: Tensor | None = None,
        unary: Tensor | None = None,
        *,
        evidence: nn.Module | None = None,
        groups: Tensor | None = None,
    ) -> None:
        super().__init__()
        edges, states = len(graph.edges), graph.states
        tables = edges if groups is None else _check_groups(groups, edges)
        if pairwise is not None:
            _check("pairwise", pairwise, (tables if groups is None else len(pairwise), states, states))
            if groups is not None and len(pairwise) < tables:
                raise ValueError(f"groups name table {tables - 1}, but there are {len(pairwise)}")
        elif groups is not None:
            raise ValueError("groups share potentials of the model; give these, or no groups")
        if unary is not None:
            _check("unary", unary, (graph.nodes, states))
        self.graph = graph
        self.pairwise = None if pairwise is None else nn.Parameter(pairwise.detach().clone())
        self.unary = None if unary is None else nn.Parameter(unary.detach().clone())
        self.evidence = evidence
        self.register_buffer("groups", None if groups is None else groups.clone())

    def forward(self, x: Input) -> Potentials:
        """The potentials of each sample."""
        return Potentials(self.fields(x), self.tables(x))

    def fields(self, x: Input) -> Tensor:
        """All that hangs on single nodes, (batch, nodes, states)."""
        observation = x[0] if isinstance(x, tuple) else x
        fields: Tensor = observation if self.evidence is None else self.evidence(observation)
        if self.unary is not None:
            fields = fields + self.unary
        return fields + self.graph.padding.to(fields.dtype)

    def tables(self, x: Input) -> Tensor:
        """The pairwise potentials, (E, states, states), with a batch in front where they come with the input."""
        if self.pairwise is None:
            return x[1]
        return self.pairwise if self.groups is None else self.pairwise[self.groups]

    def check(self, x: Input) -> None:
        """Raise where an input does not fit, unless a graph is being traced."""
        if torch.compiler.is_compiling():
            return
        if isinstance(x, tuple) == (self.pairwise is not None):
            need = "the observation alone" if self.pairwise is not None else "(observation, pairwise potentials)"
            raise ValueError(f"x is {'a tuple' if isinstance(x, tuple) else 'no tuple'}; this model takes {need}")
        graph = self.graph
        observation = x[0] if isinstance(x, tuple) else x
        if self.evidence is None:
            _check("fields", observation, (len(observation), graph.nodes, graph.states))
        if isinstance(x, tuple):
            _check("pairwise", x[1], (len(observation), len(graph.edges), graph.states, graph.states))
        impossible = (self.fields(x) == -torch.inf).all(-1)  # evidence checks what it is given
        if bool(impossible.any()):
            sample, node = impossible.nonzero()[0].tolist()
            raise ValueError(f"sample {sample} leaves node {node} no state that is possible")


def clamp(graph: Graph, states: Tensor) -> Tensor:
    """Fields that hold nodes to a state: 0 for that state and -inf for others; -1 leaves a node free.

    Shapes: states (batch, nodes) of whole numbers, result (batch, nodes, states).
    """
    if states.dim() != 2 or states.shape[1] != graph.nodes or states.is_floating_point():
        raise ValueError(
            f"states must be whole numbers (batch, {graph.nodes}), not {tuple(states.shape)} of {states.dtype}"
        )
    counts = (graph.padding == 0).sum(1)
    wrong = (states < -1) | (states >= counts)
    if bool(wrong.any()):
        sample, node = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"sample {sample} has node {node} in state {int(states[sample, node])}; it has the states 0 to "
            f"{int(counts[node]) - 1}, and -1 leaves it free"
        )
    held = (states[..., None] >= 0) & (states[..., None] != torch.arange(graph.states, device=states.device))
    return torch.zeros(held.shape, device=states.device).masked_fill(held, -torch.inf) + graph.padding


def _check_groups(groups: Tensor, edges: int) -> int:
    """How many tables they need."""
    if groups.shape != (edges,) or groups.is_floating_point():
        raise ValueError(f"groups must be {edges} whole numbers, one per edge, not {tuple(groups.shape)}")
    if edges and int(groups.min()) < 0:
        raise ValueError(f"groups are numbers from 0, but the least is {int(groups.min())}")
    return int(groups.max()) + 1 if edges else 0


def _check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}; give {shape}")
    if not tensor.is_floating_point():
        raise ValueError(f"{name} is of {tensor.dtype}; give float32 or float64")
    if tensor.numel() and bool((tensor.isnan() | (tensor == torch.inf)).any()):
        raise ValueError(f"{name} has values that are NaN or +inf; a potential is a logarithm, -inf for impossible")
