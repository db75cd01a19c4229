"""Votes that roll, replayed: samples in flight count one by one, and what still runs at the end is cancelled.

A flight's schedule does not depend on its rule, since a sample that counts makes room for the next until the vote is
settled. So the samples of each row are put in the order in which they count, once, and rules are played on that order.

A sample lasts as long as its tokens (or its recorded seconds), as if all samples of a vote were written at one speed.
Then arrival is the order of tokens.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import NamedTuple

import numpy as np

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, SequentialRule
from scaffolding_ext.controllers.vote.draws import MOST_AHEAD, Order
from scaffolding_ext.evaluation.logs.samples import Floats, Ints
from scaffolding_ext.evaluation.tune.costs import PATHS, Cost
from scaffolding_ext.evaluation.tune.orders import OrderedVotes
from scaffolding_ext.evaluation.tune.votes import ReplayResult, outcome, sizes_of


class Schedule(NamedTuple):
    """Samples of each row as they run and count if nothing ends the vote, shape [num_rows, num_samples] each.

    Attributes:
        order: Samples in the order in which they count.
        began: Time at which each began, in that order.
        counts: Time at which each counts, in that order.
    """

    order: Ints
    began: Floats
    counts: Floats


def schedule(lengths: Floats, in_flight: int, order: Order) -> Schedule:
    """Run samples of these lengths, `in_flight` at once.

    Args:
        lengths: Duration of each sample, shape [num_rows, num_samples].
        order: By `"index"`, a sample counts once all before it do, and at most `MOST_AHEAD` times `in_flight` samples
            are begun that do not count.
    """
    num_rows, num_samples = lengths.shape
    rows, ahead = np.arange(num_rows), MOST_AHEAD * in_flight if order == "index" else num_samples
    running = np.full((num_rows, min(in_flight, num_samples)), num_samples)  # a number of each place; this one is free
    ends = np.full((num_rows, num_samples + 1), np.inf)
    began, is_over = np.zeros((num_rows, num_samples)), np.zeros((num_rows, num_samples + 1), dtype=bool)
    num_begun, num_over, now = (
        np.zeros(num_rows, dtype=np.int64),
        np.zeros(num_rows, dtype=np.int64),
        np.zeros(num_rows),
    )
    ended = np.empty((num_rows, num_samples), dtype=np.int64)
    for turn in range(num_samples):
        while True:
            is_free = running == num_samples
            filled = np.flatnonzero(is_free.any(axis=1) & (num_begun < np.minimum(num_samples, num_over + ahead)))
            if not filled.size:
                break
            new = num_begun[filled]
            running[filled, is_free[filled].argmax(axis=1)], began[filled, new] = new, now[filled]
            ends[filled, new] = now[filled] + lengths[filled, new]
            num_begun[filled] += 1
        own = ends[rows[:, None], running]
        now = own.min(axis=1)
        first = np.where(own == now[:, None], running, num_samples).argmin(axis=1)
        ended[:, turn] = running[rows, first]
        is_over[rows, ended[:, turn]] = True
        running[rows, first] = num_samples
        num_over = is_over.argmin(axis=1) if order == "index" else num_over + 1
    counted = np.broadcast_to(np.arange(num_samples), ended.shape) if order == "index" else ended
    counts = np.maximum.accumulate(np.take_along_axis(ends, counted, axis=1), axis=1)
    return Schedule(counted, np.take_along_axis(began, counted, axis=1), counts)


class ReplayedFlight:
    """The samples of all rows in flight.

    Args:
        num_samples: Samples of a vote.
    """

    def __init__(self, votes: OrderedVotes, num_samples: int, in_flight: int, order: Order) -> None:
        samples = votes.samples
        tokens = votes.ordered(samples.tokens)[:, :num_samples].astype(float)
        self._num_samples, self._in_flight, self._order = num_samples, in_flight, order
        self._schedule = schedule(tokens, in_flight, order)
        self.votes = votes.reordered(self._schedule.order)
        self._counts: dict[Cost, Floats] = {"critical": self._schedule.counts}
        if "seconds" in samples.costs:
            seconds = votes.ordered(samples.costs["seconds"])[:, :num_samples]
            self._counts["seconds"] = schedule(seconds, in_flight, order).counts

    def sizes(self, rule: AllocationRule | None) -> Ints:
        """Return the number of samples of each row that count; a rule that can stop at any sample is asked at each."""
        if isinstance(rule, SequentialRule):
            rule = dataclasses.replace(rule, leap=0.0)
        running = self._running if rule is not None and "lengths" in rule.inputs else None
        return sizes_of(self.votes, rule, self._num_samples, running)

    @cached_property
    def _running(self) -> Ints:
        """Tokens of running samples once so many count, as `Draws.running_tokens` counts them."""
        tokens = self.votes.ordered(self.votes.samples.tokens)[:, : self._num_samples]
        running = np.zeros((len(tokens), self._num_samples + 1), dtype=np.int64)
        for num in range(1, self._num_samples):
            if self._order == "tokens":
                written = self._schedule.counts[:, num - 1, None] - self._schedule.began[:, num:]
                running[:, num] = np.clip(written, 0, None).sum(axis=1)
            else:
                running[:, num] = tokens[:, :num].max(axis=1) * min(self._in_flight, self._num_samples - num)
        return running

    def play(self, drawn: Ints, full_right: Floats) -> ReplayResult:
        """Play votes of the given sizes; what the others have written by then is spent, too."""
        votes, samples, at = self.votes, self.votes.samples, (np.arange(len(drawn)), drawn - 1)
        lasted = {name: counts[at] for name, counts in self._counts.items() if name in samples.costs}
        played = outcome(votes, drawn, np.ones(len(drawn)), lasted, full_right)
        tokens = votes.ordered(samples.tokens)[:, : self._num_samples]
        written = np.clip(self._schedule.counts[at][:, None] - self._schedule.began, 0, tokens)
        share, costs = written / np.maximum(1, tokens), dict(played.costs)
        for name in samples.costs.keys() - set(PATHS):
            own = votes.ordered(samples.costs[name])[:, : self._num_samples] * share
            costs[name] = votes.mean(own.sum(axis=1)) + samples.once.get(name, 0.0)
        return dataclasses.replace(played, costs=costs)
