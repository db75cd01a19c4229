"""Every sample becomes a record, whatever happens to it, in the order of the samples."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import EngineError
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import Record, prompt_hash
from scaffolding_ext.evaluation.run.run_stats import RunStats
from scaffolding_ext.evaluation.run.runner import LocalEngine, evaluate, jobs_of, run_jobs
from scaffolding_ext.evaluation.run.summary import summary_of
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, ScaffoldingOutput
from scaffolding_ext.testing import FakeClock, Reply, ScriptedWorker

WAIT = 30.0


def samples(*numbers: int) -> list[Example]:
    return [Example(f"s{number}", f"say {number}", str(number)) for number in numbers]


def said(task: Any) -> Reply:
    """The answer that the prompt asks for."""
    return f"\\boxed{{{task.input_str.split()[1]}}}"


def host(worker: ScriptedWorker, controller: Controller | None = None, **options: Any) -> ScaffoldingLlm:
    return ScaffoldingLlm(controller or NativeGenerationController(), {"generation": worker}, **options)


def test_a_record_holds_everything_that_a_request_came_to() -> None:
    with host(ScriptedWorker(said), seed=3) as llm:
        [record] = evaluate(llm, samples(7))
        again = llm.generate("say 7", sample_id="s7")
    assert record == Record(
        id="s7",
        epoch=0,
        prompt_hash=prompt_hash("say 7"),
        target="7",
        output="\\boxed{7}",
        answer="7",
        correct=True,
        verdict="equal",
        exit_reason="end",
        ledger=again.program.ledger.to_json(),
        seconds=record.seconds,
        seed=again.program.seeds.seed,
        trace=[],
        error=None,
        prompt="say 7",
        figures={},
    )
    assert record.ledger["total"]["decoded"] == len("\\boxed{7}")


def test_the_trace_is_kept() -> None:
    controller = DynasorCoTController(chunk_size=4, certainty_threshold=1)
    with host(ScriptedWorker("7} and so on and on"), controller) as llm:
        [record] = evaluate(llm, samples(7))
    assert [decision["event"] for decision in record.trace] == ["begin", "probe", "stop"]
    assert record.exit_reason == "certain"


def test_records_come_back_in_the_order_of_the_samples_and_are_told_in_the_order_of_completion() -> None:
    others_done = threading.Event()

    async def before(task: GenerationTask) -> None:
        if task.input_str == "say 1":
            await asyncio.to_thread(others_done.wait, WAIT)

    told: list[str] = []

    def on_record(record: Record) -> None:
        told.append(record.id)
        if len(told) == 2:
            others_done.set()

    with host(ScriptedWorker(said, before=before)) as llm:
        records = evaluate(llm, samples(1, 2, 3), on_record=on_record)
    assert [record.id for record in records] == ["s1", "s2", "s3"]
    assert sorted(told[:2]) == ["s2", "s3"]
    assert told[2] == "s1"


def test_epochs_repeat_each_sample_with_seeds_of_its_own() -> None:
    with host(ScriptedWorker(said), seed=0) as llm:
        records = evaluate(llm, samples(1, 2), epochs=3)
    assert [(record.id, record.epoch) for record in records] == [(f"s{n}", e) for n in (1, 2) for e in range(3)]
    assert len({record.seed for record in records}) == 6


def test_a_failure_becomes_a_record_and_the_others_go_on() -> None:
    def respond(task: Any) -> Reply:
        return EngineError("the engine is gone") if task.input_str == "say 2" else said(task)

    with host(ScriptedWorker(respond)) as llm:
        good, bad, good_too = evaluate(llm, samples(1, 2, 3))
    assert good.correct
    assert good_too.correct
    assert bad.error is not None
    assert bad.error.type == "TaskError"
    assert "the engine is gone" in bad.error.message
    assert (bad.output, bad.answer, bad.correct, bad.verdict, bad.exit_reason) == (None, None, False, None, None)


def test_a_request_that_takes_too_long_becomes_a_record() -> None:
    async def forever(task: GenerationTask) -> None:
        await asyncio.Event().wait()

    with host(ScriptedWorker("", before=forever)) as llm:
        [record] = evaluate(llm, samples(1), timeout=0.01)
    assert record.error is not None
    assert record.error.type == "RequestTimeoutError"


def test_an_answer_is_read_from_the_text_of_a_controller_that_gives_none() -> None:
    class Bare(Controller):
        def generate(self, prompt: str, **kwargs: Any) -> ControllerGenerator:
            yield []
            return ScaffoldingOutput("So \\boxed{1}.", None)

    with host(ScriptedWorker(""), Bare()) as llm:
        [record] = evaluate(llm, samples(1))
    assert (record.answer, record.correct, record.exit_reason) == ("1", True, None)


def test_no_more_requests_are_in_flight_than_the_host_runs() -> None:
    """With one request at a time, the clock that each task moves shows that none waited for another."""
    clock = FakeClock()

    async def before(task: GenerationTask) -> None:
        clock.advance(1.0)

    with host(ScriptedWorker(said, before=before), max_parallel_requests=1) as llm:
        records = evaluate(llm, samples(1, 2, 3), clock=clock)
    assert [record.seconds["total"] for record in records] == [1.0] * 3


def test_an_error_in_the_callback_ends_the_run_and_its_requests() -> None:
    held = threading.Event()

    async def before(task: GenerationTask) -> None:
        if task.input_str == "say 2":
            held.set()
            await asyncio.Event().wait()

    def on_record(record: Record) -> None:
        held.wait(WAIT)
        raise OSError("disk full")

    with host(ScriptedWorker(said, before=before)) as llm, pytest.raises(OSError, match="disk full"):
        evaluate(llm, samples(1, 2), on_record=on_record)


def test_cancelling_an_evaluation_cancels_its_requests() -> None:
    async def scenario() -> None:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        cancelled = asyncio.Event()

        async def before(task: GenerationTask) -> None:
            loop.call_soon_threadsafe(arrived.set)
            try:
                await asyncio.Event().wait()
            finally:
                loop.call_soon_threadsafe(cancelled.set)

        with host(ScriptedWorker("", before=before)) as llm:
            running = asyncio.create_task(run_jobs(LocalEngine(llm), jobs_of(samples(1), 1), [].append))
            await arrived.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await asyncio.wait_for(cancelled.wait(), WAIT)

    asyncio.run(scenario())


def test_evaluate_runs_beside_an_event_loop_in_a_thread() -> None:
    async def scenario() -> int:
        with host(ScriptedWorker(said)) as llm:
            return len(await asyncio.to_thread(evaluate, llm, samples(1, 2)))

    assert asyncio.run(scenario()) == 2


def test_wrong_arguments_are_refused() -> None:
    with host(ScriptedWorker("")) as llm:
        with pytest.raises(ValueError, match="epochs: is 0"):
            evaluate(llm, samples(1), epochs=0)
        with pytest.raises(ValueError, match="ids must be unique"):
            evaluate(llm, samples(1, 1))


def test_a_record_tells_what_stopping_has_changed_and_the_summary_holds_it_against_the_promise() -> None:
    """The first two samples say a wrong answer, the other four the right one: each vote that stops is wrong."""
    native = NativeGenerationController({"temperature": 0.7})
    rule: Any = {"type": "StaticThreshold", "args": {"threshold": 0.9, "knob": 2}}
    vote = MajorityVoteController(native, 6, allocation=rule)
    vote.audit = 1.0
    num_calls: dict[str, int] = {}

    def early_wrong(task: Any) -> Reply:
        number = num_calls[task.input_str] = num_calls.get(task.input_str, 0) + 1
        right = task.input_str.split()[1]
        return f"\\boxed{{{right if number > 2 else 0}}}"

    with host(ScriptedWorker(early_wrong), vote, seed=3) as llm:
        records = evaluate(llm, samples(*range(1, 31)))
    assert all(not record.correct for record in records)
    assert all(record.audit == {"whole": record.target, "changed": True, "correct": True} for record in records)
    assert all(record.ledger["by_purpose"]["audit"]["decoded"] for record in records)
    tally = RunStats()
    for record in records:
        tally.add(Record.from_json(record.to_json()))
    audits = summary_of(tally, promised_loss=0.02).audits
    assert audits is not None
    assert (audits.num, audits.num_changed, audits.num_lost, audits.is_broken) == (30, 30, 30, True)
    assert "the promise of this stack is broken" in " ".join(summary_of(tally, promised_loss=0.02).warnings)
    assert summary_of(tally).audits is not None
    assert not any("promise" in warning for warning in summary_of(tally).warnings)
