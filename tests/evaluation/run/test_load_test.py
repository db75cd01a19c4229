"""Requests that arrive by the clock: none is lost, those without room are refused by name, and a run is taken up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError, ServerBusyError
from scaffolding_ext.evaluation.compare.compared import compare_runs
from scaffolding_ext.evaluation.report.terminal import eval_lines, text_of
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.load_test import PICTURE, requests_of, run_arrivals
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.run_folder import claimed
from scaffolding_ext.evaluation.run.runner import EvaluationJob, LocalEngine, failed_record
from scaffolding_ext.evaluation.run.session import Session
from scaffolding_ext.evaluation.run.tally import Tally
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.testing import ScriptedWorker


def jobs(number: int) -> list[EvaluationJob]:
    return [EvaluationJob(Example(str(index), f"{index}?", "4"), 0) for index in range(number)]


class Held:
    """An engine whose jobs end when they are told to."""

    max_parallel_requests = 1

    def __init__(self) -> None:
        self.began: list[str] = []
        self.may_end = asyncio.Event()
        self.all_came = asyncio.Event()

    async def run(self, job: EvaluationJob) -> Record:
        self.began.append(job.sample.id)
        await self.may_end.wait()
        return failed_record(job, ValueError("of the engine"))


def test_requests_come_whether_or_not_others_have_ended_and_the_queue_is_bounded() -> None:
    async def run() -> tuple[list[str], dict[str, str]]:
        engine, records = Held(), dict[str, str]()

        def keep(record: Record) -> None:
            assert record.error is not None
            records[record.id] = record.error.type
            if record.id == "4":  # the last: it is refused, as the one before it
                engine.may_end.set()

        await run_arrivals(engine, jobs(5), [0.0] * 5, keep, lambda: False, max_queue=2)
        return engine.began, records

    began, errors = asyncio.run(run())
    assert began == ["0", "1", "2"]
    assert errors == {"3": "QueueFullError", "4": "QueueFullError", **dict.fromkeys("012", "ValueError")}


def test_an_interrupt_stops_arrivals_and_an_error_ends_the_run() -> None:
    async def run(fails: bool) -> list[str]:
        engine = Held()
        engine.may_end.set()
        kept: list[str] = []

        def keep(record: Record) -> None:
            if fails:
                raise OSError("the disk is full")
            kept.append(record.id)

        await run_arrivals(engine, jobs(5), [0.0] * 5, keep, lambda: len(engine.began) == 2, max_queue=9)
        return kept

    assert asyncio.run(run(fails=False)) == ["0", "1"]
    with pytest.raises(OSError, match="the disk is full"):
        asyncio.run(run(fails=True))


def test_a_server_without_room_is_named_in_the_record() -> None:
    def busy(task: Any) -> str:
        raise ServerBusyError("too busy (429)")

    with ScaffoldingLlm(NativeGenerationController(), {"generation": ScriptedWorker(busy)}) as llm:
        record = asyncio.run(LocalEngine(llm, slo=2.0).run(jobs(1)[0]))
    assert record.error is not None
    assert (record.error.type, record.seconds["within"]) == ("ServerBusyError", 2.0)
    tally = Tally()
    tally.add(record)
    assert (tally.num_failed, tally.num_refused) == (1, 1)
    assert requests_of(tally.columns()).is_refused.all()


def config(folder: Path, **evaluation: Any) -> StackConfig:
    rows = [{"id": str(number), "prompt": "2+2?", "target": "4"} for number in range(30)]
    data = folder / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return StackConfig.model_validate(
        {
            "controller": {"type": "NativeGenerationController"},
            "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "The answer is 4."}}},
            "dataset": {"source": str(data)},
            "evaluation": {"arrival_rate": 2000.0, "slo": 60.0} | evaluation,
        }
    )


def finished(stack: StackConfig, folder: Path, resume: bool = False) -> dict[str, Any]:
    with claimed(folder, resume=resume) as goes_on:
        session = Session.of(stack.for_run(), folder)
        if goes_on:
            session.take_up(is_mended=True)
        return session.finish(session.go(print)).document


def test_a_run_has_figures_and_a_picture_and_is_compared(tmp_path: Path) -> None:
    document = finished(config(tmp_path), tmp_path / "a")
    load = document["load"]
    assert (load["num"], load["num_answered"], load["num_refused"]) == (30, 30, 0)
    assert load["in_time"]["value"] == 1
    assert load["seconds"].keys() == {"mean", "p50", "p90", "p99"}
    assert (tmp_path / "a" / PICTURE).stat().st_size > 1000
    assert document["summary"]["lateness"]["right_in_time"]["value"] == 1

    late = finished(config(tmp_path, slo=1e-9), tmp_path / "b")
    assert late["load"]["num_late"] == late["summary"]["lateness"]["num_late_right"] == 30
    assert late["summary"]["num_correct"] == 30  # late, not wrong
    compared = compare_runs([tmp_path / "a", tmp_path / "b"])
    assert compared.loads["b"].more_in_time is not None
    assert compared.loads["b"].more_in_time.value == -1
    assert "under load" in text_of(compared)


def test_a_load_test_is_taken_up_where_it_ended(tmp_path: Path) -> None:
    whole = finished(config(tmp_path), tmp_path / "whole")
    finished(config(tmp_path, limit=12), tmp_path / "part")
    again = finished(config(tmp_path), tmp_path / "part", resume=True)
    assert again["load"]["num"] == whole["load"]["num"] == 30
    rows = (tmp_path / "part" / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(row)["id"] for row in rows) == sorted(str(number) for number in range(30))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_tokens": 100}, "arrival_rate needs the engine local, and no total_tokens"),
        ({"arrival_rate": None, "burst": 2}, "burst is given without arrival_rate"),
        ({"arrival_rate": 0}, "arrival_rate"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        config(tmp_path, **changes)


def test_arrivals_keep_their_gaps_when_a_run_goes_on(tmp_path: Path) -> None:
    session = Session.of(config(tmp_path).for_run(), None)
    every = list(next(session._rounds()))
    whole, part = (np.array(session._arrivals(each)) for each in (every, every[12:]))
    np.testing.assert_allclose(np.diff(part), np.diff(whole[12:]))
    assert part[0] == whole[0]


def test_eval_ends_with_what_the_load_came_to(tmp_path: Path) -> None:
    session = Session.of(config(tmp_path).for_run(), None)
    found = session.finish(session.go(print))
    lines = eval_lines("test", found.summary, load=found.document["load"])
    assert len(lines) <= 8
    assert any("100.0% in time, 0 late, 0 refused" in line for line in lines)
