"""The speech part of the demo: a noisy recording, what the enhancer makes of it, and a picture of both.

python -m recipes._demo_speech [--out FOLDER] [--model FILE] [--noisy FILE]
"""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from deepunfold.speech._audio import read
from deepunfold.speech._batch import Settings, enhance_file
from deepunfold.speech._frontend import Array, Frontend
from deepunfold.speech._plan import Job

NOISY = Path(__file__).with_name("data") / "noisy.flac"
RANGE_DB = 55
"""What is so much below the loudest is drawn as silence."""


def enhance(noisy: Path, out: Path, model: Path | None = None) -> str:
    """Leaves the recording, the enhanced one and the picture in a folder, and tells what was done."""
    before, after, picture = out / f"noisy{noisy.suffix}", out / f"enhanced{noisy.suffix}", out / "speech.png"
    shutil.copyfile(noisy, before)
    report = enhance_file(
        Settings(str(model) if model else None).enhancer(), Job(str(before), {"enhanced": str(after)})
    )
    if report.error is not None:
        raise ValueError(report.error)
    rate = Frontend().rate
    draw({"Noisy": read(before, rate, mono=True)[0], "Enhanced": read(after, rate, mono=True)[0]}, picture)
    return (
        f"Speech: {report.seconds:.1f} s enhanced in {report.elapsed:.2f} s\n"
        f"Listen to {before} and {after}; {picture} shows both"
    )


def draw(signals: Mapping[str, Array], path: Path) -> None:
    """Spectrograms, one above the other, in the same colours; 0 dB is the loudest bin of all."""
    from matplotlib.figure import Figure

    front = Frontend()
    levels = {name: _db(front.analyse(signal)) for name, signal in signals.items()}
    loudest = max(float(level.max()) for level in levels.values())
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    panels = figure.subplots(len(levels), sharex=True, sharey=True)
    for axes, (name, level) in zip(panels, levels.items(), strict=True):
        image = axes.imshow(
            level.T - loudest,
            origin="lower",
            aspect="auto",
            extent=(0, len(level) * front.hop / front.rate, 0, front.rate / 2000),
            cmap="magma",
            vmin=-RANGE_DB,
            vmax=0,
        )
        axes.set_title(name, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("time in s")
    figure.supylabel("frequency in kHz", fontsize=10)
    figure.colorbar(image, ax=list(panels), label="level in dB", pad=0.01, aspect=40)
    figure.savefig(path, dpi=160)


def _db(spectra: Array) -> Array:
    level: Array = 20 * np.log10(np.maximum(np.abs(spectra), 1e-9))
    return level


def main(arguments: Sequence[str] | None = None) -> None:
    """Enhance, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="FOLDER", help="where all goes")
    parser.add_argument("--model", type=Path, metavar="FILE", help="instead of the one that is shipped")
    parser.add_argument("--noisy", type=Path, default=NOISY, metavar="FILE", help="another recording")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    print(enhance(chosen.noisy, chosen.out, chosen.model))


if __name__ == "__main__":
    main()
