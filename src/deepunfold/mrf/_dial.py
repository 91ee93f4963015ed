"""One lambda for a whole network, which can be moved while it is trained: from mean field to belief propagation."""

import math

import torch
from torch import nn

from deepunfold.mrf._layers import BeliefSigmoid, BeliefSoftmax
from deepunfold.mrf._passing import MessagePassing


def set_lambda(network: nn.Module, value: float) -> None:
    """Set lambda in all layers and algorithms of a network that have one and do not learn it.

    Moved from 0 to 1 in the course of a training, it makes a network of belief propagation (``eq:bpmsg``) out of a
    trained sigmoid network (``eq:sigmoidnet``), as the paper proposes at the end of its Section 3. Parameters, such as
    a learnt lambda, are left alone, frozen ones as well. With `fit` its place is a callback, or the function that gives
    an epoch its data.

    Layers keep lambda as a buffer, which is part of their ``state_dict``: where `fit` ends with its best epoch, it ends
    with the lambda of that epoch. `MessagePassing` does so if its lambda was given as a tensor; a plain number stays
    where it was set last.

    Args:
        network: a feed-forward network with `BeliefSigmoid` or `BeliefSoftmax` layers, an unfolded `MessagePassing`
            network, one of these layers or algorithms by itself, or any module that has them inside.
        value: any finite number.
    """
    if not math.isfinite(value):
        raise ValueError(f"lambda must be finite, not {value}; for the maximum over states give kappa=inf")
    found = [part for part in network.modules() if _fixed(part)]
    if not found:
        raise ValueError(
            f"{type(network).__name__} has no lambda that is not learnt; give BeliefSigmoid, BeliefSoftmax or "
            "MessagePassing a number or a tensor as lambda_"
        )
    for part in found:
        _check(part, value)
    with torch.no_grad():
        for part in found:
            buffer = part._buffers.get("lambda_")
            if buffer is None:
                setattr(part, "lambda_", float(value))  # noqa: B010 (a module's attributes have no type)
            else:
                buffer.fill_(value)


def _fixed(part: nn.Module) -> bool:
    """Whether it has a lambda as a buffer or as a number."""
    if not isinstance(part, BeliefSigmoid | BeliefSoftmax | MessagePassing):
        return False
    return "lambda_" in part._buffers or isinstance(vars(part).get("lambda_"), float)


def _check(part: nn.Module, value: float) -> None:
    """Raise where the value cannot be taken."""
    buffer = part._buffers.get("lambda_")
    if buffer is not None and not buffer.is_floating_point():
        raise ValueError(f"lambda_ of a {type(part).__name__} is a tensor of {buffer.dtype}; give it as one of floats")
    if value == 0 and getattr(part, "kappa", None) == math.inf:
        raise ValueError(
            f"lambda = 0 is mean field, which has no maximum over states, but a {type(part).__name__} has kappa=inf; "
            "give it a finite kappa, or lambda another value"
        )
