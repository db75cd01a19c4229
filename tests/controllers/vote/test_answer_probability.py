"""Votes weighed by the probability of the asked answer, and by shortness."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from scaffolding_ext import DynasorCoTController, HuggingFaceWorker, MajorityVoteController, ScaffoldingLlm
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.protocol.worker import BaseWorker


@pytest.fixture(scope="module")
def worker() -> Iterator[HuggingFaceWorker]:
    with HuggingFaceWorker("tinylm/target") as made:
        yield made


def run(controller: Any, worker: Any, prompt: str) -> Any:
    with ScaffoldingLlm(controller, {"generation": worker}, seed=2) as llm:
        return llm.generate(prompt)


class TwoMinds(BaseWorker):
    """Half of the samples say 1 and are unsure of it; the others say 2, seldom and surely."""

    tasks = (GenerationTask,)
    num_asked = 0

    async def run_task(self, task: Any) -> TaskStatus:
        if task.max_tokens == 20:  # asked for the answer
            TwoMinds.num_asked += 1
            sure = "boxed{2}" in task.input_str
            task.output_str, task.output_tokens = ("2}" if sure else "1}"), [3, 4]
            task.logprobs = [{number: TokenLogprob(math.log(0.9 if sure else 0.2))} for number in (3, 4)]
        else:
            answer = 2 if task.seed % 4 == 0 else 1
            task.output_str, task.output_tokens = f"so \\boxed{{{answer}}}", [1] * (5 + answer)
        return TaskStatus.SUCCESS


def test_a_sure_minority_outvotes_an_unsure_majority() -> None:
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 64})
    plain, weighed = (
        run(MajorityVoteController(native, 8, allocation=None, weight=weight), TwoMinds(), "1 or 2?")
        for weight in ("uniform", "answer_probability")
    )
    votes = [next(event for event in each.program.trace if event["event"] == "vote") for each in (plain, weighed)]
    assert votes[0]["answers"] == votes[1]["answers"]
    assert 2 <= votes[0]["answers"].count("2") <= 3
    assert (plain.answer, weighed.answer) == ("1", "2")
    expected = [0.9 if answer == "2" else 0.2 for answer in votes[1]["answers"]]
    assert votes[1]["weights"] == pytest.approx(expected)
    assert TwoMinds.num_asked == 8


def test_a_whole_chain_is_asked_once_for_its_answer(worker: HuggingFaceWorker) -> None:
    prompt = load_dataset("tinylm:held_out", num_samples=1)[0].prompt
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 1000})
    result = run(MajorityVoteController(native, 3, allocation=None, weight="answer_probability"), worker, prompt)
    vote = next(event for event in result.program.trace if event["event"] == "vote")
    assert [weight > 0 for weight in vote["weights"]] == [answer is not None for answer in vote["answers"]]
    assert all(0 <= weight <= 1 for weight in vote["weights"])
    probes = result.program.ledger.by_purpose[Purpose.PROBE]
    assert 0 < probes.decoded <= 3 * 20


def test_a_stopped_chain_weighs_what_its_last_look_told(worker: HuggingFaceWorker) -> None:
    prompt = load_dataset("tinylm:held_out", num_samples=1)[0].prompt
    chain = DynasorCoTController(1000, chunk_size=32, rule="confidence", sampling_params={"temperature": 0.7})
    result = run(MajorityVoteController(chain, 3, allocation=None, weight="answer_probability"), worker, prompt)
    trace = result.program.trace
    vote = next(event for event in trace if event["event"] == "vote")
    for number in range(3):
        own = [event for event in trace if event["branch"] == [number]]
        if own[-1]["event"] == "stop":
            last = [event for event in own if event["event"] == "probe"][-1]
            assert vote["weights"][number] == pytest.approx(last["confidence"])
    assert any(event["event"] == "stop" for event in trace)


def test_shortness_lets_the_shorter_of_two_answers_win() -> None:
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 64})
    result = run(MajorityVoteController(native, 8, allocation=None, weight="shortness"), TwoMinds(), "1 or 2?")
    vote = next(event for event in result.program.trace if event["event"] == "vote")
    assert vote["weights"] == pytest.approx([1 / decoded for decoded in vote["num_decoded"]])
    assert result.answer == "1"
