"""What a trial found: as a table of twelve lines of a terminal, in one sentence, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.evaluation.tune.choose import Goal
from scaffolding_ext.evaluation.tune.costs import COSTS, Cost
from scaffolding_ext.evaluation.tune.plays import TableRow, Trial
from scaffolding_ext.evaluation.tune.promise import Promise
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stats.intervals import Estimate

_NAME_WIDTH = 25
_UNTRIED = {
    "targets": "gold answers",
    "tokens": "tokens",
    "seconds": "seconds",
    "logprobs": "log-probabilities",
    "rewards": "rewards",
    "looks": "looks at chains",
}


def table_of(rows: Sequence[TableRow], recording: Recording, cost: Cost) -> str:
    """The lines of a table, at most 80 columns wide."""
    measure = "right %" if recording.measure == "accuracy" else "as all %"
    name = "samples %" if "tokens" in recording.missing and cost != "seconds" else f"{cost} %"
    lines = [f"{'':{_NAME_WIDTH}} {measure:>7} {'points':>22} {name:>16} {'rounds':>6}"]
    for row in rows:
        share = Estimate(*(100 * value for value in row.cost_share))
        lines.append(
            f"{row.name:{_NAME_WIDTH}.{_NAME_WIDTH}} {100 * row.accuracy:>7.1f} {spread(row.points, 1, True):>22} "
            f"{spread(share, 1 if share.value < 9.95 else 0):>16} {row.rounds:>6.1f}"
        )
    return "\n".join(lines)


def sentence_of(chosen: TableRow, judged: TableRow | None, recording: Recording, cost: Cost) -> str:
    """What to use, and what it saves and loses.

    Args:
        chosen: The setting that is written, on all questions.
        judged: The choice on questions that did not choose; None where a promise stands in its place.
        recording: What it was chosen on.
        cost: What is to be small.
    """
    what = "samples" if "tokens" in recording.missing and cost != "seconds" else COSTS[cost]
    measure = "points of accuracy" if recording.measure == "accuracy" else "points of agreement with all samples"
    saved, points = 100 * (1 - chosen.cost_share.value), spread(chosen.points, 1, is_signed=True).partition(" ")[0]
    found = f"Use {chosen.name}: on these questions it saves {saved:.0f} % of the {what}, at {points} {measure}."
    if judged is None:
        return found
    share = judged.cost_share
    expected = Estimate(*(100 * (1 - each) for each in (share.value, share.high, share.low)))
    return (
        f"{found} Expect of further questions what choices came to on questions that did not choose: "
        f"{spread(expected, 0)} % saved, at {spread(judged.points, 1, is_signed=True)} points. This promises nothing: "
        "--confidence 0.9 asks for a promise."
    )


def meta_of(trial: Trial) -> list[str]:
    """What was tried on what, and what was left out."""
    recording = trial.recording
    runs = len(set(recording.runs))
    of_runs = f" of {runs} runs" if runs > 1 else ""
    resampled = "runs and questions" if trial.is_crossed else "runs" if trial.by_run else "questions"
    notes = [
        f"{len(recording.questions):,} questions{of_runs}, {recording.num_samples} samples each; 95 % intervals over "
        f"{resampled}; the cost is a share of that of all samples."
    ]
    if recording.measure == "agreement":
        notes.append("No gold answers: the measure is agreement with the vote of all samples.")
    if "tokens" in recording.missing:
        notes.append("No tokens: samples are counted in their place.")
    lacking = [name for column, name in _UNTRIED.items() if column in recording.missing]
    if lacking:
        notes.append(f"Not recorded, so what needs it is not tried: {', '.join(lacking)}.")
    notes += recording.notes
    if recording.left_out:
        notes.append(f"Left out: {'; '.join(recording.left_out)}.")
    return notes


def spread(estimate: Estimate, digits: int, is_signed: bool = False) -> str:
    """A figure and its interval, as `-0.2 (-0.4 to +0.1)`."""
    sign = "+" if is_signed else ""
    value, low, high = (f"{0.0 + round(each, digits):{sign}.{digits}f}" for each in estimate)
    return f"{value} ({low} to {high})"


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
