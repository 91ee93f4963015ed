"""Messages between binary nodes as one number each, the logarithm of their ratio: half the work of `infer`.

With the ratios of the belief of the sender, b, and of what it heard, r, and with tables K = exp(lambda kappa Psi), the
message is that of ``eq:generalized-mf-bp-binary``:

    u = 1 / (lambda kappa) log((K_11 e^w + K_10) / (K_01 e^w + K_00)),    w = kappa b - lambda kappa r,

the receiver's state first. The geometric mean of old and new messages is the mean of such numbers.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from deepunfold.mrf._messages import Exponent, Tables, both_ways, is_moderate, near_zero, reverse, scaled, times
from deepunfold.mrf._model import Input
from deepunfold.mrf._passing import MessagePassing, State
from deepunfold.mrf._schedules import Turns

MODERATE, FARTHEST = 0.67, 0.9
"""As shares of the logarithm of the largest number: where those of a table differ by no more than the first, a message
no longer changes, to all digits, beyond a |w| of the second. A node that is held to a state has w = inf."""


class Ratios(NamedTuple):
    """All that is the same in every step: fields (batch, nodes), and tables K (batch or 1, 2 E), receiver first."""

    algorithm: MessagePassing
    fields: Tensor
    tables: tuple[Tensor, Tensor, Tensor, Tensor]
    both: Exponent
    kappa: Exponent
    farthest: float

    def start(self, state: State) -> State:
        """Messages (batch, states, 2 E) as ratios (batch, 2 E)."""
        messages, *count = state if isinstance(state, tuple) else (state,)
        ratios = messages[:, 1] - messages[:, 0]
        return (ratios, *count) if count else ratios

    def finish(self, state: State) -> State:
        """Ratios as normalised messages."""
        ratios, *count = state if isinstance(state, tuple) else (state,)
        messages = torch.stack([logsigmoid(-ratios), logsigmoid(ratios)], 1)
        return (messages, *count) if count else messages

    def step(self, _: object, state: State) -> State:
        """All messages once."""
        old, count = state if isinstance(state, tuple) else (state, None)
        graph, alpha = self.algorithm.model.graph, self.algorithm.alpha
        beliefs = self.fields.scatter_add(1, graph.targets.expand_as(old), old)
        values = times(self.kappa, beliefs.gather(1, graph.sources.expand_as(old)))
        if self.algorithm.reverse:
            values = values - times(self.both, reverse(old))
        odds = values.clamp_(-self.farthest, self.farthest).exp_()
        one_one, one_zero, zero_one, zero_zero = self.tables
        new = torch.addcmul(one_zero, one_one, odds).div_(torch.addcmul(zero_zero, zero_one, odds)).log_()
        new = new if isinstance(self.both, float) and self.both == 1 else new / self.both
        if count is not None:
            return torch.where(alpha(count)[graph.sources], new, old), count + 1
        if isinstance(alpha, float) and alpha == 1:
            return new
        return torch.lerp(old, new, alpha) if isinstance(alpha, float) else old + self.algorithm.shares() * (new - old)


def as_ratios(algorithm: object, x: Input) -> Ratios | None:
    """The steps of an algorithm in this form, or None where it has another: nodes with other than two states, exponents
    at a limit, tables too large, other means of messages than the geometric one.
    """
    if not isinstance(algorithm, MessagePassing) or not algorithm.normalised:
        return None
    graph, (lambda_, kappa) = algorithm.model.graph, algorithm.exponents()
    plain_mean = isinstance(algorithm.alpha, Turns) or (algorithm.mixes_geometrically() and graph.states == 2)
    if graph.states != 2 or graph.mixed or not plain_mean or (isinstance(kappa, float) and kappa == math.inf):
        return None
    both = lambda_ * kappa
    if near_zero(both):
        return None
    fields, pairwise = algorithm.model(x)
    tables: Tables = scaled(both_ways(graph, pairwise), both)
    ratios = fields[..., 1] - fields[..., 0]
    largest_number = math.log(torch.finfo(fields.dtype).max)
    if not is_moderate(tables, MODERATE * largest_number):
        return None
    largest = torch.cat([table.amax((1, 2)) for table in tables], -1)
    forth, back = tables
    corners = [
        (torch.cat([forth[:, b, a], back[:, a, b]], -1) - largest).exp() for a, b in ((1, 1), (1, 0), (0, 1), (0, 0))
    ]
    return Ratios(
        algorithm, ratios, (corners[0], corners[1], corners[2], corners[3]), both, kappa, FARTHEST * largest_number
    )
