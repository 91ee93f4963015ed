"""``deepunfold live``: from the microphone to the loudspeaker."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from deepunfold.speech._live import Live


def live(
    model: Annotated[Path | None, typer.Option(help="The model, instead of the one shipped.", metavar="FILE")] = None,
    strength: Annotated[float, typer.Option(min=0, max=1, help="How much is enhanced.")] = 1.0,
    bypass: Annotated[bool, typer.Option("--bypass", help="Begin with the input as it is.")] = False,
    microphone: Annotated[str | None, typer.Option(help="Number of the device, or a part of its name.")] = None,
    loudspeaker: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    rate: Annotated[
        int | None, typer.Option(min=1000, help="Samples a second. Default: the model's, or else the microphone's.")
    ] = None,
    channels: Annotated[int, typer.Option(min=1, max=8, help="Of the microphone, and of the loudspeaker.")] = 1,
    block: Annotated[float, typer.Option(min=1, max=1000, help="Milliseconds that are taken at once.")] = 10.0,
    seconds: Annotated[float | None, typer.Option(min=0, help="End after so long.", metavar="S")] = None,
    devices: Annotated[bool, typer.Option("--list", help="List the devices, and do nothing else.")] = False,
) -> None:
    """Enhance what the microphone hears and play it: use headphones, or it will howl.

    Enter switches the bypass on and off, q and Enter ends. Blocks that took longer than they last are counted as missed
    deadlines. Needs sounddevice, which the extra live brings.
    """
    from deepunfold.speech import _live
    from deepunfold.speech._enhancer import Enhancer
    from deepunfold.speech._model import Model

    sounddevice = _live.device()
    if devices:
        typer.echo(str(sounddevice.query_devices()))
        return
    places = [int(each) if each and each.isdecimal() else each for each in (microphone, loudspeaker)]
    enhancer = Enhancer(None if model is None else Model.load(model), strength=strength)
    chosen = rate or _live.usable_rate(sounddevice, enhancer.model.frontend.rate, channels, *places)
    running = _live.Live(enhancer, chosen, channels, bypass)
    delay = 1e3 * running.delay / chosen
    typer.echo(f"{chosen} Hz; the sound is {delay:.0f} ms late, and what the device adds", err=True)
    watched = sys.stderr.isatty()
    with suppress(KeyboardInterrupt):  # the usual way to end it
        _live.run(
            running,
            sounddevice,
            block / 1e3,
            microphone=places[0],
            loudspeaker=places[1],
            seconds=seconds,
            lines=sys.stdin if sys.stdin.isatty() else None,
            watch=_show if watched else None,
        )
    typer.echo(("\n" if watched else "") + str(running.counts), err=True)


def _show(running: "Live") -> None:
    """The counts, in one line that is written again and again."""
    typer.echo(f"\r{'bypass  ' if running.bypass else 'enhanced'}  {running.counts} ", err=True, nl=False)
