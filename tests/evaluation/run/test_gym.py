"""Verifiers of a dataset's own decide, where it has them."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from scaffolding_ext.controllers.native_generation import NativeGenerationController
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.evaluation.run.datasets import Sample, load_dataset
from scaffolding_ext.evaluation.run.gym import Verifier
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.evaluation.run.scoring import Score
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.testing import ScriptedWorker


class Task:
    """Takes any even number; half a score for any number."""

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return 1.0 if int(answer) % 2 == 0 else 0.5


VERIFY = Verifier(Task(), {"question": "Say an even number.", "answer": "2"})


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("4", Score(True, "equal")),
        ("5", Score(False, "different")),
        ("four", Score(False, "undetermined")),
        (None, Score(False, None)),
    ],
)
def test_the_full_score_is_right_and_nothing_else(answer: str | None, score: Score) -> None:
    assert VERIFY(answer) == score


def test_a_sample_is_scored_by_its_verifier() -> None:
    samples = [Sample("even", "Say an even number.", "2", verify=VERIFY)]
    worker = ScriptedWorker("\\boxed{4}")
    with ScaffoldingLlm(NativeGenerationController(), {"generation": worker}) as llm:
        [record] = evaluate(llm, samples)
    assert (record.correct, record.verdict, record.target) == (True, "equal", "2")


@pytest.mark.parametrize(("source", "package"), [("reasoning_gym:chain_sum", "reasoning_gym"), ("hf:a/b", "datasets")])
def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, source: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r"install it with: pip install '\.\[problems\]'"):
        load_dataset(source)
