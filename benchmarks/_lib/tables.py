"""Tables for a terminal that never truncate a figure."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import IO

from rich import table
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions

PIPE_WIDTH = 140  # columns, if neither a terminal nor COLUMNS gives a width
_ANY_WIDTH = 100_000


def console(file: IO[str] | None = None) -> Console:
    """Return the console for tables: as wide as COLUMNS or the terminal, else `PIPE_WIDTH`.

    Args:
        file: Output; None takes standard output.
    """
    knows_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, markup=False, width=None if knows_width else PIPE_WIDTH, file=file)


class Table(table.Table):
    """A table with a line per row; if the terminal is too narrow, with a block per row.

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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[table.Table | str]:
        """Yield the table; if it is too wide, a block per row, with a line per cell."""
        if console.measure(self, options=options.update(width=_ANY_WIDTH)).maximum <= options.max_width:
            yield from super().__rich_console__(console, options)  # type: ignore[misc]
            return
        first, *others = self.columns
        for name, *cells in zip(first.cells, *(column.cells for column in others), strict=True):
            block = table.Table(str(first.header), str(name), box=None, pad_edge=False)
            block.columns[1].overflow = "fold"
            for column, cell in zip(others, cells, strict=True):
                block.add_row(f"  {column.header}", cell)
            yield block
