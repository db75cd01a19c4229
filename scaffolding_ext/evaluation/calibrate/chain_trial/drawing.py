"""Draws a trial: points over whole chains against each cost, a line a rule, beside fixed cuts."""

from __future__ import annotations

import os

from scaffolding_ext.evaluation.calibrate.chain_trial.replay import COSTS, Outcome
from scaffolding_ext.evaluation.calibrate.chain_trial.trial import Rows, Setting, Trial
from scaffolding_ext.evaluation.calibrate.trial_drawing import Played, cost_label, draw_families, mark
from scaffolding_ext.evaluation.drawing import drawing, in_place_of_the_last

FIXED_CUT = "fixed cut"
TITLES = {"probes": "Further left: as many right answers for fewer requests"}
DEFAULT = Setting(  # of DynasorCoTController
    {
        "type": "all",
        "args": {
            "rules": [
                {"type": "consecutive", "args": {"threshold": 2}},
                {"type": "confidence", "args": {"threshold": 0.9}},
            ]
        },
    },
    {"type": "ProbeSchedule", "args": {"chunk_size": 64}},
)


def plot_trial(trial: Trial, chosen: int | None, rows: Rows, title: str, path: str | os.PathLike[str]) -> None:
    """Draw points over whole chains against every cost on some of the chains.

    Args:
        trial: The settings.
        chosen: Index of the one to mark.
        rows: Indices of the chains.
        title: Of the picture.
        path: Where to.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    families: dict[str, list[Outcome]] = {FIXED_CUT: trial.cuts}
    for setting, outcome in zip(trial.settings, trial.outcomes, strict=True):
        families.setdefault(setting.rule["type"], []).append(outcome)
    default = trial.settings.index(DEFAULT) if DEFAULT in trial.settings else None
    with drawing(path, 2, 3, figsize=(16, 9)) as (figure, panels):
        for axes, (cost, label) in zip(panels.flat, COSTS.items(), strict=False):
            full = _played(trial.full, cost, rows)
            drawn = {name: [_played(each, cost, rows) for each in own] for name, own in families.items()}
            draw_families(axes, drawn, full)
            axes.plot(100 if full.cost.sum() > 0 else 0, 0, "k*", ms=11, label="whole chains", zorder=4)
            if chosen is not None:
                mark(axes, _played(trial.outcomes[chosen], cost, rows), full, "chosen")
            if default is not None:
                mark(axes, _played(trial.outcomes[default], cost, rows), full, "default", is_default=True)
            axes.set(xlabel=cost_label(label, full, "whole chains'"), ylabel="points over whole chains")
            axes.set_title(TITLES.get(cost, "A rule pays where it lies above the fixed cut"))
        in_place_of_the_last(figure, panels)
        figure.suptitle(title)


def _played(outcome: Outcome, cost: str, rows: Rows) -> Played:
    return Played(outcome.right[rows], outcome.costs[cost][rows])
