"""Models from and to other packages: networkx and pgmpy, which need only be there when these functions are called."""

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepunfold.mrf._factors import from_factors, potentials, to_factors
from deepunfold.mrf._model import Input, PairwiseMRF


def from_networkx(graph: Any, potential: str = "potential") -> PairwiseMRF:
    """The model of a networkx graph of any kind, in float64.

    The nodes stay in their order, called by their names as strings. Edges have an attribute ``potential``, a table of
    logarithms (states of u, states of v) for the edge (u, v) as ``graph.edges`` gives it; in an undirected graph u is
    the one of the two that was added first, whichever way round the edge was added. Nodes may have a vector of
    logarithms as the same attribute. Several edges between two nodes are added up.

    Args:
        graph: each node needs a potential or an edge, from which its number of states is known.
        potential: what the attributes are called.
    """
    networkx = _package("networkx")
    if not isinstance(graph, networkx.Graph):
        raise ValueError(f"graph is a {type(graph).__name__}; give a networkx graph")
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    places: list[tuple[Any, ...]] = []
    tables: list[Tensor] = []
    for scope, data in (*(((node,), data) for node, data in graph.nodes(data=True)), *_edges(graph)):
        if potential in data:
            places.append(scope)
            tables.append(_logarithms(data[potential], scope))
        elif len(scope) == 2:
            raise ValueError(f"edge {scope} has no attribute {potential!r}; give it a table of logarithms")
    states = _count_states(list(graph.nodes), places, [tuple(table.shape) for table in tables])
    factors = [([numbers[node] for node in scope], table) for scope, table in zip(places, tables, strict=True)]
    return from_factors(states, factors, [str(node) for node in graph.nodes])


def to_networkx(model: PairwiseMRF, x: Input | None = None) -> Any:
    """A ``networkx.Graph`` whose nodes and edges have potentials as float64 arrays, as `from_networkx` reads them.

    Nodes are called by their names, or by their numbers as strings; auxiliary nodes are nodes like others.

    Args:
        model: where potentials come with the input, ``x`` is needed.
        x: an input of one sample, whose potentials are taken.
    """
    networkx = _package("networkx")
    unary, pairwise = potentials(model, x)
    names, counts = _names(model), model.graph.counts
    graph = networkx.Graph()
    for name, count, row in zip(names, counts, unary, strict=True):
        graph.add_node(name, potential=_array(row[:count]))
    for (one, other), table in zip(model.graph.edges.tolist(), pairwise, strict=True):
        own = _array(table[: counts[one], : counts[other]])
        # The graph gives an edge with the node that was added first in front.
        graph.add_edge(names[one], names[other], potential=own if one < other else own.T)
    return graph


def from_pgmpy(network: Any) -> PairwiseMRF:
    """The model of a discrete Markov network, Bayesian network or factor graph of pgmpy, in float64.

    Variables stay in their order, called by their names as strings, and are the first ``model.graph.variables`` nodes;
    tables over three or more make auxiliary nodes, as described for `from_factors`. States are numbers here: those of
    pgmpy, in the order of their names.
    """
    models, discrete = _package("pgmpy.models"), _package("pgmpy.factors.discrete")
    if not isinstance(network, models.DiscreteMarkovNetwork | models.DiscreteBayesianNetwork | models.FactorGraph):
        raise ValueError(
            f"network is a {type(network).__name__}; give a DiscreteMarkovNetwork, a "
            "DiscreteBayesianNetwork or a FactorGraph"
        )
    network.check_model()
    given = network.cpds if isinstance(network, models.DiscreteBayesianNetwork) else network.factors
    if not all(isinstance(factor, discrete.DiscreteFactor) for factor in given):
        raise ValueError("network has factors that are no tables; give it discrete ones")
    nodes = [node for node in network.nodes if not isinstance(node, discrete.DiscreteFactor)]
    numbers = {node: number for number, node in enumerate(nodes)}
    _check_state_names(given)
    states = _count_states(nodes, [factor.variables for factor in given], [factor.values.shape for factor in given])
    factors = [
        ([numbers[node] for node in factor.variables], _table(factor.values, factor.variables)) for factor in given
    ]
    return from_factors(states, factors, [str(node) for node in nodes])


def to_pgmpy(model: PairwiseMRF, x: Input | None = None) -> Any:
    """A ``DiscreteMarkovNetwork`` of pgmpy with the same variables, called by their names, or numbers as strings.

    Its tables are not logarithms, so that potentials below -745 become zero; those above 709 are an error. An auxiliary
    node becomes a table over the variables that it joins.

    Args:
        model: where potentials come with the input, ``x`` is needed.
        x: an input of one sample, whose potentials are taken.
    """
    models, discrete = _package("pgmpy.models"), _package("pgmpy.factors.discrete")
    states, factors = to_factors(model, x)
    names = _names(model)[: len(states)]
    network = models.DiscreteMarkovNetwork()
    network.add_nodes_from(names)
    for scope, table in factors:
        values = _array(table.double().exp())
        if not np.isfinite(values).all():
            raise ValueError(
                f"the factor over nodes {tuple(scope)} has logarithms above 709; subtract a constant from it"
            )
        called = [names[node] for node in scope]
        network.add_edges_from(itertools.combinations(called, 2))
        network.add_factors(discrete.DiscreteFactor(called, list(values.shape), values))
    network.check_model()
    return network


def _package(name: str) -> Any:
    """A module of an optional package."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(f"this needs the package {package}, which is not installed: pip install {package}") from error


def _edges(graph: Any) -> list[tuple[tuple[Any, Any], dict[str, Any]]]:
    return [((one, other), data) for one, other, data in graph.edges(data=True)]


def _logarithms(value: Any, scope: Sequence[Any]) -> Tensor:
    """An attribute as a table with a dimension for each node."""
    try:
        table = torch.as_tensor(value, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"the potential of {tuple(scope)} is no array of numbers: {error}") from error
    if table.dim() != len(scope) or not table.numel():
        what = "a vector" if len(scope) == 1 else "a matrix"
        raise ValueError(f"the potential of {tuple(scope)} has the shape {tuple(table.shape)}; give {what}")
    return table


def _table(values: Any, scope: Sequence[Any]) -> Tensor:
    """The logarithms of a table of pgmpy."""
    table = torch.as_tensor(values, dtype=torch.float64).detach()
    if bool((table < 0).any()):
        raise ValueError(f"the factor over {tuple(scope)} has negative values; give values of zero or more")
    return table.log()


def _count_states(
    nodes: Sequence[Any], scopes: Sequence[Sequence[Any]], shapes: Sequence[tuple[int, ...]]
) -> list[int]:
    """How many states each node has, by the shapes of the tables that it is in."""
    counts: dict[Any, int] = {}
    for scope, shape in zip(scopes, shapes, strict=True):
        for node, count in zip(scope, shape, strict=True):
            if counts.setdefault(node, count) != count:
                raise ValueError(f"node {node!r} has {counts[node]} states in one table and {count} in another")
    unknown = [node for node in nodes if node not in counts]
    if unknown:
        raise ValueError(f"node {unknown[0]!r} is in no table, so that its number of states is unknown; give it one")
    return [counts[node] for node in nodes]


def _check_state_names(factors: Sequence[Any]) -> None:
    """pgmpy goes by the numbers of states alone; the same names in another order are a mistake that it does not see."""
    known: dict[Any, list[Any]] = {}
    for factor in factors:
        for node, names in factor.state_names.items():
            first = known.setdefault(node, list(names))
            if set(first) == set(names) and first != list(names):
                raise ValueError(f"the states of {node!r} are {first} in one table and {list(names)} in another")


def _names(model: PairwiseMRF) -> list[str]:
    return model.graph.names or [str(number) for number in range(model.graph.nodes)]


def _array(table: Tensor) -> Any:
    return table.cpu().double().numpy().copy()
