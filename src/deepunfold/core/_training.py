"""A training loop for those who want none of their own; a network is an ordinary module, and any other does as well."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from deepunfold.core import _checkpoint
from deepunfold.core._objectives import Loss, Objective, as_objective
from deepunfold.core._progress import bar
from deepunfold.core._unfolded import Unfolded, unfold

Batches: TypeAlias = Iterable[Sequence[Any]]
PATIENCE = 20


@dataclass(frozen=True)
class Epoch:
    """What one pass over the data came to. ``skipped`` counts updates left out because something was not finite."""

    number: int
    loss: float
    validation: float | None
    seconds: float
    skipped: int


@dataclass
class Training:
    """The outcome of `fit`: a record per epoch, and the best one with its parameters."""

    epochs: list[Epoch] = field(default_factory=list)
    best: Epoch | None = None
    best_state: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def add(self, epoch: Epoch, net: nn.Module) -> None:
        """Note an epoch, and the parameters if it is the best so far."""
        self.epochs.append(epoch)
        if self.best is None or _score(epoch) < _score(self.best):
            self.best = epoch
            self.best_state = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def _score(epoch: Epoch) -> float:
    value = epoch.loss if epoch.validation is None else epoch.validation
    return value if math.isfinite(value) else math.inf


def fit(
    net: nn.Module,
    data: Batches | Callable[[int], Batches],
    loss: Loss | Objective,
    *,
    epochs: int,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    clip: float | None = None,
    validate: Callable[[Any], float] | None = None,
    checkpoint: str | Path | None = None,
    callback: Callable[[Epoch], object] | None = None,
    progress: bool | None = None,
) -> Training:
    """Train a network.

    Args:
        net: any module; it ends with its best parameters if there is a validation, else with its last.
        data: batches ``(x, target, ...)``, gone through once per epoch (a list, a ``DataLoader``), or a function from
            the epoch's number, 0 first, to batches.
        loss: a function of output and target, or an `Objective` such as `deep_supervision`.
        epochs: how many passes in all, those before a resumption included.
        optimizer: an optimiser, or a function that makes one from parameters, such as
            ``functools.partial(torch.optim.SGD, lr=0.1)``.
        clip: the largest norm of the whole gradient.
        validate: a function of the network, evaluated without a graph after each epoch; lower is better.
        checkpoint: a file to resume from if it is there, and written after each epoch. A run that was killed and is
            called again goes on to the same numbers as one that was not, given the same data per epoch.
        callback: called with each `Epoch`; a result that is true ends the training.
        progress: show a bar; by default where standard error is a terminal.

    An update whose loss or gradient is not finite is left out; after 20 of them in a row training stops with an error.
    """
    objective = as_objective(loss)
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("the network has no parameter to train; see train_last, or requires_grad of its parameters")
    opt = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer(trained)
    training = Training()
    if checkpoint is not None and Path(checkpoint).exists():
        training = _checkpoint.resume(checkpoint, net, opt, data)
    with bar("training", epochs, progress, done=len(training.epochs)) as advance:
        for number in range(len(training.epochs), epochs):
            epoch = _epoch(
                net, data(number) if callable(data) else data, objective, opt, trained, clip, validate, number
            )
            training.add(epoch, net)
            if checkpoint is not None:
                _checkpoint.store(checkpoint, net, opt, data, training)
            advance(
                f"loss {epoch.loss:.4g}" + ("" if epoch.validation is None else f", validation {epoch.validation:.4g}")
            )
            if callback is not None and callback(epoch):
                break
    if validate is not None and training.best_state:
        net.load_state_dict(training.best_state)
    return training


def _epoch(
    net: nn.Module,
    batches: Batches,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    trained: Sequence[nn.Parameter],
    clip: float | None,
    validate: Callable[[Any], float] | None,
    number: int,
) -> Epoch:
    begun, total, updates, skipped, in_a_row = time.perf_counter(), 0.0, 0, 0, 0
    net.train()
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        value = objective(net, *batch)
        value.backward()
        norm = nn.utils.clip_grad_norm_(trained, math.inf if clip is None else clip)
        if math.isfinite(float(value.detach())) and bool(torch.isfinite(norm)):
            optimizer.step()
            total, updates, in_a_row = total + float(value.detach()), updates + 1, 0
            continue
        skipped, in_a_row = skipped + 1, in_a_row + 1
        if in_a_row >= PATIENCE:
            raise FloatingPointError(
                f"{in_a_row} updates in a row had a loss or gradient that is not finite (epoch {number}, loss "
                f"{float(value.detach())}); lower the learning rate, clip the gradient, or look at the data"
            )
    if updates + skipped == 0:
        raise ValueError(f"epoch {number} had no batches; give data that can be gone through once per epoch")
    validation = None
    if validate is not None:
        net.eval()
        with torch.no_grad():
            validation = float(validate(net))
    return Epoch(number, total / max(updates, 1), validation, time.perf_counter() - begun, skipped)


def fit_layerwise(
    algorithm: Any, layers: int, train: Callable[[Unfolded], object], *, only_new: bool = False
) -> Unfolded:
    """Grow a network layer by layer: unfold one step, train, add a step that starts as a copy of the last, train, ...

    Args:
        algorithm: as for `unfold`.
        layers: the number of steps in the end.
        train: a function that trains the network it is given, such as one that calls `fit`.
        only_new: train the new step and the readout alone at each stage, instead of all.
    """
    if layers < 1:
        raise ValueError(f"layers={layers} is no network; give at least 1")
    net = unfold(algorithm, 1, tie="each")
    train(net)
    for _ in range(layers - 1):
        net = net.grow(1, start="copy")
        if only_new:
            net = net.with_train_last(2)
        train(net)
        net = net.with_train_last(None)
    return net
