"""``deepunfold info``: what a network file holds."""

import json
from pathlib import Path
from typing import Annotated

import typer


def info(
    file: Annotated[Path, typer.Argument(help="A network saved by deepunfold.", metavar="FILE")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the layers of a saved network, which of them share parameters, and the notes saved with it."""
    from deepunfold.core._inspect import inspect_file

    found = inspect_file(file)
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else found.as_text())
