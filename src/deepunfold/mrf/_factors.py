"""Factors over any number of nodes as a pairwise model, and back.

"More general MRFs with higher-order factors can be easily expressed as pairwise MRFs by creating an auxiliary random
variable for each higher-order factor" (Section 3 of the paper): its states are the joint states of the factor's nodes,
its own potential is the factor, and edges hold it to the states of these nodes.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from deepunfold.mrf._graph import Graph
from deepunfold.mrf._model import Input, PairwiseMRF

Factor: TypeAlias = tuple[Sequence[int], Tensor]
"""Nodes, and a table of logarithms with one dimension for each of them, in their order."""
LARGEST = 1 << 27
"""The most numbers that the potentials of all nodes or of all edges may have, padded to equal size."""


class FactorGraph(Graph):
    """A graph of variables, followed by an auxiliary node for each factor over three or more of them.

    The variables are nodes 0 to ``variables`` - 1. The states of an auxiliary node are the joint states of its
    variables, ``scopes``, of which the last one changes fastest. Its edges, one to each of these in their order, follow
    those between variables. Where variables have names, it is called by those that it joins: ``(a, b, c)``.

    Args:
        edges: pairs of variables.
        states: how many states each variable has.
        scopes: the variables of each factor over three or more.
        names: what the variables are called; none unless told.
    """

    def __init__(
        self,
        edges: Sequence[tuple[int, int]],
        states: Sequence[int],
        scopes: Sequence[Sequence[int]] = (),
        names: Sequence[str] = (),
    ) -> None:
        for scope in scopes:
            if len(set(scope)) < max(3, len(scope)) or min(scope) < 0 or max(scope) >= len(states):
                raise ValueError(
                    f"scope {tuple(scope)} must be three or more different variables of 0 to {len(states) - 1}"
                )
        joint = [math.prod(states[node] for node in scope) for scope in scopes]
        _check_size(len(states) + len(scopes), len(edges) + sum(map(len, scopes)), max([0, *states, *joint]))
        links = [(len(states) + number, node) for number, scope in enumerate(scopes) for node in scope]
        super().__init__([*edges, *links], [*states, *joint], names=_all_names(names, len(states), scopes))
        self.variables = len(states)
        self.scopes = [tuple(scope) for scope in scopes]


def variables(graph: Graph) -> int:
    """How many nodes, the first ones, are variables; the others stand for factors."""
    return graph.variables if isinstance(graph, FactorGraph) else graph.nodes


def from_factors(states: Sequence[int], factors: Iterable[Factor], names: Sequence[str] = ()) -> PairwiseMRF:
    """The pairwise model whose probabilities are proportional to exp(sum of the factors), with the same log Z.

    Factors over the same nodes, in any order of these, are added up. Those over one node are the model's ``unary``,
    those over two its ``pairwise``. One over three or more gets an auxiliary node, after the given ones, which keep
    their numbers: see `FactorGraph`, ``model.graph``. Its edges have the potential 0 where the states agree and -inf
    elsewhere; training moves the zeros, as it moves the factor, but not the infinite ones. A constant, the factor over
    no node, is added to the potential of node 0, so that log Z keeps it.

    Tables are padded to the largest number of states, which is that of the largest joint table, and their size grows
    with its square. A model that would be too large is an error.

    Args:
        states: how many states each node has.
        factors: tuples of nodes, and tables of logarithms with one dimension per node; -inf where impossible.
        names: what the nodes are called; none unless told.
    """
    counts = list(states)
    merged = _merge(counts, factors)
    pairs = [nodes for nodes, _ in merged if len(nodes) == 2]
    wide = [nodes for nodes, _ in merged if len(nodes) > 2]
    graph = FactorGraph([(one, other) for one, other in pairs], counts, wide, names)
    dtype = _dtype([table for _, table in merged])
    unary = torch.zeros(graph.nodes, graph.states, dtype=dtype)
    pairwise = torch.zeros(len(graph.edges), graph.states, graph.states, dtype=dtype)
    edge, auxiliary = 0, len(counts)
    for nodes, table in merged:
        if not nodes:
            unary[0] += table
        elif len(nodes) == 1:
            unary[nodes[0], : len(table)] += table
        elif len(nodes) == 2:
            pairwise[edge, : table.shape[0], : table.shape[1]] = table
            edge += 1
        else:
            unary[auxiliary, : table.numel()] = table.flatten()
            auxiliary += 1
    for scope in graph.scopes:
        for state, node in zip(_joint_states([counts[node] for node in scope]), scope, strict=True):
            agree = state[:, None] == torch.arange(counts[node])
            pairwise[edge, : len(state), : counts[node]].masked_fill_(~agree, -torch.inf)
            edge += 1
    return PairwiseMRF(graph, pairwise, unary)


def to_factors(model: PairwiseMRF, x: Input | None = None) -> tuple[list[int], list[Factor]]:
    """The number of states of each variable, and the factors, of a model: what `from_factors` makes a model from.

    There is one factor for each variable, one for each edge, and one for each auxiliary node of a `FactorGraph`, with
    the potentials of its edges added. Where potentials come with the input, give it: one sample.
    """
    graph = model.graph
    unary, pairwise = potentials(model, x)
    counts, edges = graph.counts, graph.edges.tolist()
    own = counts[: variables(graph)]
    factors: list[Factor] = [((node,), unary[node, :count]) for node, count in enumerate(own)]
    scopes = graph.scopes if isinstance(graph, FactorGraph) else []
    links = len(edges) - sum(map(len, scopes))
    for (one, other), table in zip(edges[:links], pairwise, strict=False):
        factors.append(((one, other), table[: counts[one], : counts[other]]))
    for auxiliary, scope in enumerate(scopes, len(own)):
        shape = [counts[node] for node in scope]
        joint = unary[auxiliary, : counts[auxiliary]]
        for state, count in zip(_joint_states(shape), shape, strict=True):
            table = pairwise[links, : len(state), :count]
            agree = state[:, None] == torch.arange(count)
            if bool((table[~agree] > -torch.inf).any()):
                raise ValueError(
                    f"edge {links} of auxiliary node {auxiliary} allows states that do not agree, so the node is no "
                    "factor over its neighbours; keep these entries at -inf"
                )
            joint = joint + table[agree]
            links += 1
        factors.append((scope, joint.reshape(shape)))
    return own, factors


def potentials(model: PairwiseMRF, x: Input | None = None) -> tuple[Tensor, Tensor]:
    """The potentials of all nodes (nodes, states) and of all edges (E, states, states), of one sample or of none."""
    graph = model.graph
    if x is None:
        if model.pairwise is None or model.evidence is not None:
            raise ValueError("the model's potentials come with its input; give x, the input of one sample")
        pairwise = model.tables(graph.padding).detach()
        unary = pairwise.new_zeros(graph.nodes, graph.states) if model.unary is None else model.unary.detach()
        return unary, pairwise
    model.check(x)
    with torch.no_grad():
        fields, pairwise = model(x)
    if len(fields) != 1:
        raise ValueError(f"x has {len(fields)} samples; give one")
    return fields[0], pairwise[0] if pairwise.dim() == 4 else pairwise


def _merge(counts: list[int], factors: Iterable[Factor]) -> list[tuple[tuple[int, ...], Tensor]]:
    """The factors, checked, those over the same nodes added up in the order of the first one's."""
    merged: dict[tuple[int, ...], tuple[tuple[int, ...], Tensor]] = {}
    for number, (scope, given) in enumerate(factors):
        nodes, table = tuple(int(node) for node in scope), given.detach().cpu()
        _check_factor(number, nodes, table, counts)
        key = tuple(sorted(nodes))
        if key in merged:
            first, sum_so_far = merged[key]
            table = sum_so_far + table.permute([nodes.index(node) for node in first])
            nodes = first
        merged[key] = nodes, table
    return list(merged.values())


def _all_names(names: Sequence[str], count: int, scopes: Sequence[Sequence[int]]) -> list[str]:
    """Names of the variables and of the auxiliary nodes, all different."""
    called = [str(name) for name in names]
    if called and (len(called) != count or len(set(called)) < count):
        raise ValueError(f"{len(set(called))} different names were given for {count} nodes; give one for each")
    taken = set(called)
    for scope in scopes if called else ():
        name = f"({', '.join(called[node] for node in scope)})"
        while name in taken:
            name += "'"
        called.append(name)
        taken.add(name)
    return called


def _joint_states(shape: Sequence[int]) -> list[Tensor]:
    """The state of each node in each of the joint states of all of them."""
    return list(torch.cartesian_prod(*(torch.arange(count) for count in shape)).T)


def _dtype(tables: Sequence[Tensor]) -> torch.dtype:
    """The widest dtype of all."""
    if not tables:
        return torch.get_default_dtype()
    return torch.float64 if any(table.dtype == torch.float64 for table in tables) else torch.float32


def _check_factor(number: int, nodes: tuple[int, ...], table: Tensor, counts: list[int]) -> None:
    if any(not 0 <= node < len(counts) for node in nodes):
        raise ValueError(f"factor {number} is over nodes {nodes}, but there are nodes 0 to {len(counts) - 1}")
    if len(set(nodes)) < len(nodes):
        raise ValueError(f"factor {number} is over nodes {nodes}, of which one is there twice; give each node once")
    shape = tuple(counts[node] for node in nodes)
    if table.shape != shape:
        raise ValueError(f"factor {number} over nodes {nodes} has the shape {tuple(table.shape)}; give {shape}")
    if table.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"factor {number} is of {table.dtype}; give float32 or float64")
    # A comparison with NaN is false.
    if not bool((table < torch.inf).all()):
        raise ValueError(
            f"factor {number} has values that are NaN or +inf; a factor is a table of logarithms, -inf for impossible"
        )


def _check_size(nodes: int, edges: int, states: int) -> None:
    """Before anything is allocated."""
    largest = max(nodes * states, edges * states * states)
    if largest > LARGEST:
        raise ValueError(
            f"{nodes} nodes and {edges} edges, padded to the {states} states of the largest node or joint table, need "
            f"{largest:.3g} numbers, and {LARGEST:.3g} are allowed; split the largest factors into smaller ones"
        )
