"""An `Explanation` as one HTML page with everything in it, pictures and sounds too, or as a picture."""

import io
import wave
from base64 import b64encode
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deepunfold.speech import _explain_plot as plot
from deepunfold.speech._explain import Explanation
from deepunfold.speech._frontend import Array
from deepunfold.speech._model import _write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")
STRONGEST = 8
"""How many bases of each source a page has."""

DPI = 120

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem }
p { margin: .4rem 0 }
.small { color: #666; font-size: .88rem }
.picture { position: relative }
.picture img { width: 100%; display: block }
.head { position: absolute; top: 0; bottom: 0; width: 2px; background: #00b4d8; opacity: .8; display: none }
.players { display: flex; flex-wrap: wrap; gap: 1.5rem; margin: 1rem 0 }
.players audio { width: 17rem; height: 36px; display: block }
.bases { display: flex; flex-wrap: wrap; gap: .5rem }
.bases button { border: 1px solid #ddd; background: #fff; border-radius: 6px; padding: .35rem; cursor: pointer;
  font: inherit; font-size: .8rem; color: #444 }
.bases button:hover, .bases button:focus-visible { border-color: #0077b6; background: #f2f9fc }
.bases img { width: 6rem; display: block }
"""

SCRIPT = """
const heads = [...document.querySelectorAll('.head')], players = [...document.querySelectorAll('.players audio')];
let current = null;
function draw() {
  if (!current) return;
  const share = current.currentTime / current.duration || 0;
  for (const head of heads) {
    const left = +head.dataset.left, right = +head.dataset.right;
    head.style.display = 'block';
    head.style.left = 100 * (left + (right - left) * share) + '%';
  }
  if (!current.paused) requestAnimationFrame(draw);
}
for (const player of players) {
  player.onplay = () => {
    for (const other of players) if (other !== player) other.pause();
    current = player;
    draw();
  };
  player.onseeked = () => { current = player; draw(); };
}
for (const button of document.querySelectorAll('.bases button'))
  button.onclick = () => { const audio = button.querySelector('audio'); audio.currentTime = 0; audio.play(); };
"""


def check(path: Path) -> None:
    """Fail before the work where the name or the folder will not do."""
    if path.suffix.lower() not in (".html", ".htm", *PICTURES):
        raise ValueError(f"cannot write {path}: its name must end in .html for a page, or in {', '.join(PICTURES)}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")


def write(found: Explanation, name: str, path: Path) -> None:
    """A page, or a picture with all in one, by the ending of the path; there whole or not at all."""
    check(path)
    suffix = path.suffix.lower()
    _write(path, picture(found, name, suffix[1:]) if suffix in PICTURES else page(found, name).encode())


def picture(found: Explanation, name: str, kind: str = "png") -> bytes:
    """The overview."""
    return _saved(plot.overview(found, name), kind)


def page(found: Explanation, name: str) -> str:
    """The text of a page that needs nothing else."""
    end = found.start + found.seconds
    names = " and ".join(f"{count} of {escape(each)}" for each, count in found.model.sources.items())
    depth, trained = found.model.layers, found.model.trained
    sounds = {"input": found.signal, **found.sources}
    players = "".join(
        f"<div>{escape(each)}<audio controls src='{_sound(signal, found)}'></audio></div>"
        for each, signal in sounds.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(name)}: what the network did</title><style>{STYLE}</style></head><body>
<h1>What the network did with {escape(name)}</h1>
<p class="small">{found.start:.2f} to {end:.2f} s, the mean of the channels at {found.model.frontend.rate} Hz;
bases: {names};
{depth} layers; the last {max(trained - 1, 0)} and the reconstruction see single frames</p>
<div class="players">{players}</div>
<h2>Input, mask and output</h2>
<p>The mask says how much of each moment and frequency is {escape(found.target)}. The output is the input times the
mask. While a sound plays, a line marks its place.</p>
{_timed(plot.signals(found), "Spectrograms of input and output, and the mask")}
<h2>Layer by layer</h2>
<p>What the output would be if the network ended earlier. Before the first layer all bases are equally active; each
layer makes those more active that explain what is there.</p>
{_still(plot.layers(found), "Estimates and masks after some layers")}
{_still(plot.distances(found), "Distance of each layer's estimate to the last")}
<h2>Which bases fired, and when</h2>
<p>The activations after the last layer, by what they add to the spectrum. Each row is one basis.</p>
{_timed(plot.firing(found), "Activations of the bases over time")}
{"".join(_bases(found, each) for each in found.columns)}
<script>{SCRIPT}</script></body></html>
"""


def _bases(found: Explanation, name: str) -> str:
    """Buttons of the bases of a source that explain most, which play their sound."""
    total = found.firing(name).sum(0)
    front = found.model.frontend
    span = 1000 * ((front.context - 1) * front.hop + front.window) / front.rate
    buttons = []
    for number in found.strongest(name, STRONGEST):
        peak = found.start + found.firing(name)[:, number].argmax() * front.hop / front.rate
        image = _data("image/png", _saved(plot.patch(found, name, number), "png"))
        share = total[number] / total.sum()
        buttons.append(
            f"<button title='play'><img alt='spectrogram of the basis' src='{image}'>&#9654; {share:.0%}, {peak:.1f} s"
            f"<audio preload='none' src='{_sound(found.sound(name, number), found)}'></audio></button>"
        )
    return f"""<h2>Bases of {escape(name)}</h2>
<p>The {len(buttons)} that explain most of it, with their share of it and the time at which they fire most. A picture
is what a basis looks for in {span:.0f} ms, from 0 to {front.rate / 2000:g} kHz; click to hear what it adds to the
output, held for a while.</p>
<div class="bases">{"".join(buttons)}</div>"""


def _timed(figure: "Figure", text: str) -> str:
    """A picture whose panels have one axis of time, with a line that moves over it."""
    figure.draw_without_rendering()
    axes = figure.axes[0]  # those below it are as wide
    box = axes.get_position()
    head = f"<div class='head' data-left='{box.x0:.5f}' data-right='{box.x1:.5f}'></div>"
    return f"<div class='picture'>{_image(figure, text)}{head}</div>"


def _still(figure: "Figure", text: str) -> str:
    return f"<div class='picture'>{_image(figure, text)}</div>"


def _image(figure: "Figure", text: str) -> str:
    return f"<img alt='{escape(text)}' src='{_data('image/png', _saved(figure, 'png'))}'>"


def _saved(figure: "Figure", kind: str) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=DPI)
    return file.getvalue()


def _sound(signal: Array, found: Explanation) -> str:
    """As the address of a WAV file of 16 bits; what is beyond full scale is limited."""
    samples = np.clip(np.rint(signal * 2.0**15), -(2**15), 2**15 - 1).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as target:
        target.setnchannels(1)
        target.setsampwidth(2)
        target.setframerate(found.model.frontend.rate)
        target.writeframes(samples.tobytes())
    return _data("audio/wav", file.getvalue())


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{b64encode(content).decode()}"
