"""Votes that roll: samples count one by one, the same ones at any load, and what does not count leaves no mark."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from scaffolding_ext import DynasorCoTController, HuggingFaceWorker, MajorityVoteController, ScaffoldingLlm
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling
from scaffolding_ext.controllers.vote.allocation.base import SequentialRule, Standing, Votes
from scaffolding_ext.controllers.vote.allocation.baselines import Even, LengthThreshold
from scaffolding_ext.errors import ConfigError, TaskError
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.host import dispatch
from scaffolding_ext.protocol import Controller, GenerationTask, ParallelProcess, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, meta_of
from scaffolding_ext.protocol.tasks import RollingBranches
from scaffolding_ext.registry import allocation_rules, vote_weights
from scaffolding_ext.testing import ScriptedWorker
from tests.recorded_worker import Characters

NATIVE = NativeGenerationController({"temperature": 0.7, "max_tokens": 1000})
SAMPLES = 12


def reply(task: Any) -> str:
    """A short chain that says 7, or a longer one that says something else."""
    rng = random.Random(task.seed)
    is_seven = rng.random() < 0.6
    text = "".join(rng.choice("abcdefgh ") for _ in range(rng.randrange(10, 60 if is_seven else 400)))
    return f"{text} \\boxed{{{7 if is_seven else rng.randrange(3)}}}"


def likely(task: Any, index: int) -> dict[int, float]:
    token = task.output_tokens[index]
    return {1000 + n: -n - 0.5 for n in range(19)} | {token: -1 - token % 5}


class Slow(ScriptedWorker):
    """Takes some turns of the loop for each call, other numbers of them in each run."""

    def __init__(self, load: int, respond: Callable[[Any], Any] = reply) -> None:
        self.rng, self.load = random.Random(load), load
        self.num_running = self.most_running = 0
        super().__init__(respond, before=self.wait, logprobs=likely)

    async def wait(self, task: Any) -> None:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            for _ in range(self.rng.randrange(self.load)):
                await asyncio.sleep(0)
        finally:
            self.num_running -= 1

    async def _stream(self, task: Any) -> TaskStatus:
        """Writes some tokens ahead of those that are awaited."""
        most = meta_of(task).may_run_to or 1000
        position = len(task.output_tokens or ())
        task.streaming_step = max(task.streaming_step, min(self.rng.randrange(4 * self.load), most - position))
        return await super()._stream(task)

    task_handlers = {**ScriptedWorker.task_handlers, StreamGenerationTask: _stream}  # noqa: RUF012


class WholeTexts(Slow):
    """Serves no streams."""

    task_handlers = {GenerationTask: ScriptedWorker.task_handlers[GenerationTask]}  # noqa: RUF012


def vote(in_flight: int | None = 4, **arguments: Any) -> MajorityVoteController:
    return MajorityVoteController(arguments.pop("inner", NATIVE), SAMPLES, in_flight=in_flight, **arguments)


def run(controller: Any, worker: Any, num: int = 1, **when: Any) -> list[Any]:
    controller.prompting = Characters()
    with ScaffoldingLlm(controller, {"generation": worker}, seed=2) as llm:
        results = [llm.generate_async(f"what? {n}", sample_id=str(n), timeout=60, **when) for n in range(num)]
        for result in results:
            result.exception()
    return results


def told(result: Any) -> Any:
    """All that must not depend on the load; of branches that run at once, the order of their events does."""
    trace = [{key: value for key, value in event.items() if key != "seconds"} for event in result.program.trace]
    trace.sort(key=lambda event: event["branch"])
    return result.outputs[0].text, result.answer, trace, dict(result.program.figures)


def events(result: Any, name: str) -> list[Any]:
    return [event for event in result.program.trace if event["event"] == name]


def chain() -> DynasorCoTController:
    return DynasorCoTController(900, 2, 32, family="instruct", sampling_params={"temperature": 0.7})


CASES: dict[str, Callable[[], Any]] = {
    "tokens": vote,
    "one at a time": lambda: vote(1),
    "index": lambda: vote(order="index"),
    "chains": lambda: vote(inner=chain()),
    "doubling": lambda: vote(allocation=AgreementDoubling()),
    "value": lambda: vote(allocation="ValueOfVote"),
    "value by index": lambda: vote(allocation="ValueOfVote", order="index"),
    "a few of a flight": lambda: vote(allocation=Even(num_samples=3)),
    "shortness": lambda: vote(weight="shortness", allocation=None),
    "nested": lambda: vote(inner=MajorityVoteController(NATIVE, 3, in_flight=2)),
    "over rounds": lambda: vote(inner=MajorityVoteController(NATIVE, 3)),
}


class VowelShare(Controller):
    """A reward of a text."""

    def process(self, tasks: list[Any], **kwargs: Any) -> Any:
        self.scores = [task.output_str.count("a") / len(task.output_str) for task in tasks]
        yield []


WEIGHTS = {name: {"weight": name, "allocation": None} for name in vote_weights.names()}
WEIGHTS["reward"]["reward_controller"] = VowelShare()
FITTED = ("DynamicSkyline", "InitialStepSkyline", "LengthThreshold")  # they need arguments
RULES: dict[str, Any] = {name: {"allocation": name} for name in allocation_rules.names() if name not in FITTED}
RULES["LengthThreshold"] = {"allocation": LengthThreshold(max_mean_length=100)}


@pytest.mark.parametrize("arguments", [*RULES.values(), *WEIGHTS.values()], ids=[*RULES, *WEIGHTS])
def test_rounds_of_chains_repeat_at_any_load(arguments: Any) -> None:
    """Workers write ahead of what a chain reads; how far depends on the load, and decides nothing."""
    inner = NATIVE if arguments.get("weight") == "mean_logprob" else chain()
    calm, busy = ([told(each) for each in run(vote(None, inner=inner, **arguments), Slow(load), 4)] for load in (1, 20))
    assert calm == busy


@pytest.mark.parametrize("case", CASES)
def test_a_vote_repeats_at_any_load(case: str) -> None:
    calm, busy, again = ([told(each) for each in run(CASES[case](), Slow(load), 8)] for load in (1, 7, 40))
    assert calm == busy == again


def in_order_of_tokens(lengths: list[int], num_running: int) -> list[int]:
    """Lengths in the order in which samples end that are drawn at one speed, so many at once."""
    running = [(length, index) for index, length in enumerate(lengths[:num_running])]
    waiting, order = list(enumerate(lengths))[num_running:], []
    while running:
        now, index = first = min(running)
        running.remove(first)
        order.append(lengths[index])
        if waiting:
            index, length = waiting.pop(0)
            running.append((now + length, index))
    return order


def test_samples_count_by_their_tokens() -> None:
    whole, rolled = (run(vote(number, allocation=None), Slow(20), 5) for number in (None, 4))
    for drawn, result in zip(whole, rolled, strict=True):
        lengths = events(drawn, "vote")[0]["num_decoded"]
        assert events(result, "vote")[0]["num_decoded"] == in_order_of_tokens(lengths, 4) != lengths


@dataclass(frozen=True, kw_only=True)
class ReadsTokens(SequentialRule):
    """Never ends the vote, and keeps what it is shown."""

    seen: list[Votes] = field(default_factory=list)

    def is_certain(self, standing: Standing) -> bool:
        return False

    def _num_more(self, votes: Votes) -> int:
        self.seen.append(votes)
        return 1


def test_rules_see_what_running_samples_have_written() -> None:
    """By tokens, on the clock on which each begins as its predecessor counts; else as many as the longest so far."""
    (drawn,) = run(vote(None, allocation=None), Slow(20))
    lengths = events(drawn, "vote")[0]["num_decoded"]
    running, waiting, written = {(length, 0) for length in lengths[:4]}, lengths[4:], []
    while running:
        first = now, _ = min(running)
        running.remove(first)
        written.append(sum(now - began for _, began in running))
        running |= {(now + length, now) for length in waiting[:1]}
        waiting = waiting[1:]
    by_tokens, by_index = ReadsTokens(), ReadsTokens()
    run(vote(4, allocation=by_tokens), Slow(20))
    assert [votes.running_tokens for votes in by_tokens.seen] == [0, *written[:-1]]
    run(vote(4, allocation=by_index), WholeTexts(20))
    longest = [max(lengths[:number]) * min(4, SAMPLES - number) for number in range(1, SAMPLES)]
    assert [votes.running_tokens for votes in by_index.seen] == [0, *longest]


def test_by_index_the_votes_are_those_of_one_by_one_sampling() -> None:
    def counted(controller: Any) -> list[Any]:
        return [(each.answer, events(each, "vote")[0]["answers"]) for each in run(controller, Slow(9), 6)]

    assert counted(vote(order="index")) == counted(vote(None, allocation="LeaderChange"))


@pytest.mark.parametrize("order", ["tokens", "index", "arrival"])
def test_so_many_run_at_once_and_the_rest_is_cancelled(order: Any) -> None:
    worker = Slow(20)
    (result,) = run(vote(3, order=order), worker)
    assert worker.most_running <= 3
    assert worker.num_running == 0
    by_purpose = result.program.ledger.by_purpose
    (event,) = events(result, "vote")
    assert result.exit_reason == "certain"
    assert by_purpose[Purpose.CHAIN].decoded == sum(event["num_decoded"])
    written = sum(len(task.output_tokens or ()) for task in worker.tasks)
    discarded = by_purpose.get(Purpose.DISCARDED, TokenCounts()).decoded
    assert discarded == written - by_purpose[Purpose.CHAIN].decoded
    assert discarded > 0 or order == "arrival"  # whole texts, which were not written at once


def test_what_does_not_count_leaves_no_mark() -> None:
    for result in run(vote(inner=chain()), Slow(20), 4):
        (event,) = events(result, "vote")
        spoke = {each["branch"][0] for each in result.program.trace if each["branch"]}
        assert len(spoke) == event["num_samples"] < SAMPLES
        reasons = result.program.figures["DynasorCoTController"]["stop_reason"]
        assert sum(reasons.values()) == event["num_samples"]


def test_a_worker_without_streams_counts_by_index() -> None:
    (result,) = run(vote(), WholeTexts(5))
    (event,) = events(result, "fallback")
    assert (event["what"], event["asked"], event["given"]) == ("order", "tokens", "index")
    (plain,) = run(vote(None), WholeTexts(5))
    assert events(result, "vote")[0]["answers"] == events(plain, "vote")[0]["answers"]


def failing(*numbers: int) -> Callable[[Any], Any]:
    calls = Counter[str]()

    def respond(task: Any) -> Any:
        calls["all"] += 1
        return RuntimeError("the engine broke") if calls["all"] - 1 in numbers else reply(task)

    return respond


def test_a_failure_fails_the_vote_once_it_would_count() -> None:
    (result,) = run(vote(order="index"), Slow(1, failing(1)))
    assert isinstance(result.exception(), TaskError)
    (result,) = run(vote(order="index"), Slow(1, failing(9)))  # begun ahead, and not needed
    assert result.exception() is None
    assert events(result, "vote")[0]["num_samples"] < 9


def test_allowed_failures_are_counted_apart() -> None:
    (result,) = run(vote(order="index", allow_failed=2), Slow(1, failing(0, 2)))
    assert [event["sample"] for event in events(result, "sample_failed")] == [0, 2]
    assert events(result, "vote")[0]["num_failed"] == 2


def test_all_may_fail_but_the_last() -> None:
    (result,) = run(vote(order="index", allow_failed=SAMPLES), Slow(3, failing(*range(SAMPLES - 1))))
    assert (result.exception(), result.exit_reason) == (None, "vote")
    (result,) = run(vote(order="index", allow_failed=SAMPLES), Slow(3, failing(*range(SAMPLES))))
    assert isinstance(result.exception(), TaskError)


class Deaf(Slow):
    """Ends four calls, and ignores that the others are cancelled until it is let go."""

    def __init__(self) -> None:
        super().__init__(1, lambda task: "\\boxed{7}")
        self.num_calls = 0
        self.is_free = asyncio.Event()

    async def wait(self, task: Any) -> None:
        self.num_calls += 1
        while self.num_calls > 4 and not self.is_free.is_set():
            try:
                await self.is_free.wait()
            except asyncio.CancelledError:
                asyncio.get_running_loop().call_later(0.2, self.is_free.set)


def test_a_settled_vote_waits_for_cancelled_workers_no_longer_than_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "GRACE_SECONDS", 0.01)
    worker = Deaf()
    (result,) = run(vote(8, order="arrival"), worker)
    assert (result.answer, result.exit_reason) == ("7", "certain")
    assert events(result, "vote")[0]["seconds"] < 0.2


def test_under_another_host_it_draws_rounds() -> None:
    def under_another(controller: Any) -> Any:
        controller.bind({"generation": ScriptedWorker(reply)})
        return contextvars.Context().run(lambda: asyncio.run(drive(controller.clone().generate("what?"))))

    async def drive(work_items: Any) -> Any:
        worker = ScriptedWorker(lambda task: f"\\boxed{{{len(task.input_str)}}}")
        while True:
            try:
                work = next(work_items)
            except StopIteration as end:
                return end.value
            assert not isinstance(work, RollingBranches)
            if isinstance(work, ParallelProcess):
                for branch in work.sub_gens:
                    await drive(iter(branch))
            else:
                for task in work:
                    await worker.run_task(task)

    rolled, rounds = under_another(vote()), under_another(vote(None))
    lowered = [event for event in rolled.program.trace if event["event"] == "fallback"]
    assert [(event["what"], event["to"]) for event in lowered] == [("in_flight", "rounds")]
    assert (rolled.text, rolled.exit_reason) == (rounds.text, rounds.exit_reason)


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigError, match="in_flight"):
        vote(0)
    with pytest.raises(ConfigError, match="order"):
        vote(order="luck")


def test_texts_of_a_real_model_are_those_of_rounds() -> None:
    prompts = [each.prompt for each in load_dataset("tinylm:held_out", num_samples=2)]
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 200})

    def drawn(at_once: int) -> list[Any]:
        with HuggingFaceWorker("tinylm/draft", max_batch_size=8) as worker:
            controller = MajorityVoteController(native, 5, in_flight=3)
            with ScaffoldingLlm(controller, {"generation": worker}, at_once, seed=1) as llm:
                results = [llm.generate_async(prompt, sample_id=str(n)) for n, prompt in enumerate(prompts)]
                return [told(result) for result in results if result.result()]

    assert drawn(1) == drawn(2)
