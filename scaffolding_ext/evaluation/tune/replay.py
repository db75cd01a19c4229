"""Play settings on a recording, for right answers and costs per question."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.logs.samples import Floats, Ints, Recording
from scaffolding_ext.evaluation.tune.costs import PATHS, Cost, EndedSamples, Price, whole_samples
from scaffolding_ext.evaluation.tune.endings import Ending, RecordedChains, Whole, endings_to_try
from scaffolding_ext.evaluation.tune.orders import OrderedVotes, draw_orders
from scaffolding_ext.evaluation.tune.rolling import ReplayedFlight
from scaffolding_ext.evaluation.tune.space import (
    ASKED,
    RuleList,
    Setting,
    flights_to_try,
    labelled_votes,
    numbers_to_try,
    rules_to_try,
    votes_over,
    weighed_to_try,
)
from scaffolding_ext.evaluation.tune.votes import ReplayResult, assembled, outcome, play

_BOTH: tuple[Cost, Cost] = ("decoded", "critical")
NUM_FOLDS = 5
LEAST_RUNS = 5  # fewer do not generalize to other runs: then questions are resampled
DEFAULT = "default"
PLAIN_VOTES = "plain votes"


class Replay:
    """Settings played on a recording, each once.

    Args:
        cost: The cost to minimize; `"dollars"` needs a price.

    Attributes:
        lists: The settings, in short lists from the most careful to the boldest.
        has_times: True if the tokens of samples, and so the longest path of a vote, are recorded.
        default: The vote of the package, which is preferred to settings that are not clearly better.
        groups: Group of each question, resampled as a whole, shape [num_questions].
        ids: Number of the question that each is a run of, shape [num_questions].
        by_run: True if a group is a run, otherwise it is a question.
        is_crossed: True if runs share questions, so that intervals resample both.

    Raises:
        ConfigError: The recording lacks the data for the cost.
    """

    def __init__(self, recording: Recording, cost: Cost = "decoded", price: Price | None = None, seed: int = 0) -> None:
        self.recording = recording
        self.cost = cost
        self.seed = seed
        self.by_run = len(set(recording.runs)) >= LEAST_RUNS
        names = np.array([f"{each.task}: {each.id}" for each in recording.questions])
        distinct, self.ids = np.unique(names, return_inverse=True)
        self.is_crossed = self.by_run and len(distinct) < len(names)
        _, self.groups = np.unique(np.array(recording.runs) if self.by_run else names, return_inverse=True)
        self._price = price
        samples = whole_samples(recording, price)
        self.has_times = "tokens" not in recording.missing
        if cost not in samples.costs:
            lacking = f"{cost}: record it, or take another cost"
            raise ConfigError(f"is {cost!r}, but the recording has no {lacking}", "cost")
        size = len(recording.questions), recording.num_samples
        self.votes = OrderedVotes(samples, draw_orders(*size, self.rng(0)))
        self._last_flight: tuple[Any, ReplayedFlight] | None = None
        self._ended: dict[Ending, EndedSamples] = {Whole(): samples}
        self.full_right = self.votes.right[:, -1].astype(float)
        self.all_samples = Setting(Whole(), recording.num_samples)
        self.default = Setting(Whole(), recording.num_samples, LeaderChange(), complexity_rank=-1)
        self.full = play(self.votes, None, recording.num_samples, self.full_right)
        self.lists: dict[str, list[Setting]] = {}
        self.played: dict[Setting, ReplayResult] = {self.all_samples: self.full}

    def try_numbers(self) -> None:
        for number in numbers_to_try(self.recording.num_samples):
            self._add(PLAIN_VOTES, Setting(Whole(), number, complexity_rank=12))

    def try_all(self) -> None:
        self.try_numbers()
        if self.recording.num_samples > 1:
            self._add(DEFAULT, self.default)
        for weight in sorted(self.votes.samples.weights.keys() - {ASKED}):  # a probe at the end costs tokens
            for number in numbers_to_try(self.recording.num_samples):
                if number > 1:
                    self._add(f"votes by {weight}", Setting(Whole(), number, weight=weight, complexity_rank=11))
            for setting in weighed_to_try(self.recording.num_samples, weight):
                self._add(f"LeaderChange by {weight}", setting)
        if self.has_times:
            for name, settings in flights_to_try(self.recording.num_samples).items():
                for setting in settings:
                    self._add(name, setting)
        votes = labelled_votes(self.recording)
        num_samples = self.recording.num_samples
        tried = rules_to_try(self.recording, votes)
        fitted = self._fitted(votes) if any(rules[0].is_fitted for _, rules in tried.values()) else []
        for name, (complexity_rank, rules) in tried.items():
            for index, rule in enumerate(rules):
                setting = Setting(Whole(), num_samples, rule, complexity_rank=complexity_rank)
                self._add(name, setting, self._out_of_fold(name, index, rule, fitted) if rule.is_fitted else None)
        asked = [ASKED] if ASKED in self.votes.samples.weights else []
        endings: dict[str, Sequence[Ending]] = {"asked at the end": [Whole(is_asked=True)]} if asked else {}
        for name, own in (endings | endings_to_try(self.recording)).items():
            for ending in own:
                for setting in votes_over(ending, num_samples, asked):
                    self._add(f"{name}: {dataclasses.replace(setting, ending=Whole())}", setting)
                self._ended.pop(ending)

    def _add(self, name: str, setting: Setting, played: ReplayResult | None = None) -> None:
        self.lists.setdefault(name, []).append(setting)
        self.played[setting] = self.play(setting) if played is None else played

    def play(self, setting: Setting) -> ReplayResult:
        """Play a setting.

        Raises:
            ConfigError: It needs data that was not recorded.
        """
        votes = self.votes_of(setting)
        number = min(setting.num_samples, self.recording.num_samples)
        if setting.in_flight is not None:
            if number < setting.num_samples or "tokens" in self.recording.missing:
                raise ConfigError(
                    f"starts {setting.num_samples} samples, but the recording has {number} of each question "
                    f"{'without' if 'tokens' in self.recording.missing else 'with'} their tokens, so it is "
                    "unknown which end first; record that many samples, with tokens",
                    "allocation",
                )
            flight = self._flight(setting)
            return flight.play(flight.sizes(setting.rule), self.full_right)
        if number == 1:
            return play(votes.each_alone(), setting.rule, 1, np.tile(self.full.right, votes.num_samples))
        return play(votes, setting.rule, number, self.full_right)

    def of_sizes(self, drawn: Ints) -> ReplayResult:
        """Play votes of the given sizes, one sample after another."""
        lasted = {name: self.votes.spent(name, drawn) for name in PATHS if name in self.full.costs}
        return outcome(self.votes, drawn, drawn.astype(float), lasted, self.full_right)

    def _flight(self, setting: Setting) -> ReplayedFlight:
        """Return the samples of a vote that rolls; settings that differ in their rule share it."""
        assert setting.in_flight is not None
        key = (setting.ending, setting.weight, setting.num_samples, setting.in_flight, setting.order)
        if self._last_flight is None or self._last_flight[0] != key:
            self._last_flight = key, ReplayedFlight(self.votes_of(setting), *key[2:])
        return self._last_flight[1]

    def votes_of(self, setting: Setting) -> OrderedVotes:
        """Return the samples of all questions under the setting's ending and weight, in the trial's orders.

        Raises:
            ConfigError: It needs data that was not recorded.
        """
        if setting.ending not in self._ended:
            self._ended[setting.ending] = self._chains.ended(setting.ending, self._price)
        samples = self._ended[setting.ending]
        if setting.weight is not None and setting.weight not in samples.weights:
            raise ConfigError(
                f"is {setting.weight!r}, which was not recorded; the log allows {', '.join(samples.weights) or 'none'}",
                "weight",
            )
        is_whole = setting.weight is None and samples is self.votes.samples
        return self.votes if is_whole else OrderedVotes(samples, self.votes.orders, setting.weight)

    @cached_property
    def _chains(self) -> RecordedChains:
        return RecordedChains(self.recording)

    def _fitted(self, votes: Sequence[LabelledVote]) -> list[dict[str, RuleList]]:
        folds = (self.groups % NUM_FOLDS).tolist()
        return [
            rules_to_try(self.recording, [each for each, own in zip(votes, folds, strict=True) if own != fold])
            for fold in range(NUM_FOLDS)
        ]

    def _out_of_fold(
        self, name: str, index: int, rule: AllocationRule, fitted: Sequence[Mapping[str, RuleList]]
    ) -> ReplayResult:
        """Play a fitted setting on questions that it was not fitted to."""
        rules = [lists[name].rules[index] if name in lists else rule for lists in fitted]
        parts = [play(self.votes, each, self.recording.num_samples, self.full_right) for each in rules]
        return assembled(parts, self.groups % NUM_FOLDS)

    def least_cost(self) -> float:
        """Return the cost of the cheapest setting, as a share of that of all samples."""
        costs = [self.cost_of(self.played[setting]).sum() for own in self.lists.values() for setting in own]
        return float(min(costs) / self.cost_of(self.full).sum())

    def cost_of(self, played: ReplayResult, time_share: float | None = None) -> Floats:
        """Return the cost of each question, shape [num_questions].

        Args:
            time_share: Weight of the longest path, beside decoded tokens; both are shares of those of all samples. None
                takes the cost of the replay.
        """
        if time_share is None:
            return played.costs[self.cost]
        tokens, path = (played.costs[name] / self.full.costs[name].sum() for name in _BOTH)
        mixed: Floats = (1 - time_share) * tokens + time_share * path
        return mixed

    def rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose])

    def by_group(self, values: Floats) -> Floats:
        """Sum a value of each question over the groups."""
        return np.bincount(self.groups, weights=values).astype(np.float64)
