"""The line of those that wait for a worker or a host, in the order of service."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T", bound=Hashable)
_FIRST = float("-inf")


class WaitingLine(Generic[T]):
    """Orders waiting requests by priority, the lowest first, and requests of one priority by arrival.

    A request that `patience` later ones have overtaken comes first, whatever its priority, so that none starves.

    Args:
        patience: Later requests that may be served before an earlier one; with 0, all are served as they come in.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._waiting: dict[T, tuple[float, int]] = {}  # priority and arrival of each, the earliest first
        self._order: SortedList = SortedList()  # (priority, arrival, who)
        self._num_come = 0
        self._num_left = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, who: object) -> bool:
        return who in self._waiting

    def __iter__(self) -> Iterator[T]:
        """All waiting ones, the earliest first."""
        return iter(self._waiting)

    def __getitem__(self, place: int) -> T:
        """Who has that place in the line; 0 is served next."""
        who: T = self._order[place][2]
        return who

    def add(self, who: T, priority: float = 0.0) -> None:
        """Add somebody at the priority's place."""
        priority = priority if self._patience else _FIRST
        self._waiting[who] = priority, self._num_come
        self._order.add((priority, self._num_come, who))
        self._num_come += 1

    def remove(self, who: T) -> None:
        """Take somebody out, served or not."""
        self._order.remove((*self._waiting.pop(who), who))
        self._num_left += 1
        if not self._waiting:
            return
        earliest, (priority, arrival) = next(iter(self._waiting.items()))
        if priority != _FIRST and self._num_left - arrival >= self._patience:  # all before it have left, too
            self._order.remove((priority, arrival, earliest))
            self._waiting[earliest] = _FIRST, arrival  # keeps its place in the dict
            self._order.add((_FIRST, arrival, earliest))
