"""Format runs and comparisons as tables and sentences for a terminal."""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaffolding_ext.evaluation.compare.compared import Compared, UnderLoad
from scaffolding_ext.evaluation.compare.finished_run import FinishedRun, Key
from scaffolding_ext.evaluation.compare.paired import Comparison, Needed
from scaffolding_ext.evaluation.compare.sweeps import Saving, Sweep
from scaffolding_ext.evaluation.run.most_work import MostWork
from scaffolding_ext.evaluation.run.rows import Example
from scaffolding_ext.evaluation.run.sections import SectionFigure
from scaffolding_ext.evaluation.run.summary import Drawn, Summary
from scaffolding_ext.evaluation.tables import Table, amount, between, console
from scaffolding_ext.stats.intervals import Estimate, Interval, McNemar

NUM_KEYS_SHOWN = 20
NOT_REPORTED = "not reported"  # by a server
_COLUMNS = 80  # of a command's last lines
_NAME_COLUMNS = 10
_TIMES = 2.0  # ratio of tokens from which it is shown as such, not in percent
_WORTH_TELLING = 0.005  # share of discarded tokens


def first_lines(first: Example) -> str:
    """A dataset's first question as it is asked, its right answer, and the fields that are not read."""
    unread = f"\nNot read: {', '.join(first.unread)}" if first.unread else ""
    question = textwrap.indent(first.prompt, "  ")
    return f"The first question, as it is asked:\n{question}\nIts right answer: {first.target}{unread}"


def most_line(most: MostWork) -> str:
    """Format the upper bounds of a run that has not begun."""
    calls = "calls without a known limit" if most.calls is None else f"{most.calls:,} calls"
    tokens = "decoded tokens without a known limit" if most.tokens is None else f"{most.tokens:,} decoded tokens"
    return f"at most: {calls}, {tokens}"


def comparison_table(runs: Mapping[str, Summary]) -> Table:
    """Build a table with one line per run. Tokens are means per request; `saved` is in decoded tokens against the first
    run.

    The percentage of right answers counts failed requests as wrong and has its 95 % Wilson interval. Some columns
    appear only if a run needs them: the percentage of right answers without failed requests, calibration tokens per
    request (then included in `saved`), and cost per request.
    """
    any_failed = any(run.num_failed for run in runs.values())
    any_calibrated = any(run.calibration_tokens for run in runs.values())
    any_cost = any(run.cost is not None for run in runs.values())
    columns = ("n", "failed", "correct %", *(["of finished"] if any_failed else []))
    columns += ("decoded", "discarded", *(["calibration"] if any_calibrated else []), "saved", "computed", "seconds")
    table = Table("run", *columns, *(["cost"] if any_cost else []))
    baseline = _with_calibration(next(iter(runs.values()))) if runs else None
    for index, (name, run) in enumerate(runs.items()):
        decoded = run.mean_decoded_tokens
        saved = 1 - _with_calibration(run) / baseline if index and baseline and decoded is not None else None
        table.add_row(
            name,
            str(run.num_samples),
            str(run.num_failed),
            _percentage(run.accuracy, run.accuracy_interval),
            *([_percentage(run.accuracy_of_finished, run.accuracy_of_finished_interval)] if any_failed else []),
            _number(decoded, ".1f"),
            _number(run.discarded_share, ".1%"),
            *([_number(run.mean_calibration_tokens, ".1f")] if any_calibrated else []),
            _number(saved, ".1%"),
            NOT_REPORTED if run.num_unknown_reuse_tasks else _number(run.mean_computed_tokens, ".1f"),
            _number(run.mean_seconds, ".3f"),
            *([_number(None if run.cost is None else run.cost["per_sample"], ".4g")] if any_cost else []),
        )
    return table


def eval_lines(
    name: str,
    summary: Summary,
    first_error: str | None = None,
    budget: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    load: Mapping[str, Any] | None = None,
    until: Mapping[str, Any] | None = None,
) -> list[str]:
    """Format the last lines of `eval`, each of at most 80 columns; `summary_text` has the rest.

    Args:
        budget: `VoteBudget.figures()`, if one budget was spent on all votes.
        load: `plain(TrafficFigures)`, if requests arrived by the clock.
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
    rate = None if summary.jobs is None else summary.jobs["an_hour"]
    if load is None:
        lines.append(
            f"seconds a {each}: {_amount(summary.mean_seconds)}"
            + ("" if rate is None else f"; {amount(rate)} {each}s an hour")
        )
    else:
        lines += load_lines(load)
    for section in summary.sections.values():
        coins = section.get("decided_by_coin")
        if coins is not None and coins.num:  # without a calibration, the rate only looks perfect
            lines.append(f"decided by coin: {coins.num:,.0f} of {coins.of:,.0f} decisions, {_percent_of(coins)} %")
    if summary.lateness is not None and load is None:
        lines.append(str(summary.lateness))
    wrong = {
        "wrong": summary.num_wrong,
        "cut off by the budget": summary.num_cut_off,
        "without an answer": summary.num_unanswered,
        "that could not be compared": summary.num_undetermined,
        "timed out": summary.num_timed_out,
        "failed or refused" if load else "failed": summary.num_failed - summary.num_timed_out,
    }
    told = ", ".join(f"{number} {what}" for what, number in wrong.items() if number)
    lines += [f"not right: {told}"] if told else []
    if first_error:
        lines.append(f"first failure: {first_error}")
    elif summary.cost is not None:
        lines.append(f"cost: {summary.cost['total']:.4g}, {summary.cost['per_sample']:.4g} a {each}")
    if budget is not None:
        lines.append(f"budget: {budget['spent_tokens']:,} of {budget['total_tokens']:,} decoded tokens")
    lines.append("--verbose shows all figures" if folder is None else f"kept in {folder}; --verbose shows all figures")
    return [_cut(line) for line in lines]


def drawn_line(drawn: Drawn, mean_tokens: float) -> str:
    """Format the answers that votes drew, and what all of them would have taken."""
    if drawn.mean >= drawn.most or not drawn.tokens_of_all:
        return f"{drawn.mean:.3g} answers a vote, all that it may draw"
    saved = 1 - mean_tokens / drawn.tokens_of_all
    told = f"{saved:.0%} saved" if saved >= 0 else f"{-saved:.0%} more was spent"
    return (
        f"{drawn.mean:.3g} of up to {drawn.most} answers; all {drawn.most} would take about "
        f"{amount(drawn.tokens_of_all)} tokens: {told}"
    )


def until_line(until: Mapping[str, Any]) -> str:
    """Format what a run with a goal has shown, and the questions that it did not ask."""
    margin, estimate = f"{100 * until['margin']:g}", Estimate(**until["estimate"])
    baseline = until["baseline"]
    goal = f"accuracy to ±{margin}" if baseline is None else f"against {baseline}"
    shown = f"{_mean(estimate)} %" if baseline is None else shown_points(estimate)
    every = f"all {until['num_questions']:,} questions"
    if until["conclusion"] is None:
        return f"{goal}: not known after {until['num_counted']:,} of {every}: {shown}"
    known = {"known": goal, "within": f"within {margin} points of {baseline}"}
    told = known.get(until["conclusion"], f"{until['conclusion']} than {baseline}")
    return f"{told}: {shown} on {every}; {until['num_spared'] or 'none'} spared"


def _percent_of(figure: SectionFigure) -> str:
    return f"{100 * (figure.value or 0.0):.3g}"


def load_table(loads: Mapping[str, UnderLoad]) -> Table:
    """Build a table with one line per run whose requests arrived by the clock."""
    heads = ("arrivals/s", "in time %", "points more", "p50 s", "p90 s", "p99 s", "first token p90", "s/token")
    table = Table("under load", *heads, "late", "refused", "most at once")
    for name, (figures, more_in_time) in loads.items():
        table.add_row(
            name,
            f"{figures.arrival_rate:.3g}",
            "-" if figures.in_time is None else _mean(figures.in_time),
            "-" if more_in_time is None else shown_points(more_in_time),
            *(_seconds(figures.seconds.get(each)) for each in ("p50", "p90", "p99")),
            _seconds(figures.first_token.get("p90")),
            _seconds(figures.seconds_per_token.get("mean")),
            *(str(number) for number in (figures.num_late, figures.num_refused, figures.most_queue)),
        )
    return table


def _seconds(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.3g}{between(estimate.low, estimate.high, '.3g')}"


def load_lines(load: Mapping[str, Any]) -> list[str]:
    """Format the figures of a run whose requests arrived by the clock, in two lines."""
    in_time = "" if load["in_time"] is None else f"{load['in_time']['value']:.1%} in time, {load['num_late']} late, "
    times = ", ".join(f"{name} {found['value']:.3g}" for name, found in load["seconds"].items())
    return [
        f"{load['arrival_rate']:.3g} arrivals/s: {in_time}{load['num_refused']} refused; at most "
        f"{load['most_queue']} at once",
        f"seconds to the answer: {times or 'none'}",
    ]


def compare_lines(compared: Compared, written: Mapping[str, Path]) -> list[str]:
    """Format the last lines of `compare`, 80 columns wide, with a line for each run; `text_of` has the rest.

    Args:
        written: Files that were written, by kind.
    """
    width = min(_NAME_COLUMNS, max(len(run.name) for run in compared.runs))
    rows = [["", "right %", "points", "tokens", "", "seconds"]]
    for run, point, one in zip(compared.runs, compared.points, (None, *compared.comparisons), strict=True):
        rows.append(
            [
                _tail(run.name, width),
                f"{100 * point.accuracy.value:.1f}",
                "" if one is None else shown_points(one.accuracy_difference),
                amount(point.tokens.value),
                "" if one is None else shown_fewer(one.ratios["decoded"]),
                _amount(run.summary.mean_seconds),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if len(compared.comparisons) == 1:
        lines.append(shown_mcnemar(compared.comparisons[0].mcnemar))
    for each in compared.second_models:
        seconds = "" if each.seconds_ratio is None else f", {each.seconds_ratio:.2f} times the seconds"
        verdict = "pays" if each.pays else "does not pay"
        lines.append(f"second model: {_tail(each.run, width)} {verdict}: {each.points.value:+.1f} points{seconds}")
    lines.append("95 % intervals against the first; --verbose shows all figures")
    return [_cut(line) for line in lines] + [f"{what}: {path}" for what, path in written.items()]


def summary_text(name: str, summary: Summary, first_error: str | None, budget: Mapping[str, Any] | None = None) -> str:
    """Format all figures of a run for `eval --verbose`; the arguments are those of `eval_lines`."""
    buffer = io.StringIO()
    shown = console(buffer)
    shown.print(comparison_table({name: summary}))
    repeats = summary.repeats
    if repeats is not None:
        shown.print(f"mean@{repeats.n} {_mean(repeats.mean)} %")
        for figure, by_k in (("maj", repeats.majority), ("pass", repeats.passed)):
            if repeats.n > 1:
                shown.print(", ".join(f"{figure}@{k} {_mean(mean)}" for k, mean in by_k.items()))
    decoded = {purpose: counts["decoded"] for purpose, counts in summary.mean_tokens_by_purpose.items()}
    shown.print(f"decoded tokens a request, by purpose: {_counts(decoded)}")
    if summary.audits is not None:
        shown.print(f"audits: {summary.audits}")
    if summary.lateness is not None:
        shown.print(str(summary.lateness))
    if summary.calibration_tokens is not None:
        spread = f"{amount(summary.mean_calibration_tokens)} decoded a request of this run, not in the figures above"
        shown.print(f"calibration tokens, spent before: {_counts(summary.calibration_tokens)}; {spread}")
    shown.print(f"for each right answer: {_counts(summary.per_right_answer or {})}")
    firsts = summary.seconds_to_first_token
    first_token = f"; to the first token: {_counts(firsts)}" if firsts else ""
    shown.print(f"seconds a request waited for: {_counts(summary.mean_seconds_by_phase)}{first_token}")
    if summary.jobs is not None:
        shown.print(f"requests: {shown_jobs(summary.jobs)}")
    shown.print(f"exit reasons: {_counts(summary.exit_reasons)}")
    shown.print(
        f"cut off by the budget: {summary.num_cut_off}; wrong: {summary.num_wrong}; no answer: "
        f"{summary.num_unanswered}; could not be compared: {summary.num_undetermined}"
    )
    shown.print(f"errors: {_counts(summary.errors)}" + (f"; the first, {first_error}" if first_error else ""))
    if budget is not None:
        shown.print(
            f"budget: {budget['spent_tokens']:,} of {budget['total_tokens']:,} decoded tokens ({budget['spending']}), "
            f"{budget['num_samples']} answers, {budget['fewest_samples']} to {budget['most_samples']} a question; "
            f"right: {budget['num_right']}, by only the first answers {budget['num_right_of_first_samples']}, by an "
            f"oracle's choice of these answers {budget['num_right_of_oracle']}"
        )
    for table in section_tables({name: summary}):
        shown.print(table)
    return buffer.getvalue().rstrip("\n")


def text_of(compared: Compared) -> str:
    """Format all tables and sentences for `compare --verbose`."""
    buffer = io.StringIO()
    shown = console(buffer)
    shown.print(comparison_table({run.name: run.summary for run in compared.runs}))
    shown.print(pairs_table(compared.comparisons))
    shown.print(reasons_table(compared.runs))
    if compared.loads:
        shown.print(load_table(compared.loads))
    for one in compared.comparisons:
        shown.print(f"{one.run}: {shown_mcnemar(one.mcnemar)}")
        shown.print(f"only {one.baseline} is right: {shown_keys(one.only_baseline_right)}")
        shown.print(f"only {one.run} is right: {shown_keys(one.only_run_right)}")
        shown.print(f"questions for a power of 0.9, {one.run}: {shown_needed(one.needed, one.margin)}")
    for sweep in compared.sweeps:
        shown.print(sweep_table(sweep))
        saving = shown_saving(sweep.saving)
        shown.print(f"{sweep.name}: decoded tokens saved at the accuracy of {sweep.baseline}: {saving}")
    for table in section_tables({run.name: run.summary for run in compared.runs}):
        shown.print(table)
    return buffer.getvalue().rstrip("\n")


def section_tables(runs: Mapping[str, Summary]) -> list[Table]:
    """Build a table of controllers' figures per section: a line per figure, a column per run with the section."""
    tables = []
    for section in dict.fromkeys(section for run in runs.values() for section in run.sections):
        those = {name: run.sections[section] for name, run in runs.items() if section in run.sections}
        table = Table(section, *those)
        for line in section_lines(list(those.values())):
            table.add_row(*line)
        tables.append(table)
    return tables


def section_lines(runs: Sequence[Mapping[str, SectionFigure]]) -> list[list[str]]:
    """Return the lines of one section: a figure's name, and its value in each run; counts have one line each."""
    lines = []
    for name in dict.fromkeys(name for figures in runs for name in figures):
        found = [figures.get(name) for figures in runs]
        of_counts = dict.fromkeys(which for one in found if one is not None for which in one.counts or {})
        if of_counts:
            lines += [[f"{name}: {which}", *(_shown_count(one, which) for one in found)] for which in of_counts]
        else:
            lines.append([name, *("-" if one is None else shown_figure(one) for one in found)])
    return lines


def shown_figure(figure: SectionFigure) -> str:
    if figure.value is None:
        return "-"
    ends = "" if figure.low is None or figure.high is None else between(figure.low, figure.high, ".4g")
    return f"{figure.value:.4g}{ends}" + (f" of {amount(figure.of)}" if figure.kind == "share" else "")


def shown_jobs(jobs: Mapping[str, Any]) -> str:
    rate = "" if jobs["an_hour"] is None else f", {amount(jobs['an_hour'])} an hour"
    each = (f"{what} a request {_counts(jobs[what])}" for what in ("tokens", "seconds"))
    return f"{jobs['num']}{rate}; {'; '.join(each)}"


def _shown_count(figure: SectionFigure | None, which: str) -> str:
    number = 0 if figure is None or figure.counts is None else figure.counts.get(which, 0)
    return amount(number) + (f" ({number / figure.num:.0%})" if figure is not None and figure.num else "")


def pairs_table(comparisons: Sequence[Comparison]) -> Table:
    """Build a table of comparisons: points, requests that only one gets right, ratios of tokens and seconds."""
    heads = ("n", "points", "only first right", "only it right", "p", "decoded", "computed", "seconds")
    table = Table(f"against {comparisons[0].baseline}", *heads)
    for one in comparisons:
        table.add_row(
            one.run,
            str(one.num_samples),
            shown_points(one.accuracy_difference),
            str(one.mcnemar.only_a),
            str(one.mcnemar.only_b),
            f"{one.mcnemar.p_value:.3g}",
            *(shown_ratio(ratio) for ratio in one.ratios.values()),
            "-" if one.seconds_ratio is None else f"{one.seconds_ratio:.3f}×",
        )
    return table


def shown_mcnemar(found: McNemar) -> str:
    return (
        f"only the first is right on {found.only_a:,}, only the other on {found.only_b:,}: "
        f"p = {found.p_value:.3g} (McNemar)"
    )


def reasons_table(runs: Sequence[FinishedRun]) -> Table:
    shares = [exit_shares(run) for run in runs]
    reasons = list(dict.fromkeys(reason for own in shares for reason in own))
    table = Table("exit reasons, %", *reasons)
    for run, own in zip(runs, shares, strict=True):
        table.add_row(run.name, *(f"{100 * own[reason]:.1f}" if reason in own else "-" for reason in reasons))
    return table


def exit_shares(run: FinishedRun) -> dict[str, float]:
    """Return the share of a run's requests by exit reason, most frequent first."""
    failed = {f"failed: {error}": num for error, num in run.tally.errors.items()}
    told = Counter({**run.tally.exit_reasons, **failed}).most_common()
    return {reason: num / run.tally.num_samples for reason, num in told}


def sweep_table(sweep: Sweep) -> Table:
    table = Table(sweep.name, "decoded", "correct %", "knobs")
    for point, knobs in sweep.runs:
        table.add_row(point.run, shown_estimate(point.tokens), _mean(point.accuracy), shown_knobs(knobs))
    return table


def shown_knobs(knobs: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in knobs.items())


def shown_saving(saving: Saving) -> str:
    """Format a sweep's saving at equal accuracy, as the end of a sentence."""
    if saving.saved is None:
        return f"not reached ({saving.reached_share:.0%} of the resamples reach it)"
    value, low, high = (f"{100 * number:.1f} %" for number in saving.saved)
    how = "interpolated" if saving.interpolated else "of its cheapest run, which is as accurate"
    return f"{value} ({'not reached' if low == '-inf %' else low} to {high}), {how}"


def shown_needed(needed: Needed, margin: float) -> str:
    apart, within = ("not estimable (or > 1,000,000)" if n is None else f"{n:,}" for n in needed)
    loss = f"a loss below {100 * margin:g} points, if there is none"
    return f"to show a difference as large as here: {apart}; to show {loss}: {within}"


def shown_keys(keys: Sequence[Key]) -> str:
    """List the first ids, with a slash and the epoch unless it is 0, and the number of others."""
    names = [key.id if key.epoch == 0 else f"{key.id}/{key.epoch}" for key in keys[:NUM_KEYS_SHOWN]]
    more = [f"and {len(keys) - NUM_KEYS_SHOWN} more"] if len(keys) > NUM_KEYS_SHOWN else []
    return ", ".join([*names, *more]) or "none"


def shown_points(difference: Estimate) -> str:
    value, low, high = (100 * number for number in difference)
    return f"{value:+.1f}{between(low, high, '+.1f')}"


def shown_ratio(ratio: Estimate | None) -> str:
    return "-" if ratio is None else f"{ratio.value:.3f}×{between(ratio.low, ratio.high, '.3f')}"


def shown_fewer(ratio: Estimate | None) -> str:
    """Format a ratio of tokens as what is saved, such as `66 % fewer (58 to 72)`."""
    if ratio is None:
        return "-"
    if ratio.value >= _TIMES:
        return f"{ratio.value:.3g}×{between(ratio.low, ratio.high, '.3g')}"
    if ratio.value <= 1:
        value, low, high = (100 * (1 - each) for each in (ratio.value, ratio.high, ratio.low))
    else:
        value, low, high = (100 * (each - 1) for each in ratio)
    return f"{value:.0f} % {'fewer' if ratio.value <= 1 else 'more'}{between(low, high, '.0f')}"


def shown_estimate(estimate: Estimate) -> str:
    return f"{estimate.value:.1f}{between(estimate.low, estimate.high)}"


def _mean(mean: Estimate) -> str:
    return shown_estimate(Estimate(*(100 * value for value in mean)))


def _percentage(share: float | None, interval: Interval) -> str:
    return "-" if share is None else _mean(Estimate(share, *interval))


def _amount(number: float | None) -> str:
    return "-" if number is None else amount(number)


def _cut(line: str) -> str:
    return line if len(line) <= _COLUMNS else line[: _COLUMNS - 3] + "..."


def _tail(name: str, width: int) -> str:
    return name if len(name) <= width else "..." + name[3 - width :]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _counts(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount(number)}" for name, number in counts.items()) or "none"


def _with_calibration(run: Summary) -> float:
    return (run.mean_decoded_tokens or 0.0) + run.mean_calibration_tokens
