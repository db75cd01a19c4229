"""The tally of a run, and taking a run up again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.evaluation.run.records import each_record, read_records
from scaffolding_ext.evaluation.run.run_stats import OUTCOMES, RunStats
from scaffolding_ext.evaluation.run.summary import summarize, summary_of

FIGURES = {"Vote": {"samples": 4, "maj@n": [1, 1], "stop_reason": {"vote": 1}}}


@pytest.fixture
def samples(write_run: Callable[..., Path]) -> Path:
    """A run of three epochs with everything in it that a summary tells of."""
    rows: list[Any] = []
    for number in range(24):
        more: dict[str, Any] = {"epoch": number % 3, "answer": f"{number % 5}", "verdict": "different", "probes": 3}
        more["trace"] = [{"event": "vote", "branch": [], "seconds": 0.1, "num_samples": 4, "num_rounds": 2}]
        more["figures"] = FIGURES if number % 2 else {"Other": {"depth": number}}
        more["seconds"] = {"total": 1.0 + number, "ended_at": 100.0 + number, "chain": 0.5}
        if number == 7:
            more |= {"verdict": "undetermined"}
        if number == 8:
            more |= {"answer": None, "verdict": None, "exit_reason": "length"}
        rows.append((f"q{number // 3}", number % 2, 10 + number, more))
    return write_run("run", rows) / "samples.jsonl"


def test_a_tally_counts_what_its_records_say(samples: Path) -> None:
    records = read_records(samples)
    tally = RunStats()
    for record in records:
        tally.add(record)
    assert summary_of(tally) == summarize(records)
    assert (tally.num_samples, tally.num_correct) == (24, 12)
    assert OUTCOMES[int(tally.columns()["outcome"][8])] == "cut_off"
    assert tally.columns()["decoded"].tolist() == [record.ledger["total"]["decoded"] for record in records]


def test_votes_of_several_rounds_tell_their_sizes_and_nothing_else_does(samples: Path) -> None:
    vote = {"event": "vote", "num_rounds": 2, "num_samples": 5}
    others = [vote | {"num_rounds": 1, "num_samples": 6}, vote | {"event": "allocate", "num_samples": 7}]
    tally = RunStats()
    tally.add(dataclasses.replace(next(each_record(samples)), trace=[vote, *others]))
    assert tally.vote_sizes == {"5": 1}
