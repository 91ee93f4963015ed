"""What is to be enhanced, and where it goes: files, folders and patterns, none of which is written over."""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepunfold.speech._corpus import audio_files
from deepunfold.speech._formats import SUFFIXES, AudioError

ENHANCED = "enhanced"
"""The name of the one output when sources are not written separately, and what is added to names of files."""

STANDARD = "-"
"""Standard input, or output."""


@dataclass(frozen=True)
class Job:
    """A file, and where each of its outputs goes, by name. With ``tree``, folders for them are made."""

    source: str
    outputs: dict[str, str]
    tree: bool = False


@dataclass(frozen=True)
class _Found:
    """A file among the inputs: its path below the folder that was given, and that folder if it was one."""

    path: Path
    place: Path
    folder: Path | None = None
    many: bool = False


def plan(inputs: Sequence[str], output: str | None = None, sources: Sequence[str] = ()) -> list[Job]:
    """One job for each file among the inputs, which are files, folders, patterns such as ``**/*.wav``, or ``-``.

    With an output, folders keep their tree and the names in it below the output; the part of a pattern before its first
    sign is its folder. Several files go into the output, which is a folder then. Without it, ``NAME.enhanced.wav`` goes
    beside ``NAME.wav``, the tree of ``FOLDER`` into ``FOLDER.enhanced`` beside it, and files that are the results of
    others among the inputs are left out. With ``sources`` there is an output for each of them: ``NAME.SOURCE.wav``, or
    below a folder ``SOURCE`` of the output. That one file would be written over another of the inputs, or two into one,
    is an error.
    """
    if STANDARD in inputs:
        if len(inputs) > 1:
            raise ValueError(f"{STANDARD}, standard input, cannot be mixed with other inputs")
        return [Job(STANDARD, _named(output or STANDARD, sources))]
    found = {os.path.realpath(each.path): each for text in inputs for each in _expand(text)}
    if output is not None:
        found = {real: each for real, each in found.items() if not _is_result(real, each, output)}
    kept = list(found.values())
    if not kept:
        raise AudioError(f"no audio files in {', '.join(inputs)} but those in {output}")
    if output is None:
        jobs = [_beside(each, sources) for each in kept]
    elif len(kept) > 1 or kept[0].many or Path(output).is_dir() or output.endswith(("/", os.sep)):
        if output == STANDARD or Path(output).is_file():
            raise ValueError(f"{output} can take one file; several need a folder: give -o FOLDER")
        jobs = [Job(str(each.path), _below(Path(output), each.place, sources), tree=True) for each in kept]
    else:
        jobs = [Job(str(kept[0].path), _named(output, sources))]
    return _checked(jobs, results_may_be_there=output is None)


def _expand(text: str) -> Iterator[_Found]:
    path = Path(text)
    if path.is_dir():
        for each in audio_files(path):
            yield _Found(each, each.relative_to(path), path, many=True)
    elif not path.exists() and glob.has_magic(text):
        folder = Path(*path.parts[: _first_magic(path)])
        matches = sorted(Path(each) for each in glob.glob(text, recursive=True))  # noqa: PTH207
        files = [each for each in matches if each.is_file() and each.suffix.lower() in SUFFIXES]
        if not files:
            raise AudioError(f"no audio file is like {text}")
        for each in files:
            yield _Found(each, each.relative_to(folder), many=True)
    else:
        yield _Found(path, Path(path.name))  # if it is not there, its job fails, and the others are done


def _first_magic(path: Path) -> int:
    return next(number for number, part in enumerate(path.parts) if glob.has_magic(part))


def _is_result(real: str, found: _Found, output: str) -> bool:
    """Whether a file that was found in a folder, or by a pattern, is in the output that lies in there."""
    if not found.many:
        return False
    target = Path(os.path.realpath(output))
    root = Path(real)
    for _ in found.place.parts:
        root = root.parent
    return target != root and target.is_relative_to(root) and Path(real).is_relative_to(target)


def _beside(found: _Found, sources: Sequence[str]) -> Job:
    if found.folder is not None:
        folder = Path(os.path.realpath(found.folder)) if found.folder.name in ("", "..") else found.folder
        return Job(str(found.path), _below(_with(folder, ENHANCED), found.place, sources), tree=True)
    if sources:
        return Job(str(found.path), _named(str(found.path), sources))
    name = f"{found.path.stem}.{ENHANCED}{found.path.suffix}"
    return Job(str(found.path), {ENHANCED: str(found.path.with_name(name))})


def _with(folder: Path, word: str) -> Path:
    return folder.with_name(f"{folder.name}.{word}")


def _below(output: Path, place: Path, sources: Sequence[str]) -> dict[str, str]:
    if not sources:
        return {ENHANCED: str(output / place)}
    return {name: str(output / name / place) for name in sources}


def _named(output: str, sources: Sequence[str]) -> dict[str, str]:
    if not sources:
        return {ENHANCED: output}
    if output == STANDARD:
        raise ValueError("several sources cannot go to standard output; give -o NAME.wav")
    path = Path(output)
    return {name: str(path.with_name(f"{path.stem}.{name}{path.suffix}")) for name in sources}


def _checked(jobs: list[Job], results_may_be_there: bool) -> list[Job]:
    """The jobs, none of which writes over a file among the inputs, or over what another writes."""
    owners: dict[str, Job] = {}
    for job in jobs:
        for output in job.outputs.values():
            if output == STANDARD:
                continue
            other = owners.setdefault(os.path.realpath(output), job)
            if other is not job:
                raise ValueError(
                    f"{other.source} and {job.source} would both become {output}; give their folder, or a pattern in "
                    "quotation marks, so that the folders are kept"
                )
    kept = []
    for job in jobs:
        owner = owners.get(os.path.realpath(job.source))
        if owner is None:
            kept.append(job)
        elif owner is job or not results_may_be_there:
            raise ValueError(f"{job.source} would be overwritten; give another output with -o")
    return kept
