"""The network: K steps and a readout as layers 0..K (Section 2 of the paper)."""

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from deepunfold.core import _loop, _tree
from deepunfold.core._algorithm import as_algorithm, name_of, read_out
from deepunfold.core._backward import Backward, Checkpoint, JacobianFree, Span, Truncated, Unroll, without_graph
from deepunfold.core._errors import TieError
from deepunfold.core._implicit import Implicit
from deepunfold.core._layers import Group, build_layers, format_groups, groups
from deepunfold.core._sharing import share, share_state_dict_names, sharing
from deepunfold.core._tree import State
from deepunfold.core._tying import Slot, Tie, label_table, parameter_names

MODES: dict[str, Callable[[], Backward]] = {
    "unroll": Unroll,
    "checkpoint": Checkpoint,
    "truncated": Truncated,
    "implicit": Implicit,
    "jacobian_free": JacobianFree,
}


def unfold(
    algorithm: Any,
    layers: int | None = None,
    *,
    tie: Tie = "all",
    train_last: int | None = None,
    backward: str | Backward = "unroll",
) -> "Unfolded":
    """Turn K iterations of an algorithm into a network ``y = net(x)`` with layers theta^0 ... theta^K.

    Steps use theta^0 to theta^{K-1}, the readout theta^K, so that phi^k = f_{theta^{k-1}}(x, phi^{k-1}) and
    y = g_{theta^K}(x, phi^K). The algorithm's parameters are copied; the algorithm itself is left as it is.

    Args:
        algorithm: an ``nn.Module`` with ``init``, ``step`` and, optionally, ``readout``; a tuple of such functions; or
            a chain ``[(algorithm, steps), ...]`` of them that share a state. The last one of a chain reads out,
            and may take no step.
        layers: K, the number of steps (for a chain it is the sum of the steps given there).
        tie: which layers share parameters: "all", "each", K+1 labels, or one of these per parameter name.
        train_last: C, so that only layers K-C+1 to K are trained and what lies below runs without a graph. What is
            trained is never shared with what is not.
        backward: "unroll", "checkpoint", "truncated", "implicit", "jacobian_free", or one of the classes of these
            names with settings, such as ``Checkpoint(segments=4)``.
    """
    chain = _as_chain(algorithm, layers)
    sources = [part for part, steps in chain for _ in range(steps)]
    kinds = [kind for kind, (_, steps) in enumerate(chain) for _ in range(steps)]
    sources.append(chain[-1][0])
    kinds.append(len(chain) - 1)
    table = label_table(sources, tie, train_last)
    built = build_layers(sources, kinds, table, lambda _k, _name, parameter: parameter.requires_grad)
    learnable = {
        (kind, name): parameter.requires_grad
        for kind, (part, _) in enumerate(chain)
        for name, parameter in zip(parameter_names(part), part.parameters(), strict=True)
    }
    return Unfolded(built, kinds, table, train_last=train_last, backward=backward, learnable=learnable)


def _as_chain(algorithm: Any, layers: int | None) -> list[tuple[nn.Module, int]]:
    chained = isinstance(algorithm, list) and all(isinstance(link, tuple) and len(link) == 2 for link in algorithm)
    if chained and algorithm and all(isinstance(steps, int) for _, steps in algorithm):
        chain = [(as_algorithm(part), steps) for part, steps in algorithm]
        if layers is not None and layers != sum(steps for _, steps in chain):
            raise ValueError(
                f"layers={layers}, but the chain has {sum(steps for _, steps in chain)} steps; leave layers out"
            )
    elif layers is None:
        raise ValueError("layers is missing: say how many steps to unfold, such as layers=10")
    else:
        chain = [(as_algorithm(algorithm), layers)]
    for number, (part, steps) in enumerate(chain):
        # The last algorithm of a chain may take no step: then it only reads out.
        least = 0 if 0 < number == len(chain) - 1 else 1
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < least:
            raise ValueError(
                f"{name_of(part)} with {steps!r} steps cannot be unfolded; give a whole number from {least}"
            )
    return chain


class Unfolded(nn.Module):
    """A network made by `unfold`. ``layers[k]`` holds theta^k: steps use 0..K-1, the readout uses K."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        kinds: Sequence[int],
        table: Sequence[dict[str, Slot]],
        *,
        train_last: int | None,
        backward: str | Backward,
        learnable: dict[tuple[int, str], bool],
        gates: dict[str, nn.Parameter] | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.gates = nn.ParameterDict(gates or {})
        self._kinds, self._table, self._learnable = list(kinds), list(table), dict(learnable)
        self._train_last = train_last
        # The steps at which a state first meets an algorithm: there it is checked.
        self._firsts = [k for k in range(self.depth) if k == 0 or kinds[k] != kinds[k - 1]]
        self._aliases = sharing(self)
        self.backward = backward
        share_state_dict_names(self)

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """K, the number of steps."""
        return len(self.layers) - 1

    @property
    def train_last(self) -> int | None:
        """C, or None where all layers are trained. `with_train_last` makes a network with another one."""
        return self._train_last

    @property
    def backward(self) -> Backward:
        """The backward mode. It can be set at any time; the forward values stay the same."""
        return self._backward

    @backward.setter
    def backward(self, mode: str | Backward) -> None:
        if isinstance(mode, str):
            if mode not in MODES:
                raise ValueError(f"backward={mode!r} is unknown; use one of {', '.join(MODES)}")
            mode = MODES[mode]()
        if not callable(getattr(mode, "plan", None)):
            raise TypeError(f"backward={mode!r} is no backward mode; use one of {', '.join(MODES)} or its class")
        if getattr(mode, "fixed_point", False) and not self._repeats:
            raise TieError(
                f"backward={type(mode).__name__} differentiates a fixed point of one step, but the steps of this "
                'network differ; use tie="all" for the layers that step, or another mode'
            )
        self._backward = copy.copy(mode)

    @property
    def _repeats(self) -> bool:
        """Whether all steps are one and the same."""
        return not self.gates and len({id(layer) for layer in self.layers[: self.depth]}) == 1

    def tying(self) -> None:
        """Print which layers share which parameters, and which of them are trained."""
        print(self.tying_table())  # noqa: T201

    def tying_table(self) -> str:
        """What `tying` prints."""
        return format_groups(self.groups())

    def groups(self) -> list[Group]:
        """The distinct parameters with their layers, as data."""
        return groups(list(self.layers))

    def extra_repr(self) -> str:
        return f"depth={self.depth}, train_last={self.train_last}, backward={self.backward!r}"

    # -- what it does ------------------------------------------------------------------------------------------------

    def forward(self, x: Any, layers: int | None = None) -> Any:
        """y = g_{theta^K}(x, phi^K); with ``layers=n``, after n steps instead of K.

        Fewer steps than K are the first n. More are possible where all steps share their parameters.
        """
        depth = self.depth if layers is None else layers
        return self._read_out(x, self._states(x, [depth])[0])

    def outputs(self, x: Any, at: Sequence[int], grad: bool = True) -> list[Any]:
        """The readouts g_{theta^K}(x, phi^k) after the given numbers of steps (negative ones count from K)."""
        with torch.set_grad_enabled(grad and torch.is_grad_enabled()):
            return [self._read_out(x, state) for state in self.states(x, at)]

    def states(self, x: Any, at: Sequence[int]) -> list[State]:
        """phi^k after the given numbers of steps; 0 is the start."""
        depths = [k + self.depth + 1 if k < 0 else k for k in at]
        ordered = sorted(set(depths))
        found = dict(zip(ordered, self._states(x, ordered), strict=True))
        return [found[k] for k in depths]

    def _states(self, x: Any, at: Sequence[int]) -> list[State]:
        """The states after the given numbers of steps, in rising order. All forward passes come through here."""
        self._check_depths(at)
        depth = at[-1]
        start_steps, spans = self._plan(depth)
        state = start_steps(x)
        steps = self._steps(depth)
        found = [state] if at[0] == 0 else []
        for start, stop, runner in spans:
            cuts = [start, *(k for k in at if start < k < stop), stop]
            for a, b in itertools.pairwise(cuts):
                if b > a:
                    state = runner(steps[a:b], x, state)
                    if b in at:
                        found.append(state)
        return found

    def _plan(self, depth: int) -> tuple[Callable[[Any], State], list[Span]]:
        """The start, and the spans of steps with the functions that run them."""
        first: Any = self.layers[0]
        init = first.init
        if not torch.is_grad_enabled():
            return init, [Span(0, depth, _loop.run)]
        if self._train_last is None or self._train_last > self.depth:
            return init, self._spans(0, depth)
        frozen = min(self.depth - self._train_last + 1, depth)

        def start(x: Any) -> State:
            with torch.no_grad():
                return init(x)

        return start, [Span(0, frozen, without_graph), *self._spans(frozen, depth)]

    def _spans(self, start: int, stop: int) -> list[Span]:
        return self._backward.plan(start, stop) if stop > start else []

    def _steps(self, depth: int) -> list[_loop.Step]:
        """The first steps of the network; beyond K, which only alike steps allow, the last one again."""
        layers: list[Any] = list(self.layers)[:-1]
        layers = layers[:depth] + layers[-1:] * (depth - len(layers))
        steps: list[_loop.Step] = [layer.step for layer in layers]
        for k in self._firsts:
            if k < depth:
                steps[k] = _loop.guarded(layers[k])
        for key, gate in self.gates.items():
            if int(key) < depth:
                steps[int(key)] = _gated(steps[int(key)], gate)
        return steps

    def _read_out(self, x: Any, state: State) -> Any:
        if self._train_last == 0:
            with torch.no_grad():
                return read_out(self.layers[-1], x, state)
        return read_out(self.layers[-1], x, state)

    def _check_depths(self, at: Sequence[int]) -> None:
        if not at:
            raise ValueError("no layer was asked for; give at least one number of steps")
        if not 0 <= at[0] <= at[-1]:
            raise ValueError(f"layer {at[0]} does not exist; the network has steps 0 to {self.depth}")
        if at[-1] > self.depth and not self._repeats:
            raise ValueError(
                f"{at[-1]} steps were asked for, but this network has {self.depth} that are not all alike; "
                "ask for fewer, or make a deeper network with grow()"
            )

    # -- what it can become ------------------------------------------------------------------------------------------
    # Each gives a new network with parameters of its own whose outputs are bit-equal to this one's.

    def untie(self, tie: Tie = "each") -> "Unfolded":
        """A network that shares fewer parameters, by any pattern (equal parameters can also be tied again)."""
        table = label_table(list(self.layers), tie, self._train_last)
        return self._rebuilt(table, self._train_last)

    def with_train_last(self, train_last: int | None) -> "Unfolded":
        """A network in which other layers are trained. Layers that it freezes or frees are untied from the others."""
        home = label_table(list(self.layers), "all", train_last)
        table = [
            {name: Slot((slot.label, slot.trained), home[k][name].trained) for name, slot in slots.items()}
            for k, slots in enumerate(self._table)
        ]
        return self._rebuilt(table, train_last)

    def grow(self, layers: int = 1, start: str = "identity") -> "Unfolded":
        """A network with more steps, put before the readout, that begin as copies of the last step.

        Args:
            layers: how many.
            start: "identity" gates each new step with a trainable number that begins at 0 (phi + gate (f(phi) - phi)),
                so that the outputs are those of this network, bit for bit. "copy" takes the new steps in full, so
                that the outputs are those of as many more iterations; ``net(x, layers=...)`` with the old depth gives
                this network's. A network that is tied throughout stays so with "copy"; otherwise new layers are untied.
        """
        if layers < 1:
            raise ValueError(f"grow(layers={layers}) adds nothing; give at least 1")
        if start not in ("identity", "copy"):
            raise ValueError(f'start={start!r} is unknown; use "identity" or "copy"')
        old, last = self.depth, self.depth - 1
        origin = [*range(old), *[last] * layers, old]
        sources = [self.layers[k] for k in origin]
        table = [self._table[k] for k in origin]
        if start == "identity" or not self._repeats:
            for k in range(old, old + layers):
                table[k] = {name: Slot(("grown", k), True) for name in table[k]}
            # Where the readout has no parameters of its own, it goes on sharing those of the last step.
            homes = label_table(sources, "each", None)[-1]
            follows = {name: table[-2][name] for name, slot in homes.items() if slot.label != old + layers}
            table[-1] = table[-1] | follows
        train_last = self._train_last and self._train_last + layers
        gates = dict(self.gates)
        if start == "identity":
            like = next(self.parameters(), torch.empty(0))
            for k in range(old, old + layers):
                gates[str(k)] = nn.Parameter(torch.zeros((), dtype=like.dtype, device=like.device))
        return self._rebuilt(table, layers + 1 if train_last == 0 else train_last, origin, gates)

    def _rebuilt(
        self,
        table: Sequence[dict[str, Slot]],
        train_last: int | None,
        origin: Sequence[int] | None = None,
        gates: dict[str, nn.Parameter] | None = None,
    ) -> "Unfolded":
        """A network whose layer k comes from layer ``origin[k]`` of this one, tied as the table says."""
        origin = range(self.depth + 1) if origin is None else origin
        kinds = [self._kinds[k] for k in origin]

        def learnable(k: int, name: str, parameter: nn.Parameter) -> bool:
            # A parameter that was frozen by train_last alone may be trained again; one that was fixed by hand may not.
            return parameter.requires_grad if self._table[origin[k]][name].trained else self._learnable[kinds[k], name]

        layers = build_layers([self.layers[k] for k in origin], kinds, table, learnable)
        gates = dict(self.gates) if gates is None else gates
        fresh = {key: nn.Parameter(gate.detach().clone(), gate.requires_grad) for key, gate in gates.items()}
        net = Unfolded(
            layers, kinds, table, train_last=train_last, backward="unroll", learnable=self._learnable, gates=fresh
        )
        if not self._backward.fixed_point or net._repeats:
            net.backward = self._backward
        return net.train(self.training)

    # -- bookkeeping -------------------------------------------------------------------------------------------------

    def _apply(self, function: Callable[[Tensor], Tensor], recurse: bool = True) -> "Unfolded":
        super()._apply(function, recurse)  # type: ignore[no-untyped-call]
        share(self)
        return self


def _gated(step: _loop.Step, gate: Tensor) -> _loop.Step:
    """phi + gate (f(phi) - phi), with the gate kept in [0, 1] and its gradient let through."""

    def gated(x: Any, state: State) -> State:
        weight = gate + (gate.clamp(0, 1) - gate).detach()
        return _tree.map_tensors(lambda old, new: _mix(old, new, weight), state, step(x, state))

    return gated


def _mix(old: Tensor, new: Tensor, weight: Tensor) -> Tensor:
    if not (old.is_floating_point() or old.is_complex()):
        return torch.where(weight > 0, new, old)
    return old + weight.to(old.dtype) * (new - old)
