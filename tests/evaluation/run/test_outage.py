"""A server that is down for a while costs a run time and no samples."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.errors import EngineError, ServerDownError
from scaffolding_ext.evaluation.run import outage as module
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.evaluation.run.outage import Outage
from scaffolding_ext.evaluation.run.records import Record, read_records
from scaffolding_ext.evaluation.run.runner import EvaluationJob, failed_record, jobs_of, run_jobs

SAMPLES = [Example(str(number), f"{number}?", "1") for number in range(12)]


class Server:
    """An engine whose server is down from one call to another; time passes only in sleeps."""

    max_parallel_requests = 4

    def __init__(self, is_down: Callable[[int, EvaluationJob], bool], error: type[Exception] = ServerDownError) -> None:
        self.calls: Counter[str] = Counter()
        self.now = 0.0
        self.said: list[str] = []
        self._is_down, self._error = is_down, error
        self.is_stopped: Callable[[], bool] = lambda: False

    async def run(self, job: EvaluationJob) -> Record:
        await asyncio.sleep(0)
        number = self.calls.total()
        self.calls[job.sample.id] += 1
        record = failed_record(job, self._error("cannot reach it"))
        return record if self._is_down(number, job) else dataclasses.replace(record, error=None, correct=True)

    async def is_up(self) -> bool:
        """A question of the test, which time answers as a job would."""
        number = self.calls.total()
        self.calls["asked"] += 1
        return not self._is_down(number, EvaluationJob(Example("asked", "", ""), 0))

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def serve(self, limit: float = 600.0, samples: Sequence[Example] = SAMPLES) -> tuple[list[Record], Outage]:
        records: list[Record] = []
        outage = Outage(limit, self.said.append, self.is_up, self.is_stopped, lambda: self.now, self.sleep)
        asyncio.run(run_jobs(self, jobs_of(samples, 1), records.append, outage=outage))
        return records, outage


def test_all_samples_are_run_once_the_server_is_back() -> None:
    server = Server(lambda number, job: 5 <= number < 20)
    records, outage = server.serve()
    assert sorted(record.id for record in records) == sorted(sample.id for sample in SAMPLES)
    assert all(record.error is None for record in records)
    assert not outage.given_up
    assert server.said[0] == "a server is down; waiting up to 600 s for it: cannot reach it"
    assert server.said[-1].startswith("the server is back after ")
    assert len(server.said) == 2


def test_a_server_that_stays_away_leaves_no_failed_samples() -> None:
    server = Server(lambda number, job: number >= 6)
    records, outage = server.serve(limit=60.0)
    assert len(records) == 6
    assert all(record.error is None for record in records)
    assert outage.given_up
    assert 60.0 < server.now <= 60.0 + 2 * module._PAUSE_SECONDS


def test_a_run_that_is_to_stop_waits_no_longer() -> None:
    server = Server(lambda number, job: number >= 6)
    server.is_stopped = lambda: server.now >= 20.0
    records, outage = server.serve()
    assert len(records) == 6
    assert outage.given_up
    assert server.now == 20.0


@pytest.mark.parametrize(
    ("num", "poison", "at_once"),
    [(100, 3, 4), (100, 3, 1), (100, 50, 1), (100, 99, 4), (100, 99, 1), (100, 97, 4), (1, 0, 4)],
)
def test_a_sample_at_which_the_server_breaks_off_each_time_fails_alone(num: int, poison: int, at_once: int) -> None:
    many = [Example(str(number), f"{number}?", "1") for number in range(num)]
    server = Server(lambda number, job: job.sample.id == str(poison))
    server.max_parallel_requests = at_once
    records, outage = server.serve(samples=many)
    assert len(records) == num
    assert [record.id for record in records if record.error is not None] == [str(poison)]
    assert server.calls[str(poison)] == module._MOST_TRIES
    assert not outage.given_up


@pytest.mark.parametrize(("limit", "error"), [(0.0, ServerDownError), (600.0, EngineError)])
def test_other_failures_are_recorded_at_once(limit: float, error: type[Exception]) -> None:
    server = Server(lambda number, job: number == 2, error)
    records, _ = server.serve(limit)
    assert [record.error.type for record in records if record.error is not None] == [error.__name__]
    assert server.now == 0.0


def test_eval_stops_with_what_is_left_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    from scaffolding_ext.testing import ScriptedWorker
    from tests.servers.openai_server import OpenAIServer

    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.001)
    dead = {"from": 2}

    def fault(number: int, request: Any) -> str | None:
        return "reset" if number >= dead["from"] else None

    (tmp_path / "q.jsonl").write_text("".join(f'{{"question": "{n}?", "answer": "1"}}\n' for n in range(6)))
    with OpenAIServer(ScriptedWorker(r"\boxed{1}"), "m", flavor="openai", fault=fault) as server:
        worker = {"flavor": "openai", "endpoint": "chat", "max_retries": 0}
        arguments = ["eval", "--config", "configs:native", "--model", "m", "--base_url", server.url]
        arguments += [
            part for key, value in worker.items() for part in ("--set", f"workers.generation.args.{key}={value}")
        ]
        arguments += ["--dataset", str(tmp_path / "q.jsonl"), "--output_path", str(tmp_path / "run")]
        arguments += ["--set", "max_parallel_requests=2"]
        stopped = CliRunner().invoke(main, [*arguments, "--set", "evaluation.outage_seconds=0.05"])
        assert stopped.exit_code == 1
        assert "waiting up to 0.05 s" in stopped.stderr
        assert "right" in stopped.stdout
        done = read_records(tmp_path / "run" / "samples.jsonl")
        assert f"{6 - len(done)} requests left, go on with --resume" in stopped.stderr
        assert all(record.error is None for record in done)
        dead["from"] = 1 << 30
        again = CliRunner().invoke(main, [*arguments, "--resume"])
    assert again.exit_code == 0, again.output
    assert len(read_records(tmp_path / "run" / "samples.jsonl")) == 6


def test_a_run_without_any_answer_says_that_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    from scaffolding_ext.testing import ScriptedWorker
    from tests.servers.openai_server import OpenAIServer

    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.001)
    (tmp_path / "q.jsonl").write_text('{"question": "1?", "answer": "1"}\n')
    with OpenAIServer(ScriptedWorker("1"), "m", flavor="openai", fault=lambda *_: "reset") as server:
        worker = {"base_url": server.url, "model": "m", "flavor": "openai", "endpoint": "chat", "max_retries": 0}
        arguments = ["eval", "--config", "configs:native", "--dataset", str(tmp_path / "q.jsonl")]
        arguments += ["--set", "workers.generation.type=OpenAIWorker"]
        arguments += ["--set", f"workers.generation.args={json.dumps(worker)}"]
        arguments += ["--output_path", str(tmp_path / "run"), "--set", "evaluation.outage_seconds=0.05"]
        stopped = CliRunner().invoke(main, arguments)
    assert (stopped.exit_code, stopped.stdout) == (1, "")
    assert "1 requests left, run it again" in stopped.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("workers.generation.args.timeout_seconds=1", "ServerTimeoutError"),
        ("evaluation.request_timeout=1", "RequestTimeoutError"),
    ],
)
def test_time_outs_are_told_apart_from_wrong_answers(tmp_path: Path, setting: str, error: str) -> None:
    pytest.importorskip("openai")
    from scaffolding_ext.testing import ScriptedWorker
    from tests.servers.openai_server import OpenAIServer

    def fault(number: int, request: Any) -> str | None:
        return "slow" if "3?" in str(request.body) else None  # it never answers

    (tmp_path / "q.jsonl").write_text("".join(f'{{"question": "{n}?", "answer": "{n % 3}"}}\n' for n in range(4)))
    with OpenAIServer(ScriptedWorker(r"\boxed{1}"), "m", flavor="openai", fault=fault) as server:
        arguments = ["eval", "--config", "configs:native", "--model", "m", "--base_url", server.url]
        arguments += ["--dataset", str(tmp_path / "q.jsonl"), "--set", "workers.generation.args.max_retries=0"]
        arguments += ["--output_path", str(tmp_path / "run"), "--set", setting]
        told = CliRunner().invoke(main, arguments).stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["summary"]
    assert summary["errors"] == {error: 1}
    assert (summary["num_correct"], summary["num_wrong"], summary["num_timed_out"]) == (1, 2, 1)
    assert "of the 3 that ended in time 33.3" in told
    assert "not right: 2 wrong, 1 timed out\n" in told
