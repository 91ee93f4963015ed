"""``deepunfold export``: a model for other programs."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", metavar="FILE.onnx")],
    model: Annotated[
        Path | None, typer.Argument(help="The model. Default: the one shipped.", metavar="MODEL", show_default=False)
    ] = None,
) -> None:
    """Write a model as an ONNX graph that takes one frame at a time.

    Its inputs are the magnitudes of a frame (channels, F) and those of the frames before it (channels, T-1, F), zeros
    at first; its outputs are the masks of the sources and the frames to give it the next time. Needs onnx,
    which the extra onnx brings.
    """
    from deepunfold.speech._enhancer import Enhancer
    from deepunfold.speech._export import export as write
    from deepunfold.speech._model import Model

    chosen = Enhancer().model if model is None else Model.load(model)
    write(chosen, output)
    front = chosen.frontend
    typer.echo(
        f"{output}: {front.features} magnitudes of a frame, {front.context - 1} frames of context, "
        f"{len(chosen.sources)} masks ({', '.join(chosen.sources)}); {output.stat().st_size / 1e6:.1f} MB"
    )
