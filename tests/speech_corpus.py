"""The open corpus, where it is there."""

import os
from pathlib import Path

import pytest


def corpus():
    """The folder of the open corpus; a test that needs it is skipped where it is not there."""
    named = os.environ.get("DEEPUNFOLD_CORPUS")
    root = Path(named) if named else Path(__file__).parents[2] / "shared" / "corpus"
    if not (root / "mixtures").is_dir():
        pytest.skip(f"the open corpus is not at {root.name}; set DEEPUNFOLD_CORPUS to its folder")
    return root
