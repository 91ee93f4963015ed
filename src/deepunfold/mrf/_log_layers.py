"""Feed-forward layers on unnormalised logarithms (equations ``eq:logsumprod``, ``eq:logmaxprod``), and their relatives.

Units have a number u(h) for each state instead of a belief. Maxout and its soft form, which the paper compares with
them, take and give one number per unit.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from deepunfold.means import log_power_mean
from deepunfold.mrf._layers import both_states, check_counts, check_units, describe_exponent, install_exponent
from deepunfold.mrf._log_means import sum_in_blocks, sum_of_means

FEW = 2
"""From how many inputs an output of `LogMaxProduct` starts."""


class _LogLayer(nn.Module):
    """What both log forms share: potentials, bias, and how values are centred."""

    def __init__(self, inputs: int, outputs: int, states: int | tuple[int, int], centred: bool, kappa: float) -> None:
        super().__init__()
        check_counts(inputs=inputs, outputs=outputs)
        self.inputs, self.outputs, self.states, self.centred = inputs, outputs, both_states(states), centred
        ahead = self.states[1]
        start = torch.randn(outputs, ahead, inputs, self.states[0])
        if kappa == math.inf:
            start *= torch.rand(outputs, 1, inputs, 1).argsort(2) < FEW
        else:
            start *= (2 * ahead**2 / (ahead - 1) / (inputs + outputs)) ** 0.5 / max(abs(kappa), 0.1)
        self.potentials = nn.Parameter(start)
        self.bias = nn.Parameter(torch.zeros(outputs, ahead))

    def _begin(self) -> None:
        """Let values of zero give values of zero."""
        with torch.no_grad():
            self.bias.copy_(-self.messages(self.bias.new_zeros(1, self.inputs, self.states[0]))[0])

    def messages(self, values: Tensor) -> Tensor:
        """The sum of all messages, (batch, outputs, S_out), for values (batch, inputs, S_in)."""
        raise NotImplementedError

    def forward(self, values: Tensor, field: Tensor | None = None) -> Tensor:
        """The values of the outputs; a field (..., outputs, S_out), such as Psi(h, v), is added."""
        rows = check_units(values, (self.inputs, self.states[0]), "values")
        total = (self.messages(rows) + self.bias).reshape(*values.shape[:-2], self.outputs, self.states[1])
        total = total if field is None else total + field
        return total - total.mean(-1, keepdim=True) if self.centred else total


class LogSumProduct(_LogLayer):
    """Sum-product messages of unnormalised logarithms (equation ``eq:logsumprod``), and their limits.

    u_i(s) = sum_j (1/kappa) log((1/S_in) sum_h exp(kappa u_j(h) + kappa Psi_ij(s, h))) + b_i(s)

    kappa = 1 is belief propagation, inf `LogMaxProduct`, 0 the mean over h. A number that all states of an input have
    in common is added to all states of all outputs. It means nothing, and in a stack its size is multiplied by that of
    each layer. Layers therefore give values of mean zero over the states of each unit, unless ``centred`` is false:
    then they are those of the equation.

    Shapes: values (..., inputs, S_in), result (..., outputs, S_out). Parameters: ``potentials`` Psi (outputs, S_out,
    inputs, S_in), ``bias`` b (outputs, S_out), and ``kappa`` if it is learnt. Values of zero first give values of zero.
    Potentials start with a variance of 2 S_out^2 / ((S_out - 1) (inputs + outputs) kappa^2), so that small values, of a
    size below 1 / kappa, neither grow nor vanish in deep stacks.

    Args:
        inputs: how many units come in.
        outputs: how many go out.
        states: S_in and S_out, or one number for both.
        kappa: a number, kept as a buffer; an ``nn.Parameter`` is learnt.
        centred: subtract the mean over the states of each output.
    """

    kappa: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        states: int | tuple[int, int] = 2,
        kappa: float | Tensor = 1.0,
        *,
        centred: bool = True,
    ) -> None:
        super().__init__(inputs, outputs, states, centred, _number(kappa))
        _install_kappa(self, kappa)
        self._begin()

    def messages(self, values: Tensor) -> Tensor:
        """The sum of all messages, (batch, outputs, S_out), for values (batch, inputs, S_in)."""
        if bool(self.kappa.isinf()):
            return _largest(values, self.potentials)
        scaled = self.kappa * values
        common = log_power_mean(values, self.kappa).sum(-1)
        total = sum_of_means(scaled.softmax(-1), self.potentials.flatten(0, 1), self.kappa, scaled.log_softmax(-1))
        return (total + common[:, None]).reshape(-1, self.outputs, self.states[1])

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, states={self.states}, kappa={describe_exponent(self.kappa)}"


class LogMaxProduct(_LogLayer):
    """Max-product messages of unnormalised logarithms (equation ``eq:logmaxprod``): `LogSumProduct` for kappa -> inf.

    u_i(s) = sum_j max_h (u_j(h) + Psi_ij(s, h)) + b_i(s)

    Shapes, parameters and arguments are those of `LogSumProduct`. The slope of a maximum does not fall with the size of
    the potentials. With all inputs at once, gradients would grow from layer to layer; each output therefore starts with
    potentials of variance 1 from two inputs, chosen at random, and of zero from the others.
    """

    def __init__(self, inputs: int, outputs: int, states: int | tuple[int, int] = 2, *, centred: bool = True) -> None:
        super().__init__(inputs, outputs, states, centred, math.inf)
        self._begin()

    def messages(self, values: Tensor) -> Tensor:
        """The sum of all messages, (batch, outputs, S_out), for values (batch, inputs, S_in)."""
        return _largest(values, self.potentials)

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, states={self.states}"


class Maxout(nn.Module):
    """The largest of several linear functions (Goodfellow et al., 2013): x_i = max_n (sum_j w_inj x_j + b_in).

    Shapes: x (..., inputs), result (..., outputs). Parameters: ``weight`` (outputs, pieces, inputs), which starts with
    a variance of 2 / (inputs + outputs), and ``bias`` (outputs, pieces), which starts at zero.

    Args:
        inputs: how many numbers come in.
        outputs: how many go out.
        pieces: how many linear functions each output has.
    """

    def __init__(self, inputs: int, outputs: int, pieces: int = 2) -> None:
        super().__init__()
        check_counts(inputs=inputs, outputs=outputs, pieces=pieces)
        self.inputs, self.outputs = inputs, outputs
        self.weight = nn.Parameter(torch.randn(outputs, pieces, inputs) * (2 / (inputs + outputs)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(outputs, pieces))

    def forward(self, x: Tensor) -> Tensor:
        """The values of the outputs."""
        return _pieces(x, self.weight, self.bias).amax(-1)

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, pieces={self.weight.shape[1]}"


class SoftMaxout(nn.Module):
    """`Maxout` with a soft maximum (Zhang et al., 2014): x_i = (1/kappa) log((1/N) sum_n exp(kappa z_in)), z linear.

    The factor 1/N, as in `LogSumProduct`, only moves the bias; with it kappa = 0 is the mean, and inf `Maxout`.

    Shapes, parameters and arguments are those of `Maxout`; ``kappa`` is as for `LogSumProduct`. A mean over N pieces
    has 1/N of their variance and the largest has all of it: weights start larger by about what is lost in between.
    """

    kappa: Tensor

    def __init__(self, inputs: int, outputs: int, pieces: int = 2, kappa: float | Tensor = 1.0) -> None:
        super().__init__()
        check_counts(inputs=inputs, outputs=outputs, pieces=pieces)
        self.inputs, self.outputs = inputs, outputs
        _install_kappa(self, kappa)
        alone = 1 - (1 - 1 / pieces) / (1 + abs(_number(kappa)))
        self.weight = nn.Parameter(torch.randn(outputs, pieces, inputs) * (2 / alone / (inputs + outputs)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(outputs, pieces))

    def forward(self, x: Tensor) -> Tensor:
        """The values of the outputs."""
        return log_power_mean(_pieces(x, self.weight, self.bias), self.kappa)

    def extra_repr(self) -> str:
        pieces = self.weight.shape[1]
        return f"{self.inputs}, {self.outputs}, pieces={pieces}, kappa={describe_exponent(self.kappa)}"


def _install_kappa(layer: nn.Module, kappa: float | Tensor) -> None:
    """As a buffer, or a parameter; the only exponent that may be infinite."""
    if _number(kappa) == math.inf and not isinstance(kappa, nn.Parameter):
        layer.register_buffer("kappa", torch.tensor(math.inf))
    else:
        install_exponent(layer, "kappa", kappa, 0)


def _number(kappa: float | Tensor) -> float:
    if isinstance(kappa, Tensor) and kappa.dim():
        raise ValueError(f"kappa has the shape {tuple(kappa.shape)}; give one number")
    return float(kappa.detach()) if isinstance(kappa, Tensor) else float(kappa)


def _largest(values: Tensor, potentials: Tensor) -> Tensor:
    """sum_j max_h (u_j(h) + Psi_ij(s, h))."""
    total = sum_in_blocks(values, potentials.flatten(0, 1), values.new_tensor(math.inf))
    return total.reshape(-1, *potentials.shape[:2])


def _pieces(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """All linear functions, (..., outputs, pieces)."""
    rows = check_units(x, (weight.shape[2],), "x")
    values = functional.linear(rows, weight.flatten(0, 1), bias.flatten())
    return values.reshape(*x.shape[:-1], *bias.shape)
