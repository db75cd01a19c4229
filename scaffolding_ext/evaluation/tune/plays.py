"""A trial: settings by questions, to right answers and costs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import BetaConsistency
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import Curtailment, LeaderChange
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.evaluation.tune.choose import NUM_FOLDS, Candidates, Goal, cross_fitted
from scaffolding_ext.evaluation.tune.costs import PATHS, Cost, EndedSamples, Floats, Ints, Price, whole_samples
from scaffolding_ext.evaluation.tune.endings import Cut, Ending, RecordedChains, TriedEndings, Whole, endings_to_try
from scaffolding_ext.evaluation.tune.limits import CountPolicy, samples_until_settled
from scaffolding_ext.evaluation.tune.orders import OrderedVotes, as_recorded, draw_orders
from scaffolding_ext.evaluation.tune.space import (
    ASKED,
    RuleList,
    Setting,
    first_to_try,
    labelled_votes,
    rules_to_try,
    sizes_to_try,
    votes_over,
)
from scaffolding_ext.evaluation.tune.votes import Played, first_to_finish, outcome, play, rounds_of, spend_on_all
from scaffolding_ext.stats.intervals import Estimate, bootstrap_quotients, crossed

LEAST_RUNS = 5  # fewer say nothing of another run: then questions are resampled
PLAIN_VOTES = "plain votes"
ONE_BUDGET = "one budget for all"
_BUDGETS = (0.8, 0.6, 0.45, 0.3, 0.2, 0.1)  # of the tokens of all samples, that are tried for all questions together
_LIMIT_PRICES = (
    0.5,
    0.2,
    0.1,
    0.05,
    0.02,
    0.01,
    0.005,
    0.002,
)  # right answers that the tokens of a full vote are worth
_NUM_RESAMPLES = 2000


class TableRow(NamedTuple):
    """A line of the table.

    Attributes:
        name: What was played.
        cost_share: The cost over that of all samples, whole.
        points: Percentage points of right answers above the full vote.
        rounds: Mean rounds of a question.
        accuracy: Share of right answers.
    """

    name: str
    cost_share: Estimate
    points: Estimate
    rounds: float
    accuracy: float


class Trial:
    """Settings that are played on a recording, each once.

    Args:
        recording: The samples.
        cost: The cost that is to be small.
        price: What tokens cost, for the cost `"dollars"`.
        seed: Of the orders, the folds and the resamples.

    Attributes:
        lists: The settings, in short lists from the most careful to the boldest.
        played: What each setting came to.
        budgets: Settings with one budget for all questions. They are no candidates of a choice by themselves: a stack
            that serves has no data set.
        full: The full vote.
        groups: The group of each question, which is resampled as a whole, shape [num_questions].
        by_run: Whether a group is a run; else it is a question.
        is_crossed: Whether runs share questions, so that intervals resample runs and questions.

    Raises:
        ConfigError: The cost cannot be told of this recording.
    """

    def __init__(self, recording: Recording, cost: Cost = "decoded", price: Price | None = None, seed: int = 0) -> None:
        self.recording = recording
        self.cost = cost
        self.seed = seed
        self.by_run = len(set(recording.runs)) >= LEAST_RUNS
        names = np.array([f"{each.task}: {each.id}" for each in recording.questions])
        ids, self._questions = np.unique(names, return_inverse=True)
        self.is_crossed = self.by_run and len(ids) < len(names)
        _, self.groups = np.unique(np.array(recording.runs) if self.by_run else names, return_inverse=True)
        self._price = price
        samples = whole_samples(recording, price)
        if cost not in samples.costs:
            lacking = "a price: give --price" if cost == "dollars" else f"{cost}: record it, or take another cost"
            raise ConfigError(f"is {cost!r}, and the recording has no {lacking}", "cost")
        size = len(recording.questions), recording.num_samples
        orders = as_recorded(*size) if recording.is_of_searches else draw_orders(*size, self._rng(0))
        self.votes = OrderedVotes(samples, orders)
        self._ended: dict[Ending, EndedSamples] = {Whole(): samples}
        self.full_right = self.votes.right[:, -1].astype(float)
        self.all_samples = Setting(Whole(), recording.num_samples)
        self.full = play(self.votes, None, recording.num_samples, self.full_right)
        self.lists: dict[str, list[Setting]] = {}
        self.budgets: list[Setting] = []
        self.played: dict[Setting, Played] = {self.all_samples: self.full}

    def try_numbers(self) -> None:
        """Play plain votes of fewer samples."""
        for number in sizes_to_try(self.recording):
            self._add(PLAIN_VOTES, Setting(Whole(), number))

    def try_all(self, on_list: Callable[[str], object] = lambda name: None) -> None:
        """Play the whole space.

        Args:
            on_list: Called with the name of each list that has been played.
        """
        self.try_numbers()
        for weight in sorted(self.votes.samples.weights.keys() - {ASKED}):  # a look at the end has its cost
            for number in sizes_to_try(self.recording):
                if number > 1:
                    self._add(f"votes by {weight}", Setting(Whole(), number, weight=weight, plainness=9))
            on_list(weight)
        if "critical" in self.votes.samples.costs and "tokens" not in self.recording.missing:
            for setting in first_to_try(self.recording.num_samples):
                self._add("first to finish", setting)
        votes = labelled_votes(self.recording)
        num_samples = self.recording.num_samples
        tried = rules_to_try(self.recording, votes)
        fitted = self._fitted(votes) if any(rules[0].is_fitted for _, rules in tried.values()) else []
        for name, (plainness, rules) in tried.items():
            whole = Whole(is_asked="probabilities" in rules[0].looks_at)
            for index, rule in enumerate(rules):
                setting = Setting(whole, num_samples, rule, plainness=plainness)
                self._add(name, setting, self._out_of_fold(name, index, rule, fitted) if rule.is_fitted else None)
            on_list(name)
        asked = [ASKED] if self.votes.samples.probabilities is not None else []
        endings = {"asked at the end": TriedEndings([Whole(is_asked=True)])} if asked else {}
        for name, (tried_endings, is_nested) in (endings | endings_to_try(self.recording)).items():
            for ending in tried_endings:
                for setting in votes_over(ending, num_samples, asked, is_nested):
                    self._add(f"{name}: {dataclasses.replace(setting, ending=Whole())}", setting)
                self._ended.pop(ending)
            on_list(name)

    def try_budgets(self, is_candidate: bool = False) -> None:
        """Play votes with one budget for all questions.

        Args:
            is_candidate: Whether a choice may take one.
        """
        if self.recording.is_of_searches:
            return
        tokens = self.votes.samples.tokens
        total, first = float(tokens.sum()), float(tokens.max(axis=1).sum())
        for budget in [share * total for share in _BUDGETS if share * total >= first]:
            setting = Setting(
                *(Whole(), self.recording.num_samples, LeaderChange()), total_tokens=round(budget), plainness=30
            )
            self.budgets.append(setting)
            self.played[setting] = self.play(setting)
        if is_candidate and self.budgets:
            self.lists[ONE_BUDGET] = self.budgets

    def _add(self, name: str, setting: Setting, played: Played | None = None) -> None:
        self.lists.setdefault(name, []).append(setting)
        self.played[setting] = self.play(setting) if played is None else played

    def play(self, setting: Setting) -> Played:
        """What a setting comes to.

        Raises:
            ConfigError: It needs what was not recorded.
        """
        votes = self.votes_of(setting)
        number = min(setting.num_samples, self.recording.num_samples)
        if setting.num_first is not None:
            if number < setting.num_samples or "tokens" in self.recording.missing:
                raise ConfigError(
                    f"starts {setting.num_samples} samples, and the recording has {number} of each question "
                    f"{'without' if 'tokens' in self.recording.missing else 'with'} their tokens: which of them end "
                    "first cannot be told; record as many samples, with tokens",
                    "allocation",
                )
            return first_to_finish(votes, setting.num_first, number, self.full_right)
        if setting.total_tokens is not None:
            return self._of_sizes(spend_on_all(votes, setting.rule, setting.total_tokens, number))
        return play(votes, setting.rule, number, self.full_right)

    def sizes_drawn(self, setting: Setting) -> list[int] | None:
        """How many questions draw 0, 1, 2 and more samples under a rule, in one order; None without a rule."""
        if setting.rule is None or setting.total_tokens is not None:
            return None
        votes = self.votes_of(setting)
        drawn = np.zeros(len(votes.classes), dtype=np.int64)
        for rows, _, more in rounds_of(votes, setting.rule, min(setting.num_samples, self.recording.num_samples)):
            drawn[rows] += more
        sizes: list[int] = np.bincount(drawn[: votes.num_questions]).tolist()
        return sizes

    def votes_of(self, setting: Setting) -> OrderedVotes:
        """The samples of all questions under the setting's ending and weight, in the trial's orders.

        Raises:
            ConfigError: It needs what was not recorded.
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
        """For each fold, the rules as they are fitted to the votes of the others."""
        folds = (self.groups % NUM_FOLDS).tolist()
        return [
            rules_to_try(self.recording, [each for each, own in zip(votes, folds, strict=True) if own != fold])
            for fold in range(NUM_FOLDS)
        ]

    def _out_of_fold(
        self, name: str, index: int, rule: AllocationRule, fitted: Sequence[Mapping[str, RuleList]]
    ) -> Played:
        """A fitted setting, as it comes out on questions that it was not fitted to."""
        rules = [lists[name].rules[index] if name in lists else rule for lists in fitted]
        parts = [play(self.votes, each, self.recording.num_samples, self.full_right) for each in rules]
        return assembled(parts, self.groups % NUM_FOLDS)

    def _of_lists(self, lists: Mapping[str, Sequence[Setting]]) -> tuple[list[Setting], Candidates]:
        settings = [setting for own in lists.values() for setting in own]
        played = [[self.played[setting] for setting in own] for own in lists.values()]
        return settings, self._candidates(played, [max(each.plainness for each in own) for own in lists.values()])

    def _candidates(self, lists: Sequence[Sequence[Played]], plainness: Sequence[int]) -> Candidates:
        """What was played in some lists, with its sums by group."""
        played = [each for own in lists for each in own]
        places = iter(range(len(played)))
        return Candidates(
            [[next(places) for _ in own] for own in lists],
            plainness,
            np.stack([self._by_group(self.full.right - each.right) for each in played]),
            np.stack([self._by_group(each.costs[self.cost]) for each in played]),
            self._by_group(self.full.costs[self.cost]),
            self._by_group(np.ones_like(self.full.right)),
        )

    def chosen(self, goal: Goal) -> Setting | None:
        """The choice on all questions; None where no setting is allowed."""
        settings, found = self._of_lists(self.lists)
        index = goal.chosen(found, np.ones(len(found.sizes)), self._rng(1))
        return None if index is None else settings[index]

    def least_cost(self) -> float:
        """The cost of the cheapest setting, as a share of that of all samples."""
        costs = [self.played[setting].costs[self.cost].sum() for own in self.lists.values() for setting in own]
        return float(min(costs) / self.full.costs[self.cost].sum())

    def judged(self, goal: Goal, lists: Mapping[str, Sequence[Setting]] | None = None) -> Played:
        """What the choice comes to on questions that did not choose: by cross-fitting over groups.

        Args:
            goal: What it is to be good at.
            lists: What it is chosen from; None takes all lists.
        """
        settings, splits = self._cross_fitted(goal, self.lists if lists is None else lists)
        played = []
        for own, choices in splits:
            parts = [self.full if index < 0 else self.played[settings[index]] for index in choices.tolist()]
            played.append(assembled(parts, own[self.groups]))
        return _combined(played, lambda columns: np.mean(columns, axis=0))

    def lists_chosen(self, goal: Goal) -> dict[str, float]:
        """How often each list was chosen, as a share of the choices that `judged` judges."""
        _, splits = self._cross_fitted(goal, self.lists)
        titles = [title for title, own in self.lists.items() for _ in own]
        choices = [titles[index] for _, each in splits for index in each.tolist() if index >= 0]
        num_choices = sum(len(each) for _, each in splits)
        return {title: num / num_choices for title, num in Counter(choices).most_common()}

    def _cross_fitted(
        self, goal: Goal, lists: Mapping[str, Sequence[Setting]]
    ) -> tuple[list[Setting], list[tuple[Ints, Ints]]]:
        """The settings, and of each split the fold of each group and the index that the groups outside a fold chose."""
        settings, found = self._of_lists(lists)
        return settings, list(zip(*cross_fitted(found, goal, self._rng(2)), strict=True))

    def limit(self, goal: Goal) -> Played:
        """The best policy on counts alone, fitted to the questions that it is played on: no rule on counts beats it."""
        policy = CountPolicy(self.votes, self.full_right)
        every = np.arange(len(self.recording.questions))
        fitted = [self._of_sizes(policy.drawn(every, price)) for price in _LIMIT_PRICES]
        found = self._candidates([[each] for each in fitted], [0] * len(fitted))
        index = goal.chosen(found, np.ones(len(found.sizes)), self._rng(4))
        return self.full if index is None else fitted[index]

    def oracle(self) -> Played:
        """The fewest samples from which on the vote stands."""
        return self._of_sizes(samples_until_settled(self.votes))

    def _of_sizes(self, drawn: Ints) -> Played:
        """Votes of so many samples each, one after the other."""
        lasted = {name: self.votes.spent(name, drawn) for name in PATHS if name in self.full.costs}
        return outcome(self.votes, drawn, drawn.astype(float), lasted, self.full_right)

    def baselines(self, goal: Goal) -> dict[str, Played]:
        """What a choice is held against: single samples, plain votes, rules at their sources' settings, and limits."""
        num_samples = self.recording.num_samples
        fixed = {
            "Adaptive-Consistency .90": BetaConsistency(confidence=0.9),
            "doubling until .75 agree": AgreementDoubling(),
            "curtailment": Curtailment(leap=1.0),
        }
        plain = {PLAIN_VOTES: self.lists[PLAIN_VOTES]}
        cuts = {
            name: [setting for setting in own if setting.num_samples == num_samples]
            for name, own in self.lists.items()
            if all(isinstance(each.ending, Cut) and each.rule is None and each.weight is None for each in own)
        }
        cuts = {name: own for name, own in cuts.items() if own}
        return {
            f"all {num_samples} samples": self.full,
            **({} if self.recording.is_of_searches else {"one sample": self.play(Setting(Whole(), 1))}),
            **self._greedy(),
            "fewer samples, all drawn": self.judged(goal, plain),
            **({"all, best cut": self.judged(goal, cuts)} if cuts else {}),
            **{name: self.play(Setting(Whole(), num_samples, rule)) for name, rule in fixed.items()},
            **({ONE_BUDGET: self.judged(goal, {ONE_BUDGET: self.budgets})} if self.budgets else {}),
            "best on counts (limit)": self.limit(goal),
            "oracle (limit)": self.oracle(),
        }

    def _greedy(self) -> dict[str, Played]:
        """One greedy chain, where the log has one of every question."""
        greedy = [each.greedy for each in self.recording.questions if each.greedy is not None]
        if len(greedy) < len(self.recording.questions) or self.cost not in ("decoded", "critical"):
            return {}
        right = np.array([each.correct for each in greedy], dtype=float)
        tokens = np.array([each.tokens for each in greedy], dtype=float)
        ones = np.ones_like(right)
        lost = self.full.right * (1 - right)
        return {"one greedy chain": Played(right, lost, {self.cost: tokens}, ones, ones, tokens**2)}

    def saved_on_easiest(self, played: Played, share: float) -> float:
        """Share of the full vote's cost that is saved on the easiest questions: those with most samples right.

        Of questions with equally many, those with fewer tokens are easier.

        Args:
            share: Of the questions, in (0, 1]; at least one question.

        Reference: Fu et al., arXiv 2412.20993, savings on the easiest 10 % and 1 % of the problems.
        """
        questions = self.recording.questions
        ranked = sorted(
            range(len(questions)), key=lambda i: (-questions[i].correct.mean(), questions[i].tokens.mean(), i)
        )
        easiest = ranked[: max(1, round(require.share("share", share) * len(questions)))]
        return 1 - float(played.costs[self.cost][easiest].sum() / self.full.costs[self.cost][easiest].sum())

    def rows(self, named: Mapping[str, Played]) -> list[TableRow]:
        """Lines of a table, with 95 % intervals: whole groups are resampled, and questions, where runs share them."""
        played = list(named.values())
        costs = [each.costs[self.cost] for each in played]
        points = [100 * (each.right - self.full.right) for each in played]
        above = np.column_stack([*costs, *points])
        full, ones = self.full.costs[self.cost], np.ones_like(self.full.right)
        below = np.column_stack([full] * len(played) + [ones] * len(played))
        found = self._quotients(above, below, self.groups, 3)
        if self.is_crossed:
            found = list(map(crossed, found, self._quotients(above, below, self._questions, 6)))
        return [
            TableRow(name, cost, points_above, float(each.rounds.mean()), float(each.right.mean()))
            for name, each, cost, points_above in zip(
                named, played, found[: len(played)], found[len(played) :], strict=True
            )
        ]

    def _quotients(self, above: Floats, below: Floats, groups: Ints, purpose: int) -> list[Estimate]:
        """Quotients of the columns' totals, with intervals that resample whole groups of rows."""
        sums, totals = (
            np.column_stack([np.bincount(groups, weights=column) for column in values.T]) for values in (above, below)
        )
        if len(sums) > 1:
            return bootstrap_quotients(sums, totals, rng=self._rng(purpose), num_resamples=_NUM_RESAMPLES)
        return [Estimate(value, value, value) for value in (sums.sum(axis=0) / totals.sum(axis=0)).tolist()]

    def _rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose])

    def _by_group(self, values: Floats) -> Floats:
        return np.bincount(self.groups, weights=values).astype(np.float64)


def assembled(parts: Sequence[Played], folds: Ints) -> Played:
    """Each question under the part of its fold."""
    return _combined(parts, lambda columns: np.stack(columns)[folds, np.arange(len(folds))])


def _combined(parts: Sequence[Played], combine: Callable[[Sequence[Floats]], Floats]) -> Played:
    """What several plays come to together, column by column."""
    columns = {
        name: combine([getattr(each, name) for each in parts])
        for name in ("right", "lost", "rounds", "samples", "tokens_squared")
    }
    costs = {name: combine([each.costs[name] for each in parts]) for name in parts[0].costs}
    return Played(costs=costs, **columns)
