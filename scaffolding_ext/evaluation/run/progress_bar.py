"""Progress of an evaluation, on standard error."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.run_stats import RunStats

_NUM_LINES = 10


@contextmanager
def progress_shown(
    total: int, tally: RunStats, clock: Callable[[], float] = time.monotonic, *, in_tokens: bool = False
) -> Iterator[Callable[[Record], None]]:
    """Show the progress of a run on standard error: a bar on a terminal, otherwise about ten plain lines.

    Args:
        total: All requests of the run, or the tokens that it may decode.
        tally: Must count each record before the yielded function is called with it.
        in_tokens: Show progress in decoded tokens instead of requests.
    """
    console = Console(stderr=True)
    step = max(1, total // _NUM_LINES)

    def num_done() -> int:
        return tally.tokens["decoded"] if in_tokens else tally.num_samples

    started, num_before = clock(), num_done()
    num_shown = num_before

    def show_line(record: Record) -> None:
        nonlocal num_shown
        done = num_done()
        if done // step > num_shown // step or done == total > num_shown:
            num_shown = done
            left = max(0.0, (clock() - started) / (done - num_before) * (total - done))
            ending = f", {datetime.timedelta(seconds=round(left))} left" if left else ""
            unit = " tokens" if in_tokens else ""
            click.echo(f"{done} of {total}{unit} done, {figures(tally)}{ending}", err=True)

    if not console.is_terminal:
        yield show_line
        return
    columns = BarColumn(), MofNCompleteColumn(), "{task.description}", TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(figures(tally), total=total, completed=num_before)

        def advance(record: Record) -> None:
            progress.update(bar, completed=num_done(), description=figures(tally))

        yield advance


def figures(tally: RunStats) -> str:
    """Format accuracy, decoded tokens and failures so far in one line."""
    right = f"{tally.num_correct / tally.num_samples:.1%}" if tally.num_samples else "-"
    return f"{right} right, {tally.tokens['decoded']:,} tokens, {tally.num_failed} failed"
