"""Table of a tuning: the choice and its baselines, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import BetaConsistency
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling
from scaffolding_ext.controllers.vote.allocation.leader_change import Curtailment
from scaffolding_ext.evaluation.logs.samples import Floats, Ints
from scaffolding_ext.evaluation.tables import between, saved
from scaffolding_ext.evaluation.tune.choose import Goal, chosen, cross_validated
from scaffolding_ext.evaluation.tune.endings import Cut, Whole
from scaffolding_ext.evaluation.tune.replay import PLAIN_VOTES, Replay
from scaffolding_ext.evaluation.tune.space import Setting, times
from scaffolding_ext.evaluation.tune.votes import ReplayResult
from scaffolding_ext.stats.intervals import Estimate, bootstrap_quotients, crossed

TIME_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the frontier
_NUM_RESAMPLES = 2000
LIMIT = "stop in hindsight (limit)"  # the line of an oracle


class TableRow(NamedTuple):
    """A line of the table: cost relative to all samples, percentage points above the full vote, mean rounds."""

    name: str
    cost_share: Estimate
    points: Estimate
    rounds: float
    accuracy: float


def baselines(plays: Replay, goal: Goal) -> dict[str, ReplayResult]:
    """Return the lines beside a choice: single samples, plain votes, rules at their published settings, and limits."""
    num_samples = plays.recording.num_samples
    fixed = {
        "Adaptive-Consistency .90": BetaConsistency(confidence=0.9),
        "doubling until .75 agree": AgreementDoubling(),
        "stop when decided": Curtailment(leap=1.0),
    }
    plain = {PLAIN_VOTES: plays.lists[PLAIN_VOTES]}
    cuts = {
        name: [setting for setting in own if setting.num_samples == num_samples]
        for name, own in plays.lists.items()
        if all(isinstance(each.ending, Cut) and each.rule is None and each.weight is None for each in own)
    }
    cuts = {name: own for name, own in cuts.items() if own}
    return {
        f"ask {times(num_samples)}": plays.full,
        "ask once": plays.play(Setting(Whole(), 1)),
        "ask fewer times": cross_validated(plays, goal, plain),
        **({f"ask {times(num_samples)}, cut short": cross_validated(plays, goal, cuts)} if cuts else {}),
        **{name: plays.play(Setting(Whole(), num_samples, rule)) for name, rule in fixed.items()},
        LIMIT: plays.of_sizes(plays.votes.until_settled),  # no rule does better
    }


def rows_of(plays: Replay, named: Mapping[str, ReplayResult], time_share: float | None = None) -> list[TableRow]:
    """Return lines of a table with 95 % intervals: groups are resampled, and also questions if runs share them."""
    played = list(named.values())
    costs = [plays.cost_of(each, time_share) for each in played]
    points = [100 * (each.right - plays.full.right) for each in played]
    above = np.column_stack([*costs, *points])
    full, ones = plays.cost_of(plays.full, time_share), np.ones_like(plays.full.right)
    below = np.column_stack([full] * len(played) + [ones] * len(played))
    found = _quotients(plays, above, below, plays.groups, 3)
    if plays.is_crossed:
        found = list(map(crossed, found, _quotients(plays, above, below, plays.ids, 6)))
    return [
        TableRow(name, cost, points_above, float(each.rounds.mean()), float(each.right.mean()))
        for name, each, cost, points_above in zip(
            named, played, found[: len(played)], found[len(played) :], strict=True
        )
    ]


def _quotients(plays: Replay, above: Floats, below: Floats, groups: Ints, purpose: int) -> list[Estimate]:
    sums, totals = (
        np.column_stack([np.bincount(groups, weights=column) for column in values.T]) for values in (above, below)
    )
    if len(sums) > 1:
        return bootstrap_quotients(sums, totals, rng=plays.rng(purpose), num_resamples=_NUM_RESAMPLES)
    return [Estimate(value, value, value) for value in (sums.sum(axis=0) / totals.sum(axis=0)).tolist()]


class FrontierRow(NamedTuple):
    """Choice at one price of time: shares of the decoded tokens and of the longest path of all samples, and points.

    Attributes:
        time_share: As in `Replay.cost_of`.
    """

    time_share: float
    setting: Setting
    tokens: Estimate
    path: Estimate
    points: Estimate

    def __str__(self) -> str:
        tokens, path = (saved(each.value, (each.low, each.high)) for each in (self.tokens, self.path))
        return f"tokens {tokens}, time {path}, {points_of(self.points)} points: {self.setting}"


def points_of(points: Estimate) -> str:
    """Format points above the vote of all samples, like `-0.2 (-0.4 to +0.1)`."""
    value, low, high = (0.0 + round(each, 1) for each in points)  # no -0.0
    return f"{value:+.1f}{between(low, high, '+.1f')}"


def frontier_of(plays: Replay, goal: Goal) -> list[FrontierRow]:
    """Return the choices from tokens only to time only, votes in flight among them, judged by cross-fitting."""
    if not plays.has_times or plays.recording.num_samples == 1:
        return []
    rows: list[FrontierRow] = []
    for share in TIME_SHARES:
        setting = chosen(plays, goal, share)
        if setting is None or any(row.setting is setting for row in rows):
            continue
        named = {"": cross_validated(plays, goal, time_share=share)}
        (tokens,), (path,) = (rows_of(plays, named, each) for each in (0.0, 1.0))
        rows.append(FrontierRow(share, setting, tokens.cost_share, path.cost_share, tokens.points))
    return rows
