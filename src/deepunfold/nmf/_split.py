"""Gradients in two non-negative parts, for any network (Appendix ``sec:mult-backprop``, "General case").

For each value v there are P and N >= 0 with dE/dv = P - N. Through an operation with Jacobian J = J+ - J- they pass as

    P_in = J+^T P + J-^T N,        N_in = J+^T N + J-^T P.

Nothing about the operations is written down here: PyTorch's own backward graph is walked, and each of its nodes is
asked for J^T P and J^T N apart. For a node whose derivatives have one sign in each input, as those of products, sums,
quotients and powers of non-negative numbers have, J^T P >= 0 says that J is J+ there, and J^T P <= 0 that it is -J-; so
the signs of the answers tell where they belong. For any other node the positive and negative entries of the answers go
to either side: the parts stay non-negative, and their difference stays the gradient, whatever the network is made of.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Split(NamedTuple):
    """P and N, both non-negative: the gradient is P - N."""

    positive: Tensor
    negative: Tensor


def split_gradients(
    outputs: Sequence[Tensor], splits: Sequence[tuple[Tensor, Tensor]], parameters: Sequence[Tensor]
) -> list[Split]:
    """The split gradient in each parameter, from that in each output.

    Args:
        outputs: tensors with a graph.
        splits: for each output, the two parts of the gradient in it, such as `divergence_split` gives.
        parameters: tensors that require a gradient and were used in the outputs. One that was not gets zeros.

    The graph stays as it is: it can be walked again, by this or by ``backward``.
    """
    with torch.no_grad():
        walk = _Walk([output.grad_fn for output in outputs if output.grad_fn is not None], parameters)
        for output, split in zip(outputs, splits, strict=True):
            if output.grad_fn is not None:
                walk.send(output.grad_fn, output.output_nr, split)
            elif output.requires_grad:
                walk.keep(output, split)
        return walk.run()


class _Walk:
    """One walk through a graph: what waits at each node, and what has reached the parameters."""

    def __init__(self, roots: Sequence[Any], parameters: Sequence[Tensor]) -> None:
        self.kept = {id(each): Split(torch.zeros_like(each), torch.zeros_like(each)) for each in parameters}
        self.order = _in_order(roots)
        self.waiting: dict[Any, dict[int, Sequence[Tensor]]] = {node: {} for node in self.order}

    def run(self) -> list[Split]:
        """Visit every node after all those that send to it."""
        for node in self.order:
            held = self.waiting.pop(node)
            if held and not hasattr(node, "variable"):
                self.visit(node, held)
        return list(self.kept.values())

    def visit(self, node: Any, held: dict[int, Sequence[Tensor]]) -> None:
        """Pass on what waits at a node."""
        for (target, number), positive, negative in zip(*_ask(node, held), strict=True):
            if target is not None and positive is not None and negative is not None:
                # Each entry goes to the side that its sign says.
                grows = positive.clamp(min=0) + (-negative).clamp(min=0)
                shrinks = negative.clamp(min=0) + (-positive).clamp(min=0)
                self.send(target, number, (grows, shrinks))

    def send(self, node: Any, number: int, pair: Sequence[Tensor]) -> None:
        """Add to what waits at an output of a node; at a leaf, to what is kept."""
        # An answer may have the shape that an input was broadcast to; autograd's engine, too, sums it up afterwards.
        pair = [part.sum_to_size(node._input_metadata[number].shape) for part in pair]
        if hasattr(node, "variable"):
            self.keep(node.variable, pair)
            return
        held = self.waiting[node].get(number)
        self.waiting[node][number] = pair if held is None else [a + b for a, b in zip(held, pair, strict=True)]

    def keep(self, leaf: Tensor, pair: Sequence[Tensor]) -> None:
        """Add to a parameter's parts; other leaves are passed by."""
        for own, new in zip(self.kept.get(id(leaf), ()), pair, strict=False):
            own.add_(new)


def _in_order(roots: Sequence[Any]) -> list[Any]:
    """The nodes of a graph, each before those that it sends to."""
    found, order = set(), []
    stack = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in found:
            found.add(node)
            stack.append((node, True))
            stack.extend((target, False) for target, _ in node.next_functions if target is not None)
    return order[::-1]


def _ask(node: Any, held: dict[int, Sequence[Tensor]]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Where a node sends to, and its answers there to the positive and to the negative parts at its outputs."""
    written_in_python = isinstance(node, torch.autograd.function.BackwardCFunction)
    answers: list[Sequence[Any]] = []
    for side in (0, 1):
        given = [held[number][side] if number in held else None for number in range(len(node._input_metadata))]
        answer = node.apply(*given) if written_in_python else node(*given)
        answers.append(answer if isinstance(answer, tuple) else (answer,))
    targets = node.next_functions
    if written_in_python:  # it answers for every argument; targets are the tensors among them that want a gradient
        wanted = node.needs_input_grad
        targets = [target for target in targets if target[0] is not None]
        answers = [[each for each, want in zip(answer, wanted, strict=True) if want] for answer in answers]
    return targets, answers[0], answers[1]
