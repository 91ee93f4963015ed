"""Message passing as an algorithm of the framework: one step for mean field, belief propagation and all in between."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepunfold.core._residual import change, relative
from deepunfold.means import log_power_mean
from deepunfold.mrf._appearances import edge_appearances
from deepunfold.mrf._energies import energy_estimate
from deepunfold.mrf._messages import FLOOR, Exponent, Rule, at_nodes, at_senders, both_ways, normalise, reverse, rule
from deepunfold.mrf._model import Input, PairwiseMRF
from deepunfold.mrf._schedules import Residual, Turns, check_turns, with_count
from deepunfold.mrf._settings import Grouped, Setting, check_alpha, install, per_message

State = Any
"""Messages (batch, states, 2 E); with `Turns`, (messages, count of steps)."""


class Prepared(NamedTuple):
    """What all steps share: the fields (batch, states, nodes), and how messages are computed."""

    fields: Tensor
    rule: Rule


class MessagePassing(nn.Module):
    """Messages with the paper's exponents lambda, kappa and rho, and its schedule alpha.

    A step computes the beliefs from the messages (equations ``eq:mfbelief``, ``eq:bpbelief``), from them new messages
    (``eq:generalized-combo``, with ``eq:unified_msg`` and ``eq:generalized-sumprod-maxprod`` as cases) and mixes these
    with the old ones (``eq:mfmsg_alpha``). The readout is the marginals, (batch, nodes, states).

    Unfolded and untied it has theta^k = {Psi^k, alpha^k, lambda^k, ...}. The step of layer k takes the fields of that
    layer for its beliefs, the readout those of the last.

    Args:
        model: the Markov random field. Parameters: ``model.pairwise``, ``model.unary``, those of its evidence.
        lambda_: 0 is mean field, 1 belief propagation, any real number in between and beyond is possible.
        kappa: 1 sums over states, inf takes the maximum.
        alpha: how much of a message is new, in [0, 1]; a tensor of these; `Turns`; or `Residual`.
        rho: the exponent of the mean of old and new message: 0 geometric, 1 arithmetic.
        reverse: divide by the message of the other direction; without it, messages return to where they came from.
        normalised: let messages sum to one. Otherwise only their ratios count, and rho must be 0.
        estimator: a module that is given the logarithms of the marginals, (batch, nodes, states), and makes the output
            of them: g of equation ``eq:general:obj1``. The output is the marginals unless told.
    """

    step_parameters = ("model", "lambda_", "kappa", "alpha", "rho")
    readout_parameters = ("model.unary", "model.evidence", "estimator")

    def __init__(
        self,
        model: PairwiseMRF,
        *,
        lambda_: Setting = 1.0,
        kappa: Setting = 1.0,
        alpha: Setting | Turns | Residual = 1.0,
        rho: Setting = 0.0,
        reverse: bool = True,
        normalised: bool = True,
        estimator: nn.Module | None = None,
    ) -> None:
        super().__init__()
        _check_exponents(lambda_, kappa, rho, normalised)
        self.model = model
        for name, setting in (("lambda_", lambda_), ("kappa", kappa), ("rho", rho)):
            install(self, name, setting, model.graph)
        if isinstance(alpha, Turns | Residual):
            check_turns(alpha, model.graph.nodes)
            self.alpha: Any = alpha
        else:
            check_alpha(alpha)
            install(self, "alpha", alpha, model.graph)
        self.reverse, self.normalised = reverse, normalised
        self.estimator = estimator

    # -- the algorithm ----------------------------------------------------------------------------------------------

    def init(self, x: Input) -> State:
        """Messages that say nothing."""
        self.model.check(x)
        graph = self.model.graph
        fields = self.model.fields(x)
        messages = fields.new_zeros(fields.shape[0], graph.states, 2 * len(graph.edges))
        if self.normalised:
            messages = normalise(messages, graph.absent)
        return with_count(messages) if isinstance(self.alpha, Turns) else messages

    def step(self, x: Input, state: State) -> State:
        """All messages once."""
        return self.update(self.prepare(x), state)

    def readout(self, x: Input, state: State) -> Any:
        """What the estimator makes of the marginals' logarithms, or the marginals."""
        logarithms = self.log_marginals(x, state)
        return logarithms.exp() if self.estimator is None else self.estimator(logarithms)

    # -- its parts --------------------------------------------------------------------------------------------------

    def prepare(self, x: Input) -> Prepared:
        """All that is the same in every step."""
        fields, pairwise = self.model(x)
        graph = self.model.graph
        found = rule(graph, both_ways(graph, pairwise), *self.exponents(), self.normalised)
        return Prepared(fields.transpose(1, 2).contiguous(), found)

    def update(self, prepared: Prepared, state: State) -> State:
        """A step, where the potentials are prepared already."""
        old, count = state if isinstance(state, tuple) else (state, None)
        new = self._mixed(old, self._fresh(prepared, old), count)
        return new if count is None else (new, count + 1)

    def residual(self, x: Input, old: State, new: State) -> Tensor:
        """How far a step went, relative to where it got; in turns, how far all messages at once would go."""
        if isinstance(self.alpha, Turns):
            old, new = new[0], self._fresh(self.prepare(x), new[0])
        return relative(*change(old, new, batched=True))

    def log_marginals(self, x: Input, state: State) -> Tensor:
        """The logarithms of the marginals, (batch, nodes, states) (equation ``eq:mfbelief_unfold``)."""
        messages: Tensor = state[0] if isinstance(state, tuple) else state
        received = at_nodes(self.model.graph, messages)
        return (self.model.fields(x) + received.transpose(1, 2)).log_softmax(-1)

    def pair_marginals(self, x: Input, state: State) -> Tensor:
        """What the messages say of both ends of each edge, (batch, E, states, states); for kappa = 1."""
        lambda_ = self._symmetric()
        messages: Tensor = state[0] if isinstance(state, tuple) else state
        nodes, pairwise = self.log_marginals(x, state), self.model.tables(x)
        into_second, into_first = messages.transpose(1, 2).chunk(2, 1)
        first, second = (nodes[:, self.model.graph.edges[:, end]] for end in (0, 1))
        ends = (first - lambda_ * into_first)[..., None] + (second - lambda_ * into_second)[..., None, :]
        absent = ends == -torch.inf  # whatever a table may have there
        logits = (lambda_[..., None] * pairwise.clamp(min=FLOOR) + ends).masked_fill(absent, -torch.inf)
        return logits.flatten(-2).softmax(-1).reshape(logits.shape)

    def log_partition(self, x: Input, state: State) -> Tensor:
        """The estimate of log Z that belongs to the messages, (batch): see `energy_estimate`.

        It is that of Bethe for lambda = 1, the bound of mean field for lambda = 0, and in between and beyond the one
        in which the information of each edge counts with the weight 1 / lambda; for kappa = 1.
        """
        lambda_ = self._symmetric()
        fields, pairwise = self.model(x)
        marginals = self.log_marginals(x, state).exp()
        if not bool(lambda_.any()):
            return energy_estimate(self.model.graph, fields, pairwise, marginals)
        pairs = self.pair_marginals(x, state)
        return energy_estimate(self.model.graph, fields, pairwise, marginals, pairs, 1 / lambda_.flatten())

    def _symmetric(self) -> Tensor:
        """lambda of each edge, (E, 1)."""
        value, kappa = self.exponents()
        edges = len(self.model.graph.edges)
        each = torch.as_tensor(value, dtype=self.model.graph.padding.dtype).expand(2 * edges)
        if not (torch.equal(each[:edges], each[edges:]) and bool((torch.as_tensor(kappa) == 1).all())):
            raise ValueError("beliefs of pairs are known for kappa = 1 and a lambda that is the same both ways")
        return each[:edges, None]

    def _fresh(self, prepared: Prepared, old: Tensor) -> Tensor:
        """All new messages, before they are mixed with the old ones."""
        graph = self.model.graph
        beliefs = at_senders(graph, prepared.fields + at_nodes(graph, old))
        return prepared.rule(beliefs, reverse(old) if self.reverse else None)

    def exponents(self) -> tuple[Exponent, Exponent]:
        """lambda and kappa of each message."""
        return self._exponent("lambda_"), self._exponent("kappa")

    def shares(self) -> Exponent:
        """alpha of each message, where it is no schedule."""
        return self._exponent("alpha")

    def mixes_geometrically(self) -> bool:
        """Whether a message is its new value, or a geometric mean of the old and the new one."""
        if isinstance(self.alpha, Residual):
            return False
        return self.rho == 0.0 if isinstance(self.rho, float) else False

    def _exponent(self, name: str) -> Exponent:
        return per_message(getattr(self, name), len(self.model.graph.edges))

    def _mixed(self, old: Tensor, new: Tensor, count: Tensor | None) -> Tensor:
        """The mean of old and new messages (equation ``eq:mfmsg_alpha``)."""
        if isinstance(self.alpha, Turns):
            return torch.where(self.alpha(count)[self.model.graph.sources], new, old)
        if isinstance(self.alpha, Residual):
            return torch.where(self.alpha(old, new), new, old)
        alpha, rho = self.shares(), self._exponent("rho")
        if isinstance(alpha, float) and alpha == 1:
            return new
        if isinstance(rho, float) and rho == 0:
            mixed = old + alpha * (new - old)
        else:
            shares = torch.as_tensor(alpha, dtype=new.dtype, device=new.device)
            weights = torch.stack([shares, 1 - shares], -1).clamp(min=torch.finfo(new.dtype).tiny).log()
            exponent = rho[:, None] if isinstance(rho, Tensor) and rho.dim() else rho
            mixed = log_power_mean(torch.stack([new, old], -1), exponent, weights)
        return normalise(mixed, self.model.graph.absent) if self.normalised else mixed


class BeliefPropagation(MessagePassing):
    """Sum-product belief propagation, lambda = 1 (equations ``eq:bpmsg``, ``eq:bpupdate``); exact on trees."""

    def __init__(self, model: PairwiseMRF, **settings: Any) -> None:
        super().__init__(model, lambda_=1.0, **settings)


class MaxProduct(MessagePassing):
    """Max-product belief propagation, kappa -> inf. The readout is the max-marginals, which sum to one.

    Their largest states are the most probable ones on trees where these are unique.
    """

    def __init__(self, model: PairwiseMRF, **settings: Any) -> None:
        super().__init__(model, lambda_=1.0, kappa=math.inf, **settings)


class Fractional(MessagePassing):
    """Fractional belief propagation: the mutual information of each edge counts with a weight; lambda = 1 / weight.

    Messages here are those of the usual form to the power of the weight (Wiegerinck and Heskes, 2003).

    Args:
        model: the Markov random field.
        weights: a number, or one per edge; 1 is belief propagation, and mean field is the limit of large ones.
        settings: as for `MessagePassing`.
    """

    def __init__(self, model: PairwiseMRF, weights: float | Tensor, **settings: Any) -> None:
        if not bool((torch.as_tensor(weights) > 0).all()):
            raise ValueError("weights of edges must be above 0")
        super().__init__(model, lambda_=1 / weights, **settings)


class TreeReweighted(Fractional):
    """Tree-reweighted belief propagation (Wainwright, Jaakkola and Willsky, 2005): `Fractional`, with the probabilities
    of the edges in random spanning trees as weights. Where it has converged, its estimate of log Z is an upper bound.

    Args:
        model: the Markov random field.
        appearances: a probability for each edge, (E); those of `edge_appearances` unless given.
        settings: as for `MessagePassing`; it often needs an ``alpha`` below 1 to converge.
    """

    def __init__(self, model: PairwiseMRF, appearances: Tensor | None = None, **settings: Any) -> None:
        if appearances is None:
            appearances = edge_appearances(model.graph).to(model.graph.padding.dtype)
        if not bool((appearances <= 1).all()):
            raise ValueError(f"appearances are probabilities, but the largest is {float(appearances.max()):g}")
        super().__init__(model, appearances, **settings)


def _check_exponents(lambda_: Any, kappa: Any, rho: Any, normalised: bool) -> None:
    fixed = [torch.as_tensor(each).detach() for each in (kappa, lambda_, rho) if not isinstance(each, Grouped)]
    if any(bool(each.isnan().any()) for each in fixed):
        raise ValueError(f"lambda_={lambda_}, kappa={kappa}, rho={rho}: NaN is no exponent")
    if not isinstance(kappa, Grouped) and not bool((torch.as_tensor(kappa).detach() > 0).all()):
        raise ValueError(f"kappa={kappa} must be above 0; 1 sums over states, inf takes the maximum")
    if isinstance(kappa, Tensor) and bool(kappa.detach().isinf().any()):
        raise ValueError("a kappa of infinity is given as a number, for all messages alike")
    if not isinstance(lambda_, Grouped) and bool(torch.as_tensor(lambda_).detach().isinf().any()):
        raise ValueError(f"lambda_={lambda_} must be finite; for the maximum give kappa=inf")
    if isinstance(kappa, float) and kappa == math.inf and isinstance(lambda_, float | int) and lambda_ == 0:
        raise ValueError("mean field, lambda_=0, has no maximum over states; give a finite kappa")
    if not normalised and not (isinstance(rho, float | int) and rho == 0):
        raise ValueError("a mean other than the geometric one depends on how messages are normalised; give rho=0")
