"""What an algorithm is (Section 2 of the paper), and the ways to make one.

An algorithm has ``init(x) -> phi^0``, ``step(x, phi) -> phi`` (equation ``eq:general:update1``) and, if the result is
not the state itself, ``readout(x, phi) -> y`` (the estimator g of ``eq:general:obj1``). It is an ``nn.Module`` whose
parameters are theta. There is no base class: whatever has these methods is one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor, nn

from deepunfold.core import _tree
from deepunfold.core._errors import AlgorithmError
from deepunfold.core._tree import State


@runtime_checkable
class Algorithm(Protocol):
    """The contract. ``readout`` may be left out (then y is the state), and so may two optional class attributes:

    ``step_parameters`` and ``readout_parameters`` name the parameters that the step and the readout use. Where they
    are given, an untied network holds no copy of a parameter that no layer would use.
    """

    def init(self, x: Any, /) -> State: ...

    def step(self, x: Any, state: State, /) -> State: ...


Triple: TypeAlias = Sequence[Callable[..., Any]]
"""Plain functions ``(init, step)`` or ``(init, step, readout)``, without parameters of their own."""


class _FromFunctions(nn.Module):
    """Functions of (theta, ...) as a module; theta, their first argument, is the module itself."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], parameters: Mapping[str, Any]) -> None:
        super().__init__()
        self._functions = dict(functions)
        for name, value in parameters.items():
            if isinstance(value, nn.Module | nn.Parameter):
                setattr(self, name, value)
            elif isinstance(value, Tensor):
                setattr(self, name, nn.Parameter(value.detach().clone()))
            else:
                setattr(self, name, nn.Parameter(torch.as_tensor(value, dtype=torch.get_default_dtype())))

    def init(self, x: Any) -> State:
        return self._functions["init"](self, x)

    def step(self, x: Any, state: State) -> State:
        return self._functions["step"](self, x, state)

    def readout(self, x: Any, state: State) -> Any:
        readout = self._functions.get("readout")
        return state if readout is None else readout(self, x, state)


def from_functions(
    init: Callable[..., State],
    step: Callable[..., State],
    readout: Callable[..., Any] | None = None,
    **parameters: Any,
) -> nn.Module:
    """An algorithm from functions ``init(theta, x)``, ``step(theta, x, state)``, ``readout(theta, x, state)``.

    The keyword arguments are theta: tensors and numbers become parameters, modules stay modules; inside the functions
    they are ``theta.NAME``. Example::

        newton = from_functions(
            init=lambda theta, x: torch.ones_like(x),
            step=lambda theta, x, root: root + theta.rate * (x / root - root),
            rate=0.5,
        )
    """
    functions = {"init": init, "step": step} | ({} if readout is None else {"readout": readout})
    return _FromFunctions(functions, parameters)


def as_algorithm(candidate: Any) -> nn.Module:
    """Check that something is an algorithm, wrapping plain functions; the module that comes back has all it needs."""
    if isinstance(candidate, nn.Module) and isinstance(candidate, Algorithm):
        return candidate
    if isinstance(candidate, Sequence) and 2 <= len(candidate) <= 3 and all(callable(part) for part in candidate):
        names = ("init", "step", "readout")
        without_theta = {
            name: (lambda function: lambda _theta, *inputs: function(*inputs))(part)
            for name, part in zip(names, candidate, strict=False)
        }
        return _FromFunctions(without_theta, {})
    missing = [name for name in ("init", "step") if not callable(getattr(candidate, name, None))]
    kind = type(candidate).__name__
    if missing:
        raise AlgorithmError(
            f"{kind} is not an algorithm: it has no {' and no '.join(missing)}; give an nn.Module with init(x), "
            "step(x, state) and, optionally, readout(x, state), or a tuple of these functions"
        )
    raise AlgorithmError(f"{kind} has init and step but is not an nn.Module; derive it from torch.nn.Module")


def has_readout(algorithm: nn.Module) -> bool:
    """Whether y is something else than the state."""
    return callable(getattr(algorithm, "readout", None))


def read_out(algorithm: nn.Module, x: Any, state: State) -> Any:
    """y = g_theta(x, phi), or phi itself for an algorithm without a readout."""
    return cast(Any, algorithm).readout(x, state) if has_readout(algorithm) else state


class Schedule(nn.Module):
    """Several algorithms that share a state, one after the other inside one iteration.

    The paper: f may be composed of smaller steps, each of which are different. ``init`` is the first one's, ``readout``
    the last one's.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        if not parts:
            raise AlgorithmError("a Schedule needs at least one algorithm, none was given")
        self.parts = nn.ModuleList(as_algorithm(part) for part in parts)

    def init(self, x: Any) -> State:
        return cast(Any, self.parts[0]).init(x)

    def step(self, x: Any, state: State) -> State:
        for part in self.parts:
            state = cast(Any, part).step(x, state)
        return state

    def readout(self, x: Any, state: State) -> Any:
        return read_out(self.parts[-1], x, state)


def name_of(algorithm: Any) -> str:
    """A short name for messages and tables."""
    if isinstance(algorithm, Schedule):
        return f"Schedule({', '.join(name_of(part) for part in algorithm.parts)})"
    kind = type(algorithm).__name__.removeprefix("Parametrized")
    return "functions" if kind == "_FromFunctions" else kind


def describe_call(algorithm: Any, x: Any, state: State) -> str:
    """What a step was given, for messages."""
    return f"{name_of(algorithm)}.step on x {_tree.describe(x)} and state {_tree.describe(state)}"
