"""Every algorithm, shipped or written by a user, against every check of `deepunfold.testing`."""

import pytest
import torch
from torch import nn

from deepunfold.testing import CHECKS, Case, check_algorithm
from tests.cases import Babylonian, all_cases, signals

CASES = all_cases()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("name", CASES)
def test_algorithm_conforms(name, check):
    if name == "functions" and check.__name__ == "copies_are_faithful":
        pytest.skip("functions cannot be written to a file; test_saving shows the error")
    if name == "complex" and check.__name__ == "copies_are_faithful":
        pytest.skip("functions cannot be written to a file; test_saving shows the error")
    check(CASES[name])


def test_check_algorithm_runs_every_check():
    check_algorithm(Babylonian(), torch.tensor([[0.5], [2.0]], dtype=torch.float64), converged=80)


class WrongGradient(nn.Module):
    """An algorithm whose backward pass lies."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def init(self, x):
        return torch.zeros_like(x)

    def step(self, x, z):
        wrong = self.scale.detach() + 0.5 * (self.scale - self.scale.detach())
        return wrong * (x + z)


class MixesSamples(Babylonian):
    def step(self, x, root):
        return super().step(x, root) + 0.01 * root.mean()


class ForcesFloat64(Babylonian):
    def init(self, x):
        return super().init(x).double()


@pytest.mark.parametrize(
    ("algorithm", "check", "message"),
    [
        (WrongGradient(), "gradients_are_true", "finite differences"),
        (MixesSamples(), "batch_is_independent", "another result than in its batch"),
        (ForcesFloat64(), "dtype_is_kept", "float64"),
    ],
)
def test_checks_find_what_is_wrong(algorithm, check, message):
    with pytest.raises(AssertionError, match=message):
        CHECKS[check](Case(algorithm, signals().abs() + 0.5, 3, None))
