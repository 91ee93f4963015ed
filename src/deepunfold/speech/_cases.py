"""What there is to score in folders: estimates and their references, or mixtures in the layout of CHiME-2."""

from pathlib import Path

from deepunfold.speech._corpus import _snr as snr_of
from deepunfold.speech._corpus import audio_files, chime2
from deepunfold.speech._evaluation import Case, Failure


def pairs(reference: Path, estimate: Path) -> tuple[list[Case], list[Failure]]:
    """Estimates and references with the same path below their folders, but for the suffix; and what has no partner.

    A component of the path of an estimate such as ``m6dB`` or ``9dB`` is the SNR of its mixture. If there is no
    reference of the same path, that component is left out, so that several estimates can share a reference, as they do
    in CHiME-2. Two files are a pair whatever they are called.
    """
    if reference.is_file() and estimate.is_file():
        return [Case(estimate.name, reference, estimate)], []
    for folder in (reference, estimate):
        if folder.is_file():
            raise ValueError(f"{folder} is a file; to compare needs two folders, or two files")
    references, estimates = _by_place(reference), _by_place(estimate)
    cases, failures, used = [], [], set()
    for place, path in estimates.items():
        name = path.relative_to(estimate).as_posix()
        snr = next((snr for snr in map(snr_of, place) if snr is not None), None)
        shared = tuple(part for part in place if snr_of(part) is None)
        found = next((each for each in (place, shared) if each in references), None)
        if found is None:
            failures.append(Failure(name, f"{path} has no reference in {reference}"))
        else:
            used.add(found)
            cases.append(Case(name, references[found], path, None, snr, shared[-2] if len(shared) > 1 else None))
    for place, path in references.items():
        if place not in used:
            name = path.relative_to(reference).as_posix()
            failures.append(Failure(name, f"{path} has no estimate in {estimate}"))
    return cases, failures


def mixtures(root: Path) -> tuple[list[Case], list[Failure]]:
    """The mixtures of a corpus in the layout of CHiME-2 with their references; and those without."""
    cases, failures = [], []
    for item in chime2(root):
        name = item.mixture.relative_to(root).as_posix() if root.is_dir() else item.mixture.name
        if item.reference is None:
            failures.append(Failure(name, f"{item.mixture} has no reference in the folder reverberated"))
        else:
            cases.append(Case(name, item.reference, None, item.mixture, item.snr, item.speaker))
    return cases, failures


def _by_place(folder: Path) -> dict[tuple[str, ...], Path]:
    """The audio files in a folder by the components of their path below it, without the suffix."""
    files: dict[tuple[str, ...], Path] = {}
    for path in audio_files(folder):
        place = path.relative_to(folder).with_suffix("").parts
        if place in files:
            raise ValueError(f"{files[place]} and {path} differ in their suffix only; keep one of them")
        files[place] = path
    return files
