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
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain.stopping.base import Never
from scaffolding_ext.controllers.rule import DecisionRule
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, TaskStatus
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


class Counting(DecisionRule[str]):
    """Learns from each sample."""

    def __init__(self) -> None:
        self.num_seen = 0

    def observe(self, ended: str) -> None:
        self.num_seen += 1


class Telling(BaseController):
    def __init__(self, rule: Counting) -> None:
        super().__init__()
        self.rule = rule

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        yield from NativeGenerationController({"temperature": 0.7}).process([task], **kwargs)
        Run(self, task).tell(self.rule, task.output_str or "")


def test_a_twin_teaches_the_rules_of_the_stack_nothing() -> None:
    rule = Counting()
    controller = audited(MajorityVoteController(Telling(rule), SAMPLES, allocation="LeaderChange"))
    ((result, finding),) = run(controller, Dice(), ["what?"])
    assert finding is not None
    (vote,) = (event for event in result.program.trace if event["event"] == "vote")
    assert rule.num_seen == vote["num_samples"] < SAMPLES


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
        drawn = whole.program.ledger.total.decoded - own[Purpose.CHAIN].decoded
        assert behind.decoded == (drawn if is_early else 0)
        (event,) = [event for event in result.program.trace if event["event"] == "audit"]
        assert (event["early"], event["whole"], event["changed"]) == finding


@pytest.mark.parametrize("mode", ["stream", "chunk"])
def test_an_audited_chain_is_written_to_its_end(mode: Any) -> None:
    def chain(**how: Any) -> DynasorCoTController:
        return DynasorCoTController(1000, chunk_size=32, mode=mode, sampling_params={"temperature": 0.7}, **how)

    prompts = [each.prompt for each in load_dataset("tinylm:held_out", num_samples=3)]
    with HuggingFaceWorker("tinylm/target") as worker:
        found = run(audited(chain(certainty_threshold=2)), worker, prompts)
        whole = run(chain(rule=Never()), worker, prompts)
    stopped = [(n, result, finding) for n, (result, finding) in enumerate(found) if result.exit_reason == "certain"]
    assert stopped
    for number, result, finding in stopped:
        full, _ = whole[number]
        assert finding == (result.answer, full.answer, finding.changed)
        own, audit = (result.program.ledger.by_purpose[each].decoded for each in (Purpose.CHAIN, Purpose.AUDIT))
        total = full.program.ledger.total.decoded
        assert audit == total if mode == "stream" else total - own <= audit < total  # a stopped stream begins again
    for result, finding in found:
        if result.exit_reason != "certain":
            assert finding == (result.answer, result.answer, False)


def test_the_share_is_drawn_from_the_seed() -> None:
    chosen = [[finding is not None for _, finding in run(vote(0.3), Dice(), ["what?"] * 200)] for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert 40 <= sum(chosen[0]) <= 80  # 60 with a standard deviation of 6.5


def test_an_audit_needs_a_seed() -> None:
    with pytest.raises(ConfigError, match="audit: needs a seed"):
        ScaffoldingLlm(vote(0.5), {"generation": Dice()})


BY_INDEX = {"in_flight": 3, "order": "index"}


@pytest.mark.parametrize(("num", "how"), [(8, {}), (4, {"in_flight": 3}), (4, BY_INDEX)])
def test_a_twin_equals_the_full_vote_and_runs_only_what_is_new(num: int, how: Any) -> None:
    native = NativeGenerationController({"temperature": 1.0, "max_tokens": 200})
    prompts = [each.prompt for each in load_dataset("tinylm:held_out", num_samples=num)]
    with HuggingFaceWorker("tinylm/draft") as worker:
        found = run(audited(MajorityVoteController(native, 6, **how)), worker, prompts)
        full = run(MajorityVoteController(native, 6, allocation=None), worker, prompts)
    for (early, finding), (whole, _) in zip(found, full, strict=True):
        assert finding.whole == whole.answer
        used = early.program.ledger.by_purpose
        own, audit = (used.get(purpose, TokenCounts()).decoded for purpose in (Purpose.CHAIN, Purpose.AUDIT))
        rest = whole.program.ledger.total.decoded - own
        if early.exit_reason == "certain":
            assert audit == rest if not how else audit <= rest  # samples that ended and did not count are reused, too


class Stumbling(Dice):
    """Fails at every third seed or so."""

    async def run_task(self, task: Any) -> TaskStatus:
        if task.seed % 3 == 0:
            raise RuntimeError("broke")
        return await super().run_task(task)


def test_what_failed_answers_no_task_of_the_twin() -> None:
    native = NativeGenerationController({"temperature": 0.7})
    votes = [MajorityVoteController(native, SAMPLES, allow_failed=7, **how) for how in ({}, {"allocation": None})]
    found, full = (run(each, Stumbling(), ["what?"] * 100) for each in (audited(votes[0]), votes[1]))
    assert {finding.changed for _, finding in found} == {False, True}
    assert [finding.whole for _, finding in found] == [whole.answer for whole, _ in full]


def test_a_part_of_a_vote_is_not_audited() -> None:
    inner = vote(1.0)
    ((result, finding),) = run(MajorityVoteController(inner, 2, allocation=None), Dice(), ["what?"])
    assert finding is None
    assert Purpose.AUDIT not in result.program.ledger.by_purpose


class Timed(BaseWorker):
    """Answers 7, and tells if each call has a deadline."""

    tasks = (GenerationTask,)

    def __init__(self) -> None:
        super().__init__()
        self.has_deadline: list[bool] = []

    async def run_task(self, task: Any) -> TaskStatus:
        self.has_deadline.append(seconds_left() is not None)
        assert self.has_deadline[-1] == (current_program().place.progress.deadline is not None)
        task.output_str, task.output_tokens = "so \\boxed{7}", [1, 1]
        note(task, counts=TokenCounts(2, 1, 0))
        return TaskStatus.SUCCESS


def test_an_audit_has_no_deadline() -> None:
    worker = Timed()
    rule = {"type": "StaticThreshold", "args": {"threshold": 0.9, "knob": 2}}
    with ScaffoldingLlm(vote(1.0, rule), {"generation": worker}, seed=4, deadline=600) as llm:
        result = llm.generate_async("what?")
        assert asyncio.run(result.audited()) == ("7", "7", False)
    assert worker.has_deadline == [True] * 2 + [False] * (SAMPLES - 2)


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
    assert worker.num_calls == 4


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_is_between_none_and_all(share: float) -> None:
    with pytest.raises(ConfigError, match="audit"):
        vote(share).bind({"generation": Dice()})
