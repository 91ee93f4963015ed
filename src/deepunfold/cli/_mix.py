"""``deepunfold mix``: a corpus of mixtures from folders of audio."""

from pathlib import Path
from typing import Annotated

import typer

from deepunfold.cli._options import Noise, Source, Speech


def mix(
    output: Annotated[Path, typer.Option("--output", "-o", help="The new folder.", metavar="DIR")],
    speech: Speech = None,
    noise: Noise = None,
    source: Source = None,
    rooms: Annotated[Path | None, typer.Option(help="Impulse responses for the target.", metavar="DIR")] = None,
    snr: Annotated[
        list[float] | None, typer.Option(help="Can be repeated. Default: -6, -3, ... 9.", metavar="DB")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="How many utterances. Default: each once.", metavar="N")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Random segments of longer utterances.", metavar="S")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same files.", metavar="N")] = 0,
    split: Annotated[str, typer.Option(help="The name of this part of the corpus.", metavar="NAME")] = "train",
) -> None:
    """Make a paired corpus: mixtures at several SNRs with their references, laid out as CHiME-2, and a manifest."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    from deepunfold.speech._mix_corpus import SNRS, write_corpus
    from deepunfold.speech._mixing import Mixer, named_places

    sources = named_places({"speech": speech or []}, [*(source or []), *(f"noise={place}" for place in noise or [])])
    mixer = Mixer(sources, rooms, seconds=seconds)
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("mixing", total=None)
        written = write_corpus(
            mixer,
            output,
            snrs=snr or SNRS,
            count=count,
            seed=seed,
            split=split,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    typer.echo(f"{written} mixtures in {output}; what each is made of is in {output / 'manifest.jsonl'}")
