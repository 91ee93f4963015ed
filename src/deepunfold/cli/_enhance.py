"""``deepunfold enhance``: noisy files in, clean ones out."""

import json
import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deepunfold.speech._batch import Report, Settings
    from deepunfold.speech._plan import Job


def enhance(
    inputs: Annotated[
        list[str],
        typer.Argument(help="Files, folders, patterns in quotation marks, or - for standard input.", metavar="INPUT"),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="A file, a folder, or -. Default: NAME.enhanced.wav beside NAME.wav.", metavar="OUT"
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model, instead of the one shipped.", metavar="FILE")] = None,
    strength: Annotated[float, typer.Option(help="How much is enhanced: 0 leaves the input as it is.")] = 1.0,
    floor: Annotated[
        float | None, typer.Option(help="The most that is taken away, such as -20.", metavar="DB", show_default=False)
    ] = None,
    above: Annotated[str, typer.Option(help="All above 8 kHz: keep, attenuate or drop.")] = "attenuate",
    sources: Annotated[
        bool, typer.Option("--sources", help="Write each source, such as speech and noise; they sum to the input.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="How many files are worked on at once.")] = 1,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Leave out files whose result is there.")
    ] = False,
    report: Annotated[
        str | None, typer.Option("--json", help="Write a report of each file, - for standard output.", metavar="FILE")
    ] = None,
) -> None:
    """Take the noise out of recordings of speech: WAV, FLAC, OGG, MP3 or AIFF, of any rate, channels and length.

    Container, encoding, rate and channels stay as they are, and folders keep their tree. Inputs are never written
    over. The exit status is 1 if a file could not be enhanced; the others are done all the same.
    """
    _one_thread()
    from deepunfold.speech._batch import Settings
    from deepunfold.speech._plan import STANDARD, plan

    settings = Settings(model, strength, floor, above, sources)
    if sources and settings != Settings(model, separate=True):
        raise typer.BadParameter("--sources are whole: leave out --strength, --floor and --above")
    names = list(settings.enhancer().model.sources) if sources else []
    planned = plan(inputs, output, names)
    if report is not None and report != STANDARD and not Path(report).absolute().parent.is_dir():
        raise FileNotFoundError(f"cannot write {report}: its folder does not exist")
    if report == STANDARD and any(STANDARD in job.outputs.values() for job in planned):
        raise typer.BadParameter("audio and report cannot both go to standard output")
    with _stopping():
        reports = _with_progress(planned, settings, jobs, skip_existing)
    if report is not None:
        text = json.dumps({"files": [each.as_dict() for each in reports]}, indent=2) + "\n"
        typer.echo(text, nl=False) if report == STANDARD else Path(report).write_text(text, encoding="utf-8")
    _tell(reports)
    if any(each.status == "failed" for each in reports):
        raise typer.Exit(1)


def _one_thread() -> None:
    """Have numpy, once it is imported, use one thread, unless the environment asks for more.

    The matrices are small: threads gain little, and wait for each other where other programs run. `--jobs` gains more.
    """
    if "numpy" not in sys.modules and "OMP_NUM_THREADS" not in os.environ:
        for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
            os.environ.setdefault(name, "1")


@contextmanager
def _stopping() -> "Iterator[None]":
    """Have a request to end, as `kill` sends it, leave nothing half-written, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _with_progress(jobs: "Sequence[Job]", settings: "Settings", processes: int, skip: bool) -> "list[Report]":
    """The reports, with a bar on a terminal's standard error."""
    from deepunfold.speech._batch import enhance_files

    if not sys.stderr.isatty():
        return enhance_files(jobs, settings, processes=processes, skip_existing=skip)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("enhancing", total=None)
        return enhance_files(
            jobs,
            settings,
            processes=processes,
            skip_existing=skip,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _tell(reports: "Sequence[Report]") -> None:
    """What failed and what is remarkable; on a terminal also what was done."""
    for each in reports:
        if each.error is not None:
            typer.echo(f"deepunfold: {each.error}", err=True)
        for remark in each.remarks:
            typer.echo(f"deepunfold: {each.source}: {remark}", err=True)
        if each.clipped:
            typer.echo(f"deepunfold: {each.source}: {each.clipped} samples were beyond full scale", err=True)
    if not sys.stderr.isatty():
        return
    done = [each for each in reports if each.status == "done"]
    counts = {status: sum(each.status == status for each in reports) for status in ("skipped", "failed")}
    seconds, elapsed = sum(each.seconds for each in done), sum(each.elapsed for each in done)
    where = " and ".join(done[0].outputs.values()) if len(done) == 1 else f"{len(done)} files"
    others = "".join(f", {count} {status}" for status, count in counts.items() if count)
    typer.echo(f"{where}: {seconds:.1f} s of audio in {elapsed:.1f} s{others}", err=True)
