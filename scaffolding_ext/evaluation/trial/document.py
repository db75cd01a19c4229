"""What `tune` found, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaffolding_ext.evaluation.trial.choice import Goal
from scaffolding_ext.evaluation.trial.plays import TableRow, Trial
from scaffolding_ext.evaluation.trial.promise import Promise
from scaffolding_ext.stack.config import StackConfig


def document_of(
    trial: Trial,
    goal: Goal,
    rows: Sequence[TableRow],
    frontier: Sequence[TableRow],
    stack: StackConfig,
    promise: Promise | None,
) -> dict[str, Any]:
    """The chosen stack, the baselines, each list chosen from alone, and the frontier.

    Args:
        trial: The trial.
        goal: What was chosen for.
        rows: The lines of the table; the last one is the choice.
        frontier: The settings that are more accurate than every cheaper one.
        stack: The chosen stack.
        promise: What is promised.
    """
    by_list = {f"{name}, chosen": trial.judged(goal, {name: own}) for name, own in trial.lists.items()}
    return {
        "chosen": {
            "stack": stack.resolved(),
            "setting": stack.tuned.setting if stack.tuned else None,
            **_figures(rows[-1]),
        },
        "baselines": [_named(row) for row in [*rows[:-1], *trial.rows(by_list)]],
        "frontier": [_named(row) for row in frontier],
        "num_questions": len(trial.recording.questions),
        "measure": trial.recording.measure,
        "cost": trial.cost,
        "missing": sorted(trial.recording.missing),
        "left_out": list(trial.recording.left_out),
        "promise": None
        if promise is None
        else {
            "holds": promise.setting is not None,
            "max_loss": 100 * promise.max_loss,
            "confidence": promise.confidence,
            "num_questions": promise.num_questions,
            "num_needed": promise.num_needed,
            "nearest": str(promise.nearest),
        },
    }


def frontier_of(trial: Trial) -> list[TableRow]:
    """The settings that are more accurate than every cheaper one; the questions that they are judged on chose them."""
    played = sorted(
        ((setting, trial.played[setting]) for own in trial.lists.values() for setting in own),
        key=lambda pair: (float(pair[1].costs[trial.cost].sum()), -float(pair[1].right.sum())),
    )
    kept: dict[str, Any] = {}
    best = -1.0
    for setting, each in played:
        if float(each.right.sum()) > best:
            best = float(each.right.sum())
            kept[str(setting)] = each
    return trial.rows(kept)


def _named(row: TableRow) -> dict[str, Any]:
    return {"name": row.name, **_figures(row)}


def _figures(row: TableRow) -> dict[str, Any]:
    return {
        "cost_share": row.cost_share.value,
        "cost_share_interval": list(row.cost_share[1:]),
        "points": row.points.value,
        "interval": list(row.points[1:]),
        "rounds": row.rounds,
        "accuracy": row.accuracy,
    }
