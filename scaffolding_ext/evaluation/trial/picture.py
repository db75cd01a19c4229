"""A picture of a trial: points above the vote of all samples against the cost."""

from __future__ import annotations

import os
from collections.abc import Sequence

from scaffolding_ext.evaluation.drawing import COLOURS, bars_of, below, drawing
from scaffolding_ext.evaluation.trial.ended import COSTS
from scaffolding_ext.evaluation.trial.plays import TableRow, Trial
from scaffolding_ext.stats.intervals import Estimate


def draw_trial(
    trial: Trial, frontier: Sequence[TableRow], rows: Sequence[TableRow], path: str | os.PathLike[str]
) -> None:
    """Draw every setting as a dot, the frontier as a line, and the lines of the table with their intervals.

    Args:
        trial: The trial.
        frontier: The settings that are more accurate than every cheaper one.
        rows: The lines of the table; the last one is the choice.
        path: Where to.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    full, right = float(trial.full.costs[trial.cost].sum()), trial.full.right
    played = [trial.played[setting] for own in trial.lists.values() for setting in own]
    with drawing(path, figsize=(10, 6)) as (figure, axes):
        axes.axhline(0, color="0.5", linestyle="--", lw=0.8)
        axes.plot(
            [100 * float(each.costs[trial.cost].sum()) / full for each in played],
            [100 * float((each.right - right).mean()) for each in played],
            *(".",),
            color="0.7",
            ms=3,
            label="every setting, judged on questions that chose it",
        )
        axes.plot(
            [100 * row.cost_share.value for row in frontier],
            [row.points.value for row in frontier],
            color="0.4",
            lw=1,
            label="their frontier",
        )
        for number, row in enumerate(rows):
            is_choice = number == len(rows) - 1
            share = Estimate(*(100 * value for value in row.cost_share))
            axes.errorbar(
                *(share.value, row.points.value),
                xerr=bars_of([share]),
                yerr=bars_of([row.points]),
                fmt="D" if is_choice else "o" if number < len(COLOURS) else "^",
                color="black" if is_choice else f"C{number % len(COLOURS)}",
                ms=8 if is_choice else 5,
                mfc="none" if is_choice else None,
                elinewidth=0.8,
                label=row.name,
                zorder=4,
            )
        axes.set(xlabel=f"{COSTS[trial.cost]}, % of all samples'", ylabel="points above all samples")
        axes.set_title("A setting pays where it lies left of the vote of all samples, and not below it")
        below(figure, axes, 3)
