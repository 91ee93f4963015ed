"""Training of a model: bases of the sources, then the last layers by multiplicative back-propagation (Section 5.4)."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepunfold.core import Unfolded
from deepunfold.nmf import MultiplicativeUpdate, deep_nmf, sum_over_processes
from deepunfold.speech._bases import frames_of, learn
from deepunfold.speech._frontend import Array
from deepunfold.speech._last_layers import LastLayersLoss, activations_of, outputs
from deepunfold.speech._material import Material, dev_pairs, levelled, material, spectra, targets
from deepunfold.speech._metrics import sdr
from deepunfold.speech._model import Model
from deepunfold.speech._processes import Processes, processes
from deepunfold.speech._progress_file import State, resume, store
from deepunfold.speech._settings import Settings

EVERY = 5
"""Updates between two looks at the development set."""

WINDOW = 15
"""How many updates the mean of the parameters reaches back."""

Report = Callable[[str, int, int], object]
"""Called with what is being done, how much of it is done, and how much there is."""


def checkpoint_of(output: Path) -> Path:
    """Where a training that writes to ``output`` keeps its state until it has ended."""
    return output.with_name(f".{output.name}.training")


def train(settings: Settings, output: Path, report: Report = lambda *_: None) -> Model:
    """Train a model and write it; one that was killed goes on where it was, to the same numbers."""
    if not output.parent.is_dir():
        raise FileNotFoundError(f"cannot write {output}: the folder {output.parent} does not exist")
    with processes(settings.device) as group:
        return _Training(settings, output, report, group).run()


class Pool(NamedTuple):
    """Frames of a batch of mixtures: magnitudes, activations after the first layers, and targets."""

    mixture: Tensor
    activations: Tensor
    target: Tensor


class DevItem(NamedTuple):
    """A mixture of the development set with its reference."""

    spectrum: Array
    reference: Array
    mixture: Tensor
    activations: Tensor


class _Training:
    def __init__(self, settings: Settings, output: Path, report: Report, group: Processes) -> None:
        self.settings, self.output, self.report, self.group = settings, output, report, group
        self.material: Material = material(settings)
        self.checkpoint = checkpoint_of(output)
        state = resume(self.checkpoint, settings.plain, "cpu") if group.first else None
        self.state: State = group.tell(state)
        for held in (self.state.bases, self.state.fitting, self.state.trained, self.state.best):
            held.update({name: tensor.to(settings.device) for name, tensor in held.items()})

    def run(self) -> Model:
        """All stages, those that are done already left out."""
        for number, name in enumerate(self.settings.sources):
            if name not in self.state.bases:
                self.learn_basis(number, name)
        net = self.network()
        self.train_last(net)
        put(net, self.state.best)
        model = Model.from_network(net, self.settings.frontend, list(self.settings.sources), self.record())
        if self.group.first:
            model.save(self.output, half=self.settings.half)
            self.checkpoint.unlink(missing_ok=True)
        return model

    def keep(self) -> None:
        """Write down where the training is."""
        if self.group.first:
            store(self.checkpoint, self.state, self.settings.plain)

    # -- bases -------------------------------------------------------------------------------------------------------

    def learn_basis(self, number: int, name: str) -> None:
        """Learn the basis of one source, in the first process."""
        state, total = self.state, self.settings.basis_steps
        basis = None
        if self.group.first:

            def after(basis: Tensor, activations: Tensor, steps: int) -> None:
                state.fitting, state.steps = {"basis": basis, "activations": activations}, steps
                self.keep()
                self.report(f"basis of {name}", steps, total)

            self.report(f"basis of {name}", state.steps, total)
            frames = frames_of(self.material.training, number, self.settings)
            basis = learn(frames, self.settings, state.fitting, state.steps, after).cpu()
        state.bases[name] = self.group.tell(basis).to(self.settings.device)
        state.fitting, state.steps = {}, 0
        self.keep()

    def network(self) -> Unfolded:
        """Deep NMF with the bases, and what of its training was done."""
        settings = self.settings
        bases = [self.state.bases[name] for name in settings.sources]
        net = deep_nmf(
            bases, settings.layers, settings.train_last, context=settings.context, sparsity=settings.sparsity
        )
        if self.state.trained:
            put(net, self.state.trained)
        return net

    # -- the last layers ---------------------------------------------------------------------------------------------

    def train_last(self, net: Unfolded) -> None:
        """Multiplicative updates, each on a batch of a round's mixtures; after some of them the development set."""
        settings, state = self.settings, self.state
        parameters = trained_of(net)
        per_round = settings.passes * settings.batches
        total = settings.rounds * per_round if parameters else 0
        dev = self.dev(net)
        if not state.history:
            self.score(net, dev)
        loss = LastLayersLoss(weights=[1.0] + [0.0] * (len(settings.sources) - 1))
        averaged = copy.deepcopy(net)
        optimizer = MultiplicativeUpdate(parameters.values(), settings.exponent) if parameters else None
        pools: list[Pool] = []
        while optimizer is not None and state.updates < total:
            now, place = divmod(state.updates, per_round)
            if not pools or place == 0:
                pools = [self.pool(net, now, batch) for batch in range(settings.batches)]
            pool = pools[place % settings.batches]
            for each in optimizer.param_groups:  # smaller steps average over more of the mixtures
                each["exponent"] = settings.exponent * (1 - state.updates / total)
            optimizer.zero_grad()
            loss(net, (pool.mixture, pool.activations), pool.target).backward()
            if self.group.number > 1:
                sum_over_processes(parameters.values())
            optimizer.step()
            state.updates += 1
            self.average(parameters)
            if state.updates % EVERY == 0 or state.updates == total:
                put(averaged, state.mean)
                self.score(averaged, dev)
            self.keep()
            self.report(self.standing(), state.updates, total)

    def average(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        """Note the parameters, and their mean over all updates or so many: what single batches do evens out in it."""
        state = self.state
        state.trained = {key: each.detach().clone() for key, each in parameters.items()}
        share = max(1 / state.updates, 1 / WINDOW)
        state.mean = {key: torch.lerp(state.mean.get(key, each), each, share) for key, each in state.trained.items()}

    def standing(self) -> str:
        """The development SDR in words."""
        history, best = self.state.history, self.state.best_score
        return f"development SDR {history[-1][1]:.2f} dB, best {best:.2f}, before {history[0][1]:.2f}"

    def score(self, net: Unfolded, dev: list[DevItem]) -> None:
        """Note the development SDR, and the bases if they are the best so far."""
        front = self.settings.frontend
        scores = torch.zeros(2, dtype=torch.float64)
        for item in dev:
            target = outputs(net, item.mixture, item.activations)[:, 0].cpu().numpy()
            phase = item.spectrum / np.maximum(np.abs(item.spectrum), np.finfo(np.float32).tiny)
            value = sdr(item.reference, front.synthesise(target * phase, len(item.reference)))
            if value == value:
                scores += torch.tensor([value, 1.0])
        total, count = self.group.sums(scores.to(self.settings.device)).tolist()
        if not count:
            raise ValueError("no mixture of the development set has a target that is not silent")
        if total / count > self.state.best_score:
            self.state.best = {key: each.detach().clone() for key, each in trained_of(net).items()}
        self.state.history.append((self.state.updates, total / count))

    def pool(self, net: Unfolded, now: int, batch: int) -> Pool:
        """A batch of the mixtures of a round: this process's share of it."""
        settings, front = self.settings, self.settings.frontend
        indices = range(settings.mixtures)[batch :: settings.batches][self.group.rank :: self.group.number]
        found = [
            levelled(spectra(self.material.training.draw((settings.seed, 4, now, index)), front)) for index in indices
        ]
        if not found:
            raise ValueError(
                f"mixtures={settings.mixtures} in batches={settings.batches} are too few for {self.group.number} "
                "processes; each needs one of each batch"
            )
        self.report(f"mixtures of round {now + 1}", batch, settings.batches)
        magnitudes = [np.abs(each.mixture) for each in found]
        wide = np.concatenate([front.in_context(each) for each in magnitudes])
        target = np.concatenate([targets(each, settings.target) for each in found])
        mixture, start = self.started(net, wide, np.concatenate(magnitudes))
        return Pool(mixture, start, torch.from_numpy(target).to(settings.device))

    def started(self, net: Unfolded, wide: Array, mixture: Array) -> tuple[Tensor, Tensor]:
        """Mixtures and their activations after the layers that are not trained, on the device."""
        device = self.settings.device
        start = activations_of(net, torch.from_numpy(np.ascontiguousarray(wide)).to(device))
        return torch.from_numpy(mixture).to(device), start

    def dev(self, net: Unfolded) -> list[DevItem]:
        """The development set: this process's share of it."""
        front, items = self.settings.frontend, []
        share = slice(self.group.rank, None, self.group.number)
        pairs = dev_pairs(self.settings, self.material.held_out, share)
        for number, (mixture, reference) in enumerate(pairs):
            self.report("mixtures to choose on", number, len(pairs))
            spectrum = front.analyse(mixture)
            magnitudes = np.abs(spectrum)
            items.append(DevItem(spectrum, reference, *self.started(net, front.in_context(magnitudes), magnitudes)))
        return items

    def record(self) -> dict[str, object]:
        """How the model was made, for its file."""
        settings, history = self.settings, self.state.history
        return {
            "command": settings.command,
            "settings": settings.plain,
            "data": self.material.record,
            "licences": settings.licences,
            "development": settings.dev or "held-out files of the sources",
            "scores": {"sparse NMF": round(history[0][1], 3), "model": round(self.state.best_score, 3)},
            "updates": self.state.updates,
            "processes": self.group.number,
        }


def trained_of(net: Unfolded) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: each for name, each in net.named_parameters() if each.requires_grad}


@torch.no_grad()
def put(net: Unfolded, values: Mapping[str, Tensor]) -> None:
    """Give the parameters that are trained these values."""
    for key, parameter in trained_of(net).items():
        parameter.copy_(values[key])
