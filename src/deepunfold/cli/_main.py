"""The program ``deepunfold``: its options, and how errors reach the user."""

import importlib
from typing import Annotated

import typer

import deepunfold

app = typer.Typer(
    name="deepunfold",
    help="Iterative model-based inference as trainable networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS = ("enhance", "train", "adapt", "evaluate", "mix", "explain", "live", "export", "info")
"""In the order of the help; each is a function of its name in a module of its name."""
for _name in COMMANDS:
    app.command(_name)(getattr(importlib.import_module(f"deepunfold.cli._{_name}"), _name))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deepunfold {deepunfold.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hold the options that go before a command."""


def main() -> None:
    """Run the program. What a user can have caused ends in one line on standard error and exit status 1."""
    try:
        app()
    except (OSError, ValueError) as error:
        typer.echo(f"deepunfold: {error}", err=True)
        raise SystemExit(1) from None
