"""The exponents and the schedule of message passing: numbers that are fixed or learnt, for all messages or for some."""

from typing import TypeAlias

import torch
from torch import Tensor, nn

from deepunfold.mrf._graph import Graph


class Grouped(nn.Module):
    """One learnt number per group of messages, such as those into nodes of equal degree: see `per_degree`.

    ``values`` (groups) is the parameter; ``groups`` (2 E) says which of them each message has.
    """

    groups: Tensor

    def __init__(self, start: float, groups: Tensor) -> None:
        super().__init__()
        if groups.dim() != 1 or groups.is_floating_point() or (groups.numel() and int(groups.min()) < 0):
            raise ValueError("groups must be whole numbers from 0, one per message")
        self.values = nn.Parameter(torch.full((int(groups.max()) + 1 if len(groups) else 0,), float(start)))
        self.register_buffer("groups", groups.clone())

    def forward(self) -> Tensor:
        """The number of each message, (2 E)."""
        return self.values[self.groups]


def per_degree(graph: Graph, start: float) -> Grouped:
    """A number for the messages into nodes of each degree, such as ``lambda_=per_degree(graph, 0.5)``."""
    _, groups = graph.degrees[graph.targets].unique(return_inverse=True)
    return Grouped(start, groups)


Setting: TypeAlias = float | Tensor | Grouped
"""A number or a tensor, which stay as they are, or an ``nn.Parameter`` or a `Grouped`, which are trained. Tensors have
no dimension, or one number per edge (E), or per message (2 E)."""


def install(owner: nn.Module, name: str, setting: Setting, graph: Graph) -> None:
    """Make a setting an attribute: a plain number, a buffer, a parameter or a module."""
    if isinstance(setting, Tensor):
        edges = len(graph.edges)
        if setting.dim() > 1 or (setting.dim() == 1 and len(setting) not in (edges, 2 * edges)):
            raise ValueError(
                f"{name} has the shape {tuple(setting.shape)}; give one number, {edges} (per edge) or {2 * edges} "
                "(per message: those along the edges, then those back)"
            )
        if setting.is_floating_point() and bool(setting.detach().isnan().any()):
            raise ValueError(f"{name} has values that are NaN")
        if isinstance(setting, nn.Parameter):
            owner.register_parameter(name, nn.Parameter(setting.detach().clone(), setting.requires_grad))
        else:
            owner.register_buffer(name, setting.clone())
    else:
        setattr(owner, name, setting if isinstance(setting, nn.Module) else float(setting))


def per_message(setting: Setting, edges: int) -> float | Tensor:
    """A number, or a tensor with one number per message."""
    value = setting() if isinstance(setting, Grouped) else setting
    if isinstance(value, Tensor) and value.dim() and len(value) == edges:
        return torch.cat([value, value])
    return value


def check_alpha(alpha: Setting) -> None:
    """Raise where a share is none."""
    value = torch.as_tensor(alpha.values if isinstance(alpha, Grouped) else alpha).detach()
    if not bool(((value >= 0) & (value <= 1)).all()):
        raise ValueError(f"alpha lies outside of [0, 1]: {float(value.min()):g} to {float(value.max()):g}")
