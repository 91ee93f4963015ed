"""The command line: one file per command, which parses, calls and prints."""

from deepunfold.cli._main import main

__all__ = ["main"]
