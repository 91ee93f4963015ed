"""The settings of a training: defaults, a TOML file, and flags that go over it."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from deepunfold.speech._frontend import Frontend

TARGETS = ("phase", "magnitude")


@dataclass(frozen=True)
class Settings:
    """How a model is trained.

    Args:
        sources: folders or files of audio for each source by name; the first is the target.
        rooms: folders with impulse responses that the target is convolved with.
        dev: a corpus in the layout of CHiME-2 to choose the best update on; else a part of the sources' own files.
        components: R, the columns of each source's basis.
        layers: K, the number of updates of the activations.
        train_last: C, the layers that are trained; 0 is sparse NMF alone.
        context: T, the frames that the first layers see.
        sparsity: the weight of the L1 norm of the activations.
        target: "phase" trains towards that part of a source that is in phase with the mixture, the best that a mask
            can do; "magnitude" towards its magnitude, as in the paper.
        snr: the range of SNRs in dB.
        seconds: the longest mixture.
        basis_frames: how many frames each basis is learnt from.
        basis_steps: the steps of sparse NMF.
        rounds: how often new mixtures are drawn.
        mixtures: how many of them in each round.
        batches: how many updates one pass through the mixtures of a round makes.
        passes: how often the mixtures of a round are gone through.
        exponent: of the first multiplicative update; it falls evenly towards zero at the last.
        held_out: the share of the files that is set aside to choose the best update on.
        dev_mixtures: how many mixtures that is done on, at most.
        seed: of all that is drawn.
        device: where it is computed, such as cpu or cuda.
        half: store the model in half precision.
        licences: of the data, for the model's record.
    """

    sources: dict[str, list[str]]
    rooms: list[str] = field(default_factory=list)
    dev: str | None = None
    components: int = 100
    layers: int = 25
    train_last: int = 4
    context: int = 9
    sparsity: float = 5.0
    target: str = "phase"
    snr: tuple[float, float] = (-6.0, 9.0)
    seconds: float = 5.0
    basis_frames: int = 25000
    basis_steps: int = 60
    rounds: int = 12
    mixtures: int = 60
    batches: int = 2
    passes: int = 3
    exponent: float = 0.7
    held_out: float = 0.1
    dev_mixtures: int = 48
    seed: int = 0
    device: str = "cpu"
    half: bool = True
    licences: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.sources) < 2:
            raise ValueError(
                f"there are the sources {list(self.sources)}; give at least two, such as --speech DIR --noise DIR"
            )
        for name in ("components", "layers", "context", "basis_frames", "rounds", "mixtures", "batches", "passes"):
            _whole(name, getattr(self, name), 1)
        for name in ("train_last", "basis_steps", "seed"):
            _whole(name, getattr(self, name), 0)
        _whole("dev_mixtures", self.dev_mixtures, 1)
        if self.train_last > self.layers:
            raise ValueError(
                f"train_last={self.train_last} is more than layers={self.layers}; the first is not trained"
            )
        if self.batches > self.mixtures:
            raise ValueError(f"batches={self.batches} are more than the mixtures={self.mixtures} of a round")
        if self.target not in TARGETS:
            raise ValueError(f"target={self.target!r} is unknown; use one of {', '.join(TARGETS)}")
        if not 0 < self.exponent <= 1:
            raise ValueError(f"exponent={self.exponent} must be above 0 and at most 1")
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out={self.held_out} must be a share between 0 and 1")

    @property
    def frontend(self) -> Frontend:
        """The front end of the model."""
        return Frontend(context=self.context)

    @property
    def plain(self) -> dict[str, Any]:
        """All settings as JSON holds them."""
        return {**asdict(self), "snr": list(self.snr)}

    @property
    def command(self) -> str:
        """The command that trains with these settings: what differs from the defaults."""
        words = ["deepunfold train"]
        for name, places in self.sources.items():
            words += [f"--{name} {place}" if name in NAMED else f"--source {name}={place}" for place in places]
        words += [f"--rooms {place}" for place in self.rooms]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("sources", "rooms", "licences", "device", "half") or value == each.default:
                continue
            words.append(f"--{each.name.replace('_', '-')} {_text(value)}")
        words += [] if self.half else ["--no-half"]
        return " ".join([*words, "-o model.safetensors"])


NAMED = ("speech", "noise")
"""Sources with a flag of their own."""


def resolve(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """The settings of a TOML file, its names those of `Settings`, with flags over them; None is a flag not given."""
    values = {} if file is None else _read(file)
    known = {each.name: each for each in fields(Settings)}
    for name in values:
        if name not in known:
            raise ValueError(f"{file} has the setting {name!r}; there are {', '.join(known)}")
    values |= {name: value for name, value in flags.items() if value is not None and value != {}}
    sources = values.get("sources", {})
    if not isinstance(sources, dict):
        raise ValueError(f"sources={sources!r} must be a table of folders by name")
    values["sources"] = {str(name): _places(places) for name, places in sources.items()}
    for name in ("rooms", "licences"):
        values[name] = _places(values.get(name, []))
    if "snr" in values:
        snr = values["snr"]
        if not isinstance(snr, list | tuple) or len(snr) != 2:
            raise ValueError(f"snr={snr!r} must be two numbers: the lowest and the highest")
        values["snr"] = (float(snr[0]), float(snr[1]))
    for name in ("sparsity", "seconds", "exponent", "held_out"):
        if name in values:
            values[name] = _number(name, values[name])
    if values.get("dev") is not None:
        values["dev"] = str(values["dev"])
    return Settings(**values)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is no TOML: {error}") from error


def _places(value: Any) -> list[str]:
    return [str(each) for each in (value if isinstance(value, list | tuple) else [value])]


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}={value!r} must be a number")
    return float(value)


def _whole(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number from {least}")


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
