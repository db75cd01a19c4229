"""Progress of an evaluation, on standard error."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.run_stats import RunStats

_NUM_LINES = 10
_BEAT_SECONDS = 10.0


@contextmanager
def progress_shown(
    total: int,
    tally: RunStats,
    clock: Callable[[], float] = time.monotonic,
    *,
    in_tokens: bool = False,
    num_written: Callable[[], int] = lambda: 0,
) -> Iterator[Callable[[Record], None]]:
    """Show the progress of a run on standard error: a bar on a terminal, otherwise about ten plain lines.

    While no request ends, a line every ten seconds says if tokens come.

    Args:
        total: All requests of the run, or the tokens that it may decode.
        tally: Must count each record before the yielded function is called with it.
        in_tokens: Show progress in decoded tokens instead of requests.
        num_written: Tokens so far, those of unfinished requests included.
    """
    console = Console(stderr=True)
    step = max(1, total // _NUM_LINES)
    earlier = tally.tokens["decoded"]  # of a run that goes on

    def tokens() -> int:
        return max(earlier + num_written(), tally.tokens["decoded"])

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
            click.echo(f"{done} of {total}{unit} done, {figures(tally, tokens())}{ending}", err=True)

    beat = Heartbeat(lambda: tally.num_samples, tokens, clock)
    if not console.is_terminal:
        with beating(beat.beat, lambda told: click.echo(f"{num_done()} of {total} done, {told}", err=True)):
            yield show_line
        return
    columns = BarColumn(), MofNCompleteColumn(), "{task.description}", TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(figures(tally, tokens()), total=total, completed=num_before)

        def advance(record: Record) -> None:
            progress.update(bar, completed=num_done(), description=figures(tally, tokens()))

        with beating(beat.beat, lambda told: progress.update(bar, description=told)):
            yield advance


class Heartbeat:
    """Tells what has come since the last beat, if no request has ended in the meantime.

    Args:
        num_ended: Requests that have ended.
        num_written: Tokens so far.
    """

    def __init__(
        self, num_ended: Callable[[], int], num_written: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num_ended, self._num_written, self._clock = num_ended, num_written, clock
        self._last = num_ended(), num_written(), clock()  # when something came

    def beat(self) -> str | None:
        """Return the line to show; None if a request has ended since the last beat."""
        ended, written, since = self._last
        now = self._num_ended(), self._num_written(), self._clock()
        seconds = now[2] - since
        if now[:2] != (ended, written):
            self._last = now
        if now[0] != ended:
            return None
        if now[1] == written:
            return f"nothing has come for {seconds:.0f} s (a server sends whole answers at their end)"
        return f"{now[1]:,} tokens so far, {(now[1] - written) / seconds:,.0f} a second"


@contextmanager
def beating(beat: Callable[[], str | None], show: Callable[[str], object]) -> Iterator[None]:
    """Show the text of each beat, one every ten seconds, while the block runs."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(_BEAT_SECONDS):
            told = beat()
            if told is not None:
                show(told)

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def figures(tally: RunStats, num_tokens: int) -> str:
    """Format accuracy, decoded tokens and failures so far in one line."""
    right = f"{tally.num_correct / tally.num_samples:.1%}" if tally.num_samples else "-"
    return f"{right} right, {num_tokens:,} tokens, {tally.num_failed} failed"
