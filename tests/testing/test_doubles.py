"""The public doubles do what workers do, and the contract catches controllers that break it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol import (
    Controller,
    ControllerGenerator,
    GenerationTask,
    RewardTask,
    StreamGenerationTask,
    TaskStatus,
)
from scaffolding_ext.protocol.meta import TokenCounts, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.testing import FakeClock, Gate, ScriptedWorker
from scaffolding_ext.testing.controller_contract import (
    check_clone_is_independent,
    check_gives_text,
    check_ledger_counts_decoded_tokens,
    check_requests_do_not_mix,
    check_runs_in_a_plain_for_loop,
    check_samples_differ,
    check_worker_failure_is_raised,
)


def served(worker: ScriptedWorker, task: Any) -> Any:
    assert asyncio.run(worker.run_task(task)) is TaskStatus.SUCCESS
    return task


# ---- ScriptedWorker


def test_a_text_reply_has_one_token_a_character() -> None:
    task = served(ScriptedWorker(lambda task: task.input_str.upper()), GenerationTask(input_str="ab"))
    assert (task.output_str, task.output_tokens, task.finish_reason) == ("AB", [65, 66], "stop")
    assert token_counts_of(task) == TokenCounts(decoded=2, prefilled=2)


def test_token_ids_and_text_are_the_same_reply() -> None:
    task = served(ScriptedWorker(lambda task: [65, 66]), GenerationTask(input_tokens=[1, 2, 3]))
    assert (task.output_str, task.output_tokens) == ("AB", [65, 66])
    assert token_counts_of(task) == TokenCounts(decoded=2, prefilled=3)


@pytest.mark.parametrize(
    ("max_tokens", "text", "reason"), [(2, "ab", "length"), (3, "abc", "stop"), (9, "abc", "stop")]
)
def test_max_tokens_cuts_and_says_so(max_tokens: int, text: str, reason: str) -> None:
    task = served(ScriptedWorker("abc"), GenerationTask(input_str="", max_tokens=max_tokens))
    assert (task.output_str, task.finish_reason) == (text, reason)


def test_a_stream_grows_by_its_step_until_the_end() -> None:
    worker = ScriptedWorker("abcde")
    task = StreamGenerationTask(input_str="xy", streaming_step=2)
    seen = [served(worker, task).output_str, served(worker, task).output_str]
    assert not task.end_flag
    assert task.finish_reason is None
    seen.append(served(worker, task).output_str)
    assert seen == ["ab", "abcd", "abcde"]
    assert (task.end_flag, task.finish_reason) == (True, "stop")
    assert token_counts_of(task) == TokenCounts(decoded=5, prefilled=2)  # cumulative, the prompt once
    assert worker.tasks == [task]


def test_a_cancelled_stream_ends_where_it_is() -> None:
    worker = ScriptedWorker("abcde")
    task = served(worker, StreamGenerationTask(input_str="", streaming_step=2))
    task.cancel_flag = True
    served(worker, task)
    assert (task.output_str, task.end_flag) == ("ab", True)
    assert token_counts_of(task) == TokenCounts(decoded=2)


def test_a_score_is_a_list_of_log_probabilities() -> None:
    task = served(ScriptedWorker(lambda task: [-1.0, -2.0]), ScoreTask(input_str="abc", continuation_str="de"))
    assert task.logprobs == [-1.0, -2.0]
    assert token_counts_of(task) == TokenCounts(prefilled=5)


def test_a_score_cannot_be_text() -> None:
    with pytest.raises(TypeError, match="log-probabilities"):
        served(ScriptedWorker("text"), ScoreTask(input_str="a", continuation_str="b"))


def test_an_exception_is_raised_returned_or_not() -> None:
    error = EngineError("gone")
    with pytest.raises(EngineError, match="gone"):
        served(ScriptedWorker(lambda task: error), GenerationTask(input_str=""))


def test_other_tasks_are_not_supported() -> None:
    assert asyncio.run(ScriptedWorker("").run_task(RewardTask())) is TaskStatus.WORKER_NOT_SUPPORTED


def test_an_unmetered_worker_records_no_counts() -> None:
    task = served(ScriptedWorker("ab", metered=False), GenerationTask(input_str="abc"))
    assert token_counts_of(task) == TokenCounts(decoded=2)  # the estimate from the token ids


def test_before_orders_tasks_by_events() -> None:
    async def scenario() -> list[str]:
        gate, finished = asyncio.Event(), []

        async def before(task: GenerationTask) -> None:
            if task.input_str == "first":
                await gate.wait()

        worker = ScriptedWorker("", before=before)

        async def run(name: str) -> None:
            await worker.run_task(GenerationTask(input_str=name))
            finished.append(name)

        held = asyncio.create_task(run("first"))
        await run("second")
        gate.set()
        await held
        return finished

    assert asyncio.run(scenario()) == ["second", "first"]


def test_the_clock_moves_when_told_to() -> None:
    clock = FakeClock()
    clock.advance(1.5)
    assert clock() == 1.5
    with pytest.raises(ValueError, match="monotonic"):
        clock.advance(-1)


# ---- the contract


class Echo(BaseController):
    """A well-behaved controller; the broken ones below each break one thing."""

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        task.worker_tag = "generation"
        yield [task]


class Empty(Echo):
    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        yield from super().run(task)
        task.output_str = ""


class SameObject(Echo):
    def clone(self) -> BaseController:
        return self


class Mixing(Echo):
    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, Any] = {}

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        yield from super().run(task)
        self.last.setdefault("text", task.output_str)
        task.output_str = self.last["text"]


class Lasting(Echo):
    """After a failed request no other one gets its answer."""

    num_open = 0

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        Lasting.num_open += 1
        yield from super().run(task)
        Lasting.num_open -= 1  # in no `finally`, so a failed request stays open
        task.output_str = "busy" if Lasting.num_open else task.output_str


class Unmetered(Echo):
    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        yield from super().run(task)
        yield [task]  # a plain task that comes back is counted twice


class WantsAnswers(Echo):
    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        task.worker_tag = "generation"
        if (yield [task]) is None:
            raise RuntimeError("nothing was sent in")


class SameSeed(Echo):
    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        samples = [GenerationTask(worker_tag="generation", input_str=task.input_str, seed=5) for _ in range(3)]
        yield samples
        task.output_str = samples[0].output_str


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (check_samples_differ, SameSeed),
        (check_gives_text, Empty),
        (check_clone_is_independent, SameObject),
        (check_requests_do_not_mix, Mixing),
        (check_worker_failure_is_raised, Lasting),
        (check_ledger_counts_decoded_tokens, Unmetered),
    ],
)
def test_the_contract_catches_what_breaks_it(check: Callable[[Any], None], broken: type[Controller]) -> None:
    with pytest.raises(AssertionError):
        check(broken)


def test_a_controller_that_waits_for_sent_values_fails_in_the_plain_loop() -> None:
    with pytest.raises(RuntimeError, match="nothing was sent in"):
        check_runs_in_a_plain_for_loop(WantsAnswers)


def test_a_gate_holds_tasks_until_it_is_opened_and_tells_who_came():
    gate = Gate(timeout=0.01)
    with pytest.raises(TimeoutError, match=r"0 of 1 tasks arrived at the gate in 0\.01 s"):
        gate.wait_for(1)

    async def serve():
        worker = ScriptedWorker("x", before=gate)
        first, second = (asyncio.ensure_future(worker.run_task(GenerationTask(input_str=text))) for text in "ab")
        await asyncio.sleep(0)
        gate.wait_for(2)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        gate.wait_for_cancelled(1)
        assert not first.done()
        gate.open()
        await first
        await worker.run_task(GenerationTask(input_str="c"))  # open for those to come, too
        gate.wait_for(1)

    asyncio.run(serve())
