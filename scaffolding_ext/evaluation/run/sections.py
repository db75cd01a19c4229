"""Sections of a summary: figures published by controllers (`request.figures`), summed over a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.answers import group
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.request.figures import Answers
from scaffolding_ext.stats.intervals import bootstrap_quotients, share_of_questions

_SEED = 0  # of the resamples: a run has one summary
_Name = tuple[str, str, str]  # of a figure: its section, its name, its kind
_MARKED = ("best@n", "maj@n", "mean@n")


class SectionFigure(NamedTuple):
    """A figure of a section, over all requests.

    Attributes:
        kind: `"mean"` of a number over the requests that published it, `"share"` for a quotient of two sums, or
            `"counts"`.
        value: The mean or the quotient; None for counts, and if the whole is 0.
        low: Lower end of its 95 % interval: questions resampled, or of best@n, maj@n and mean@n that of an accuracy
            (`stats.intervals.share_of_questions`); None if unknown.
        num: Sum of the numbers, parts or counts.
        of: Requests that published the number, or the sum of the wholes.
        counts: Counts by name, largest first; None for other kinds.
    """

    kind: str
    value: float | None
    low: float | None
    high: float | None
    num: float
    of: float
    counts: dict[str, float] | None = None


async def figures_of(
    published: Mapping[str, Mapping[str, Any]],
    is_right: Callable[[str], Awaitable[bool]] | None,
    units_implied: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return a request's figures for its record, with `Answers` scored.

    Args:
        is_right: Scores an answer; asked once per class of equal answers. None, for a failed request, drops `Answers`.
        units_implied: Treat 5 and 5 cm as equal.
    """
    sections: dict[str, dict[str, Any]] = {}
    for section, figures in published.items():
        kept = sections[section] = {}
        for name, value in figures.items():
            if not isinstance(value, Answers):
                kept[name] = list(value) if isinstance(value, tuple) else value
            elif is_right is not None and value.answers:
                kept |= await _marked(value, is_right, units_implied)
    return sections


async def _marked(
    given: Answers, is_right: Callable[[str], Awaitable[bool]], units_implied: bool
) -> dict[str, list[float]]:
    classes = list(group(given.answers, units_implied=units_implied) if given.classes is None else given.classes)
    of_class = {-1: False}
    for number, answer in zip(classes, given.answers, strict=True):
        if number not in of_class and answer is not None:
            of_class[number] = await is_right(answer)
    return shares_of([of_class[number] for number in classes], classes)


def shares_of(right: Sequence[bool], classes: Sequence[int]) -> dict[str, list[float]]:
    """Return best@n, maj@n and mean@n of one vote.

    Args:
        classes: Class of each sample's answer, -1 without one; every sample has one vote, even if the vote was
            weighted.

    Reference:
        A1, arXiv 2509.15148, whose figures are those of a question's chains.
    """
    winner = vote(classes)
    majority = winner >= 0 and right[classes.index(winner)]
    shares = [int(any(right)), 1], [int(majority), 1], [sum(map(int, right)), len(right)]
    return dict(zip(_MARKED, map(list, shares), strict=True))


class Sections:
    """Accumulates the figures of records, with two sums per question and figure."""

    def __init__(self) -> None:
        self._sums: dict[_Name, dict[int, tuple[float, float]]] = {}  # by figure and question
        self._counts: dict[tuple[str, str], dict[str, float]] = {}

    def add(self, question: int, figures: Mapping[str, Mapping[str, Any]]) -> None:
        for section, named in figures.items():
            for name, value in named.items():
                if isinstance(value, Mapping):
                    counts = self._counts.setdefault((section, name), {})
                    for which, number in value.items():
                        counts[which] = counts.get(which, 0) + number
                    continue
                kind, num, of = ("share", *value) if isinstance(value, (list, tuple)) else ("mean", value, 1)
                sums = self._sums.setdefault((section, name, kind), {})
                so_far = sums.get(question, (0.0, 0.0))
                sums[question] = so_far[0] + num, so_far[1] + of

    def figures(self, num_questions: int) -> dict[str, dict[str, SectionFigure]]:
        """Return all figures by section; resamples are drawn from all questions of the run, `num_questions`."""
        found: dict[str, dict[str, SectionFigure]] = {}
        names, sums = list(self._sums), np.zeros((len(self._sums), 2, num_questions))  # of parts and of wholes
        for place, own in enumerate(self._sums.values()):
            sums[place][:, list(own)] = np.array(list(own.values())).T
        totals = sums.sum(axis=2)
        told = [place for place in range(len(names)) if totals[place, 1] > 0]
        ends: dict[int, tuple[float, float]] = {}
        if num_questions > 1 and told:
            quotients = bootstrap_quotients(sums[told, 0].T, sums[told, 1].T, rng=np.random.default_rng(_SEED))
            ends = {place: (low, high) for place, (_, low, high) in zip(told, quotients, strict=True)}
        for place in told:
            if names[place][1] in _MARKED:  # an accuracy: resamples of questions that are all right do not vary
                has_some = sums[place, 1] > 0
                ends[place] = share_of_questions(*sums[place][:, has_some])[1:]
        for place, (section, name, kind) in enumerate(names):
            num, of = (float(total) for total in totals[place])
            low, high = ends.get(place, (None, None))
            found.setdefault(section, {})[name] = SectionFigure(kind, num / of if of else None, low, high, num, of)
        for (section, name), counts in self._counts.items():
            total = sum(counts.values())
            named = dict(sorted(counts.items(), key=lambda item: -item[1]))
            found.setdefault(section, {})[name] = SectionFigure("counts", None, None, None, total, total, named)
        return found
