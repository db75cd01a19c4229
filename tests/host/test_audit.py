"""Audits: the caller has the early answer at once; behind it the request runs again with nothing to stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from scaffolding_ext import (
    DynasorCoTController,
    HuggingFaceWorker,
    MajorityVoteController,
    NativeGenerationController,
    ScaffoldingLlm,
)
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, note
from scaffolding_ext.protocol.worker import BaseWorker
from scaffolding_ext.request.program import current_program, seconds_left

SAMPLES = 8


class Dice(BaseWorker):
    """Answers 0, 1 or 2 by the task's seed, and says what it decoded."""

    tasks = (GenerationTask,)

    async def run_task(self, task: Any) -> TaskStatus:
        answer = task.seed % 7 % 3
        task.output_str, task.output_tokens = f"so \\boxed{{{answer}}}", [answer] * (answer + 2)
        note(task, counts=TokenCounts(answer + 2, 1, 0))
        return TaskStatus.SUCCESS


def vote(audit: float, allocation: Any = "LeaderChange") -> MajorityVoteController:
    native = NativeGenerationController({"temperature": 0.7})
    return audited(MajorityVoteController(native, SAMPLES, allocation=allocation), audit)


def audited(controller: Any, share: float = 1.0) -> Any:
    controller.audit = share
    return controller


def run(controller: Any, worker: Any, prompts: Sequence[str]) -> list[Any]:
    async def all_of(llm: ScaffoldingLlm) -> list[Any]:
        results = [llm.generate_async(prompt, sample_id=str(n)) for n, prompt in enumerate(prompts)]
        return [(await result, await result.audited()) for result in results]

    with ScaffoldingLlm(controller, {"generation": worker}, seed=4) as llm:
        return asyncio.run(all_of(llm))


def test_an_audited_vote_finds_what_the_full_vote_says() -> None:
    prompts = ["what?"] * 60
    checked, plain, full = (run(vote(*each), Dice(), prompts) for each in ((1.0,), (0.0,), (0.0, None)))
    assert {result.exit_reason for result, _ in checked} == {"certain", "vote"}
    assert {finding.changed for _, finding in checked} == {False, True}
    for (result, finding), (early, nothing), (whole, _) in zip(checked, plain, full, strict=True):
        assert nothing is None
        assert (result.answer, result.outputs[0].text) == (early.answer, early.outputs[0].text)
        assert finding == (early.answer, whole.answer, early.answer != whole.answer)
        ledger, own = result.program.ledger.by_purpose, early.program.ledger.by_purpose
        behind = ledger.pop(Purpose.AUDIT, TokenCounts())
        assert ledger == own
        is_early = result.exit_reason not in ("vote",)
        assert behind.decoded == (whole.program.ledger.total.decoded if is_early else 0)
        (event,) = [event for event in result.program.trace if event["event"] == "audit"]
        assert (event["early"], event["whole"], event["changed"]) == finding


def test_an_audited_chain_is_written_to_its_end() -> None:
    chain = DynasorCoTController(1000, 2, 32, sampling_params={"temperature": 0.7})
    prompts = [each.prompt for each in load_dataset("tinylm:held_out", num_samples=3)]
    with HuggingFaceWorker("tinylm/target") as worker:
        found = run(audited(chain), worker, prompts)
    stopped = [(result, finding) for result, finding in found if result.exit_reason == "certain"]
    assert stopped
    for result, finding in stopped:
        assert finding.early == result.answer
        assert result.program.ledger.by_purpose[Purpose.AUDIT].decoded > 0
    for result, finding in found:
        if result.exit_reason != "certain":
            assert finding == (result.answer, result.answer, False)


def test_the_share_is_drawn_from_the_seed() -> None:
    chosen = [[finding is not None for _, finding in run(vote(0.3), Dice(), ["what?"] * 200)] for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert 40 <= sum(chosen[0]) <= 80  # 60 with a standard deviation of 6.5


def test_a_part_of_a_vote_is_not_audited() -> None:
    inner = vote(1.0)
    ((result, finding),) = run(MajorityVoteController(inner, 2, allocation=None), Dice(), ["what?"])
    assert finding is None
    assert Purpose.AUDIT not in result.program.ledger.by_purpose


class Numbered(BaseWorker):
    """Answers 7 in the first nine calls, and 8, at greater length, behind them; tells how long each call has."""

    tasks = (GenerationTask,)

    def __init__(self) -> None:
        super().__init__()
        self.has_deadline: list[bool] = []

    async def run_task(self, task: Any) -> TaskStatus:
        self.has_deadline.append(seconds_left() is not None)
        assert self.has_deadline[-1] == (current_program().place.progress.deadline is not None)
        is_early = len(self.has_deadline) <= SAMPLES + 1
        task.output_str, task.output_tokens = f"so \\boxed{{{7 if is_early else 8}}}", [1] * (2 if is_early else 9)
        note(task, counts=TokenCounts(len(task.output_tokens), 1, 0))
        return TaskStatus.SUCCESS


def test_an_audit_waits_for_all_samples_though_the_rule_waits_for_the_first() -> None:
    """The vote has two sevens of the first to finish; its audit adds one seven and five eights."""
    ((result, finding),) = run(vote(1.0, {"type": "FirstToFinish", "args": {"num_first": 2}}), Numbered(), ["what?"])
    assert finding == (result.answer, "8", True)


def test_an_audit_has_no_deadline() -> None:
    worker = Numbered()
    rule = {"type": "StaticThreshold", "args": {"threshold": 0.9, "knob": 2}}
    with ScaffoldingLlm(vote(1.0, rule), {"generation": worker}, seed=4, deadline=600) as llm:
        result = llm.generate_async("what?")
        assert asyncio.run(result.audited()) == ("7", "7", False)
    assert worker.has_deadline == [True] * 2 + [False] * SAMPLES


@pytest.mark.parametrize(
    "controller", [vote(1.0), audited(DynasorCoTController(1000, mode="chunk"))], ids=["vote", "chain"]
)
def test_what_its_deadline_cut_is_not_audited(controller: Any) -> None:
    with ScaffoldingLlm(controller, {"generation": Unfinished()}, seed=4, deadline=1e-6) as llm:
        result = llm.generate_async("what?")
        assert asyncio.run(result.audited()) is None
        assert result.result().exit_reason == "deadline"
    assert Purpose.AUDIT not in result.program.ledger.by_purpose


class Unfinished(Dice):
    """Writes as many tokens as it is asked for."""

    async def run_task(self, task: Any) -> TaskStatus:
        status = await super().run_task(task)
        task.output_tokens = [1] * (task.max_tokens or 5)
        return status


class Told(BaseWorker):
    """Answers 7, in the order of its events: samples behind the first two wait until they are let go, or fail."""

    tasks = (GenerationTask,)

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        self.go = asyncio.Event()
        self.fails = False

    async def run_task(self, task: Any) -> TaskStatus:
        self.num_calls += 1
        if self.num_calls > 2:
            await self.go.wait()
            if self.fails:
                raise RuntimeError("the engine is gone")
        task.output_str, task.output_tokens = "so \\boxed{7}", [1, 2, 3]
        return TaskStatus.SUCCESS


def early_vote() -> MajorityVoteController:
    rule = {"type": "StaticThreshold", "args": {"threshold": 0.9, "knob": 2}}
    native = NativeGenerationController({"temperature": 0.7})
    return audited(MajorityVoteController(native, 4, allocation=rule))  # type: ignore[arg-type,no-any-return]


@pytest.mark.parametrize("fails", [False, True])
def test_the_caller_has_the_answer_before_the_audit_ends(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        worker = Told()
        worker.fails = fails
        llm = ScaffoldingLlm(early_vote(), {"generation": worker}, seed=1)
        try:
            result = llm.generate_async("what?")
            await result
            assert (result.answer, result.program.audit.finding) == ("7", None)
            llm.loop.call_soon_threadsafe(worker.go.set)
            finding = await result.audited()
            assert finding == (None if fails else ("7", "7", False))
            assert result.failure is None
            (event,) = [event for event in result.program.trace if event["event"] == "audit"]
            assert ("failed" in event) == fails
        finally:
            await asyncio.to_thread(llm.shutdown)

    asyncio.run(scenario())
    assert ("the audit of request" in caplog.text) == fails


def test_a_shutdown_ends_an_audit_and_says_so() -> None:
    worker = Told()
    llm = ScaffoldingLlm(early_vote(), {"generation": worker}, seed=1)
    result = llm.generate_async("what?")
    assert result.result().answer == "7"
    llm.shutdown()
    assert asyncio.run(result.audited()) is None
    (event,) = [event for event in result.program.trace if event["event"] == "audit"]
    assert event["failed"] == "the host was shut down"
    assert worker.num_calls == 2 + 4


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_is_between_none_and_all(share: float) -> None:
    with pytest.raises(ConfigError, match="audit"):
        vote(share).bind({"generation": Dice()})
