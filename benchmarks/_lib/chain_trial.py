"""Play every rule and setting on recorded chains, and choose one: on some questions, for the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.chain_replay import COSTS, Outcome, cut_at, fixed_cuts, lacking, play
from benchmarks._lib.recorded_chains import RecordedChain
from scaffolding_ext import require
from scaffolding_ext.controllers.chain.looking import ProbeSchedule
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.registry import probe_schedules, stopping_rules
from scaffolding_ext.stats.learn_then_test import learn_then_test

Rows = npt.NDArray[np.int64]
_SPACINGS = (1, 2, 4)  # tokens between looks, in recorded spacings
_ROUNDING = 1e-12  # of a mean of whole losses


class Setting(NamedTuple):
    """A rule and where it looks, as a stack file names them: each `{type, args}`."""

    rule: Mapping[str, Any]
    schedule: Mapping[str, Any]

    def __str__(self) -> str:
        return _shown({"type": self.rule["type"], "args": {**self.rule.get("args", {}), **self.schedule["args"]}})

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON and YAML can hold."""
        return {"rule": dict(self.rule), "schedule": dict(self.schedule)}

    def build(self) -> tuple[StoppingRule, ProbeSchedule]:
        """Both as objects."""
        return stopping_rules.obtain(self.rule), probe_schedules.obtain(self.schedule)


class Trial(NamedTuple):
    """Every setting, played on the same chains.

    Attributes:
        settings: The settings.
        outcomes: What became of the chains under each.
        full: What became of them without any.
        cuts: Under every fixed cut, the earliest first.
    """

    settings: list[Setting]
    outcomes: list[Outcome]
    full: Outcome
    cuts: list[Outcome]

    def losses(self, loss: str) -> npt.NDArray[np.float64]:
        """Loss of each chain under each setting, shape [num_chains, num_settings]."""
        return np.column_stack([getattr(outcome, loss) for outcome in self.outcomes])

    def costs(self, cost: str) -> npt.NDArray[np.float64]:
        """Cost of each chain under each setting, shape [num_chains, num_settings]."""
        return np.column_stack([outcome.costs[cost] for outcome in self.outcomes])

    def outcome_of(self, index: int | None) -> Outcome:
        """Of a setting; of whole chains where there is none."""
        return self.full if index is None else self.outcomes[index]

    def figures(self, index: int | None, loss: str, rows: Rows) -> dict[str, float]:
        """Accuracy, loss and costs of a setting on some chains, beside those of whole chains."""
        outcome, full = self.outcome_of(index), self.full
        return {
            "num_questions": float(len(rows)),
            "accuracy": float(outcome.right[rows].mean()),
            "full_accuracy": float(full.right[rows].mean()),
            "loss": float(getattr(outcome, loss)[rows].mean()),
            "stopped": float((outcome.exits[rows] >= 0).mean()),
            **{cost: float(outcome.costs[cost][rows].mean()) for cost in COSTS},
            **{f"full_{cost}": float(full.costs[cost][rows].mean()) for cost in COSTS if cost != "probes"},
        }


def schedules_to_try(spacing: int) -> list[dict[str, Any]]:
    """Schedules whose looks were all recorded: even, with a late first look, doubling, and at changes of thought."""
    gaps = [factor * spacing for factor in _SPACINGS]
    even = [{"chunk_size": gap, **late} for gap in gaps for late in ({}, {"first_probe": 4 * gap})]
    found: list[dict[str, Any]] = [
        {"type": "ProbeSchedule", "args": args} for args in (*even, {"chunk_size": spacing, "growth": 2.0})
    ]
    return [*found, {"type": "ThoughtChanges", "args": {"step": spacing}}]


def settings_to_try(chains: Sequence[RecordedChain], spacing: int) -> Iterator[Setting]:
    """Every setting of every rule that says which to try, those of other packages included, on every schedule.

    A rule whose looks cost nothing looks everywhere. One that needs what was not recorded is left out.

    Args:
        chains: The chains.
        spacing: Tokens between their looks.
    """
    for name in stopping_rules.names():
        kind = stopping_rules.resolve(name)
        if not (isinstance(kind, type) and issubclass(kind, StoppingRule)):
            continue
        for args in itertools.chain.from_iterable(kind.settings_to_try().values()):
            rule = {"type": name, "args": dict(args)}
            needs = stopping_rules.obtain(rule).needs
            if lacking(chains, needs) is not None:
                continue
            schedules = schedules_to_try(spacing)
            for schedule in schedules if needs.answer or needs.entropy else schedules[:1]:
                yield Setting(rule, schedule)


def try_settings(
    chains: Sequence[RecordedChain],
    settings: Sequence[Setting],
    on_setting: Callable[[Setting], object] = lambda setting: None,
) -> Trial:
    """Play settings on chains.

    Args:
        chains: The chains, at least one.
        settings: The settings, at least one.
        on_setting: Called with each when it has been played.
    """
    outcomes = []
    for setting in settings:
        outcomes.append(play(chains, *setting.build()))
        on_setting(setting)
    return Trial(list(settings), outcomes, cut_at(chains, [-1] * len(chains)), fixed_cuts(chains))


def choose(
    trial: Trial,
    rows: Rows,
    max_loss: float,
    confidence: float | None,
    rng: np.random.Generator,
    *,
    loss: str = "lost",
    cost: str = "decoded",
    testing: str = "fixed_sequence",
) -> int | None:
    """Index of the cheapest setting that loses at most `max_loss`, on some of the chains; None where none saves.

    Args:
        trial: The settings.
        rows: Indices of the chains that it is chosen on.
        max_loss: Largest mean loss, in (0, 1) where there is a confidence.
        confidence: That the setting's mean loss keeps to that on exchangeable questions, at least 0.5 and below 1;
            None chooses by the mean loss on these chains, which promises nothing.
        rng: Draws the chains that order the tests.
        loss: `"lost"` or `"differs"`, an attribute of `Outcome`.
        cost: One of `COSTS`.
        testing: As `learn_then_test` takes it.

    Raises:
        ConfigError: The confidence or the loss is out of range.
    """
    losses, costs = trial.losses(loss)[rows], trial.costs(cost)[rows]
    means = costs.mean(axis=0)
    if confidence is None:
        allowed = np.flatnonzero(losses.mean(axis=0) <= max_loss + _ROUNDING)
        found = min(allowed.tolist(), key=lambda index: means[index], default=None)
    else:
        delta = 1 - require.number("confidence", confidence, least=0.5, below=1)
        found = learn_then_test(losses, costs, max_loss, delta, rng, testing).chosen
    return None if found is None or means[found] >= trial.full.costs[cost][rows].mean() else found


def halves(num_chains: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Indices of two random halves."""
    first, second = np.array_split(rng.permutation(num_chains), 2)
    return np.sort(first), np.sort(second)


def _shown(value: Any) -> str:
    """A value as a call writes it, a component as a call of its type."""
    if isinstance(value, Mapping) and "type" in value:
        given = value.get("args", {}).items()
        return f"{value['type']}({', '.join(f'{name}={_shown(each)}' for name, each in given)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
