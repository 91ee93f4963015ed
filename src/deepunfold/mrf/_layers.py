"""Feed-forward layers of message passing on beliefs: sigmoid and softmax layers with an exponent lambda.

A unit is a node; a layer passes messages from all units of one layer to all of the next, takes what comes back as
uniform, and normalises (Section 3 and Appendix ``sec:binaryMRF`` of the paper). At lambda = 0 that is mean field, a
conventional layer; at 1 it is belief propagation.
"""

import torch
from torch import Tensor, nn

from deepunfold.mrf._log_means import sum_of_means


class BeliefSigmoid(nn.Module):
    """The generalised sigmoid layer (equation ``eq:bpbelief_binary_abc``), from beliefs mu_j to beliefs mu_i in [0, 1].

    mu_i = logistic(sum_j (1/lambda) log((mu_j e^(lambda (a_ij + s_j)) + 1 - mu_j) / (mu_j e^(lambda s_j) + 1 - mu_j))
                    + b_i)

    At lambda = 0 it is ``nn.Linear`` and a sigmoid; value and gradients, also that in lambda, are continuous there.

    Shapes: beliefs (..., inputs), result (..., outputs). Parameters: ``weight`` a (outputs, inputs), ``bias`` b
    (outputs), and, if they are given, ``source_bias`` s (inputs) and ``lambda_``. The bias starts where all inputs of
    1/2 give outputs of 1/2, and weights start with a variance of 32 / (inputs + outputs), so that small differences
    from there neither grow nor vanish in deep stacks, forwards and backwards.

    Args:
        inputs: how many beliefs come in.
        outputs: how many go out.
        lambda_: any real number, for all outputs or (outputs), kept as a buffer that `set_lambda` changes; an
            ``nn.Parameter`` is learnt.
        source_bias: the share of each input's own bias that is on its edges, b_j / n_j in the paper; none unless told.
    """

    lambda_: Tensor

    def __init__(
        self, inputs: int, outputs: int, lambda_: float | Tensor = 1.0, *, source_bias: Tensor | None = None
    ) -> None:
        super().__init__()
        check_counts(inputs=inputs, outputs=outputs)
        self.inputs, self.outputs = inputs, outputs
        install_exponent(self, "lambda_", lambda_, outputs)
        self.source_bias = None if source_bias is None else _own(source_bias, inputs)
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * (32 / (inputs + outputs)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))
        with torch.no_grad():
            self.bias.copy_(-self.messages(self.weight.new_full((1, inputs), 0.5))[0])

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, lambda_: float | Tensor = 0.0, *, source_bias: Tensor | None = None
    ) -> "BeliefSigmoid":
        """A layer with the weights and the bias of another; at lambda = 0 its outputs are ``sigmoid(linear(mu))``."""
        layer = cls(linear.in_features, linear.out_features, lambda_, source_bias=source_bias).to(linear.weight)
        with torch.no_grad():
            layer.weight.copy_(linear.weight)
            layer.bias.copy_(torch.zeros_like(layer.bias) if linear.bias is None else linear.bias)
        return layer

    def to_linear(self) -> nn.Linear:
        """The linear layer that, with a sigmoid, is the limit lambda = 0."""
        linear = nn.Linear(self.inputs, self.outputs).to(self.weight)
        with torch.no_grad():
            linear.weight.copy_(self.weight)
            linear.bias.copy_(self.bias)
        return linear

    def forward(self, beliefs: Tensor, field: Tensor | None = None) -> Tensor:
        """The beliefs of the outputs; a field (..., outputs), such as C v, is added before the sigmoid."""
        rows = check_beliefs(beliefs, (self.inputs,))
        total = (self.messages(rows) + self.bias).reshape(*beliefs.shape[:-1], self.outputs)
        return torch.sigmoid(total if field is None else total + field)

    def messages(self, beliefs: Tensor) -> Tensor:
        """What the logits receive from all inputs, (batch, outputs), for beliefs (batch, inputs)."""
        states = torch.stack([1 - beliefs, beliefs], -1)
        if self.source_bias is None:
            return sum_of_means(states, _with_zero(self.weight), self.lambda_)
        source = self.source_bias.expand(len(self.lambda_) if self.lambda_.dim() else 1, -1)
        ours = sum_of_means(states, _with_zero(self.weight + self.source_bias), self.lambda_)
        return ours - sum_of_means(states, _with_zero(source), self.lambda_)

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, lambda_={describe_exponent(self.lambda_)}"


class BeliefSoftmax(nn.Module):
    """A layer of units with several states: beliefs of all, from messages of ``eq:unified_msg`` without reverse ones.

    q_i(s) = softmax over s of sum_j (1/lambda) log sum_h q_j(h) exp(lambda Psi_ij(s, h)) + b_i(s)

    With two states it is `BeliefSigmoid` with a = Psi(1,1) - Psi(1,0) - Psi(0,1) + Psi(0,0).

    Shapes: beliefs (..., inputs, S_in), which sum to one over the last dimension, result (..., outputs, S_out).
    Parameters: ``potentials`` Psi (outputs, S_out, inputs, S_in), ``bias`` b (outputs, S_out), and ``lambda_`` if it is
    learnt. The bias starts where uniform beliefs give uniform beliefs, and potentials start with a variance of
    2 S_out^2 / ((S_out - 1) (inputs + outputs)), so that small differences from there neither grow nor vanish.

    Args:
        inputs: how many units come in.
        outputs: how many go out.
        states: S_in and S_out, or one number for both.
        lambda_: as for `BeliefSigmoid`; (outputs) is shared by the states of an output.
    """

    lambda_: Tensor

    def __init__(
        self, inputs: int, outputs: int, states: int | tuple[int, int] = 2, lambda_: float | Tensor = 1.0
    ) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.states = both_states(states)
        check_counts(inputs=inputs, outputs=outputs)
        install_exponent(self, "lambda_", lambda_, outputs)
        spread = (2 * self.states[1] ** 2 / (self.states[1] - 1) / (inputs + outputs)) ** 0.5
        self.potentials = nn.Parameter(spread * torch.randn(outputs, self.states[1], inputs, self.states[0]))
        self.bias = nn.Parameter(torch.zeros(outputs, self.states[1]))
        with torch.no_grad():
            uniform = self.bias.new_full((1, inputs, self.states[0]), 1 / self.states[0])
            self.bias.copy_(-self.messages(uniform)[0])

    def forward(self, beliefs: Tensor, field: Tensor | None = None) -> Tensor:
        """The beliefs of the outputs; a field (..., outputs, S_out) is added before the softmax."""
        rows = check_beliefs(beliefs, (self.inputs, self.states[0]))
        total = (self.messages(rows) + self.bias).reshape(*beliefs.shape[:-2], self.outputs, self.states[1])
        return torch.softmax(total if field is None else total + field, -1)

    def messages(self, beliefs: Tensor) -> Tensor:
        """The logarithms of the products of all messages, (batch, outputs, S_out), for (batch, inputs, S_in)."""
        exponent = self.lambda_.repeat_interleave(self.states[1]) if self.lambda_.dim() else self.lambda_
        total = sum_of_means(beliefs, self.potentials.flatten(0, 1), exponent)
        return total.reshape(-1, self.outputs, self.states[1])

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, states={self.states}, lambda_={describe_exponent(self.lambda_)}"


def install_exponent(layer: nn.Module, name: str, value: float | Tensor, outputs: int) -> None:
    """Make an exponent a buffer, or a parameter if it is one."""
    tensor = torch.as_tensor(value).detach().to(torch.get_default_dtype(), copy=True)
    if tensor.shape not in ((), (outputs,)):
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}; give one number, or {outputs}, one per output")
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} must be finite, not {tensor}")
    if isinstance(value, nn.Parameter):
        layer.register_parameter(name, nn.Parameter(tensor, value.requires_grad))
    else:
        layer.register_buffer(name, tensor)


def describe_exponent(exponent: Tensor) -> str:
    """An exponent in one word."""
    shown = f"{float(exponent.detach()):g}" if exponent.dim() == 0 else f"<{len(exponent)} numbers>"
    return f"{shown} (learnt)" if exponent.requires_grad else shown


def both_states(states: int | tuple[int, int]) -> tuple[int, int]:
    """S_in and S_out."""
    both = (states, states) if isinstance(states, int) else tuple(states)
    if len(both) != 2 or min(both) < 2:
        raise ValueError(f"states={states!r}: give one number, or (S_in, S_out), at least 2")
    return both


def check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name}={count}: give at least one")


def check_units(tensor: Tensor, shape: tuple[int, ...], what: str = "beliefs") -> Tensor:
    """The same with one batch dimension in front, or an error."""
    if tensor.shape[-len(shape) :] != shape:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{what} have the shape {tuple(tensor.shape)}; give (..., {wanted})")
    return tensor.reshape(-1, *shape)


def check_beliefs(beliefs: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same with one batch dimension in front, or an error where they are no probabilities."""
    rows = check_units(beliefs, shape)
    with torch.no_grad():
        if not bool(((rows >= 0) & (rows <= 1)).all()):
            raise ValueError(
                f"beliefs lie in [0, 1], but these have values from {float(rows.min()):g} to {float(rows.max()):g}"
            )
        if len(shape) == 2 and not bool(((rows.sum(-1) - 1).abs() < 1e-3).all()):
            raise ValueError("beliefs sum to one over the states of each unit; these do not")
    return rows


def _own(source_bias: Tensor, inputs: int) -> nn.Parameter:
    if source_bias.shape != (inputs,):
        raise ValueError(f"source_bias has the shape {tuple(source_bias.shape)}; give {inputs} numbers")
    return nn.Parameter(source_bias.detach().to(torch.get_default_dtype(), copy=True))


def _with_zero(potential: Tensor) -> Tensor:
    """The potentials of both states, where the first has none."""
    return torch.stack([torch.zeros_like(potential), potential], -1)
