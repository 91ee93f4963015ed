"""A progress bar that is there for people and silent for pipes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str, total: int, show: bool | None, done: int = 0) -> Iterator[Callable[[str], None]]:
    """A bar on standard error; what it gives is called once per unit of work, with a note to show beside the bar."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda _note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(title, total=total, completed=done, note="")
        yield lambda note: shown.update(task, advance=1, note=note)
