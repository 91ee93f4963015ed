"""Neighbours, and the parts of a graph level by level."""

from collections.abc import Iterator

from deepunfold.mrf._graph import Graph


def neighbours(graph: Graph) -> list[set[int]]:
    """Those of each node."""
    around: list[set[int]] = [set() for _ in range(graph.nodes)]
    for one, other in graph.edges.tolist():
        around[one].add(other)
        around[other].add(one)
    return around


def levels(around: list[set[int]]) -> Iterator[list[list[int]]]:
    """For each part of a graph, its nodes by their distance from one at its far end, so that the levels are narrow."""
    seen: set[int] = set()
    for node in range(len(around)):
        if node not in seen:
            end = _from(around, node)[-1][0]
            part = _from(around, end)
            seen.update(each for level in part for each in level)
            yield part


def _from(around: list[set[int]], start: int) -> list[list[int]]:
    found, seen = [[start]], {start}
    while found[-1]:
        level: dict[int, None] = {}
        for node in found[-1]:
            level.update(dict.fromkeys(sorted(around[node] - seen)))
            seen |= around[node]
        found.append(list(level))
    return found[:-1]
