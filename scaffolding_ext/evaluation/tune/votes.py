"""Votes of a recording under an allocation rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.evaluation.logs.samples import Floats, Ints
from scaffolding_ext.evaluation.tune.costs import PATHS, Cost
from scaffolding_ext.evaluation.tune.orders import OrderedVotes, States


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """Result of a setting: means over the orders of each question, shape [num_questions].

    Attributes:
        lost: Share of the orders in which the full vote is right and the answer is not.
        costs: Recorded costs, by the names of `COSTS`.
        rounds: Number of draws; samples of one round run in parallel.
    """

    right: Floats
    lost: Floats
    costs: Mapping[Cost, Floats]
    rounds: Floats
    samples: Floats


def assembled(parts: Sequence[ReplayResult], folds: Ints) -> ReplayResult:
    """Take each question from the part of its fold."""
    return combined(parts, lambda columns: np.stack(columns)[folds, np.arange(len(folds))])


def combined(parts: Sequence[ReplayResult], combine: Callable[[Sequence[Floats]], Floats]) -> ReplayResult:
    columns = {
        name: combine([getattr(each, name) for each in parts]) for name in ("right", "lost", "rounds", "samples")
    }
    costs = {name: combine([each.costs[name] for each in parts]) for name in parts[0].costs}
    return ReplayResult(costs=costs, **columns)


class DrawnRound(NamedTuple):
    """A round of several rows: `more` samples of each row, at least one, starting at `start`."""

    rows: Ints
    start: Ints
    more: Ints


def rounds_of(
    votes: OrderedVotes, rule: AllocationRule | None, num_samples: int, running: Ints | None = None
) -> Iterator[DrawnRound]:
    """Yield the draws of a rule on every order of every question, round by round; None draws all samples at once.

    Args:
        running: Tokens of running samples once so many count, shape [num_rows, num_samples + 1]; None: none run.
    """
    drawn = np.zeros(len(votes.classes), dtype=np.int64)
    decisions = Decisions(votes, rule, num_samples, running)
    active = np.arange(len(drawn))
    while active.size:
        more = decisions.num_more(active, drawn[active])
        active, more = active[more > 0], more[more > 0]
        yield DrawnRound(active, drawn[active], more)
        drawn[active] += more


def sizes_of(votes: OrderedVotes, rule: AllocationRule | None, num_samples: int, running: Ints | None = None) -> Ints:
    """Return the number of samples of each row that a rule draws."""
    drawn = np.zeros(len(votes.classes), dtype=np.int64)
    for rows, _, more in rounds_of(votes, rule, num_samples, running):
        drawn[rows] += more
    return drawn


def play(votes: OrderedVotes, rule: AllocationRule | None, num_samples: int, full_right: Floats) -> ReplayResult:
    """Play a rule on every order of every question.

    Args:
        rule: The rule; None draws all samples at once.
        full_right: 1 if the full vote of an order is right, shape [num_rows].
    """
    num_rows = len(votes.classes)
    drawn, rounds = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows)
    paths = {name: votes.ordered(votes.samples.costs[name]) for name in PATHS if name in votes.samples.costs}
    lasted = {name: np.zeros(num_rows) for name in paths}
    for rows, start, more in rounds_of(votes, rule, num_samples):
        for name, column in paths.items():
            lasted[name][rows] += _longest(column, rows, start, more)
        drawn[rows] += more
        rounds[rows] += 1
    return outcome(votes, drawn, rounds, lasted, full_right)


def outcome(
    votes: OrderedVotes, drawn: Ints, rounds: Floats, lasted: Mapping[Cost, Floats], full_right: Floats
) -> ReplayResult:
    """Return the results of votes of the first samples of each row."""
    right = votes.right[np.arange(len(drawn)), drawn]
    costs: dict[Cost, Floats] = {name: votes.mean(values) for name, values in lasted.items()}
    for name in votes.samples.costs.keys() - costs.keys():
        costs[name] = votes.mean(votes.spent(name, drawn)) + votes.samples.once.get(name, 0.0)
    lost = full_right * (1.0 - right)
    return ReplayResult(votes.mean(right), votes.mean(lost), costs, votes.mean(rounds), votes.mean(drawn))


def _longest(column: Floats, rows: Ints, start: Ints, more: Ints) -> Floats:
    longest = np.zeros(len(rows))
    for offset in range(int(more.max(initial=0))):
        taken = more > offset
        longest[taken] = np.maximum(longest[taken], column[rows[taken], start[taken] + offset])
    return longest


class Decisions:
    """Decisions of a rule on partial votes; it is asked once per state that it can distinguish."""

    def __init__(
        self, votes: OrderedVotes, rule: AllocationRule | None, num_samples: int, running: Ints | None = None
    ) -> None:
        self._votes = votes
        self._running = running
        self._rule = rule
        self._num_samples = num_samples
        self._states = None if rule is None else states_for(votes, rule)
        if self._states is not None:
            self._known = np.full(len(self._states.rows), -1, dtype=np.int64)

    def num_more(self, rows: Ints, drawn: Ints) -> Ints:
        """Return the number of further samples after the first ones of each row."""
        if self._rule is None:
            return self._num_samples - drawn
        if self._states is None:
            return np.array([self._decide(row, num) for row, num in zip(rows.tolist(), drawn.tolist(), strict=True)])
        states = self._states.numbers[rows, drawn]
        for state in np.unique(states[self._known[states] < 0]).tolist():
            self._known[state] = self._decide(int(self._states.rows[state]), int(self._states.sizes[state]))
        decided: Ints = self._known[states]
        return decided

    def _decide(self, row: int, num_drawn: int) -> int:
        rule, votes, samples = self._rule, self._votes, self._votes.samples
        assert rule is not None
        order = votes.orders.reshape(-1, votes.num_samples)[row, :num_drawn]
        question = row % votes.num_questions

        def seen(name: str, column: Floats | Ints | None) -> list[Any] | None:
            return column[question, order].tolist() if column is not None and name in rule.inputs else None

        weighed = None if votes.weight is None else samples.weights[votes.weight][question, order].tolist()
        return rule.num_more(
            Votes(
                votes.classes[row, :num_drawn].tolist(),
                self._num_samples,
                seen("rewards", samples.rewards),
                seen("lengths", samples.tokens),
                weighed,
                running_tokens=0 if self._running is None else int(self._running[row, num_drawn]),
            )
        )


def states_for(votes: OrderedVotes, rule: AllocationRule) -> States | None:
    """Return the states that a rule can distinguish; None if it reads more than answers."""
    inputs = rule.inputs
    if inputs <= {"size"}:
        return votes.by_size
    if votes.weight is not None or not inputs <= {"size", "counts", "answers"}:
        return None
    return votes.by_answers if "answers" in inputs else votes.by_counts
