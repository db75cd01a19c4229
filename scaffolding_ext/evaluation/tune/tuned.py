"""Result of a tuning: as a terminal table and a sentence, as JSON, and as one HTML page."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scaffolding_ext.evaluation.drawing import COLOURS, bars_of, below, charts_need, drawing
from scaffolding_ext.evaluation.tune.choose import (
    LEAST_QUESTIONS,
    Goal,
    Promise,
    Stability,
    chosen,
    cross_validated,
    is_too_small,
    promised,
    stability,
)
from scaffolding_ext.evaluation.tune.costs import COSTS
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.stack_file import stack_of
from scaffolding_ext.evaluation.tune.table import FrontierRow, TableRow, baselines, frontier_of, rows_of
from scaffolding_ext.evaluation.web_page import data_uri, render_page
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stats.intervals import Estimate

_NAME_WIDTH = 25
_STABLE = 0.9  # share of equal choices
_UNTRIED = {
    "targets": "gold answers",
    "tokens": "tokens",
    "seconds": "seconds",
    "logprobs": "log-probabilities",
    "rewards": "rewards",
    "looks": "looks at chains",
}


@dataclass(frozen=True)
class Tuned:
    """A choice and its report.

    Attributes:
        setting: The choice on all questions; the default on too few questions, all samples if no setting keeps the
            promise.
        rows: Lines of the table; the last one is the setting, on questions that had no part in its choice.
        not_taken: The choice on too few questions.
        stability: Of the choice.
    """

    plays: Replay
    goal: Goal
    setting: Setting
    rows: Sequence[TableRow]
    promise: Promise | None = None
    base: StackConfig | None = None
    not_taken: Setting | None = None
    stability: Stability | None = None

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
    def sentence(self) -> str:
        """The choice, with its saving and loss."""
        if not self.keeps_promise:
            return "No setting keeps the promise, so all samples are the last line of the table."
        recording = self.plays.recording
        (own,) = rows_of(self.plays, {str(self.setting): self.plays.play(self.setting)})
        measure = "points of accuracy" if recording.measure == "accuracy" else "points of agreement with all samples"
        saved, points = 100 * (1 - own.cost_share.value), spread(own.points, 1, is_signed=True).partition(" ")[0]
        what = "samples" if _counts_samples(self.plays) else COSTS[self.plays.cost]
        found = f"Use {own.name}: on these questions it saves {saved:.0f} % of the {what}, at {points} {measure}."
        if self.promise is not None:
            return found
        if self.not_taken is not None:
            return (
                f"{found} It is the default: on fewer than {LEAST_QUESTIONS} questions a choice is worse than the "
                f"default on further questions. These would choose: {self.not_taken}."
            )
        share, points = self.rows[-1].cost_share, spread(self.rows[-1].points, 1, is_signed=True)
        expected = Estimate(*(100 * (1 - each) for each in (share.value, share.high, share.low)))
        return (
            f"{found} On questions that had no part in the choice it saved {spread(expected, 0)} %, at {points} "
            "points: expect that on further ones. Nothing is promised; --confidence 0.9 asks for a promise."
        )

    def lines(self) -> Iterator[str]:
        yield table_of(self.rows, self.plays)
        yield ""
        yield self.sentence
        if self.stability is not None and self.stability.same < _STABLE:
            yield _unstable(self.stability)
        if self.frontier:
            yield "Tokens against time, judged on questions that did not choose (all samples at once: 100 %, 1):"
            yield from (f"- {row}" for row in self.frontier)
        yield from remarks_on(self.plays)
        if self.promise is not None and self.keeps_promise:
            yield f"Promised: {self.promise}."

    def document(self) -> dict[str, Any]:
        plays, promise, stack = self.plays, self.promise, self.stack()
        by_list = {
            f"{name}, chosen": cross_validated(plays, self.goal, {name: own}) for name, own in plays.lists.items()
        }
        return {
            "chosen": {
                "stack": stack.resolved(),
                "setting": stack.tuned.setting if stack.tuned else None,
                **_figures(self.rows[-1]),
            },
            "baselines": [_figures(row) for row in [*self.rows[:-1], *rows_of(plays, by_list)]],
            "frontier": [{**row._asdict(), "setting": str(row.setting)} for row in self.frontier],
            "not_taken": None if self.not_taken is None else str(self.not_taken),
            "stability": None if self.stability is None else self.stability._asdict(),
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
        needed = charts_need()
        return render_page(
            "tuned.html",
            sentence=self.sentence,
            promise=None if self.promise is None else str(self.promise),
            notes=remarks_on(self.plays),
            cost=COSTS[self.plays.cost],
            measure=self.plays.recording.measure,
            image=None if needed else data_uri(self._picture()),
            charts_need=needed,
            rows=[_line(row) for row in self.rows],
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
        rows = rows_of(plays, {**baselines(plays, goal), "chosen": plays.played[kept]})
        return Tuned(plays, goal, kept, rows, promise, base)
    setting = chosen(plays, goal)
    if setting is None:
        return None
    named, steady = {**baselines(plays, goal), "chosen": cross_validated(plays, goal)}, stability(plays, goal, setting)
    if not is_too_small(plays, goal):
        return Tuned(plays, goal, setting, rows_of(plays, named), None, base, stability=steady)
    named["default, recommended"] = plays.played[plays.default]
    return Tuned(plays, goal, plays.default, rows_of(plays, named), None, base, setting, steady)


def _unstable(found: Stability) -> str:
    return (
        f"The choice changes with the questions: {100 * (1 - found.same):.0f} % of resamples choose another setting, "
        f"at {100 * found.least:.0f} to {100 * found.most:.0f} % of the cost. More questions settle it."
    )


def table_of(rows: Sequence[TableRow], plays: Replay) -> str:
    """Format the lines of a table, at most 80 columns wide."""
    measure = "right %" if plays.recording.measure == "accuracy" else "as all %"
    name = "samples %" if _counts_samples(plays) else f"{plays.cost} %"
    lines = [f"{'':{_NAME_WIDTH}} {measure:>7} {'points':>22} {name:>16} {'rounds':>6}"]
    for row in rows:
        share = _percent(row.cost_share)
        lines.append(
            f"{row.name:{_NAME_WIDTH}.{_NAME_WIDTH}} {100 * row.accuracy:>7.1f} {spread(row.points, 1, True):>22} "
            f"{spread(share, 1 if share.value < 9.95 else 0):>16} {row.rounds:>6.1f}"
        )
    return "\n".join(lines)


def remarks_on(plays: Replay) -> list[str]:
    recording = plays.recording
    runs = len(set(recording.runs))
    of_runs = f" of {runs} runs" if runs > 1 else ""
    resampled = "runs and questions" if plays.is_crossed else "runs" if plays.by_run else "questions"
    notes = [
        f"{len(recording.questions):,} questions{of_runs}, {recording.num_samples} samples each; 95 % intervals over "
        f"{resampled}; the cost is a share of that of all samples."
    ]
    if recording.measure == "agreement":
        notes.append("No gold answers: the measure is agreement with the vote of all samples.")
    if "tokens" in recording.missing:
        notes.append("No tokens: samples are counted instead.")
    lacking = [name for column, name in _UNTRIED.items() if column in recording.missing]
    if lacking:
        notes.append(f"Not recorded, so settings that need it are not tried: {', '.join(lacking)}.")
    notes += recording.notes
    if recording.left_out:
        notes.append(f"Left out: {'; '.join(recording.left_out)}.")
    return notes


def spread(estimate: Estimate, digits: int, is_signed: bool = False) -> str:
    """Format a figure and its interval, like `-0.2 (-0.4 to +0.1)`."""
    sign = "+" if is_signed else ""
    value, low, high = (f"{0.0 + round(each, digits):{sign}.{digits}f}" for each in estimate)
    return f"{value} ({low} to {high})"


def _counts_samples(plays: Replay) -> bool:
    return "tokens" in plays.recording.missing and plays.cost != "seconds"


def _percent(share: Estimate) -> Estimate:
    return Estimate(*(100 * value for value in share))


def _figures(row: TableRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "cost_share": row.cost_share.value,
        "cost_share_interval": list(row.cost_share[1:]),
        "points": row.points.value,
        "interval": list(row.points[1:]),
        "rounds": row.rounds,
        "accuracy": row.accuracy,
    }


def _line(row: TableRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "right": f"{100 * row.accuracy:.1f}",
        "points": spread(row.points, 2, True),
        "cost": spread(_percent(row.cost_share), 1),
        "rounds": f"{row.rounds:.1f}",
    }
