"""Mean field, with the marginals themselves as the state."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepunfold.core._residual import change, relative
from deepunfold.mrf._energies import energy_estimate
from deepunfold.mrf._messages import FLOOR, Tables, at_nodes, at_senders, both_ways, product
from deepunfold.mrf._model import Input, PairwiseMRF
from deepunfold.mrf._passing import State
from deepunfold.mrf._schedules import Turns, check_turns, with_count
from deepunfold.mrf._settings import check_alpha


class Prepared(NamedTuple):
    """The fields (batch, states, nodes), and the potentials of the messages."""

    fields: Tensor
    means: Tables


class MeanField(nn.Module):
    """q(h_i) = softmax(fields(h_i) + sum_j sum_(h_j) q(h_j) Psi(h_i, h_j)), equation ``eq:mfupdate``.

    The state is q, (batch, states, nodes); with `Turns`, (q, count of steps). All nodes at once, it is `MessagePassing`
    with lambda = 0, whose messages are functions of q; binary, unfolded and untied it is the sigmoid network of
    ``eq:sigmoidnet``. In turns, nodes without neighbours among those of their turn, it never lowers the bound on log Z.

    Args:
        model: the Markov random field.
        alpha: how much of q is new, in [0, 1]: a number, a tensor of them per node, or an ``nn.Parameter`` to train
            them; or `Turns`.
        estimator: makes the output from the logarithms of the marginals, (batch, nodes, states); the output is the
            marginals unless told.
    """

    step_parameters = ("model", "alpha")
    readout_parameters = ("estimator",)

    def __init__(
        self, model: PairwiseMRF, *, alpha: float | Tensor | Turns = 1.0, estimator: nn.Module | None = None
    ) -> None:
        super().__init__()
        nodes = model.graph.nodes
        self.model, self.estimator = model, estimator
        if isinstance(alpha, Turns):
            check_turns(alpha, nodes)
            self.alpha: Any = alpha
            return
        check_alpha(alpha)
        if isinstance(alpha, Tensor) and tuple(alpha.shape) not in ((), (nodes,)):
            raise ValueError(
                f"alpha has the shape {tuple(alpha.shape)}; give one number, or one for each node: {nodes}"
            )
        if isinstance(alpha, nn.Parameter):
            self.alpha = nn.Parameter(alpha.detach().clone(), alpha.requires_grad)
        elif isinstance(alpha, Tensor):
            self.register_buffer("alpha", alpha.clone())
        else:
            self.alpha = float(alpha)

    def init(self, x: Input) -> State:
        """What the fields alone say."""
        self.model.check(x)
        beliefs = self.model.fields(x).softmax(-1).transpose(1, 2).contiguous()
        return with_count(beliefs) if isinstance(self.alpha, Turns) else beliefs

    def step(self, x: Input, state: State) -> State:
        """All nodes, or those whose turn it is."""
        return self.update(self.prepare(x), state)

    def readout(self, x: Input, state: State) -> Any:
        """The marginals, (batch, nodes, states), or what the estimator makes of their logarithms."""
        beliefs = (state[0] if isinstance(state, tuple) else state).transpose(1, 2)
        if self.estimator is None:
            return beliefs
        return self.estimator(beliefs.clamp(min=torch.finfo(beliefs.dtype).tiny).log())

    def bound(self, x: Input, state: State) -> Tensor:
        """L, the lower bound of log Z, (batch): see `energy_estimate`."""
        beliefs = (state[0] if isinstance(state, tuple) else state).transpose(1, 2)
        fields, pairwise = self.model(x)
        return energy_estimate(self.model.graph, fields, pairwise, beliefs)

    def prepare(self, x: Input) -> Prepared:
        """All that is the same in every step."""
        fields, pairwise = self.model(x)
        tables = both_ways(self.model.graph, pairwise.clamp(min=FLOOR))
        return Prepared(fields.transpose(1, 2).contiguous(), tables)

    def update(self, prepared: Prepared, state: State) -> State:
        """A step, where the potentials are prepared already."""
        old, count = state if isinstance(state, tuple) else (state, None)
        new = self._fresh(prepared, old)
        if count is not None:
            return torch.where(self.alpha(count), new, old), count + 1
        return new if isinstance(self.alpha, float) and self.alpha == 1 else old + self.alpha * (new - old)

    def residual(self, x: Input, old: State, new: State) -> Tensor:
        """How far a step went, relative to where it got; in turns, how far all nodes at once would go."""
        if isinstance(self.alpha, Turns):
            old, new = new[0], self._fresh(self.prepare(x), new[0])
        return relative(*change(old, new, batched=True))

    def _fresh(self, prepared: Prepared, old: Tensor) -> Tensor:
        graph = self.model.graph
        received = at_nodes(graph, product(prepared.means, at_senders(graph, old)))
        return (prepared.fields + received).softmax(1)
