"""How far an evaluation is, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from scaffolding_ext.evaluation.records import Record

_NUM_LINES = 10


@contextmanager
def progress_shown(num_requests: int) -> Iterator[Callable[[Record], None]]:
    """Show on standard error how far a run is: a bar on a terminal, some ten plain lines elsewhere."""
    console = Console(stderr=True)
    num_done = num_failed = 0
    step = max(1, num_requests // _NUM_LINES)

    def show_line(record: Record) -> None:
        nonlocal num_done, num_failed
        num_done += 1
        num_failed += record.error is not None
        if num_done % step == 0 or num_done == num_requests:
            click.echo(f"{num_done} of {num_requests} done, {num_failed} failed", err=True)

    if not console.is_terminal:
        yield show_line
        return
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("samples", total=num_requests)
        yield lambda record: progress.advance(bar)
