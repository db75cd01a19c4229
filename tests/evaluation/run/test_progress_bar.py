"""The progress of a run: a bar on a terminal, else lines."""

from __future__ import annotations

import pytest

from scaffolding_ext.evaluation.run.progress_bar import Heartbeat, progress_shown
from scaffolding_ext.evaluation.run.records import Record, RecordError
from scaffolding_ext.evaluation.run.run_stats import RunStats
from scaffolding_ext.testing import FakeClock


def record_of(number: int, decoded: int = 500, failed: bool = False) -> Record:
    ledger = {
        "total": {"decoded": decoded, "prefilled": 0, "reused": 0},
        "by_purpose": {},
        "num_unmetered_tasks": 0,
    }
    error = RecordError("TaskError", "gone") if failed else None
    right = not failed and number % 2 == 0
    return Record(f"{number}", 0, "0" * 16, "1", "1", "1", right, None, None, ledger, {"total": 1.0}, None, [], error)


def show(clock: FakeClock) -> None:
    """Ten of twenty are there already; the others take 3 s each, and the 15th fails."""
    tally = RunStats()
    for number in range(10):
        tally.add(record_of(number))
    with progress_shown(20, tally, clock) as shown:
        for number in range(10, 20):
            clock.advance(3.0)
            tally.add(record := record_of(number, failed=number == 15))
            shown(record)


def test_lines_say_accuracy_tokens_failures_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    show(FakeClock())
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "12 of 20 done, 50.0% right, 6,000 tokens, 0 failed, 0:00:24 left",
        "14 of 20 done, 50.0% right, 7,000 tokens, 0 failed, 0:00:18 left",
        "16 of 20 done, 50.0% right, 8,000 tokens, 1 failed, 0:00:12 left",
        "18 of 20 done, 50.0% right, 9,000 tokens, 1 failed, 0:00:06 left",
        "20 of 20 done, 50.0% right, 10,000 tokens, 1 failed",
    ]


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    show(FakeClock())
    written = capsys.readouterr().err
    assert "10/20" in written
    assert "50.0% right, 10,000 tokens, 1 failed" in written
    assert " done, " not in written


def test_a_budget_is_shown_in_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    tally, clock = RunStats(), FakeClock()
    with progress_shown(1000, tally, clock, in_tokens=True) as shown:
        for number, decoded in enumerate((60, 30, 250, 0, 700)):
            clock.advance(1.0)
            tally.add(record := record_of(number, decoded))
            shown(record)
    assert capsys.readouterr().err.splitlines() == [
        "340 of 1000 tokens done, 66.7% right, 340 tokens, 0 failed, 0:00:06 left",
        "1040 of 1000 tokens done, 60.0% right, 1,040 tokens, 0 failed",
    ]


def test_a_beat_says_if_tokens_come_while_no_request_ends() -> None:
    clock, seen = FakeClock(), {"ended": 0, "written": 100}
    heartbeat = Heartbeat(lambda: seen["ended"], lambda: seen["written"], clock)

    def beat(**more: int) -> str | None:
        clock.advance(10.0)
        seen.update(more)
        return heartbeat.beat()

    assert beat() == "nothing has come for 10 s (a server sends whole answers at their end)"
    assert beat() == "nothing has come for 20 s (a server sends whole answers at their end)"
    assert beat(written=3100) == "3,100 tokens so far, 100 a second"
    assert beat(written=4100) == "4,100 tokens so far, 100 a second"
    assert beat(ended=1) is None
    assert beat() == "nothing has come for 10 s (a server sends whole answers at their end)"
