"""Votes that roll, replayed: so many samples run at once, and a rule is asked as each counts.

All samples of a vote are taken to be written at one speed, whatever their number, so time is counted in tokens. The
order in which samples count does not depend on the rule, which therefore only decides how many do.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, SequentialRule
from scaffolding_ext.evaluation.logs.samples import Floats, Ints
from scaffolding_ext.evaluation.tune.costs import Cost
from scaffolding_ext.evaluation.tune.orders import OrderedVotes
from scaffolding_ext.evaluation.tune.votes import Decisions, Played, outcome

Order = Literal["tokens", "index"]
_MOST_AHEAD = 2  # as in `controllers.vote.flight`


class Flights(NamedTuple):
    """All samples of each row in flight, in the order in which they count; arrays of shape [num_rows, num_samples].

    Attributes:
        places: Place of each sample in the row's own order.
        begun: Time at which each begins, in tokens.
        counted: Time at which each counts.
    """

    places: Ints
    begun: Ints
    counted: Ints


def fly(tokens: Ints, in_flight: int, order: Order = "tokens") -> Flights:
    """Run all samples of each row; they begin in the order of their columns.

    Args:
        tokens: Length of each sample, shape [num_rows, num_samples].
    """
    num_rows, num_samples = tokens.shape
    rows = np.arange(num_rows)
    num_places = min(in_flight, num_samples)
    running = np.broadcast_to(np.arange(num_places), (num_rows, num_places)).copy()  # sample of each place
    ends = tokens[:, :num_places].astype(np.int64)
    begun = np.zeros((num_rows, num_samples), dtype=np.int64)
    counted, places = np.zeros_like(begun), np.zeros_like(begun)
    never = np.iinfo(np.int64).max
    if order == "tokens":
        for number in range(num_samples):
            first = np.lexsort((running, ends), axis=1)[:, 0] if num_places > 1 else np.zeros(num_rows, dtype=np.int64)
            now, over = ends[rows, first], running[rows, first]
            counted[:, number], places[:, number] = now, over
            new = number + num_places
            running[rows, first] = new
            if new < num_samples:
                begun[:, new] = now
                ends[rows, first] = now + tokens[:, new]
            else:
                ends[rows, first] = never
        return Flights(places, np.take_along_axis(begun, places, axis=1), counted)
    for number in range(num_samples):
        if number >= num_places:
            first = ends.argmin(axis=1)
            begun[:, number] = ends[rows, first]
            if number >= _MOST_AHEAD * in_flight:
                begun[:, number] = np.maximum(begun[:, number], counted[:, number - _MOST_AHEAD * in_flight])
            ends[rows, first] = begun[:, number] + tokens[:, number]
        own = begun[:, number] + tokens[:, number]
        counted[:, number] = own if number == 0 else np.maximum(own, counted[:, number - 1])
        places[:, number] = number
    return Flights(places, begun, counted)


def play_flight(
    votes: OrderedVotes,
    rule: AllocationRule | None,
    num_samples: int,
    full_right: Floats,
    in_flight: int,
    order: Order = "tokens",
) -> Played:
    """Play a rule on every order of every question, with so many samples in flight.

    Seconds are those of the tokens at the mean speed of the row's counted samples. The costs of cancelled samples are
    their shares until the vote is settled.
    """
    samples = votes.samples
    tokens = votes.ordered(samples.tokens)[:, :num_samples]
    flights = fly(tokens, in_flight, order)
    counting = _reordered(votes, flights.places)
    drawn = _num_counted(counting, rule, num_samples)
    now = flights.counted[np.arange(len(drawn)), drawn - 1][:, None]
    lengths = np.take_along_axis(tokens, flights.places, axis=1)
    written = np.clip(now - flights.begun, 0, lengths)
    lasted: dict[Cost, Floats] = {"critical": now[:, 0].astype(float)}
    if "seconds" in samples.costs:
        whole = np.maximum(1, counting.ordered(samples.tokens)[:, :num_samples].cumsum(axis=1))
        seconds = counting.ordered(samples.costs["seconds"])[:, :num_samples].cumsum(axis=1)
        at = np.arange(len(drawn)), drawn - 1
        lasted["seconds"] = now[:, 0] * seconds[at] / whole[at]
    num_begun = (written > 0).sum(axis=1)
    played = outcome(counting, drawn, np.ceil(num_begun / in_flight), lasted, full_right)
    costs = dict(played.costs)
    share = written / np.maximum(1, lengths)
    for name in samples.costs.keys() - lasted.keys():
        own = counting.ordered(samples.costs[name])[:, :num_samples] * share
        costs[name] = votes.mean(own.sum(axis=1)) + samples.once.get(name, 0.0)
    decoded = counting.ordered(samples.costs["decoded"])[:, :num_samples] * share
    squared = votes.mean(decoded.sum(axis=1) ** 2)
    return Played(played.right, played.lost, costs, played.rounds, votes.mean(num_begun), squared)


def _num_counted(votes: OrderedVotes, rule: AllocationRule | None, num_samples: int) -> Ints:
    """Return the samples of each row that count; a rule that can stop at any sample is asked at each."""
    counted = np.zeros(len(votes.classes), dtype=np.int64)
    decisions = Decisions(votes, rule, num_samples)
    active = np.arange(len(counted))
    while active.size:
        more = decisions.num_more(active, counted[active])
        active, more = active[more > 0], more[more > 0]
        counted[active] += 1 if isinstance(rule, SequentialRule) else more
    return counted


def _reordered(votes: OrderedVotes, places: npt.NDArray[Any]) -> OrderedVotes:
    rows = votes.orders.reshape(-1, votes.num_samples).copy()
    rows[:, : places.shape[1]] = np.take_along_axis(rows[:, : places.shape[1]], places, axis=1)
    return OrderedVotes(votes.samples, rows.reshape(votes.orders.shape), votes.weight)
