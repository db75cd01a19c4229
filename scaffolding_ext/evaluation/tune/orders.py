"""Samples in random orders, and the states of all their partial votes, computed once for all rules.

A rule that reads only counts decides equally for equal counts. Therefore each partial vote has the number of its
*state*, and a rule is asked once per state. States are found by hashes that are updated sample by sample, so the cost
of a question is linear in its samples, not quadratic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.evaluation.logs.samples import Floats, Ints
from scaffolding_ext.evaluation.tune.costs import Cost, EndedSamples

_MOST_CELLS = 400_000  # samples of all orders together
_MOST_ORDERS = 64
Words = npt.NDArray[np.uint64]


def draw_orders(num_questions: int, num_samples: int, rng: np.random.Generator, num_orders: int | None = None) -> Ints:
    """Draw orders of the samples of each question, shape [num_orders, num_questions, num_samples].

    Orders are rotations of random permutations, so each sample comes at each place equally often. A large log has fewer
    orders than samples; then their first samples differ.

    Args:
        num_orders: None takes as many as a bounded amount of work allows, which is more for a small log.
    """
    if num_orders is None:
        num_orders = int(np.clip(_MOST_CELLS // (num_questions * num_samples), 1, _MOST_ORDERS))
        num_orders -= num_orders % num_samples if num_orders > num_samples else 0
    turns = -(-num_orders // num_samples)  # permutations to rotate
    drawn = np.argsort(rng.random((turns, num_questions, num_samples)), axis=-1, kind="stable")
    places = np.arange(num_orders)
    shifts = places % num_samples if turns > 1 else places * num_samples // num_orders
    rotated = (shifts[:, None] + np.arange(num_samples)) % num_samples
    return np.take_along_axis(drawn[places // num_samples], rotated[:, None], axis=2)


class States(NamedTuple):
    """States of all partial votes: their numbers, shape [num_rows, num_samples + 1], and a row and a size of each."""

    numbers: Ints
    rows: Ints
    sizes: Ints


@dataclass(frozen=True, eq=False)
class OrderedVotes:
    """Samples of each question in each order: a row is one order of one question, grouped by order.

    Attributes:
        weight: Name of the weight of a vote; None counts each as 1.
    """

    samples: EndedSamples
    orders: Ints
    weight: str | None = None

    @property
    def num_questions(self) -> int:
        return int(self.orders.shape[1])

    @property
    def num_samples(self) -> int:
        return int(self.orders.shape[2])

    def each_alone(self) -> OrderedVotes:
        """Return votes of one sample, each sample in turn."""
        shape = self.num_samples, self.num_questions, 1
        return OrderedVotes(self.samples, np.broadcast_to(np.arange(self.num_samples)[:, None, None], shape))

    def reordered(self, places: Ints) -> OrderedVotes:
        """Return the votes with the first samples of each row in another order, shape [num_rows, num_first]."""
        rows = self.orders.reshape(-1, self.num_samples).copy()
        rows[:, : places.shape[1]] = np.take_along_axis(rows, places, axis=1)
        return OrderedVotes(self.samples, rows.reshape(self.orders.shape), self.weight)

    def ordered(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a column of the samples in these orders, shape [num_rows, num_samples]."""
        taken = np.take_along_axis(column[None], self.orders, axis=2)
        return taken.reshape(-1, self.num_samples)

    def mean(self, values: npt.NDArray[Any]) -> Floats:
        """Return the mean of a value of each row over the orders of each question."""
        means: Floats = values.reshape(len(self.orders), self.num_questions).mean(axis=0)
        return means

    def spent(self, cost: Cost, drawn: Ints) -> Floats:
        if cost not in self._totals:
            column = self.ordered(self.samples.costs[cost])
            self._totals[cost] = np.concatenate([np.zeros((len(column), 1)), np.cumsum(column, axis=1)], axis=1)
        spent: Floats = self._totals[cost][np.arange(len(drawn)), drawn]
        return spent

    @cached_property
    def _totals(self) -> dict[Cost, Floats]:
        return {}

    @cached_property
    def classes(self) -> Ints:
        """Classes in order of their first appearance in the row, shape [num_rows, num_samples]."""
        given = self.ordered(self.samples.classes)
        numbers = np.full((len(given), int(given.max(initial=-1)) + 2), -1, dtype=np.int32)
        num_seen = np.zeros(len(given), dtype=np.int32)
        rows = np.arange(len(given))
        found = np.empty(given.shape, dtype=np.int64)
        for index in range(self.num_samples):
            column = given[:, index]
            new = (column >= 0) & (numbers[rows, column] < 0)
            numbers[rows[new], column[new]] = num_seen[new]
            num_seen += new
            found[:, index] = np.where(column < 0, -1, numbers[rows, column])
        return found

    @cached_property
    def leaders(self) -> Ints:
        """Leading class after each number of samples, shape [num_rows, num_samples + 1]; -1 for none."""
        classes = self.classes
        weights = None if self.weight is None else self.ordered(self.samples.weights[self.weight])
        rows = np.arange(len(classes))
        sums = np.zeros((len(classes), int(classes.max(initial=0)) + 1))
        leaders = np.full((len(classes), self.num_samples + 1), -1, dtype=np.int64)
        most = np.zeros(len(classes))
        for index in range(self.num_samples):
            column = classes[:, index]
            votes = column >= 0
            at = np.maximum(column, 0)
            sums[rows, at] += votes if weights is None else votes * weights[:, index]
            leader, own = leaders[:, index], sums[rows, at]
            leads = votes & ((leader < 0) | (own > most) | ((own == most) & (at < leader)))
            leaders[:, index + 1] = np.where(leads, at, leader)
            most = np.where(leads, own, most)
        return leaders

    @cached_property
    def right(self) -> npt.NDArray[np.bool_]:
        """Right votes of the first samples, shape [num_rows, num_samples + 1]."""
        classes, correct = self.classes, self.ordered(self.samples.correct)
        rows = np.arange(len(classes))
        of_class = np.zeros((len(classes), int(classes.max(initial=0)) + 2), dtype=bool)
        for index in range(self.num_samples - 1, -1, -1):  # the first sample of a class represents it
            of_class[rows, classes[:, index]] = correct[:, index]
        of_class[:, -1] = False  # no answer
        return np.take_along_axis(of_class, self.leaders, axis=1)

    @property
    def until_settled(self) -> Ints:
        """Fewest samples of each row after which its leader stays that of all samples."""
        leaders = self.leaders[:, 1:]
        differs = leaders != leaders[:, -1:]
        last = np.where(differs.any(axis=1), self.num_samples - np.argmax(differs[:, ::-1], axis=1), 0)
        return last + 1

    @cached_property
    def by_size(self) -> States:
        """States of rules that read only the number of samples."""
        sizes = np.arange(self.num_samples + 1)
        return States(np.broadcast_to(sizes, (len(self.classes), len(sizes))), np.zeros_like(sizes), sizes)

    @cached_property
    def by_counts(self) -> States:
        """States of rules that read counts: votes with equal counts, in order of first appearance."""
        return _states(self._hashes(False))

    @cached_property
    def by_answers(self) -> States:
        """States of rules that read the answers in order."""
        return _states(self._hashes(True))

    def _hashes(self, in_order: bool) -> Words:
        classes = self.classes
        rows = np.arange(len(classes))
        counts = np.zeros((len(classes), int(classes.max(initial=0)) + 2), dtype=np.int64)
        found = np.zeros((len(classes), self.num_samples + 1), dtype=np.uint64)
        for index in range(self.num_samples):
            column = classes[:, index]
            counts[rows, column] += 1
            if in_order:
                found[:, index + 1] = found[:, index] + _mixed(column, np.full(len(classes), index))
            else:
                count = counts[rows, column]
                found[:, index + 1] = found[:, index] + _mixed(column, count) - _mixed(column, count - 1)
        return found


def _states(hashes: Words) -> States:
    num_columns = hashes.shape[1]
    sized = hashes + _mixed(np.full(num_columns, -2), np.arange(num_columns))  # votes of different sizes differ
    _, first, numbers = np.unique(sized, return_index=True, return_inverse=True)
    return States(numbers.reshape(hashes.shape), first // num_columns, first % num_columns)


def _mixed(classes: Ints, counts: Ints) -> Words:
    """Return a random word for each class and count: the finaliser of splitmix64."""
    word = (classes.astype(np.uint64) + np.uint64(7)) * np.uint64(0x9E3779B97F4A7C15)
    word += counts.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    mixed: Words = word ^ (word >> np.uint64(31))
    return mixed
