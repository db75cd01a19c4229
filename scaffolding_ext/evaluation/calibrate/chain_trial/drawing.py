"""Draws the frontier of a trial: accuracy against each cost, a line a rule, beside fixed cuts and whole chains."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.evaluation.calibrate.chain_trial.replay import COSTS, Outcome
from scaffolding_ext.evaluation.calibrate.chain_trial.trial import Rows, Trial
from scaffolding_ext.stats.learn_then_test import pareto_sequence


def plot_trial(trial: Trial, chosen: int | None, rows: Rows, title: str, path: str | os.PathLike[str]) -> None:
    """Draw accuracy against every cost on some of the chains.

    Args:
        trial: The settings.
        chosen: Index of the one to mark.
        rows: Indices of the chains.
        title: Of the picture.
        path: Where to.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("matplotlib", "plots") from error

    figure = Figure(figsize=(13, 7.5), layout="constrained")
    panels = figure.subplots(2, 3).ravel()
    rules = list(dict.fromkeys(setting.rule["type"] for setting in trial.settings))
    for axes, (cost, label) in zip(panels, COSTS.items(), strict=False):
        for number, rule in enumerate(rules):
            own = [
                outcome
                for setting, outcome in zip(trial.settings, trial.outcomes, strict=True)
                if setting.rule["type"] == rule
            ]
            points = _points(own, cost, rows)
            axes.plot(*points.T, ".", color=f"C{number}", alpha=0.2, markersize=3)
            axes.plot(*_frontier(points).T, "-" if number < 10 else "--", color=f"C{number}", label=rule)
        axes.plot(*_points(trial.cuts, cost, rows).T, "k:", label="fixed cut")
        axes.plot(*_points([trial.full], cost, rows).T, "k*", markersize=11, label="whole chain")
        if chosen is not None:
            point = _points([trial.outcomes[chosen]], cost, rows)
            axes.plot(*point.T, "ro", fillstyle="none", markersize=10, label="chosen")
        axes.set(xlabel=label, ylabel="right answers in %")
        axes.grid(alpha=0.3)
    panels[-1].axis("off")
    panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center")
    figure.suptitle(title)
    figure.savefig(path, dpi=100)


def _points(outcomes: list[Outcome], cost: str, rows: Rows) -> Any:
    """Mean cost and accuracy of each outcome, shape [num_outcomes, 2]."""
    return np.array([(each.costs[cost][rows].mean(), 100 * each.right[rows].mean()) for each in outcomes])


def _frontier(points: Any) -> Any:
    """The points that none is both cheaper and better than, in the order of their cost."""
    return points[pareto_sequence(-points[:, 1], points[:, 0])[::-1]]
