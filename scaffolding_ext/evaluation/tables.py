"""Tables for a terminal, which never cut a figure: what is too wide for one goes on below."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import IO

from rich import table
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions

PIPE_WIDTH = 140  # columns, where neither a terminal nor COLUMNS says how many there are
_ANY_WIDTH = 100_000


def console(file: IO[str] | None = None) -> Console:
    """Where tables go: as wide as COLUMNS or the terminal says, or `PIPE_WIDTH` where neither does.

    Args:
        file: What is written to; None takes standard output.
    """
    knows_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, markup=False, width=None if knows_width else PIPE_WIDTH, file=file)


class Table(table.Table):
    """A table with a line a row. Columns that find no room stand in a table below, behind the first column again.

    Args:
        first: Head of the first column, which names the rows.
        columns: Heads of the others.
    """

    def __init__(self, first: str, *columns: str) -> None:
        super().__init__(first, *columns, box=SIMPLE_HEAD, pad_edge=False)
        for column in self.columns:
            column.overflow = "fold"
        for column in self.columns[1:]:
            column.justify = "right"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[table.Table]:
        """The table, or those that it is split into."""
        others = list(range(1, len(self.columns)))
        while True:
            num = len(others)
            while num > 1 and self._width(console, others[:num]) > options.max_width:
                num -= 1
            yield self._of(others[:num])
            others = others[num:]
            if not others:
                return

    def _width(self, console: Console, numbers: list[int]) -> int:
        return console.measure(self._of(numbers), options=console.options.update(width=_ANY_WIDTH)).maximum

    def _of(self, numbers: list[int]) -> table.Table:
        """A table of the first column and these."""
        columns = [self.columns[number] for number in (0, *numbers)]
        part = table.Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            part.add_column(column.header, justify=column.justify, overflow=column.overflow)
        for row in zip(*(column.cells for column in columns), strict=True):
            part.add_row(*row)
        return part
