"""Which row each running request has: rows of like length lie side by side.

Attention reads the rows of one stretch up to the longest of them. So the rows are kept in classes by length (up to 64
tokens, 128, 256, ...), the longest first, and a stretch never crosses the border of a class.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from scaffolding_ext.workers.huggingface.kv_cache import KVRows

if TYPE_CHECKING:
    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest

_SHORTEST = 64  # tokens: the class of the shortest rows
_NUM_CLASSES = 24  # the longest class begins beyond any model's context


def _class_of(num_tokens: int) -> int:
    """Number of a row's class; 0 holds the longest."""
    return _NUM_CLASSES - 1 - min((max(num_tokens - 1, 0) // _SHORTEST).bit_length(), _NUM_CLASSES - 1)


class RowOrder:
    """The running requests in consecutive rows from 0 on, ordered by class.

    Args:
        kv: Their keys and values, which move with them.

    Attributes:
        requests: The request of each row.
    """

    def __init__(self, kv: KVRows) -> None:
        self.requests: list[EngineRequest] = []
        self._kv = kv
        self._ends = [0] * _NUM_CLASSES  # the row behind the last one of each class

    def __len__(self) -> int:
        return len(self.requests)

    def class_of_row(self, row: int) -> int:
        """The class in which a row lies."""
        return bisect_right(self._ends, row)

    def add(self, request: EngineRequest, num_tokens: int) -> None:
        """Give a request a row in the class of that many tokens; their KV is still to be written."""
        hole = len(self.requests)
        self.requests.append(request)
        self._ends[-1] += 1
        self._put(request, self._shift(hole, _NUM_CLASSES - 1, _class_of(num_tokens)))

    def refile(self, request: EngineRequest) -> None:
        """Move a request into the class of its present length."""
        row, num_kv = request.holder.row, request.holder.num_kv
        old, new = self.class_of_row(row), _class_of(num_kv)
        if old == new:
            return
        try:
            kept = self._kv.export(row, num_kv)
        except (RuntimeError, MemoryError):  # no memory for the copy: then the row stays, and is only read for longer
            return
        target = self._shift(row, old, new)
        if target != row:
            self._kv.load(target, kept, num_kv)
        self._put(request, target)

    def remove(self, request: EngineRequest) -> None:
        """Take a request out; the rows behind close the gap."""
        row = request.holder.row
        self._shift(row, self.class_of_row(row), _NUM_CLASSES - 1, leaves=True)
        self._ends[-1] -= 1
        self.requests.pop()

    def _put(self, request: EngineRequest, row: int) -> None:
        self.requests[row] = request
        request.holder.row = row

    def _shift(self, hole: int, old: int, new: int, leaves: bool = False) -> int:
        """Carry a hole from one class to another, by one move in each class between; returns where it ends."""
        for number in range(old - 1, new - 1, -1):  # towards the longer: the first of each class goes behind its last
            first = self._ends[number]
            self._move(first, hole)
            self._ends[number] += 1
            hole = first
        for number in range(old, new):  # towards the shorter: the last of each class fills the hole
            self._ends[number] -= 1
            self._move(self._ends[number], hole)
            hole = self._ends[number]
        if leaves:
            self._move(len(self.requests) - 1, hole)
        return hole

    def _move(self, source: int, target: int) -> None:
        if source != target:
            moved = self.requests[source]
            self._kv.move(source, target, moved.holder.num_kv)
            self._put(moved, target)
