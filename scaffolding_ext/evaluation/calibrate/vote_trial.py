"""Chooses the policy of a vote on labelled samples, and plots accuracy against tokens for every setting."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.replay import Outcome, cheapest, play, shuffled
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.calibrate.trial_drawing import Played, cost_label, draw_families, mark
from scaffolding_ext.evaluation.drawing import beside, drawing
from scaffolding_ext.registry import allocation_rules

DEFAULT_RULE = LeaderChange()  # of MajorityVoteController
NUM_FOLDS = 5  # of the questions, for settings that are fitted to the others


class Trial(NamedTuple):
    """Every setting of every family, played on the same orders of the same votes.

    Settings that are fitted to the votes are played on questions that they were not fitted to.

    Attributes:
        full: The full vote.
        families: Outcome of each rule, by family.
    """

    full: Outcome
    families: Mapping[str, Mapping[AllocationRule, Outcome]]

    @property
    def outcomes(self) -> dict[AllocationRule, Outcome]:
        """All rules."""
        return {rule: outcome for family in self.families.values() for rule, outcome in family.items()}

    def chosen(self, max_loss: float) -> AllocationRule:
        """The cheapest rule that loses at most `max_loss` of accuracy."""
        return cheapest(self.outcomes, self.full.correct, max_loss)

    def figures(self, rule: AllocationRule) -> dict[str, float]:
        """Accuracy, tokens, samples and rounds of a rule, and of the full vote."""
        outcome = self.outcomes[rule]
        return {
            "num_questions": len(self.full.correct),
            "accuracy": float(outcome.correct.mean()),
            "full_accuracy": float(self.full.correct.mean()),
            "tokens": float(outcome.tokens.mean()),
            "full_tokens": float(self.full.tokens.mean()),
            "samples": float(outcome.num_samples.mean()),
            "rounds": float(outcome.num_rounds.mean()),
        }


def rules_to_try() -> list[type[AllocationRule]]:
    """Every rule that has a name, also rules of other packages."""
    known = map(allocation_rules.resolve, allocation_rules.names())
    return [rule for rule in known if isinstance(rule, type) and issubclass(rule, AllocationRule)]


def try_rules(
    votes: Sequence[LabelledVote],
    num_orders: int,
    rng: np.random.Generator,
    *,
    reads_rewards: bool = True,
) -> Trial:
    """Play every setting of every family on random orders of the samples.

    Args:
        votes: The labelled votes, at least one.
        num_orders: Orders of each vote.
        rng: Draws the orders.
        reads_rewards: Whether rules that read rewards are tried, where the votes have some.

    Raises:
        DatasetError: No sample is right, so that no rule could lose accuracy.
    """
    if not any(any(each.correct) for each in votes):
        raise DatasetError(
            f"no sample of {len(votes)} questions is right, so that no rule could lose accuracy: give samples whose "
            "questions have answers"
        )
    orders = shuffled(votes, num_orders, rng)
    full = play(Even(num_samples=max(len(each.classes) for each in votes)), orders)
    folds = np.array_split(rng.permutation(len(votes)), min(NUM_FOLDS, len(votes)))
    found: dict[str, Mapping[AllocationRule, Outcome]] = {}
    for kind in rules_to_try():
        for name, rules in _families(kind, votes).items():
            if kind.is_fitted:
                outcomes = _cross_fitted(kind, name, votes, orders, folds)
            else:
                tried = (rule for rule in rules if reads_rewards or "rewards" not in rule.looks_at)
                outcomes = {rule: play(rule, orders) for rule in tried}
            if outcomes:
                found[name] = outcomes
    return Trial(full, found)


def _families(kind: type[AllocationRule], votes: Sequence[LabelledVote]) -> dict[str, list[AllocationRule]]:
    return {name: [kind(**args) for args in own] for name, own in kind.settings_to_try(votes).items()}


def _cross_fitted(
    kind: type[AllocationRule],
    name: str,
    votes: Sequence[LabelledVote],
    orders: Sequence[Sequence[LabelledVote]],
    folds: Sequence[npt.NDArray[np.int64]],
) -> dict[AllocationRule, Outcome]:
    """A family's settings as fitted to all votes, each with what it comes to on questions that it was not fitted to.

    Empty where the questions outside a fold cannot be fitted to.
    """
    parts = []
    for fold in folds:
        others = [votes[index] for index in sorted(set(range(len(votes))) - set(fold.tolist()))]
        rules = _families(kind, others).get(name)
        if rules is None:
            return {}
        parts.append([play(rule, [orders[index] for index in fold]) for rule in rules])
    places = np.argsort(np.concatenate(folds))
    names = [field.name for field in dataclasses.fields(Outcome)]
    found: dict[AllocationRule, Outcome] = {}
    for rule, own in zip(_families(kind, votes)[name], zip(*parts, strict=True), strict=True):
        columns = {each: np.concatenate([getattr(part, each) for part in own])[places] for each in names}
        found.setdefault(rule, Outcome(**columns))
    return found


def plot_trial(trial: Trial, chosen: AllocationRule, title: str, path: str | os.PathLike[str]) -> None:
    """Draw points over the full vote against tokens: each family's best settings, the default, and the choice.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    full = _played(trial.full)
    outcomes = trial.outcomes
    with drawing(path, figsize=(11, 5.5)) as (figure, axes):
        draw_families(axes, {name: list(map(_played, own.values())) for name, own in trial.families.items()}, full)
        tokens, right = float(trial.full.tokens.mean()), 100 * float(trial.full.correct.mean())
        axes.plot(100, 0, "k*", ms=11, label=f"full vote: {right:.1f} % right, {tokens:,.0f} tokens", zorder=4)
        mark(axes, _played(outcomes[chosen]), full, "chosen")
        if DEFAULT_RULE in outcomes:
            mark(axes, _played(outcomes[DEFAULT_RULE]), full, "default", is_default=True)
        axes.set(xlabel=cost_label("tokens a question", full, "the full vote's"), ylabel="points over the full vote")
        axes.set_title(
            "A rule saves tokens where it lies left of the star;\nit loses accuracy where its interval lies below 0"
        )
        beside(axes)
        figure.suptitle(title)


def _played(outcome: Outcome) -> Played:
    return Played(outcome.correct, outcome.tokens)
