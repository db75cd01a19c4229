"""A summary's figures are what the records say, and its table compares runs against the first."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scaffolding_ext.evaluation.report.terminal import drawn_line, eval_lines
from scaffolding_ext.evaluation.run.records import Record, RecordError
from scaffolding_ext.evaluation.run.run_stats import RunStats
from scaffolding_ext.evaluation.run.summary import Drawn, Summary, Undetermined, summarize, summary_of
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.request.ledger import Ledger
from scaffolding_ext.stats.intervals import wilson_interval


def make(correct: bool = True, decoded: int = 10, probe: int = 0, **changes: Any) -> Record:
    ledger = Ledger()
    ledger.add(Purpose.CHAIN, decoded, 3, 1)
    if probe:
        ledger.add(Purpose.PROBE, probe)
    ledger.num_unmetered_tasks = 1
    fields: dict[str, Any] = {
        "id": "a",
        "epoch": 0,
        "prompt_hash": "0" * 16,
        "target": "1",
        "output": "1",
        "answer": "1",
        "correct": correct,
        "verdict": "equal" if correct else "different",
        "exit_reason": "end",
        "ledger": ledger.to_json(),
        "seconds": {"total": 2.0},
        "seed": None,
        "trace": [],
        "error": None,
    }
    return Record(**fields | changes)


FAILED = make(False, 100, output=None, answer=None, verdict=None, exit_reason=None, error=RecordError("TaskError", "x"))


def test_a_summary_counts_and_averages_failed_samples_included() -> None:
    records = [
        make(True, 10, probe=6),
        make(False, 20, exit_reason="certain", seconds={"total": 4.0}),
        make(False, 30, answer=None, verdict=None, exit_reason=None),
        make(False, 40, verdict="undetermined"),
        make(False, 46, exit_reason="length", seconds={"total": 6.0, "chain": 3.0}),
        FAILED,
    ]
    records = [dataclasses.replace(record, id=str(i)) for i, record in enumerate(records)]
    summary = summarize(records)
    assert dataclasses.replace(summary, repeats=None) == Summary(
        num_samples=6,
        num_failed=1,
        num_correct=1,
        num_cut_off=1,
        num_unanswered=1,
        num_undetermined=1,
        num_wrong=1,
        accuracy=1 / 6,
        accuracy_interval=wilson_interval(1, 6),
        accuracy_of_finished=0.2,
        accuracy_of_finished_interval=wilson_interval(1, 5),
        repeats=None,
        total_tokens={"decoded": 252, "prefilled": 18, "reused": 6},
        mean_decoded_tokens=42.0,
        mean_computed_tokens=45.0,
        mean_tokens_by_purpose={
            "chain": {"decoded": 41.0, "prefilled": 3.0, "reused": 1.0},
            "probe": {"decoded": 1.0, "prefilled": 0.0, "reused": 0.0},
        },
        num_unmetered_tasks=6,
        mean_seconds=3.0,
        mean_seconds_by_phase={"chain": 0.5},
        cost=None,
        exit_reasons={"end": 2, "certain": 1, "unknown": 1, "length": 1},
        errors={"TaskError": 1},
        jobs={
            "num": 6,
            "tokens": {"mean": 42.0, "p50": 35.0, "p95": pytest.approx(86.5)},
            "seconds": {"mean": 3.0, "p50": 2.0, "p95": pytest.approx(5.5)},
        },
        sections={},
        undetermined=(Undetermined("3", "1", "1"),),
    )
    assert summary.repeats is not None
    assert (summary.repeats.n, summary.repeats.mean.value) == (1, pytest.approx(1 / 6))


def test_prices_give_costs() -> None:
    records = [make(True, 2_000_000), make(False, 2_000_000, id="b")]
    summary = summarize(records, price={"decoded": 1.5, "reused": 0})
    assert summary.cost == {"total": 6.0, "per_sample": 3.0}


def test_one_right_answer_and_nine_time_outs_are_not_perfect() -> None:
    summary = summarize([make(True), *(dataclasses.replace(FAILED, id=f"q{n}") for n in range(9))])
    assert (summary.accuracy, summary.accuracy_of_finished) == (0.1, 1.0)
    assert summary.accuracy_interval == wilson_interval(1, 10)
    assert summary.accuracy_of_finished_interval == wilson_interval(1, 1)


def test_time_outs_are_counted_apart_from_wrong_answers() -> None:
    late = dataclasses.replace(FAILED, error=RecordError("RequestTimeoutError", "x"))
    slow = dataclasses.replace(FAILED, error=RecordError("ServerTimeoutError", "x"))
    records = [make(True), make(True), make(True), make(False), late, slow, FAILED]
    summary = summarize([dataclasses.replace(record, id=str(n)) for n, record in enumerate(records)])
    assert (summary.num_wrong, summary.num_failed, summary.num_timed_out) == (1, 3, 2)
    assert summary.to_json()["num_timed_out"] == 2
    lines = eval_lines("run", summary)
    assert lines[:2] == [
        "run: 3 of 7 right, 42.9 (15.8 to 75.0) %",
        "of the 4 that ended in time 75.0 (30.1 to 95.4) % are right",
    ]
    assert "not right: 1 wrong, 2 timed out, 1 failed" in lines


def test_without_samples_nothing_is_claimed() -> None:
    summary = summarize([])
    assert summary.accuracy is summary.accuracy_of_finished is summary.mean_decoded_tokens is None
    assert summary.mean_seconds is None
    assert (summary.accuracy_interval.low, summary.accuracy_interval.high) == (0.0, 1.0)


def with_discarded(num_tokens: int) -> Record:
    ledger = Ledger()
    ledger.add(Purpose.CHAIN, 100)
    ledger.discard(Purpose.CHAIN, num_tokens)
    assert ledger.discarded_share == num_tokens / 100
    return make(ledger=ledger.to_json())


def test_drafts_that_a_rule_turned_down_were_not_decoded_in_vain() -> None:
    ledger = Ledger()
    ledger.add(Purpose.CHAIN, 100)
    ledger.discard(Purpose.CHAIN, 40, Purpose.REJECTED)
    summary = summarize([make(ledger=ledger.to_json())])
    assert (summary.discarded_share, summary.warnings) == (0.0, [])
    assert summary.mean_tokens_by_purpose["rejected"]["decoded"] == 40


def test_what_was_decoded_in_vain_is_shown_and_warned_about_above_a_tenth() -> None:
    little, much = summarize([with_discarded(10)]), summarize([with_discarded(10), with_discarded(13)])
    assert (little.discarded_share, little.warnings) == (0.1, [])
    assert much.discarded_share == 0.115
    [warning] = much.warnings
    assert warning.startswith("12% of the decoded tokens were discarded")
    assert "max_batch_size" in warning
    assert (summarize([]).discarded_share, summarize([]).warnings, Ledger().discarded_share) == (0.0, [], 0.0)
    assert "decoded tokens a request: 100, 12% of them discarded" in eval_lines("run", much)


def vote(number: str, drawn: int, decoded: int, discarded: int = 0, branch: tuple[int, ...] = ()) -> Record:
    ledger = Ledger()
    ledger.add(Purpose.CHAIN, decoded)
    if discarded:
        ledger.add(Purpose.DISCARDED, discarded)
    inner = {"event": "vote", "branch": [0], "num_samples": 9, "max_samples": 9}  # of a vote of votes
    event = inner | {"branch": list(branch), "num_samples": drawn, "max_samples": 16}
    return make(id=number, ledger=ledger.to_json(), trace=[inner, event])


def drawn_from(*records: Record) -> Summary:
    tally = RunStats()
    for record in records:
        tally.add(record)
    return summary_of(tally)


def test_a_vote_says_what_all_its_answers_would_have_taken() -> None:
    """Each vote's own tokens per answer count: hard questions draw more answers, and longer ones."""
    summary = drawn_from(vote("a", 2, 200), vote("b", 8, 2400, discarded=600))
    assert summary.drawn == (5.0, 16, 16 * (100 + 300) / 2)
    assert summary.mean_decoded_tokens == 1600
    told = "5 of 16 answers, 50 % saved; all 16 would take about 3,200 tokens"
    assert told in eval_lines("vote", summary)
    assert summary.to_json()["drawn"] == {"mean": 5.0, "most": 16, "tokens_of_all": 3200.0}


def test_a_vote_of_all_its_answers_saves_nothing_and_another_stack_draws_none() -> None:
    assert "16 of 16 answers a vote: none ended early" in eval_lines("vote", drawn_from(vote("a", 16, 1600)))
    assert drawn_from(vote("a", 2, 100, branch=(0,))).drawn is None
    assert drawn_from(make()).drawn is None


@pytest.mark.parametrize(
    ("drawn", "line"),
    [
        (Drawn(2.0, 4, 0.0), "2 of 4 answers a vote"),  # nothing counted their tokens
        (Drawn(4.0, 4, 0.0), "4 of 4 answers a vote: none ended early"),
        (Drawn(4.0, 4, 400.0), "4 of 4 answers a vote: none ended early"),
        (Drawn(2.0, 4, 400.0), "2 of 4 answers, 50 % saved; all 4 would take about 400 tokens"),
        (Drawn(3.0, 4, 160.0), "3 of 4 answers, 25 % more; all 4 would take about 160 tokens"),
    ],
)
def test_a_vote_says_what_it_drew_of_all_answers_and_saved(drawn: Drawn, line: str) -> None:
    assert drawn_line(drawn, 200.0) == line
