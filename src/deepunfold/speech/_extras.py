"""Packages that only some commands need."""

import importlib
from typing import Any


class MissingPackageError(ImportError, ValueError):
    """A package is not installed, or does not work here; the message says how to get it."""


def extra(module: str, name: str) -> Any:
    """The module, which comes with the extra of that name."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(
            f"this needs {package}, which is not installed: pip install 'deepunfold[{name}]'"
        ) from error
    except OSError as error:  # a package that wraps a library of the system, which is not there
        raise MissingPackageError(f"this needs {module}, which does not work here: {error}") from error
