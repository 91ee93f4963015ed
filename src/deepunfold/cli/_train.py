"""``deepunfold train``: a model from folders of one's own."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from deepunfold.cli._options import Noise, Source, Speech


def train(
    output: Annotated[Path, typer.Option("--output", "-o", help="The model.", metavar="FILE")],
    speech: Speech = None,
    noise: Noise = None,
    source: Source = None,
    rooms: Annotated[
        list[Path] | None, typer.Option(help="Impulse responses for the target; can be repeated.", metavar="DIR")
    ] = None,
    dev: Annotated[
        Path | None,
        typer.Option(help="A corpus laid out as CHiME-2 to choose on, instead of files held out.", metavar="DIR"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings by the names of the flags, in TOML; flags go over them.")
    ] = None,
    components: Annotated[int | None, typer.Option(help="R, columns of each basis. Default: 100.")] = None,
    layers: Annotated[int | None, typer.Option(help="K, updates of the activations. Default: 25.")] = None,
    train_last: Annotated[int | None, typer.Option(help="C, layers that are trained. Default: 4.")] = None,
    context: Annotated[int | None, typer.Option(help="T, frames that the first layers see. Default: 9.")] = None,
    sparsity: Annotated[float | None, typer.Option(help="Weight of the activations' L1 norm. Default: 5.")] = None,
    target: Annotated[str | None, typer.Option(help="phase or magnitude. Default: phase.")] = None,
    snr: Annotated[
        tuple[float, float] | None, typer.Option(help="Lowest and highest. Default: -6 9.", metavar="DB DB")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Longest mixture. Default: 5.")] = None,
    basis_frames: Annotated[int | None, typer.Option(help="Frames that a basis is learnt from.")] = None,
    basis_steps: Annotated[int | None, typer.Option(help="Steps of sparse NMF.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How often new mixtures are drawn.")] = None,
    mixtures: Annotated[int | None, typer.Option(help="Mixtures of a round.")] = None,
    batches: Annotated[int | None, typer.Option(help="Updates in one pass through a round.")] = None,
    passes: Annotated[int | None, typer.Option(help="Passes through a round.")] = None,
    exponent: Annotated[float | None, typer.Option(help="Of the multiplicative updates, at most 1.")] = None,
    held_out: Annotated[float | None, typer.Option(help="Share of the files to choose on. Default: 0.1.")] = None,
    dev_mixtures: Annotated[int | None, typer.Option(help="Mixtures to choose on, at most.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of all that is drawn. Default: 0.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1. Default: cpu.")] = None,
    half: Annotated[bool | None, typer.Option("--half/--no-half", help="Two bytes for a number, or four.")] = None,
    licence: Annotated[list[str] | None, typer.Option(help="Of the data, for the record; can be repeated.")] = None,
) -> None:
    """Train a model on mixtures of your own sources; a training that was killed goes on where it stopped.

    First the basis of each source is learnt by sparse NMF, then the last layers by multiplicative back-propagation. The
    best on mixtures of files that are held out is kept. What was set, the data and the scores go into the model's file.
    """
    flags: dict[str, Any] = dict(locals())
    from deepunfold.speech._mixing import named_places
    from deepunfold.speech._settings import resolve

    named = {"speech": flags.pop("speech") or []}
    others = [*(flags.pop("source") or []), *(f"noise={place}" for place in flags.pop("noise") or [])]
    flags["sources"] = named_places(named, others)
    flags["licences"] = flags.pop("licence")
    del flags["output"], flags["config"]
    settings = resolve(
        config, {name: str(value) if name == "dev" and value else value for name, value in flags.items()}
    )
    from deepunfold.speech import _training

    with _shown() as report:
        model = _training.train(settings, output, report)
    scores = model.record["scores"]
    if os.environ.get("RANK", "0") != "0":  # one of several processes says it
        return
    typer.echo(
        f"{output}: {model}\ndevelopment SDR {scores['model']:.2f} dB; with sparse NMF alone {scores['sparse NMF']:.2f}"
    )


@contextmanager
def _shown() -> Iterator[Callable[[str, int, int], None]]:
    """What a training reports, as a bar on a terminal's standard error."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
