"""A trial in twelve lines of a terminal, and in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.evaluation.recordings.recording import Recording
from scaffolding_ext.evaluation.trial.ended import COSTS, Cost
from scaffolding_ext.evaluation.trial.plays import TableRow, Trial
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


def sentence_of(chosen: str, row: TableRow, recording: Recording, cost: Cost) -> str:
    """What to use, what it saves, and what it may lose."""
    what = "samples" if "tokens" in recording.missing and cost != "seconds" else COSTS[cost]
    measure = "points of accuracy" if recording.measure == "accuracy" else "points of agreement with all samples"
    share, points = row.cost_share, row.points
    saved = (
        f"{100 * (1 - share.value):.0f} % of the {what} ({100 * (1 - share.high):.0f} to {100 * (1 - share.low):.0f})"
    )
    change = "loses" if points.value < 0 else "gains"
    return (
        f"Use {chosen}: it saves {saved}, {change} {abs(points.value):.1f} {measure} on questions that did not choose "
        f"it, and may lose up to {max(0.0, -points.low):.1f}."
    )


def notes_of(trial: Trial) -> list[str]:
    """What was tried on what, and what was left out."""
    recording = trial.recording
    runs = len(set(recording.runs))
    of_runs = f" of {runs} runs" if runs > 1 else ""
    resampled = "runs" if trial.by_run else "questions"
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
    if recording.left_out:
        notes.append(f"Left out: {'; '.join(recording.left_out)}.")
    return notes


def spread(estimate: Estimate, digits: int, is_signed: bool = False) -> str:
    """A figure and its interval, as `-0.2 (-0.4 to +0.1)`."""
    sign = "+" if is_signed else ""
    value, low, high = (f"{0.0 + round(each, digits):{sign}.{digits}f}" for each in estimate)
    return f"{value} ({low} to {high})"
