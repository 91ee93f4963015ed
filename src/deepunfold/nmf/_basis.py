"""The update of a basis with columns of unit norm, such that the objective never increases.

With normalised columns, D(S | W~ H) + mu |H|_1 (equation ``eq:snmf_obj``) is, in free columns w_r = |w_r| w~_r, the
same as D(S | W H) + mu sum_r |w_r|_2 |h_r|_1: put |w_r| h_r in the place of h_r. Here the norm stands in the objective
as a penalty that can be majorised: |w| <= (|w|^2 / |w_old| + |w_old|) / 2. What is left to solve for each entry, in
rho = w / w_old, is

    den rho^a + norm rho = num rho^b,

with (a, b) from the majorisation of the divergence. It has a closed form for beta = 1 and beta = 2; elsewhere the first
term is majorised once more, by a power that is there already. Since the objective does not change when a column's scale
moves to its activations, the columns then get unit norm at no loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepunfold.nmf._divergence import descent_exponent, slopes


@dataclass
class Statistics:
    """What the update needs to know of any number of frames.

    A majoriser of the objective in W is sum(den W^(a+1)/(a+1) - num W^(b+1)/(b+1)) + sum_r norm_r |w_r|^2 / 2. Those of
    blocks add up, also where the blocks were seen with another W: so data that do not fit into memory are learnt from.
    Shapes: ``num``, ``den`` (rows, components), ``norm`` (components).
    """

    num: Tensor
    den: Tensor
    norm: Tensor

    @classmethod
    def zeros(cls, basis: Tensor) -> "Statistics":
        """Of no frames."""
        return cls(torch.zeros_like(basis), torch.zeros_like(basis), basis.new_zeros(basis.shape[1]))

    def add(self, other: "Statistics", forget: float = 1.0) -> None:
        """Add further frames, and let the old ones count only ``forget`` times as much as they did."""
        for name in ("num", "den", "norm"):
            setattr(self, name, forget * getattr(self, name) + getattr(other, name))

    def rescale(self, norms: Tensor, beta: float) -> None:
        """Follow columns that were divided by their norms, and activations that were multiplied by them."""
        a, b = powers(beta)
        self.num, self.den = self.num * norms ** (b + 1), self.den * norms ** (a + 1)
        self.norm = self.norm * norms.square()


def powers(beta: float) -> tuple[float, float]:
    """The exponents a and b of the majoriser's gradient, den w^a - num w^b."""
    if beta < 1:
        return 0.0, beta - 2
    return (beta - 1, beta - 2) if beta <= 2 else (beta - 1, 0.0)


def gather(basis: Tensor, data: Tensor, model: Tensor, activations: Tensor, sparsity: float, beta: float) -> Statistics:
    """The statistics of a block: data and model (frames, rows), activations (frames, components), unit columns."""
    a, b = powers(beta)
    positive, negative = slopes(data, model, beta)
    num = negative.mT @ activations
    den = activations.sum(0).expand_as(basis) if beta == 1 else positive.mT @ activations
    safe = torch.where(basis > 0, basis, 1.0)  # where an entry is zero it stays so, whatever stands here
    return Statistics(num * safe**-b, den * safe**-a, sparsity * activations.sum(0))


def updated(basis: Tensor, seen: Statistics, beta: float) -> Tensor:
    """The entries that minimise the majoriser from the given ones, before the columns are normalised.

    Zeros stay zero, and entries of which nothing is known stay what they are.
    """
    a, b = powers(beta)
    safe = torch.where(basis > 0, basis, 1.0)
    num, den, norm = seen.num * safe**b, seen.den * safe**a, seen.norm * basis
    if not bool(norm.any()):
        factor = (num / den).pow(descent_exponent(beta))
    elif beta == 1:
        factor = 2 * num / (den + (den.square() + 4 * norm * num).sqrt())
    else:
        exponent = 1 / (beta - 1) if beta > 2 else 1 / (3 - beta)
        factor = (num / (den + norm)).pow(exponent)
    return basis * torch.where(torch.isfinite(factor), factor, 1.0)
