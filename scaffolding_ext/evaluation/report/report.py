"""Runs as a table: a line a run."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table

from scaffolding_ext.evaluation.run.summary import Summary
from scaffolding_ext.stats.intervals import Interval


def comparison_table(runs: Mapping[str, Summary]) -> Table:
    """A table with one line a run, token figures a sample; what a run saves is in decoded tokens against the first.

    The 95 % Wilson interval stands beside the percentage of right answers; failed samples are wrong there. Where a run
    has any, a column more gives the percentage without them. Where one was calibrated, a column more spreads the tokens
    that were decoded for it over the run's samples; what is saved is then net of them. Where one has prices, a column
    more gives the cost of a sample.
    """
    any_failed = any(run.num_failed for run in runs.values())
    any_calibrated = any(run.calibration_tokens for run in runs.values())
    any_cost = any(run.cost is not None for run in runs.values())
    columns = ("run", "n", "failed", "correct %", *(["of finished"] if any_failed else []))
    columns += ("decoded", "discarded", *(["calibration"] if any_calibrated else []), "saved", "computed", "seconds")
    table = Table(*columns, *(["cost"] if any_cost else []), box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    baseline = _with_calibration(next(iter(runs.values()))) if runs else None
    for index, (name, run) in enumerate(runs.items()):
        decoded = run.mean_decoded_tokens
        saved = 1 - _with_calibration(run) / baseline if index and baseline and decoded is not None else None
        table.add_row(
            name,
            str(run.num_samples),
            str(run.num_failed),
            _shown_percentage(run.accuracy, run.accuracy_interval),
            *([_shown_percentage(run.accuracy_of_finished, run.accuracy_of_finished_interval)] if any_failed else []),
            _shown(decoded, ".1f"),
            _shown(run.discarded_share, ".1%"),
            *([_shown(run.mean_calibration_tokens, ".1f")] if any_calibrated else []),
            _shown(saved, ".1%"),
            _shown(run.mean_computed_tokens, ".1f"),
            _shown(run.mean_seconds, ".3f"),
            *([_shown(None if run.cost is None else run.cost["per_sample"], ".4g")] if any_cost else []),
        )
    return table


def _with_calibration(run: Summary) -> float:
    return (run.mean_decoded_tokens or 0.0) + run.mean_calibration_tokens


def _shown_percentage(share: float | None, interval: Interval) -> str:
    return "-" if share is None else f"{100 * share:.1f} ({100 * interval.low:.1f}-{100 * interval.high:.1f})"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
