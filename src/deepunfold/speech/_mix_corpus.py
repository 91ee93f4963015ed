"""Writing a corpus of mixtures, laid out as CHiME-2, with a manifest."""

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepunfold.speech._audio import AudioError, AudioInfo, File, Signal, writer
from deepunfold.speech._mixing import Mixer, Mixture, Target, mix

SNRS = (-6.0, -3.0, 0.0, 3.0, 6.0, 9.0)
"""Those of CHiME-2, in dB."""

_PEAK = 0.95


@dataclass(frozen=True)
class _Utterance:
    speaker: str
    name: str
    clip: int
    seed: tuple[int, int]


def write_corpus(
    mixer: Mixer,
    path: File,
    *,
    snrs: Sequence[float] = SNRS,
    count: int | None = None,
    seed: int = 0,
    split: str = "train",
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write mixtures, FLAC of 16 bits, into a new folder, and give their number.

    ``isolated/SPLIT/SNR/SPEAKER/NAME.flac`` is a mixture, ``reverberated/SPLIT/SPEAKER/NAME.flac`` its target alone, at
    the level that it has in its mixture at every SNR; the noise is another one each time. ``manifest.jsonl`` says
    in a line for each mixture what it is made of. The folder appears when all is written, and not at all otherwise.

    Args:
        mixer: whose first source is the target; the folder around a clip is its speaker.
        path: the folder, which must not be there, or be empty.
        snrs: in dB.
        count: of utterances. None: each once. With fewer a random choice, with more some several times.
        seed: the same gives the same files.
        split: the name of the folder below ``isolated``.
        progress: called with the number of utterances that are done, and of all.
    """
    target = Path(path)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AudioError(f"cannot write {target}: it is there already; give a new folder")
    if not snrs or len({folder_of(snr) for snr in snrs}) < len(snrs) or not all(abs(snr) <= 100 for snr in snrs):
        raise ValueError(f"snrs={list(snrs)} must be one or more different numbers from -100 to 100")
    if not split or Path(split).name != split or split == "..":
        raise ValueError(f"split={split!r} must be the name of a folder")
    utterances = list(_choose(mixer, count, seed))
    temporary = target.absolute().with_name(f".deepunfold-{uuid.uuid4().hex}.tmp")
    try:
        temporary.mkdir()
        with (temporary / "manifest.jsonl").open("w", encoding="utf-8", newline="\n") as manifest:
            for done, utterance in enumerate(utterances):
                if progress is not None:
                    progress(done, len(utterances))
                for line in _write(mixer, temporary, utterance, snrs, split):
                    manifest.write(json.dumps(line) + "\n")
        if progress is not None:
            progress(len(utterances), len(utterances))
        temporary.replace(target)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise AudioError(f"cannot write {target}: {error.strerror}") from error
        raise
    return len(utterances) * len(snrs)


def folder_of(snr: float) -> str:
    """The name of the folder of an SNR: m6dB, 0dB, 2.5dB."""
    return f"{'m' if snr < 0 else ''}{abs(snr):.10g}dB"


def _choose(mixer: Mixer, count: int | None, seed: int) -> Iterator[_Utterance]:
    """Utterances in random order, each clip once before one comes again, under names that are all different."""
    if seed < 0 or (count is not None and count < 1):
        raise ValueError(f"seed={seed} must not be negative, count={count} must be positive")
    clips = mixer.target_clips.clips
    generator = np.random.default_rng(seed)
    used = set()
    order: list[int] = []
    for number in range(len(clips) if count is None else count):
        order = order or generator.permutation(len(clips)).tolist()
        clip = order.pop()
        name = Path(clips[clip].name.partition("@")[0])
        stem = "_".join([name.stem, *(clips[clip].name.split("@")[1:])])
        place = (name.parent.name or mixer.names[0], stem)
        repeat = 1
        while place in used:
            repeat += 1
            place = (place[0], f"{stem}_{repeat}")
        used.add(place)
        yield _Utterance(*place, clip, (seed, number))


def _write(
    mixer: Mixer, root: Path, utterance: _Utterance, snrs: Sequence[float], split: str
) -> Iterator[dict[str, Any]]:
    """Write the mixtures of an utterance, and its reference; gives lines for the manifest."""
    target = mixer.draw_target(utterance.seed, clip=utterance.clip)
    mixtures = [_mixture(mixer, target, (*utterance.seed, place), snr) for place, snr in enumerate(snrs)]
    # One level for all of them: there is one reference.
    scale = min(1.0, _PEAK / max(float(np.abs(each.mixture).max()) for each in mixtures))
    file = Path(split, utterance.speaker, f"{utterance.name}.flac")
    reference = Path("reverberated", file)
    _put(root / reference, scale * mixtures[0].sources[0], mixer.rate)
    for each in mixtures:
        place = Path("isolated", split, folder_of(each.snr), utterance.speaker, file.name)
        _put(root / place, scale * each.mixture, mixer.rate)
        yield {
            "mixture": place.as_posix(),
            "reference": reference.as_posix(),
            "snr": each.snr,
            "speaker": utterance.speaker,
            "utterance": utterance.name,
            "samples": len(each.mixture),
            "rate": mixer.rate,
            **each.record,
            "scale": scale,
        }


def _mixture(mixer: Mixer, target: Target, seed: tuple[int, ...], snr: float) -> Mixture:
    others, record = mixer.draw_others(seed, len(target.image))
    record = {"seed": list(seed), **target.record, "others": record}
    return mix(mixer.names, target, others, snr, peak=np.inf, record=record)


def _put(path: Path, signal: Signal, rate: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with writer(path, AudioInfo(rate, 1, len(signal), "FLAC", "PCM_16")) as sink:
        sink.write(signal)
