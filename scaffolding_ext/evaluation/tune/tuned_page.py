"""A trial as a picture, and as one HTML page that asks the network for nothing."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scaffolding_ext.documents import write_text
from scaffolding_ext.evaluation.drawing import COLOURS, bars_of, below, drawing
from scaffolding_ext.evaluation.tune.costs import COSTS
from scaffolding_ext.evaluation.tune.plays import TableRow, Trial
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.tuned import meta_of, spread
from scaffolding_ext.evaluation.web_page import render_page
from scaffolding_ext.stats.intervals import Estimate

_MOST_QUESTIONS = 2000


def write_page(
    path: str | os.PathLike[str],
    trial: Trial,
    setting: Setting,
    rows: Sequence[TableRow],
    frontier: Sequence[TableRow],
    sentence: str,
    promise: str | None,
) -> None:
    """Write the page: what to use, the table, the frontier, every rule, and every question.

    Args:
        path: The file.
        trial: The trial.
        setting: The choice.
        rows: The lines of the table; the last one is the choice.
        frontier: The settings that are more accurate than every cheaper one.
        sentence: What to use, what it saves, and what it may lose.
        promise: What is promised of further questions, or why nothing is.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        OutputError: The file cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "frontier.png"
        draw_trial(trial, frontier, rows, image)
        encoded = base64.b64encode(image.read_bytes()).decode()
    page = render_page(
        "tuned.html",
        sentence=sentence,
        promise=promise,
        notes=meta_of(trial),
        cost=COSTS[trial.cost],
        measure=trial.recording.measure,
        image=encoded,
        rows=[_line(row) for row in rows],
        frontier=[_line(row) for row in frontier],
        rules=_rules(trial),
        questions=_questions(trial, setting),
        num_left_out=max(0, len(trial.recording.questions) - _MOST_QUESTIONS),
    )
    write_text(path, page)


def _line(row: TableRow) -> dict[str, Any]:
    share = Estimate(*(100 * value for value in row.cost_share))
    return {
        "name": row.name,
        "right": f"{100 * row.accuracy:.1f}",
        "points": spread(row.points, 2, True),
        "cost": spread(share, 1),
        "rounds": f"{row.rounds:.1f}",
    }


def _rules(trial: Trial) -> list[dict[str, Any]]:
    """What every setting did, on the questions that it was tried on."""
    full = trial.full
    return [
        {
            "list": name,
            "setting": str(setting),
            "points": f"{100 * float((played.right - full.right).mean()):+.2f}",
            "lost": f"{100 * float(played.lost.mean()):.2f}",
            "cost": f"{100 * float(played.costs[trial.cost].sum() / full.costs[trial.cost].sum()):.1f}",
            "samples": f"{float(played.samples.mean()):.1f}",
            "rounds": f"{float(played.rounds.mean()):.1f}",
        }
        for name, own in trial.lists.items()
        for setting in own
        for played in [trial.played[setting]]
    ]


def _questions(trial: Trial, setting: Setting) -> list[dict[str, Any]]:
    """What the choice does with each question, those that it loses first."""
    played, full = trial.played[setting], trial.full
    order = np.argsort(played.right - full.right, kind="stable")[:_MOST_QUESTIONS].tolist()
    return [
        {
            "run": trial.recording.questions[index].run,
            "id": trial.recording.questions[index].id,
            "full": f"{100 * full.right[index]:.0f}",
            "right": f"{100 * played.right[index]:.0f}",
            "samples": f"{played.samples[index]:.1f}",
            "cost": f"{100 * played.costs[trial.cost][index] / max(1e-9, full.costs[trial.cost][index]):.0f}",
        }
        for index in order
    ]


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
