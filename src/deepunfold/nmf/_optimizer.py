"""Multiplicative updates of parameters as an optimiser (Appendix ``sec:mult-backprop``)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from deepunfold.nmf._split import Split


class MultiplicativeUpdate(torch.optim.Optimizer):
    """w <- w (N / P)^exponent, with the two parts of the gradient that `MultiplicativeLoss` leaves in ``split_grad``.

    Parameters stay non-negative and zeros stay zero, whatever the gradients are. Each factor lies between 1 / limit and
    limit; where nothing pulls either way (P = N = 0), or a part is not finite, the factor is 1.

    Args:
        params: parameters, or groups of them with settings of their own, all non-negative.
        exponent: the size of a step: 1 is the classic update, less goes more slowly and surely.
        limit: the largest change of a parameter in one step.
    """

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], exponent: float = 1.0, limit: float = 1e3
    ) -> None:
        super().__init__(params, {"exponent": exponent, "limit": limit})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; parameters that are negative anywhere are an error."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if not group["exponent"] > 0:
            raise ValueError(f"exponent={group['exponent']} must be > 0")
        if not group["limit"] > 1:
            raise ValueError(f"limit={group['limit']} must be > 1")
        for parameter in group["params"]:
            if not bool((parameter >= 0).all()):
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} has values that are negative or not finite; "
                    "multiplicative updates are for non-negative parameters"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a split gradient."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                split = getattr(parameter, "split_grad", None)
                if split is not None:
                    grown = parameter * factor(split, group["exponent"], group["limit"])
                    # What would overflow stays the largest number that there is.
                    parameter.copy_(grown.clamp(max=torch.finfo(parameter.dtype).max))
        return value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, split ones too."""
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.split_grad = None


def factor(split: Split, exponent: float, limit: float) -> Tensor:
    """(N / P)^exponent between 1 / limit and limit, and 1 where it is not defined."""
    positive, negative = split
    ratio = (negative / positive).pow(exponent).clamp(1 / limit, limit)
    # P and N can both have overflowed where their quotient has not; then neither says anything.
    known = torch.isfinite(positive) & torch.isfinite(negative) & ~torch.isnan(ratio)
    return torch.where(known, ratio, 1.0)


def sum_over_processes(parameters: Iterable[Tensor], group: Any = None) -> None:
    """Add up gradients and their parts over all processes, so that each then takes the same step.

    Call it between ``backward`` and ``step`` where every process has its own share of the data.
    """
    for parameter in parameters:
        split = getattr(parameter, "split_grad", None)
        for tensor in (*(split or ()), *([] if parameter.grad is None else [parameter.grad])):
            torch.distributed.all_reduce(tensor, group=group)
