"""Numbers of a node's children in columns, so that choosing among many children takes a few array operations."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt


class Siblings:
    """One row of numbers per child, in the order of the children.

    Args:
        num_columns: Numbers per child.

    Attributes:
        numbers: Child of each row: its number among its siblings.
    """

    __slots__ = ("_table", "numbers")

    def __init__(self, num_columns: int) -> None:
        self.numbers: list[int] = []
        self._table = np.zeros((num_columns, 4))

    @property
    def columns(self) -> npt.NDArray[np.float64]:
        """All numbers, shape [num_columns, num_rows]; a view."""
        return self._table[:, : len(self.numbers)]

    def put(self, number: int, *row: float) -> None:
        """Set or replace a child's row."""
        at, num = bisect_left(self.numbers, number), len(self.numbers)
        if at < num and self.numbers[at] == number:
            self._table[:, at] = row
            return
        if num == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        if at < num:
            self._table[:, at + 1 : num + 1] = self._table[:, at:num].copy()
        self.numbers.insert(at, number)
        self._table[:, at] = row

    def change(self, number: int, *by: float) -> None:
        """Add to a child's row, if it has one."""
        at = self._find(number)
        if at is not None:
            self._table[:, at] += by

    def drop(self, number: int) -> None:
        at = self._find(number)
        if at is not None:
            num = len(self.numbers)
            self._table[:, at : num - 1] = self._table[:, at + 1 : num].copy()
            self.numbers.pop(at)

    def _find(self, number: int) -> int | None:
        at = bisect_left(self.numbers, number)
        return at if at < len(self.numbers) and self.numbers[at] == number else None
