"""Each vote of one's own changes what it says, and keeps the rest of the vote."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from votes import CheckedVote, HotterVote, LastVote, PairwiseVote, WordyVote

from scaffolding_ext import NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.protocol import Controller
from scaffolding_ext.testing import ScriptedWorker


class Longer(Controller):
    """Scores a text by its length."""

    def process(self, tasks: Any, **kwargs: Any) -> Any:
        self.scores = [float(len(task.output_str)) for task in tasks]
        yield []


def voted(kind: Any, *texts: str, **arguments: Any) -> tuple[Any, ScriptedWorker]:
    replies = itertools.cycle(texts)
    worker = ScriptedWorker(lambda task: next(replies))
    arguments = {"default_sample_num": len(texts), "allocation": None} | arguments
    with ScaffoldingLlm(kind(NativeGenerationController(), **arguments), {"generation": worker}, seed=0) as llm:
        return llm.generate("Question"), worker


def boxed(*answers: str) -> list[str]:
    return [rf"so \boxed{{{answer}}}" for answer in answers]


@pytest.mark.parametrize(("texts", "answer"), [(boxed("1", "1"), "2"), (boxed("1", "1", "1"), "1")])
def test_a_verifier_decides_only_a_close_vote(texts: list[str], answer: str) -> None:
    result, _ = voted(CheckedVote, *texts, r"so, thinking twice, \boxed{2}", verifier=Longer())
    assert result.answer == answer


@pytest.mark.parametrize("how", [{}, {"in_flight": 2, "order": "index"}])
def test_later_samples_are_hotter(how: Any) -> None:
    _, worker = voted(HotterVote, *boxed("1", "2", "3"), **how)
    assert sorted(task.temperature for task in worker.tasks) == pytest.approx([0.6, 0.7, 0.8])


def test_the_rule_is_asked_at_every_second_sample() -> None:
    result, worker = voted(PairwiseVote, *boxed("1", "1"), default_sample_num=16, allocation="LeaderChange")
    asked = [event["done"] for event in result.program.trace if event["event"] == "allocate"]
    assert len(worker.tasks) % 2 == 0
    assert asked[0] == 1 or all(done % 2 == 0 for done in asked)
    assert result.exit_reason == "certain"


def test_an_answer_of_one_word_does_not_count() -> None:
    result, _ = voted(WordyVote, *boxed(r"\text{yes}", r"\text{yes}", r"\text{a red fox}"))
    assert result.answer == r"\text{a red fox}"


def test_a_tie_goes_to_the_last_answer() -> None:
    assert voted(LastVote, *boxed("1", "2"))[0].answer == "2"
    assert voted(LastVote, *boxed("1", "1", "2"))[0].answer == "1"
