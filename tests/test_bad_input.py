"""Each mistake gets one line that names what was given and what would be right."""

import re

import pytest
import torch
from torch import nn

import deepunfold as du
from deepunfold.core.algorithms import ADMM, ISTA, VariationalMixture
from tests.cases import Babylonian, dictionary, linear_recurrence, signals


class WrongStart(ISTA):
    def init(self, x):
        return x.new_zeros(x.shape[0], 3)


class ShrinksState(Babylonian):
    def step(self, x, root):
        return root[:, :1]


class ChangesStructure(Babylonian):
    def step(self, x, root):
        return (root, root)


class ChangesDtype(Babylonian):
    def step(self, x, root):
        return root.float()


class NoStep(nn.Module):
    def init(self, x):
        return x


class NotAModule:
    def init(self, x):
        return x

    def step(self, x, state):
        return state


X = signals(4, 5)
NET = du.unfold(linear_recurrence(), 4, tie="each")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: du.unfold(WrongStart(dictionary()), 2)(signals()),
            du.StepError,
            r"WrongStart.step on x \(4, 7\) float64 and state \(4, 3\) float64 failed: RuntimeError.*init .* must give",
        ),
        (
            lambda: du.iterate(WrongStart(dictionary()), signals()),
            du.StepError,
            r"WrongStart.step on x \(4, 7\) float64 and state \(4, 3\)",
        ),
        (
            lambda: du.unfold(ShrinksState(), 2)(X),
            du.StepError,
            r"was given the state \(4, 5\) float64 and returned \(4, 1\) float64; it must return the same structure",
        ),
        (
            lambda: du.unfold(ChangesStructure(), 2)(X),
            du.StepError,
            r"given the state \(4, 5\) float64 and returned \(\(4, 5\) float64, \(4, 5\) float64\)",
        ),
        (lambda: du.unfold(ChangesDtype(), 2)(X), du.StepError, r"float64 and returned \(4, 5\) float32"),
        (
            lambda: du.unfold([(ISTA(dictionary()), 2), (ADMM(dictionary()), 1)])(signals()),
            du.StepError,
            r"ADMM.step on x .* and state \(4, 5\) float64 failed: .*the algorithm before it",
        ),
        (lambda: du.unfold(NoStep(), 2), du.AlgorithmError, "NoStep is not an algorithm: it has no step; give an nn"),
        (lambda: du.unfold(nn.Linear(2, 2), 2), du.AlgorithmError, "Linear is not .* no init and no step"),
        (lambda: du.unfold(NotAModule(), 2), du.AlgorithmError, "is not an nn.Module; derive it"),
        (lambda: du.unfold("ista", 2), du.AlgorithmError, "str is not an algorithm"),
        (lambda: du.unfold([], 2), du.AlgorithmError, "list is not an algorithm"),
        (lambda: du.Schedule(), du.AlgorithmError, "at least one algorithm"),
        (lambda: du.unfold(Babylonian()), ValueError, "layers is missing"),
        (lambda: du.unfold(Babylonian(), 0), ValueError, "Babylonian with 0 steps cannot be unfolded"),
        (lambda: du.unfold(Babylonian(), 2.5), ValueError, "Babylonian with 2.5 steps"),
        (lambda: du.unfold([(Babylonian(), 2)], 3), ValueError, "layers=3, but the chain has 2 steps"),
        (
            lambda: du.unfold(Babylonian(), 4, tie=[0, 1]),
            du.TieError,
            "tie has 2 labels for 'rate', but 4 steps and a readout make 5 layers .*; give 5 labels",
        ),
        (lambda: du.unfold(Babylonian(), 4, tie="some"), du.TieError, "tie='some' is unknown; use \"all\""),
        (
            lambda: du.unfold(Babylonian(), 4, tie={"rat": "each"}),
            du.TieError,
            "tie names 'rat', which is no parameter of Babylonian; there are: rate",
        ),
        (lambda: du.unfold(Babylonian(), 4, train_last=6), ValueError, "train_last=6 is out of range: .* 0 to 5"),
        (lambda: du.unfold(Babylonian(), 4, train_last=-1), ValueError, "train_last=-1 is out of range"),
        (lambda: NET.with_train_last(9), ValueError, "train_last=9 is out of range"),
        (lambda: du.unfold(Babylonian(), 4, backward="magic"), ValueError, "backward='magic' is unknown; use one of"),
        (lambda: du.unfold(Babylonian(), 4, backward=3), TypeError, "backward=3 is no backward mode"),
        (
            lambda: du.unfold(linear_recurrence(), 4, tie="each", backward="implicit"),
            du.TieError,
            "Implicit differentiates a fixed point of one step, but the steps of this network differ",
        ),
        (lambda: du.Truncated(0), ValueError, "at least one step"),
        (lambda: du.Checkpoint(0), ValueError, "at least one segment"),
        (lambda: du.Implicit("lu"), ValueError, "solver='lu' is unknown; use one of gmres, neumann"),
        (lambda: du.Implicit(damping=0), ValueError, r"damping=0 must lie in \(0, 1\]"),
        (lambda: NET(X, layers=5), ValueError, "5 steps were asked for, but this network has 4 .* grow"),
        (lambda: NET(X, layers=-1), ValueError, "layer -1 does not exist"),
        (lambda: NET.outputs(X, at=[-9]), ValueError, "does not exist; the network has steps 0 to 4"),
        (lambda: NET.outputs(X, at=[]), ValueError, "no layer was asked for"),
        (lambda: NET.grow(0), ValueError, r"grow\(layers=0\) adds nothing"),
        (lambda: NET.grow(1, start="zero"), ValueError, "start='zero' is unknown"),
        (lambda: du.iterate(Babylonian(), X.abs(), max_steps=0), ValueError, "max_steps=0 allows no step"),
        (
            lambda: du.iterate((lambda x: torch.zeros(7), lambda x, z: z), X),
            ValueError,
            r"x has a batch of 4, but a tensor of the state has the shape \(7,\)",
        ),
        (lambda: du.iterate(Babylonian(), torch.tensor(2.0)), ValueError, "x has no tensor with a batch dimension"),
        (lambda: du.deep_supervision(nn.functional.mse_loss, {2: 0.0}), ValueError, "leaves no layer"),
        (lambda: ISTA(torch.zeros(3, 4)), ValueError, "must be finite and not all zero"),
        (lambda: ISTA(torch.full((3, 4), torch.nan)), ValueError, "must be finite"),
        (lambda: ISTA(torch.ones(4)), ValueError, r"must be a real matrix \(m, n\), not \(4,\)"),
        (lambda: ISTA(torch.ones(2, 3), -1.0), ValueError, "sparsity=-1.0 must be >= 0"),
        (lambda: ADMM(torch.ones(2, 3), penalty=0), ValueError, "penalty=0 must be > 0"),
        (lambda: VariationalMixture(torch.ones(3)), ValueError, r"the shape \(components, dim\), not \(3,\)"),
        (lambda: VariationalMixture(torch.ones(3, 2), strength=0), ValueError, "strength=0 must be > 0"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert re.search(message, text), text
    assert "\n" not in text, "an error is one line"
