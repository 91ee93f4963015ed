"""Makes the noisy recording of the demo from the open corpus.

    python -m recipes._demo_mixture CORPUS

What it is made of, and whose it is, is in `recipes/data/README.md`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from deepunfold.speech._audio import AudioInfo, writer
from deepunfold.speech._corpus import Clips
from deepunfold.speech._mixing import Mixer, Mixture
from deepunfold.speech._tracks import Track

DATA = Path(__file__).with_name("data")
RATE = 16000
SPEECH = "speech/dev/ibf_011/ibf_011_091.ogg"
BED = "noise/dev/bed/vacuum_cleaner/4-181999-A.ogg"
EVENT = "noise/dev/event/dog/4-191687-A.ogg"
ROOM = "rooms/dev"
SNR, SEED = 3.0, 1


def draw(corpus: Path) -> Mixture:
    """One utterance in a room, with a vacuum cleaner and a dog: none of them is among what the model was trained on."""
    noise = Track(Clips(corpus / BED, rate=RATE), Clips(corpus / EVENT, rate=RATE))
    mixer = Mixer({"speech": corpus / SPEECH, "noise": noise}, corpus / ROOM, level=0.1)
    return mixer.draw(SEED, snr=SNR)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("corpus", type=Path, metavar="CORPUS")
    parser.add_argument("--out", type=Path, default=DATA, metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    drawn = draw(chosen.corpus)
    with writer(chosen.out / "noisy.flac", AudioInfo(RATE, 1, len(drawn.mixture), "FLAC", "PCM_16")) as sink:
        sink.write(drawn.mixture)
    print(drawn.record)


if __name__ == "__main__":
    main()
