"""Sections of a summary: what controllers published of their requests (`request.figures`), summed up over a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.answers import group
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.request.figures import Answers
from scaffolding_ext.stats.intervals import bootstrap_quotients

_SEED = 0  # of the resamples: a run has one summary
_MARKED = ("best@n", "maj@n", "mean@n")


class SectionFigure(NamedTuple):
    """A figure of a section, over all requests.

    Attributes:
        kind: `"mean"` of a number over the requests that published it, `"share"` for a quotient of two sums, or
            `"counts"`.
        value: The mean or the quotient; None for counts, and where the whole is 0.
        low: Lower end of its 95 % interval, questions resampled; None where nothing is known of it.
        high: Upper end.
        num: The sum of the numbers or parts; of counts, their sum.
        of: The requests that published the number, or the sum of the wholes.
        counts: Counts by name, the largest first; None for other kinds.
    """

    kind: str
    value: float | None
    low: float | None
    high: float | None
    num: float
    of: float
    counts: dict[str, float] | None = None


async def figures_of(
    published: Mapping[str, Mapping[str, Any]], is_right: Callable[[str], Awaitable[bool]] | None
) -> dict[str, dict[str, Any]]:
    """A request's figures as its record has them, with `Answers` marked.

    Args:
        published: `Program.figures`.
        is_right: Whether an answer is right; asked once for each class of equal answers. None, where the request has
            failed, leaves `Answers` out.
    """
    sections: dict[str, dict[str, Any]] = {}
    for section, figures in published.items():
        kept = sections[section] = {}
        for name, value in figures.items():
            if not isinstance(value, Answers):
                kept[name] = list(value) if isinstance(value, tuple) else value
            elif is_right is not None and value.answers:
                kept |= await _marked(value, is_right)
    return sections


async def _marked(given: Answers, is_right: Callable[[str], Awaitable[bool]]) -> dict[str, list[float]]:
    classes = list(group(given.answers) if given.classes is None else given.classes)
    of_class = {-1: False}
    for number, answer in zip(classes, given.answers, strict=True):
        if number not in of_class and answer is not None:
            of_class[number] = await is_right(answer)
    return shares_of([of_class[number] for number in classes], classes)


def shares_of(right: Sequence[bool], classes: Sequence[int]) -> dict[str, list[float]]:
    """best@n, maj@n and mean@n of one vote, as its record has them.

    Args:
        right: Whether each sample is right.
        classes: Class of each sample's answer, -1 without one; every sample votes once, whatever the vote weighed.

    Reference:
        A1, arXiv 2509.15148, whose figures are those of a question's own chains.
    """
    winner = vote(classes)
    majority = winner >= 0 and right[classes.index(winner)]
    shares = [int(any(right)), 1], [int(majority), 1], [sum(map(int, right)), len(right)]
    return dict(zip(_MARKED, map(list, shares), strict=True))


class Sections:
    """Sums the figures of records up as they come; it keeps two sums a question and figure."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], dict[str, list[float]]] = {}
        self._counts: dict[tuple[str, str], dict[str, float]] = {}

    def add(self, question: str, figures: Mapping[str, Mapping[str, Any]]) -> None:
        """Count the figures of one record."""
        for section, named in figures.items():
            for name, value in named.items():
                if isinstance(value, Mapping):
                    counts = self._counts.setdefault((section, name), {})
                    for which, number in value.items():
                        counts[which] = counts.get(which, 0) + number
                    continue
                kind, num, of = ("share", *value) if isinstance(value, (list, tuple)) else ("mean", value, 1)
                sums = self._sums.setdefault((section, name, kind), {}).setdefault(question, [0, 0])
                sums[0] += num
                sums[1] += of

    def figures(self, questions: Collection[str]) -> dict[str, dict[str, SectionFigure]]:
        """All figures by section.

        Args:
            questions: Ids of all questions, from which resamples are drawn.
        """
        found: dict[str, dict[str, SectionFigure]] = {}
        ends = self._intervals(list(questions))
        for key, sums in self._sums.items():
            section, name, kind = key
            num, of = (sum(column) for column in zip(*sums.values(), strict=True))
            low, high = ends.get(key, (None, None))
            value = num / of if of else None
            found.setdefault(section, {})[name] = SectionFigure(kind, value, low, high, num, of)
        for (section, name), counts in self._counts.items():
            total = sum(counts.values())
            named = dict(sorted(counts.items(), key=lambda item: -item[1]))
            found.setdefault(section, {})[name] = SectionFigure("counts", None, None, None, total, total, named)
        return found

    def _intervals(self, questions: list[str]) -> dict[tuple[str, str, str], tuple[float, float]]:
        """The ends of all quotients that have some, from the same resamples."""
        keys = [key for key, sums in self._sums.items() if sum(of for _, of in sums.values()) > 0]
        if len(questions) < 2 or not keys:
            return {}
        rows = {question: number for number, question in enumerate(questions)}
        above, below = np.zeros((2, len(questions), len(keys)))
        for column, key in enumerate(keys):
            for question, (num, of) in self._sums[key].items():
                above[rows[question], column], below[rows[question], column] = num, of
        quotients = bootstrap_quotients(above, below, rng=np.random.default_rng(_SEED))
        return {key: (low, high) for key, (_, low, high) in zip(keys, quotients, strict=True)}
