"""An algorithm to be filled in: copy this file, change what is marked with FILL IN, and run it.

As it stands it is gradient descent for least squares. Running the file runs the conformance suite on `example`.
"""

import torch
from torch import Tensor, nn

from deepunfold.testing import check_algorithm


class MyAlgorithm(nn.Module):
    """FILL IN: the update as a formula, here z <- z - rate * (z A^T - x) A, read out as scale * z.

    Shapes: x (batch, m), state z (batch, n), output (batch, n). Parameters: ``matrix`` A (m, n), ``rate``, ``scale``.
    """

    # FILL IN: the names of the parameters that the step uses, and of those that the readout uses; () for none.
    # If you are not sure, leave both lines out: then every layer of an untied network has a copy of every parameter.
    step_parameters = ("matrix", "rate")
    readout_parameters = ("scale",)

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        # FILL IN: what can be trained is a parameter; constants are buffers or plain attributes.
        self.matrix = nn.Parameter(matrix.detach().clone())
        self.rate = nn.Parameter(1 / torch.linalg.matrix_norm(matrix, 2) ** 2)
        self.scale = nn.Parameter(matrix.new_ones(()))

    def init(self, x: Tensor) -> Tensor:
        """FILL IN: the state phi^0, as one tensor or a tuple or dict of them, with the batch leading in each."""
        return x.new_zeros(x.shape[0], self.matrix.shape[1])

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """FILL IN: the next state. It has the structure, shapes and dtypes of the old one, which stays as it is."""
        misfit = state @ self.matrix.mT - x
        return state - self.rate * (misfit @ self.matrix)

    def readout(self, x: Tensor, state: Tensor) -> Tensor:
        """FILL IN: the result y from the state; leave the method out if the state is the result."""
        return self.scale * state


def example() -> tuple[MyAlgorithm, Tensor]:
    """FILL IN: a small algorithm and an input of at least two samples, both in float64, for the conformance suite."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return MyAlgorithm(matrix), torch.randn(4, 6, generator=generator, dtype=torch.float64)


# FILL IN: steps after which the state of `example` no longer moves, or None if there is no fixed point.
CONVERGED: int | None = 300

if __name__ == "__main__":
    check_algorithm(*example(), converged=CONVERGED)
