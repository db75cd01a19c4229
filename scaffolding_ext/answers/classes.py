"""Incremental classes of equal answers: a new answer is compared only with the heads of the existing classes."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Generator, Sequence
from typing import NamedTuple

from scaffolding_ext.answers.comparison import Comparator, Verdict
from scaffolding_ext.answers.forms import Read, read

Pair = tuple[str, str]
_LONGEST_TURN = 500  # steps of comparing or reading, of a few microseconds each
_Place = tuple[int, str]  # sort key of a distinct answer: shorter ones come first


class Grouping(NamedTuple):
    """Classes of equal answers.

    Attributes:
        classes: A class number for each answer, in order of first appearance, -1 for None.
        num_undetermined: Distinct answers that count as different only because a verdict is missing.
    """

    classes: list[int]
    num_undetermined: int


class AnswerClasses:
    """Groups answers into classes and reuses its comparisons as more answers arrive.

    Distinct answers are ordered, shorter ones first; the first answer of a class is its head. Each answer joins the
    first earlier head whose text it equals, else the first that the caller's verdict says it equals. Undetermined
    counts as different. The classes therefore depend neither on the order of the answers nor on how they are batched,
    even if equality is not transitive. A new answer is compared only with the heads, so n distinct answers in m classes
    take about n·m comparisons; a new head is also compared with the longer answers. No pair is compared twice, unless a
    class loses its head.

    Args:
        units_implied: True if a number equals the same number with a unit (see `compare`).

    Attributes:
        num_comparisons: Pairs compared by their text.
    """

    def __init__(self, units_implied: bool = False) -> None:
        self.num_comparisons = 0
        self._comparison = Comparator(units_implied)
        self._compare = self._comparison.verdict
        self._num_steps_read = 0
        self._turn_began = 0
        self._reads: dict[str, Read | None] = {}
        self._order: list[_Place] = []  # the distinct answers
        self._heads: list[_Place] = []
        self._head_of: dict[str, _Place] = {}
        self._joined_by_text: set[str] = set()
        self._left_open: dict[str, set[_Place]] = {}  # by head: the heads it could not be told apart from

    def group(self, answers: Sequence[str | None]) -> Generator[list[Pair], list[Verdict], Grouping]:
        """Group all answers so far.

        Args:
            answers: All answers so far, including those of earlier calls; None equals nothing.

        Yields:
            Pairs whose text leaves equality open; send a verdict for each. No pair is asked twice, unless a class lost
            its head to a shorter answer. An empty list means that many comparisons were made and the caller may let
            other work run.

        Returns:
            The classes of `answers`.
        """
        head_of = self._head_of
        distinct = {answer for answer in answers if answer is not None and answer not in head_of}
        new = sorted([(len(answer), answer) for answer in distinct])
        for place in new:
            if place[1] not in self._reads:
                bisect.insort(self._order, place)
                self._reads[place[1]] = read(place[1])
                self._num_steps_read += len(place[1])
                if self._is_turn_over():
                    yield []
        waiting = new  # a sorted list is a heap
        while waiting:
            place = heapq.heappop(waiting)
            if (yield from self._place_one(place)):
                for lost in (yield from self._make_room(place)):
                    heapq.heappush(waiting, lost)
        numbers: dict[_Place, int] = {}
        classes: list[int] = []
        for answer in answers:
            if answer is not None and head_of[answer] not in numbers:
                numbers[head_of[answer]] = len(numbers)
            classes += (-1 if answer is None else numbers[head_of[answer]],)
        heads = set(self._heads)
        return Grouping(classes, sum(not heads.isdisjoint(others) for others in self._left_open.values()))

    def _place_one(self, place: _Place) -> Generator[list[Pair], list[Verdict], bool]:
        """Add an answer to the class of an earlier head, or make it a head; return True if it became one."""
        reads, compare, own = self._reads, self._compare, self._reads[place[1]]
        undecided = []
        for head in self._heads[: bisect.bisect_left(self._heads, place)]:
            verdict = compare(own, reads[head[1]])
            self.num_comparisons += 1
            if self._is_turn_over():
                yield []
            if verdict is Verdict.EQUAL:
                self._join(place, head, by_text=True)
                return False
            if verdict is Verdict.UNDETERMINED:
                undecided.append(head)
        verdicts = (yield [(place[1], head[1]) for head in undecided]) if undecided else []
        if Verdict.EQUAL in verdicts:
            self._join(place, undecided[verdicts.index(Verdict.EQUAL)], by_text=False)
            return False
        self._join(place, place, by_text=True)
        bisect.insort(self._heads, place)
        self._left_open[place[1]] = _open_among(undecided, verdicts)
        return True

    def _make_room(self, head: _Place) -> Generator[list[Pair], list[Verdict], list[_Place]]:
        """Let later answers join a new head they equal.

        Returns:
            The answers whose head joined another class; they need a new one.
        """
        reads, compare, of_head = self._reads, self._compare, self._reads[head[1]]
        undecided: list[_Place] = []
        lost: list[_Place] = []
        for place in self._order[bisect.bisect_right(self._order, head) :]:
            own = self._head_of.get(place[1])
            by_text = place[1] in self._joined_by_text
            if own is None or (by_text and own < head):
                continue
            verdict = compare(reads[place[1]], of_head)
            self.num_comparisons += 1
            if self._is_turn_over():
                yield []
            if verdict is Verdict.EQUAL:
                lost += self._move(place, head, by_text=True)
            elif verdict is Verdict.UNDETERMINED and head < own and (own == place or not by_text):
                undecided.append(place)
        verdicts = (yield [(place[1], head[1]) for place in undecided]) if undecided else []
        for place, verdict in zip(undecided, verdicts, strict=True):
            if place[1] not in self._head_of:
                continue  # its head moved just now
            if verdict is Verdict.EQUAL:
                lost += self._move(place, head, by_text=False)
            elif verdict is Verdict.UNDETERMINED and self._head_of[place[1]] == place:
                self._left_open[place[1]].add(head)
        return lost

    def _is_turn_over(self) -> bool:
        num_steps = self._num_steps_read + self._comparison.num_steps
        if num_steps - self._turn_began < _LONGEST_TURN:
            return False
        self._turn_began = num_steps
        return True

    def _move(self, place: _Place, head: _Place, by_text: bool) -> list[_Place]:
        """Move an answer to another head; return the members it leaves behind if it was a head."""
        was_head = self._head_of[place[1]] == place
        self._join(place, head, by_text)
        if not was_head:
            return []
        self._heads.remove(place)
        del self._left_open[place[1]]
        lost = [other for other in self._order if self._head_of.get(other[1]) == place]
        for _, answer in lost:
            del self._head_of[answer]
        return lost

    def _join(self, place: _Place, head: _Place, by_text: bool) -> None:
        self._head_of[place[1]] = head
        (self._joined_by_text.add if by_text else self._joined_by_text.discard)(place[1])


def _open_among(places: Sequence[_Place], verdicts: Sequence[Verdict]) -> set[_Place]:
    return {place for place, verdict in zip(places, verdicts, strict=True) if verdict is Verdict.UNDETERMINED}
