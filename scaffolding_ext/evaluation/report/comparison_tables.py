"""Comparisons and sweeps as tables for a terminal."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from scaffolding_ext.evaluation.compare.compared import Compared
from scaffolding_ext.evaluation.compare.comparison import Comparison, Needed
from scaffolding_ext.evaluation.compare.finished_run import Key, Run
from scaffolding_ext.evaluation.compare.frontier import Saving, Sweep
from scaffolding_ext.evaluation.report.report import comparison_table
from scaffolding_ext.stats.intervals import Estimate

NUM_KEYS_SHOWN = 20
PIPE_WIDTH = 140  # columns, where no terminal says how many there are


def text_of(compared: Compared, width: int | None = PIPE_WIDTH) -> str:
    """All tables, and the lines below them.

    Args:
        compared: The runs.
        width: Columns; None asks the terminal.
    """
    buffer = io.StringIO()
    console = Console(highlight=False, markup=False, width=width, file=buffer)
    console.print(comparison_table({run.name: run.summary for run in compared.runs}))
    console.print(pairs_table(compared.comparisons))
    console.print(reasons_table(compared.runs))
    for one in compared.comparisons:
        console.print(f"only {one.baseline} right, against {one.run}: {shown_keys(one.only_baseline_right)}")
        console.print(f"only {one.run} right: {shown_keys(one.only_run_right)}")
        console.print(f"questions for a power of 0.9, {one.run}: {shown_needed(one.needed, one.margin)}")
    for sweep in compared.sweeps:
        console.print(sweep_table(sweep))
        saving = shown_saving(sweep.saving)
        console.print(f"{sweep.name}: decoded tokens saved at the accuracy of {sweep.baseline}: {saving}")
    return buffer.getvalue().rstrip("\n")


def pairs_table(comparisons: Sequence[Comparison]) -> Table:
    """A line a comparison: difference in points, McNemar's p-value, ratios, questions for a power of 0.9."""
    table = _table("against " + comparisons[0].baseline, "n", "points", "McNemar p", "decoded", "computed", "seconds")
    for one in comparisons:
        table.add_row(
            one.run,
            str(one.num_samples),
            shown_points(one.accuracy_difference),
            f"{one.mcnemar.only_a}:{one.mcnemar.only_b}, {one.mcnemar.p_value:.3g}",
            *(shown_ratio(one.ratios[kind]) for kind in ("decoded", "computed", "seconds")),
        )
    return table


def reasons_table(runs: Sequence[Run]) -> Table:
    """The share of the samples by exit reason, a line a run."""
    shares = [exit_shares(run) for run in runs]
    reasons = list(dict.fromkeys(reason for own in shares for reason in own))
    table = _table("exit reasons, %", *reasons)
    for run, own in zip(runs, shares, strict=True):
        table.add_row(run.name, *(f"{100 * own[reason]:.1f}" if reason in own else "-" for reason in reasons))
    return table


def exit_shares(run: Run) -> dict[str, float]:
    """The share of a run's samples by exit reason, the most frequent first."""
    return {reason: num / len(run.keys) for reason, num in Counter(run.exit_reasons).most_common()}


def sweep_table(sweep: Sweep) -> Table:
    """The runs of a sweep, by rising tokens."""
    table = _table(sweep.name, "decoded", "correct %", "knobs")
    for point, knobs in sweep.runs:
        accuracy = Estimate(*(100 * value for value in point.accuracy))
        table.add_row(point.run, shown(point.tokens), shown(accuracy), shown_knobs(knobs))
    return table


def shown_knobs(knobs: dict[str, Any]) -> str:
    """Knobs on a line."""
    return ", ".join(f"{name}={value}" for name, value in knobs.items())


def shown_saving(saving: Saving) -> str:
    """What a sweep saves at equal accuracy, in a sentence's end."""
    if saving.saved is None:
        return f"not reached ({saving.reached_share:.0%} of the resamples reach it)"
    value, low, high = (f"{100 * number:.1f} %" for number in saving.saved)
    how = "interpolated" if saving.interpolated else "that of its cheapest run, which is as accurate"
    return f"{value} ({'not reached' if low == '-inf %' else low} .. {high}), {how}"


def shown_needed(needed: Needed, margin: float) -> str:
    """How many questions a new comparison takes."""
    apart, within = ("more than a million, or not to be told" if n is None else f"{n:,}" for n in needed)
    return f"a difference as large: {apart}; a loss below {100 * margin:g} points, if there is none: {within}"


def shown_keys(keys: Sequence[Key]) -> str:
    """The first ids, epochs behind a slash where they are not the first, and how many more there are."""
    names = [key.id if key.epoch == 0 else f"{key.id}/{key.epoch}" for key in keys[:NUM_KEYS_SHOWN]]
    more = [f"and {len(keys) - NUM_KEYS_SHOWN} more"] if len(keys) > NUM_KEYS_SHOWN else []
    return ", ".join([*names, *more]) or "none"


def shown_points(difference: Estimate) -> str:
    """A difference of accuracies in points."""
    value, low, high = (100 * number for number in difference)
    return f"{value:+.1f} ({low:+.1f}..{high:+.1f})"


def shown_ratio(ratio: Estimate | None) -> str:
    """A ratio, as that."""
    return "-" if ratio is None else f"{ratio.value:.3f} ({ratio.low:.3f}..{ratio.high:.3f})"


def shown(estimate: Estimate) -> str:
    """A figure with its interval."""
    return f"{estimate.value:.1f} ({estimate.low:.1f}..{estimate.high:.1f})"


def _table(first: str, *columns: str) -> Table:
    table = Table(first, *columns, box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    return table
