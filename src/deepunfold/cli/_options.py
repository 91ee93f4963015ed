"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Speech: TypeAlias = Annotated[list[Path] | None, typer.Option(help="Clean speech; can be repeated.", metavar="DIR")]
Noise: TypeAlias = Annotated[
    list[Path] | None, typer.Option(help="Noise, in folders bed and event or not; can be repeated.", metavar="DIR")
]
Source: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="Any sources; without --speech the first is the target.", metavar="NAME=DIR")
]
