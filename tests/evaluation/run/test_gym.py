"""Verifiers of a dataset's own decide, where it has them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.evaluation.run import gym
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.evaluation.run.scoring import Score
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.testing import ScriptedWorker

LIBRARY = """
class Task:
    'Takes any even number; half a score for any number; never ends on 0.'

    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __getitem__(self, number):
        return {"question": f"Say an even number ({self.seed}, {number}).", "answer": "2"}

    def score_answer(self, answer, entry):
        while answer == "0":
            pass
        return 1.0 if int(answer) % 2 == 0 else 0.5

def create_dataset(name, size, seed):
    return {"even": Task}[name](size, seed)
"""


@pytest.fixture
def verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A verifier of a small library that stands in for reasoning-gym, here and in the pool's processes."""
    (tmp_path / "reasoning_gym.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reasoning_gym", raising=False)
    for cached in (gym._pool, gym._drawn):
        cached.cache_clear()
    [sample] = load_dataset("reasoning_gym:even", num_samples=1)
    yield sample.verify
    gym._pool().close()
    for cached in (gym._pool, gym._drawn):
        cached.cache_clear()
    sys.modules.pop("reasoning_gym", None)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("4", Score(True, "equal")),
        ("5", Score(False, "different")),
        ("four", Score(False, "undetermined")),
        (None, Score(False, None)),
    ],
)
def test_the_full_score_is_right_and_nothing_else(verify: Any, answer: str | None, score: Score) -> None:
    assert verify(answer) == score


def test_a_verifier_that_does_not_end_is_killed(verify: Any) -> None:
    assert verify("4").correct  # the process runs, so that the deadline is the verifier's own
    assert verify("0", deadline_seconds=0.1) == Score(False, "undetermined")
    assert verify("4").correct


def test_a_sample_is_scored_by_its_verifier(verify: Any) -> None:
    samples = [Example("even", "Say an even number.", "2", verify=verify)]
    worker = ScriptedWorker("\\boxed{4}")
    with ScaffoldingLlm(NativeGenerationController(), {"generation": worker}) as llm:
        [record] = evaluate(llm, samples)
    assert (record.correct, record.verdict, record.target) == (True, "equal", "2")


@pytest.mark.parametrize(("source", "package"), [("reasoning_gym:chain_sum", "reasoning_gym"), ("hf:a/b", "datasets")])
def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, source: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r"install it with: pip install '\.\[problems\]'"):
        load_dataset(source)
