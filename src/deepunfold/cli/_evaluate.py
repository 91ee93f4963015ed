"""``deepunfold evaluate``: how good estimates are, or what a model makes of mixtures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from deepunfold.speech._evaluation import Case, Enhances, Evaluation


def evaluate(
    reference: Annotated[Path | None, typer.Option(help="Clean files: a folder, or one file.", metavar="DIR")] = None,
    estimate: Annotated[
        Path | None, typer.Option(help="Files to score, by the same paths: a folder, or one file.", metavar="DIR")
    ] = None,
    mixtures: Annotated[
        Path | None, typer.Option(help="A corpus laid out as CHiME-2: enhance its mixtures and score.", metavar="DIR")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The model, instead of the one shipped.", metavar="FILE")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="sdr, si_sdr, stoi or pesq; can be repeated. Default: all installed.")
    ] = None,
    mono: Annotated[bool, typer.Option("--mono", help="Average the channels first, instead of their scores.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="How many processes work at once.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap intervals.")] = 0,
    csv: Annotated[Path | None, typer.Option(help="Write the scores of each file here.", metavar="FILE")] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything here.", metavar="FILE")] = None,
) -> None:
    """Score estimates against references, or run a model on mixtures and score what it makes of them.

    Means come with bootstrap intervals of 95 %, for each input SNR and overall. The exit status is 1 if a file could
    not be scored, or has no partner; the others are scored all the same.
    """
    from deepunfold.speech import _cases, _metrics, _report

    for target in filter(None, (csv, json)):
        _report.check_target(target)
    enhancer: Enhances | None = None
    if mixtures is not None and reference is None and estimate is None:
        from deepunfold.speech._enhancer import Enhancer

        cases, unmatched = _cases.mixtures(mixtures)
        enhancer = Enhancer() if model is None else Enhancer.load(model)
    elif mixtures is None and model is None and reference is not None and estimate is not None:
        cases, unmatched = _cases.pairs(reference, estimate)
    else:
        raise typer.BadParameter("give --reference and --estimate, or --mixtures and, if wanted, --model")
    evaluation = _with_progress(cases, enhancer, metrics=metric or _metrics.available(), mono=mono, jobs=jobs)
    evaluation.failures.extend(unmatched)
    report = _report.Report(evaluation, seed, {"mono": mono, "model": str(model or "shipped") if enhancer else None})
    report.write(csv, json)
    report.show()
    if evaluation.failures:
        raise typer.Exit(1)


def _with_progress(cases: "Sequence[Case]", enhancer: "Enhances | None", **options: Any) -> "Evaluation":
    """The evaluation, with a bar on a terminal's standard error."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    from deepunfold.speech._evaluation import evaluate

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("scoring", total=len(cases))
        return evaluate(cases, enhancer, progress=lambda done, _: bar.update(task, completed=done), **options)
