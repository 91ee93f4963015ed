"""``deepunfold explain``: what the network did with a file."""

from pathlib import Path
from typing import Annotated

import typer


def explain(
    file: Annotated[Path, typer.Argument(help="A noisy recording.", metavar="FILE")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A page, .html, or a picture, .png, .svg or .pdf. Default: NAME.explained.html here."
        ),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The model, instead of the one shipped.", metavar="FILE")] = None,
    start: Annotated[float, typer.Option(min=0, help="Where to begin in the file.", metavar="S")] = 0.0,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="How much of the file.", metavar="S")] = 10.0,
) -> None:
    """Show what the network did with a recording: a page to look at and to listen to, or a picture.

    Spectrograms, the mask, the estimate after each layer, which bases fired and when, and how they sound. Needs
    matplotlib, which the extra plot brings.
    """
    from deepunfold.speech._explain import explain_file
    from deepunfold.speech._explain_page import check, write

    target = output or Path(f"{file.stem}.explained.html")
    check(target)
    write(explain_file(file, model, start, seconds), file.name, target)
    typer.echo(f"{target}")
