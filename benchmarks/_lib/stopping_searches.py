"""Stops of searches, replayed on searches that ran to their end: a stop cuts off, and changes nothing before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.searching import Searched
from scaffolding_ext.controllers.tree.select import Leaf
from scaffolding_ext.controllers.tree.stops import Look, SearchStop, leader_of
from scaffolding_ext.controllers.vote.voting import vote

NUM_LOTS = 20  # of a stop at random


class Stopped(NamedTuple):
    """A search that was cut off.

    Attributes:
        round: The last one.
        tokens: That its steps decoded.
        is_right: Whether the answer is right that a vote weighed by values elects.
        is_early: Whether it was cut before its end.
    """

    round: int
    tokens: int
    is_right: bool
    is_early: bool


def stopped(search: Searched, stop: SearchStop | None, most_leaves: int | None = None) -> Stopped:
    """The search as a stop would have ended it; None lets it run to its end.

    Args:
        search: To its end.
        stop: Looks after every round that ended leaves.
        most_leaves: That the search could end; None where its budget bounds them.
    """
    leaves, leaders, before = _leaves(search), [], 0
    for number, (tokens, num) in enumerate(search.rounds):
        if stop is None or num == before:
            continue
        before = num
        leaders.append(leader_of(leaves[:num]))
        left = most_leaves - num if most_leaves else int(num * (search.rounds[-1][0] - tokens) / tokens)
        if stop.is_enough(Look(leaves[:num], leaders, max(0, left))):
            return cut(search, number)
    return cut(search, len(search.rounds) - 1)


def stopped_between(search: Searched, stop: SearchStop, most_leaves: int) -> Stopped:
    """The search as it would have ended with a stop that is asked between its widths."""
    leaves, leaders = _leaves(search), []
    for number in search.widths:
        num = search.rounds[number][1]
        leaders.append(leader_of(leaves[:num]))
        if stop.is_enough(Look(leaves[:num], leaders, max(0, most_leaves - num))):
            return cut(search, number)
    return cut(search, len(search.rounds) - 1)


def cut(search: Searched, last: int) -> Stopped:
    """The search up to a round; leaves that it had ended vote, all of them where it had ended none."""
    tokens, num = search.rounds[last]
    is_last = last >= len(search.rounds) - 1
    leaves = _leaves(search)[: num if num and not is_last else len(search.answers)]
    winner = vote([leaf.answer_class for leaf in leaves], [max(0.0, leaf.value) for leaf in leaves])
    elected = next((at for at, leaf in enumerate(leaves) if leaf.answer_class == winner), 0)
    return Stopped(last, tokens, search.is_right[elected], not is_last)


def cut_at_leaves(searches: Sequence[Searched], tokens: float) -> npt.NDArray[np.float64]:
    """How often each search is right that ends after a fixed number of leaves, of so many tokens on average."""
    most = max(len(each.answers) for each in searches)
    cuts = [[cut(each, _round_of(each, num)) for each in searches] for num in range(1, most + 1)]
    means = [float(np.mean([each.tokens for each in row])) for row in cuts]
    size = float(np.interp(tokens, means, range(most)))
    low, part = int(size), size - int(size)
    rows = [np.array([each.is_right for each in cuts[at]], dtype=float) for at in (low, min(low + 1, most - 1))]
    return np.asarray((1 - part) * rows[0] + part * rows[1])


def cut_at_random(
    searches: Sequence[Searched], stops: Sequence[Stopped], rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """How often each search is right that ends where the stop ended another one: as far into its tokens."""
    shares = np.array([each.tokens / search.rounds[-1][0] for each, search in zip(stops, searches, strict=True)])
    right = np.zeros(len(searches))
    for _ in range(NUM_LOTS):
        for row, (search, share) in enumerate(zip(searches, rng.permutation(shares), strict=True)):
            wanted = share * search.rounds[-1][0]
            last = min(range(len(search.rounds)), key=lambda at: abs(search.rounds[at][0] - wanted))
            right[row] += cut(search, last).is_right / NUM_LOTS
    return right


def _round_of(search: Searched, num: int) -> int:
    """The first round after which so many leaves have ended; the last one where fewer do."""
    return next((at for at, (_, ended) in enumerate(search.rounds) if ended >= num), len(search.rounds) - 1)


def _leaves(search: Searched) -> list[Leaf]:
    ids = {answer: number for number, answer in enumerate(dict.fromkeys(a for a in search.answers if a is not None))}
    return [
        Leaf(-1 if answer is None else ids[answer], value)
        for answer, value in zip(search.answers, search.values, strict=True)
    ]
