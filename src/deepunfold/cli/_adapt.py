"""``deepunfold adapt``: a model for one's own noise."""

from pathlib import Path
from typing import Annotated

import typer


def adapt(
    model: Annotated[Path, typer.Argument(help="The model to start from.", metavar="MODEL")],
    noise: Annotated[
        list[Path], typer.Option(help="Recordings of the noise alone: a file or a folder; can be repeated.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new model.", metavar="FILE")],
    name: Annotated[
        str | None, typer.Option(help="The source that is learnt again. Default: the last of the model.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of sparse NMF.")] = 40,
    frames: Annotated[int, typer.Option(min=1, help="Frames to learn from, at most.")] = 6000,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw of frames.")] = 0,
    half: Annotated[bool, typer.Option("--half/--no-half", help="Two bytes for a number, or four.")] = True,
) -> None:
    """Learn the noise of a model again, from recordings of it alone; what the model knows of speech stays."""
    from deepunfold.speech._adaptation import adapted
    from deepunfold.speech._model import Model

    new = adapted(Model.load(model), list(noise), name=name, steps=steps, frames=frames, seed=seed)
    new.save(output, half=half)
    typer.echo(f"{output}: {new}")
