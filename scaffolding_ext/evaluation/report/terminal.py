"""Format runs and comparisons as tables and sentences for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaffolding_ext.evaluation.compare.compared import Compared
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.evaluation.run.summary import Drawn, Summary
from scaffolding_ext.evaluation.tables import amount, answers_drawn, between, saved
from scaffolding_ext.stats.intervals import Estimate, Interval, McNemar

_COLUMNS = 80  # of a command's last lines
_NAME_COLUMNS = 10
_WORTH_TELLING = 0.005  # share of discarded tokens


def first_lines(first: Example) -> str:
    """A dataset's first question as it is asked, its right answer, and the fields that are not read."""
    unread = f"\nNot read: {', '.join(first.unread)}" if first.unread else ""
    question = textwrap.indent(first.prompt, "  ")
    return f"The first question, as it is asked:\n{question}\nIts right answer: {first.target}{unread}"


def eval_lines(
    name: str,
    summary: Summary,
    first_error: str | None = None,
    budget: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    until: Mapping[str, Any] | None = None,
) -> list[str]:
    """Format the last lines of `eval`, each of at most 80 columns; `summary.json` has the rest.

    Args:
        budget: `VoteBudget.figures()`, if one budget was spent on all votes.
        until: `UntilKnown.figures()`, if the run ends when its result is known.
    """
    each = "question" if summary.repeats is None or summary.repeats.n == 1 else "request"
    right = _percentage(summary.accuracy, summary.accuracy_interval)
    lines = [f"{name}: {summary.num_correct} of {summary.num_samples} right, {right} %"]
    lines += [] if until is None else [until_line(until)]
    if summary.num_timed_out and summary.num_failed < summary.num_samples:
        ended = _percentage(summary.accuracy_of_finished, summary.accuracy_of_finished_interval)
        lines.append(f"of the {summary.num_samples - summary.num_failed} that ended in time {ended} % are right")
    repeats = summary.repeats
    if repeats is not None and repeats.n > 1:
        most = repeats.majority[repeats.n], repeats.passed[repeats.n]
        shares = ", ".join(
            f"{what}@{repeats.n} {_mean(mean)}" for what, mean in zip(("maj", "pass"), most, strict=True)
        )
        lines.append(f"{repeats.n} epochs, %: {shares}")
    discarded = (
        f", {summary.discarded_share:.0%} of them discarded" if summary.discarded_share >= _WORTH_TELLING else ""
    )
    lines.append(f"decoded tokens a {each}: {_amount(summary.mean_decoded_tokens)}{discarded}")
    lines += [] if summary.drawn is None else [drawn_line(summary.drawn, summary.mean_decoded_tokens or 0.0)]
    lines.append(f"seconds a {each}: {_amount(summary.mean_seconds)}")
    for section in summary.sections.values():
        coins = section.get("decided_by_coin")
        if coins is not None and coins.num:  # without a calibration, the rate only looks perfect
            share = 100 * (coins.value or 0.0)
            lines.append(f"decided by coin: {coins.num:,.0f} of {coins.of:,.0f} decisions, {share:.3g} %")
    if summary.lateness is not None:
        lines.append(str(summary.lateness))
    wrong = {
        "wrong": summary.num_wrong,
        "cut off by the budget": summary.num_cut_off,
        "without an answer": summary.num_unanswered,
        "that could not be compared": summary.num_undetermined,
        "timed out": summary.num_timed_out,
        "failed": summary.num_failed - summary.num_timed_out,
    }
    told = ", ".join(f"{number} {what}" for what, number in wrong.items() if number)
    lines += [f"not right: {told}"] if told else []
    if first_error:
        lines.append(f"first failure: {first_error}")
    elif summary.cost is not None:
        lines.append(f"cost: {summary.cost['total']:.4g}, {summary.cost['per_sample']:.4g} a {each}")
    if budget is not None:
        lines.append(f"budget: {budget['spent_tokens']:,} of {budget['total_tokens']:,} decoded tokens")
    lines.append("--json has all figures" if folder is None else f"kept in {folder}; summary.json has all figures")
    return [_cut(line) for line in lines]


def drawn_line(drawn: Drawn, mean_tokens: float) -> str:
    """Format the answers that votes drew, and what all of them would have taken."""
    told = answers_drawn(drawn.mean, drawn.most, mean_tokens, drawn.tokens_of_all)
    if drawn.mean >= drawn.most:
        return f"{told} a vote: none ended early"
    if not drawn.tokens_of_all:  # the worker counts none
        return f"{told} a vote"
    return f"{told}; all {drawn.most:.3g} would take about {amount(drawn.tokens_of_all)} tokens"


def until_line(until: Mapping[str, Any]) -> str:
    """Format what a run with a goal has shown, and the questions that it did not ask."""
    margin, estimate = f"{100 * until['margin']:g}", Estimate(**until["estimate"])
    baseline = until["baseline"]
    goal = f"accuracy to ±{margin}" if baseline is None else f"against {baseline}"
    shown = f"{_mean(estimate)} %" if baseline is None else shown_points(estimate)
    every = f"all {until['num_questions']:,}"
    apart = f", {until['num_left_out']} not counted" if until["num_left_out"] else ""
    if until["conclusion"] is None:
        return f"{goal}: not known after {until['num_counted']:,} of {every}: {shown}{apart}"
    known = {"known": goal, "within": f"within {margin} points of {baseline}"}
    told = known.get(until["conclusion"], f"{until['conclusion']} than {baseline}")
    return f"{told}: {shown} on {every}; {until['num_spared'] or 'none'} spared{apart}"


def compare_lines(compared: Compared, written: Mapping[str, Path]) -> list[str]:
    """Format the last lines of `compare`, 80 columns wide, with a line for each run; `--json` has the rest.

    Args:
        written: Files that were written, by kind.
    """
    width = min(_NAME_COLUMNS, max(len(run.name) for run in compared.runs))
    rows = [["", "right %", "points", "tokens", "", "seconds"]]
    for run, point, one in zip(compared.runs, compared.points, (None, *compared.comparisons), strict=True):
        rows.append(
            [
                run.name if len(run.name) <= width else "..." + run.name[3 - width :],
                f"{100 * point.accuracy.value:.1f}",
                "" if one is None else shown_points(one.accuracy_difference),
                amount(point.tokens.value),
                "" if one is None else shown_saving(one.ratios["decoded"]),
                _amount(run.summary.mean_seconds),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if len(compared.comparisons) == 1:
        lines.append(shown_mcnemar(compared.comparisons[0].mcnemar))
    lines.append("95 % intervals against the first; --json has all figures")
    return [_cut(line) for line in lines] + [f"{what}: {path}" for what, path in written.items()]


def shown_mcnemar(found: McNemar) -> str:
    if not found.only_a and not found.only_b:
        return "right on the same questions"
    return (
        f"only the first is right on {found.only_a:,}, only the other on {found.only_b:,}: "
        f"p = {found.p_value:.3g} (McNemar)"
    )


def shown_points(difference: Estimate) -> str:
    value, low, high = (100 * number for number in difference)
    return f"{value:+.1f}{between(low, high, '+.1f')}"


def shown_saving(ratio: Estimate | None) -> str:
    return "-" if ratio is None else saved(ratio.value, (ratio.low, ratio.high))


def _mean(mean: Estimate) -> str:
    return f"{100 * mean.value:.1f}{between(100 * mean.low, 100 * mean.high)}"


def _percentage(share: float | None, interval: Interval) -> str:
    return "-" if share is None else _mean(Estimate(share, *interval))


def _amount(number: float | None) -> str:
    return "-" if number is None else amount(number)


def _cut(line: str) -> str:
    return line if len(line) <= _COLUMNS else line[: _COLUMNS - 3] + "..."
