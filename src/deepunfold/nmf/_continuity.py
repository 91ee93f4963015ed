"""Continuity in time: each frame's inference starts from where that of the frame before ended.

The paper names continuity constraints as further work. Here they are another start: H^0 of a frame is a mixture of
H^K of the frame before and its mean over the components, which no component that is off can hold back for ever.
"""

import torch
from torch import Tensor, nn

from deepunfold.core import Interval, Unfolded, constrain
from deepunfold.core._algorithm import read_out
from deepunfold.nmf._inference import start_of


class Continuous(nn.Module):
    """A network that `deep_nmf` makes, run along sequences.

    Where all its layers have a graph, as after ``with_train_last(None)``, gradients go through layers and time, and
    ``carry`` is trained too. Where the first layers are not trained, they cut off the past, and ``carry`` is fixed.

    Shapes: mixture (batch, frames, rows), output (batch, frames, sources, features).

    Args:
        net: the network, used as it is, with its parameters.
        carry: how much of a start comes from each component's own past, between 0 and 1.
    """

    def __init__(self, net: Unfolded, carry: float = 0.5) -> None:
        super().__init__()
        if not 0 < carry < 1:
            raise ValueError(f"carry={carry} must lie between 0 and 1")
        self.net = net
        through_time = net.train_last is None or net.train_last > net.depth
        self.carry = nn.Parameter(next(net.parameters()).new_tensor(carry), requires_grad=through_time)
        constrain(self, carry=Interval(0.0, 1.0))

    def forward(self, mixture: Tensor) -> Tensor:
        """The sources of whole sequences."""
        return self.run(mixture)[0]

    def run(self, mixture: Tensor, last: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sources, and the activations of the last frame (batch, components): give them to the next call."""
        outputs = []
        for frame in mixture.unbind(1):
            x = frame if last is None else (frame, self.start(frame, last))
            last = self.net.states(x, [self.net.depth])[0]
            outputs.append(read_out(self.net.layers[-1], x, last))
        if last is None:
            raise ValueError(f"the mixture has no frames: its shape is {tuple(mixture.shape)}")
        return torch.stack(outputs, 1), last

    def start(self, frame: Tensor, last: Tensor) -> Tensor:
        """H^0 from H^K of the frame before; after silence, from the frame itself."""
        mean = last.mean(-1, keepdim=True)
        carried = self.carry * last + (1 - self.carry) * mean
        return torch.where(mean > 0, carried, start_of(frame, last.shape[-1]))
