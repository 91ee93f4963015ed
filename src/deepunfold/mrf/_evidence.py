"""From an observation to fields: potentials between hidden and observed nodes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepunfold.mrf._graph import Graph

Pairs = Sequence[tuple[int, int]] | Tensor
DENSE = 16
"""With at most this many entries for each edge, a matrix with zeros is multiplied as it is."""


class _Evidence(nn.Module):
    """Edges between hidden and observed nodes, and the sum of what comes along them to each hidden node."""

    hidden: Tensor
    seen: Tensor
    groups: Tensor

    def __init__(self, graph: Graph, edges: Pairs, tables: int, groups: Tensor | None, observed: int | None) -> None:
        super().__init__()
        pairs = torch.as_tensor(edges)
        if pairs.dim() != 2 or pairs.shape[1] != 2 or len(pairs) == 0 or pairs.is_floating_point():
            raise ValueError(
                "edges must be pairs of the numbers of a hidden and an observed node, (edges, 2), at least one, not "
                f"{tuple(pairs.shape)} of {pairs.dtype}"
            )
        self.nodes, self.states = graph.nodes, graph.states
        self.observed = int(pairs[:, 1].max()) + 1 if observed is None else observed
        _check_pairs(pairs, self.nodes, self.observed)
        _check_groups(groups, len(pairs), tables)
        self.register_buffer("hidden", pairs[:, 0].to(torch.int64, copy=True))
        self.register_buffer("seen", pairs[:, 1].to(torch.int64, copy=True))
        self.register_buffer("groups", torch.arange(tables) if groups is None else groups.to(torch.int64, copy=True))

    def along(self, observation: Tensor) -> Tensor:
        """What each edge comes from, (batch, edges)."""
        return observation.gather(1, self.seen.expand(len(observation), -1))

    def collect(self, terms: Tensor) -> Tensor:
        """From those of edges, (batch, states, edges), the sums for nodes, (batch, nodes, states)."""
        total = terms.new_zeros(*terms.shape[:2], self.nodes)
        return total.scatter_add(2, self.hidden.expand(terms.shape), terms).mT  # along the last dimension, for speed

    def check(self, observation: Tensor) -> None:
        """Raise where an observation does not fit."""
        if observation.dim() != 2 or observation.shape[1] != self.observed:
            raise ValueError(f"the observation has the shape {tuple(observation.shape)}; give (batch, {self.observed})")

    def extra_repr(self) -> str:
        return f"{self.observed} observed nodes, {len(self.hidden)} edges to {self.nodes} hidden ones"


class DiscreteEvidence(_Evidence):
    """Psi(h_i, v_l) of observed nodes with values 0 to V - 1, of equation ``eq:mrf_model_hv``: a table for each edge.

    It is the ``evidence`` of a `PairwiseMRF`: a module from observations (batch, observed), whole numbers, to fields
    (batch, nodes, states). Tables have room for the largest number of states and of values that a node has.

    Args:
        graph: the hidden nodes.
        edges: pairs of a hidden and an observed node, as a list or a tensor (L, 2), each once.
        tables: the parameter, (L, states, V), or with ``groups`` (groups, states, V); logarithms, -inf for what is
            impossible.
        groups: the number of the table that each edge has, (L), so that edges share potentials.
        observed: how many nodes are observed; as many as the edges name unless told.
    """

    def __init__(
        self, graph: Graph, edges: Pairs, tables: Tensor, *, groups: Tensor | None = None, observed: int | None = None
    ) -> None:
        if tables.dim() != 3 or tables.shape[1] != graph.states or tables.shape[2] == 0:
            raise ValueError(f"tables have the shape {tuple(tables.shape)}; give (edges, {graph.states}, values)")
        if not tables.is_floating_point() or bool((tables.isnan() | (tables == torch.inf)).any()):
            raise ValueError("tables must be floating-point numbers without NaN and +inf, -inf for what is impossible")
        super().__init__(graph, edges, len(tables), groups, observed)
        self.tables = nn.Parameter(tables.detach().clone())

    @property
    def values(self) -> int:
        """V, the number of values of an observed node."""
        return int(self.tables.shape[2])

    def forward(self, observation: Tensor) -> Tensor:
        """The fields of each sample."""
        self.check(observation)
        columns = self.groups * self.values + self.along(observation.long())
        batch, edges = columns.shape
        flat = self.tables.transpose(0, 1).flatten(1)  # (states, tables * V)
        shape = (batch, self.states, edges)
        if flat.shape[1] <= edges:
            picked = flat.expand(batch, -1, -1).gather(2, columns[:, None].expand(shape))
        else:  # a gradient for each sample would be larger than all else
            first = flat.shape[1] * torch.arange(self.states, device=flat.device)[:, None]
            picked = flat.flatten().gather(0, (first + columns[:, None]).flatten()).reshape(shape)
        return self.collect(picked)

    def check(self, observation: Tensor) -> None:
        """Raise where an observation has another width, or other values than 0 to V - 1."""
        super().check(observation)
        if observation.is_floating_point():
            raise ValueError(f"the observation is of {observation.dtype}; give whole numbers, 0 to {self.values - 1}")
        if torch.compiler.is_compiling() or observation.numel() == 0:
            return
        low, high = torch.aminmax(observation)
        if low < 0 or high >= self.values:
            wrong = (observation < 0) | (observation >= self.values)
            sample, node = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"sample {sample} has the value {int(observation[sample, node])} at observed node {node}; "
                f"there are 0 to {self.values - 1}, and none may be missing"
            )


class RealEvidence(_Evidence):
    """Psi(h_i, v_l) = weights_l(h_i) v_l for real observations, as in C v of equation ``eq:binary-mrf``.

    It is the ``evidence`` of a `PairwiseMRF`: a module from observations (batch, observed) to fields
    (batch, nodes, states).

    Args:
        graph: the hidden nodes.
        edges: pairs of a hidden and an observed node, as a list or a tensor (L, 2), each once.
        weights: the parameter, (L, states), or with ``groups`` (groups, states).
        groups: the number of the weights that each edge has, (L), so that edges share them.
        observed: how many nodes are observed; as many as the edges name unless told.
    """

    def __init__(
        self, graph: Graph, edges: Pairs, weights: Tensor, *, groups: Tensor | None = None, observed: int | None = None
    ) -> None:
        if weights.dim() != 2 or weights.shape[1] != graph.states:
            raise ValueError(f"weights have the shape {tuple(weights.shape)}; give (edges, {graph.states})")
        if not weights.is_floating_point() or not bool(weights.isfinite().all()):
            raise ValueError("weights must be finite floating-point numbers")
        super().__init__(graph, edges, len(weights), groups, observed)
        self.weights = nn.Parameter(weights.detach().clone())

    def forward(self, observation: Tensor) -> Tensor:
        """The fields of each sample."""
        self.check(observation)
        weights = self.weights.T.gather(1, self.groups.expand(self.states, -1))  # (states, edges)
        if self.nodes * self.observed > DENSE * len(self.hidden):
            return self.collect(weights * self.along(observation)[:, None])
        matrix = weights.new_zeros(self.states, self.nodes * self.observed)
        matrix = matrix.scatter_add(1, (self.hidden * self.observed + self.seen).expand_as(weights), weights)
        fields = observation @ matrix.reshape(-1, self.observed).T
        return fields.reshape(len(observation), self.states, self.nodes).mT

    def check(self, observation: Tensor) -> None:
        """Raise where an observation has another width or type, or values that are missing or infinite."""
        super().check(observation)
        if observation.dtype != self.weights.dtype:
            raise ValueError(
                f"the observation is of {observation.dtype}; give {self.weights.dtype}, as the weights are"
            )
        if torch.compiler.is_compiling() or bool(observation.isfinite().all()):
            return
        sample, node = (~observation.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"sample {sample} has the value {float(observation[sample, node])} at observed node {node}; "
            "give finite numbers, and 0 for what is missing and should have no effect"
        )


def _check_pairs(pairs: Tensor, nodes: int, observed: int) -> None:
    """Each mistake by the first pair that makes it."""
    hidden, seen = pairs.T
    order = (hidden * observed + seen).argsort(stable=True)
    again = torch.zeros_like(hidden, dtype=torch.bool)
    again[order[1:]] = (pairs[order[1:]] == pairs[order[:-1]]).all(1)
    for wrong, what in (
        ((hidden < 0) | (hidden >= nodes), f"leads to a hidden node that does not exist; there are 0 to {nodes - 1}"),
        (
            (seen < 0) | (seen >= observed),
            f"leads to an observed node that does not exist; there are 0 to {observed - 1}",
        ),
        (again, "is there twice"),
    ):
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0])
            raise ValueError(f"edge {first}, {tuple(pairs[first].tolist())}, {what}")


def _check_groups(groups: Tensor | None, edges: int, tables: int) -> None:
    if groups is None:
        if tables != edges:
            raise ValueError(f"potentials are {tables}, but there are {edges} edges; give one for each, or groups")
    elif groups.shape != (edges,) or groups.is_floating_point():
        raise ValueError(f"groups must be {edges} whole numbers, one per edge, not {tuple(groups.shape)}")
    elif not 0 <= int(groups.min()) <= int(groups.max()) < tables:
        raise ValueError(
            f"groups name the tables {int(groups.min())} to {int(groups.max())}; there are 0 to {tables - 1}"
        )
