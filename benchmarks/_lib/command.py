"""Turns a function into a benchmark: a command with a seed, a quick setting, and a report that it fills."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks._lib.provenance import PLACE, setting_of
from benchmarks._lib.report import Report
from scaffolding_ext.documents import write_text

_T = TypeVar("_T")

recorded = click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Folder of the recordings.",
)
plotted = click.option("--plot_path", type=PLACE, help="Where the figures are drawn.")
stored = click.option("--store", type=PLACE, help="Folder of what was run before.")


@contextmanager
def libraries_on_stderr() -> Iterator[IO[str]]:
    """Send to stderr what libraries print, as C++ does on descriptor 1; yields the stream of the report.

    Descriptor 1 stays stderr, because a library's last words come at the exit. `sys.stdout` is the report's afterwards.
    """
    report = sys.stdout
    with suppress(OSError):  # the caller reads a buffer, which has no descriptor
        report.flush()
        report = os.fdopen(os.dup(report.fileno()), "w", encoding="utf-8")
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield report
    finally:
        sys.stdout = report


def benchmark(
    example: str, show: Callable[[Report], None] = Report.show, *, fails: bool = False
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function that takes a `Report` and its own options, and fills the report.

    Args:
        example: Module below `benchmarks`, and options of a run.
        show: Prints the report where no JSON is asked for.
        fails: Whether a bar that does not hold makes the exit code 1.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        @click.option("--seed", default=0, show_default=True, help="Seed of everything random.")
        @click.option("--quick", is_flag=True, is_eager=True, help="Smaller sizes, under a minute.")
        @click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
        @click.pass_context
        @functools.wraps(function)
        def command(context: click.Context, seed: int, quick: bool, as_json: bool, **options: Any) -> None:
            name = example.split()[0].rpartition(".")[2]
            report = Report(name, setting_of(context), seed)
            with libraries_on_stderr():
                function(report, **options)
            if as_json:
                print(json.dumps(report.to_json(), indent=1))
            else:
                show(report)
            if fails and not all(bar.holds for bar in report.bars):
                context.exit(1)

        epilog = f"Example: python -m benchmarks.{example}"
        return click.command(help=inspect.getdoc(function), epilog=epilog)(command)

    return decorate


def size(name: str, full: int, *, quick: int, help: str, least: int = 1) -> Callable[[_T], _T]:
    """An option of how much is done, with a smaller default where `--quick` is given."""

    def resolved(context: click.Context, _: click.Parameter, value: int | None) -> int:
        return value if value is not None else quick if context.params["quick"] else full

    text = f"{help}  [default: {full:,}; quick: {quick:,}]"
    return click.option(name, type=click.IntRange(least), callback=resolved, help=text)


def kept(store: Path | None, name: str, find: Callable[[], _T]) -> _T:
    """The result of `find`, as JSON gives it back; from the folder of `--store` if it was found before."""
    if store is None:
        return find()
    path = store / f"{name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(find()))
    found: _T = json.loads(path.read_text(encoding="utf-8"))
    return found


def progress() -> Progress:
    """Bars on standard error, where that is a terminal."""
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())


def track(sequence: Iterable[_T], description: str) -> Iterable[_T]:
    """Go through a sequence with a bar."""
    with progress() as bars:
        yield from bars.track(sequence, description=description)
