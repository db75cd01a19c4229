"""Result of a tuning: as a terminal table and advice, as JSON, and as one HTML page."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scaffolding_ext.evaluation.drawing import COLOURS, bars_of, below, charts_need, drawing
from scaffolding_ext.evaluation.logs.samples import NO_ANSWER
from scaffolding_ext.evaluation.tables import between, saved
from scaffolding_ext.evaluation.tune.choose import (
    LEAST_QUESTIONS,
    Cheapest,
    Goal,
    Promise,
    chosen,
    cross_validated,
    is_too_small,
    promised,
)
from scaffolding_ext.evaluation.tune.costs import COSTS
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.stack_file import stack_of
from scaffolding_ext.evaluation.tune.table import (
    LIMIT,
    FrontierRow,
    TableRow,
    baselines,
    frontier_of,
    points_of,
    rows_of,
)
from scaffolding_ext.evaluation.web_page import data_uri, render_page
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stats.intervals import Estimate

_NAME_WIDTH = 25
_BY_THESE = "chosen by these"
_UNTRIED = {
    "targets": "gold answers",
    "tokens": "tokens",
    "seconds": "seconds",
    "logprobs": "log-probabilities",
    "rewards": "rewards",
    "probes": "probes of chains",
}


@dataclass(frozen=True)
class Tuned:
    """A choice and its report.

    Attributes:
        setting: The choice on all questions; the default on too few questions, all samples if no setting keeps the
            promise.
        rows: Lines of the table; the last one is the setting, on questions that had no part in its choice.
        not_taken: The choice on too few questions.
    """

    plays: Replay
    goal: Goal
    setting: Setting
    rows: Sequence[TableRow]
    promise: Promise | None = None
    base: StackConfig | None = None
    not_taken: Setting | None = None

    @cached_property
    def frontier(self) -> list[FrontierRow]:
        return frontier_of(self.plays, self.goal)

    @property
    def keeps_promise(self) -> bool:
        """False only if a promise was requested and no setting keeps it."""
        return self.promise is None or self.promise.setting is not None

    def stack(self) -> StackConfig:
        return stack_of(self.setting, self.rows[-1], self.plays, promise=self.promise, base=self.base)

    @property
    def advice(self) -> list[str]:
        """The choice in words, its saving and its loss, and how far they can be relied on."""
        if not self.keeps_promise:
            return [f"Advice: {self.setting}. No setting keeps the promise."]
        figures, goal = _gained(self.rows[-1], self.plays), self.goal
        found = [f"Advice: {self.setting}."]
        if self.promise is not None:
            found.append(f"{figures}. Promised: {self.promise}.")
        elif self.not_taken is not None:
            found += [
                f"{figures}.",
                f"This is the default: a choice on fewer than {LEAST_QUESTIONS} questions does worse on others. These "
                f"would choose: {self.not_taken}.",
            ]
        else:
            found.append(f"{figures}, on questions that had no part in the choice.")
            if isinstance(goal, Cheapest):
                found.append(
                    f"Nothing is promised: --max_loss {100 * goal.max_loss:g} bounds the loss on the questions that "
                    "choose (--confidence 0.9 asks for a promise)."
                )
        if better := _better(self.rows):
            found.append(
                f"On these questions {' and '.join(better)} {'do' if len(better) > 1 else 'does'} better on both."
            )
        return found

    def lines(self) -> Iterator[str]:
        yield table_of(self.rows, self.plays)
        yield ""
        yield from remarks_on(self.plays)
        yield ""
        yield from self.advice

    def document(self) -> dict[str, Any]:
        plays, promise, stack = self.plays, self.promise, self.stack()
        return {
            "chosen": {
                "stack": stack.resolved(),
                "setting": stack.tuned.setting if stack.tuned else None,
                **figures_of(self.rows[-1]),
            },
            "baselines": [figures_of(row) for row in self.rows[:-1]],
            "frontier": [{**row._asdict(), "setting": str(row.setting)} for row in self.frontier],
            "not_taken": None if self.not_taken is None else str(self.not_taken),
            "num_questions": len(plays.recording.questions),
            "measure": plays.recording.measure,
            "cost": plays.cost,
            "missing": sorted(plays.recording.missing),
            "left_out": list(plays.recording.left_out),
            "notes": list(plays.recording.notes),
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

    def page(self) -> str:
        """Render one self-contained HTML page: the table, and tokens against time."""
        needed, missing = charts_need(), self.plays.recording.missing
        lacking = [name for column, name in _UNTRIED.items() if column in missing]
        untried = [f"Not recorded, so settings that need it are not tried: {', '.join(lacking)}."] if lacking else []
        return render_page(
            "tuned.html",
            advice=" ".join(self.advice),
            notes=[*remarks_on(self.plays), *untried],
            cost=COSTS[self.plays.cost],
            measure=self.plays.recording.measure,
            image=None if needed else data_uri(self._picture()),
            charts_need=needed,
            rows=[_cells(row) for row in self.rows],
            frontier=[str(row) for row in self.frontier],
        )

    def _picture(self) -> bytes:
        """Draw every setting as a dot, and the lines of the table with their intervals."""
        plays, image = self.plays, io.BytesIO()
        full, right = float(plays.cost_of(plays.full).sum()), plays.full.right
        played = [plays.played[setting] for own in plays.lists.values() for setting in own]
        with drawing(image, figsize=(10, 6)) as (figure, axes):
            axes.axhline(0, color="0.5", linestyle="--", lw=0.8)
            costs = [100 * float(plays.cost_of(each).sum()) / full for each in played]
            points = [100 * float((each.right - right).mean()) for each in played]
            axes.plot(costs, points, ".", color="0.7", ms=3, label="every setting, on questions that chose it")
            for number, row in enumerate(self.rows):
                is_choice, share = number == len(self.rows) - 1, _percent(row.cost_share)
                shape = "D" if is_choice else "o" if number < len(COLOURS) else "^"
                look = {"color": "black", "ms": 8, "mfc": "none"} if is_choice else {"ms": 5}
                options = {"color": f"C{number % len(COLOURS)}", "elinewidth": 0.8, "zorder": 4, **look}
                bars = {"xerr": bars_of([share]), "yerr": bars_of([row.points])}
                axes.errorbar(share.value, row.points.value, **bars, fmt=shape, label=row.name, **options)
            axes.set(xlabel=f"{COSTS[plays.cost]}, % of all samples'", ylabel="points above all samples")
            axes.set_title("A setting pays if it lies left of the vote of all samples, and not below it")
            below(figure, axes, 3)
        return image.getvalue()


def tuned(
    plays: Replay,
    goal: Goal,
    *,
    max_loss: float = 0.0,
    confidence: float | None = None,
    base: StackConfig | None = None,
) -> Tuned | None:
    """Choose among the settings played; None if the goal allows none."""
    if confidence is not None:
        promise = promised(plays, max_loss, confidence)
        kept = promise.setting or plays.all_samples
        rows = rows_of(plays, {**baselines(plays, goal), "advice": plays.played[kept]})
        return Tuned(plays, goal, kept, rows, promise, base)
    setting = chosen(plays, goal)
    if setting is None:
        return None
    named, judged = baselines(plays, goal), cross_validated(plays, goal)
    if not is_too_small(plays, goal):
        rows = rows_of(plays, {**named, "advice": judged})
        return Tuned(plays, goal, setting, rows, None, base)
    own = plays.default
    rows = rows_of(plays, {**named, _BY_THESE: judged, "advice: the default": plays.played[own]})
    return Tuned(plays, goal, own, rows, None, base, setting)


def _better(rows: Sequence[TableRow]) -> list[str]:
    """Return the names of the lines that are more accurate than the last one at a lower cost, and can be had."""
    *others, own = rows
    return [
        row.name
        for row in others
        if row.points.value > own.points.value
        and row.cost_share.value < own.cost_share.value
        and row.name not in (LIMIT, _BY_THESE)
    ]


def _gained(row: TableRow, plays: Replay) -> str:
    what = "samples" if _counts_samples(plays) else COSTS[plays.cost]
    measure = "accuracy" if plays.recording.measure == "accuracy" else "agreement with all samples"
    cost = saved(row.cost_share.value, row.cost_share[1:])
    return f"{what[0].upper()}{what[1:]}: {cost}; {measure}: {points_of(row.points)} points"


def table_of(rows: Sequence[TableRow], plays: Replay) -> str:
    """Format the lines of a table, at most 80 columns wide."""
    measure = "right %" if plays.recording.measure == "accuracy" else "as all %"
    name = "samples %" if _counts_samples(plays) else f"{plays.cost} %"
    lines = [f"{'':{_NAME_WIDTH}} {measure:>7} {'points':>22} {name:>16} {'rounds':>6}"]
    for row in rows:
        name, right, points, cost, rounds = _cells(row)
        lines.append(f"{name:{_NAME_WIDTH}.{_NAME_WIDTH}} {right:>7} {points:>22} {cost:>16} {rounds:>6}")
    return "\n".join(lines)


def _cells(row: TableRow) -> list[str]:
    share, low, high = _percent(row.cost_share)
    form = ".1f" if share < 9.95 else ".0f"
    cost = f"{share:{form}}{between(low, high, form)}"
    return [row.name, f"{100 * row.accuracy:.1f}", points_of(row.points), cost, f"{row.rounds:.1f}"]


def remarks_on(plays: Replay) -> list[str]:
    recording = plays.recording
    runs = len(set(recording.runs))
    of_runs = f" of {runs} runs" if runs > 1 else ""
    resampled = "runs and questions" if plays.is_crossed else "runs" if plays.by_run else "questions"
    notes = [
        f"{len(recording.questions):,} questions{of_runs}, {recording.num_samples} samples each; 95 % intervals over "
        f"{resampled}."
    ]
    if recording.measure == "agreement":
        notes.append("No gold answers: the measure is agreement with the vote of all samples.")
    num_all = len(recording.questions) * recording.num_samples
    num_silent = sum(int((each.classes == NO_ANSWER).sum()) for each in recording.questions)
    if 2 * num_silent > num_all:
        notes.append(f"{num_silent:,} of {num_all:,} samples have no answer: if they were cut off, raise max_tokens.")
    if "tokens" in recording.missing:
        notes.append("No tokens: samples are counted instead.")
    notes += recording.notes
    if recording.left_out:
        notes.append(f"Left out: {'; '.join(recording.left_out)}.")
    return notes


def _counts_samples(plays: Replay) -> bool:
    return "tokens" in plays.recording.missing and plays.cost != "seconds"


def _percent(share: Estimate) -> Estimate:
    return Estimate(*(100 * value for value in share))


def figures_of(row: TableRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "cost_share": row.cost_share.value,
        "cost_share_interval": list(row.cost_share[1:]),
        "points": row.points.value,
        "interval": list(row.points[1:]),
        "rounds": row.rounds,
        "accuracy": row.accuracy,
    }
