"""Many steps of the same message passing, with all that they share computed once."""

from itertools import repeat
from typing import Any

import torch

from deepunfold.core import _loop
from deepunfold.mrf._mean_field import MeanField
from deepunfold.mrf._model import Input
from deepunfold.mrf._passing import MessagePassing, State
from deepunfold.mrf._ratios import as_ratios


@torch.no_grad()
def infer(algorithm: MessagePassing | MeanField, x: Input, steps: int, state: State | None = None) -> Any:
    """The output after some steps: what `iterate` gives with ``until=None``, without a residual after each, and faster.

    The state to start from is that of ``init(x)`` unless it is given.
    """
    if steps < 0:
        raise ValueError(f"steps={steps} must be at least 0")
    start = algorithm.init(x) if state is None else state
    ratios = as_ratios(algorithm, x)
    if ratios is not None:
        return algorithm.readout(x, ratios.finish(_loop.run(repeat(ratios.step, steps), None, ratios.start(start))))
    return algorithm.readout(x, _loop.run(repeat(algorithm.update, steps), algorithm.prepare(x), start))
