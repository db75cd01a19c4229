"""Choose the policy of a vote on labelled samples, and draw accuracy against tokens for every setting tried."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.replay import Outcome, play, shuffled
from scaffolding_ext.controllers.vote.allocation.search import cheapest, families
from scaffolding_ext.registry import allocation_rules


class Trial(NamedTuple):
    """Every setting of every family, played on the same orders of the same votes.

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
    """Every rule that has a name, those of other packages included."""
    known = map(allocation_rules.resolve, allocation_rules.names())
    return [rule for rule in known if isinstance(rule, type) and issubclass(rule, AllocationRule)]


def try_rules(
    votes: Sequence[LabelledVote],
    num_orders: int,
    rng: np.random.Generator,
    on_rule: Callable[[AllocationRule], None] = lambda rule: None,
) -> Trial:
    """Play every setting of every family on random orders of the samples.

    Args:
        votes: The labelled votes, at least one.
        num_orders: Orders of each vote.
        rng: Draws the orders.
        on_rule: Called with each rule when it has been played.
    """
    orders = shuffled(votes, num_orders, rng)
    full = play(Even(num_samples=max(len(each.classes) for each in votes)), orders)
    found: dict[str, dict[AllocationRule, Outcome]] = {}
    for name, rules in families(rules_to_try(), votes).items():
        found[name] = {}
        for rule in rules:
            found[name][rule] = play(rule, orders)
            on_rule(rule)
    return Trial(full, found)


def plot_trial(trial: Trial, chosen: AllocationRule, title: str, path: str | os.PathLike[str]) -> None:
    """Draw accuracy against tokens: every setting a point, each family's best a line, the full vote, and the choice.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    from scaffolding_ext.errors import MissingDependencyError

    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("matplotlib", "plots") from error

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for index, (name, outcomes) in enumerate(trial.families.items()):
        points = sorted((float(o.tokens.mean()), 100 * float(o.correct.mean())) for o in outcomes.values())
        colour = f"C{index % 10}"
        axes.plot(*zip(*points, strict=True), ".", color=colour, alpha=0.3)
        axes.plot(*zip(*_frontier(points), strict=True), "-" if index < 10 else "--", color=colour, label=name)
    axes.plot(trial.full.tokens.mean(), 100 * trial.full.correct.mean(), "k*", markersize=12, label="full vote")
    best = trial.figures(chosen)
    axes.plot(best["tokens"], 100 * best["accuracy"], "ro", fillstyle="none", markersize=11, label="chosen")
    axes.set(xlabel="tokens a question", ylabel="right votes in %", title=title)
    axes.legend(fontsize="x-small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def _frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no cheaper one is as accurate as, in the order of their cost."""
    kept: list[tuple[float, float]] = []
    for point in points:
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept
