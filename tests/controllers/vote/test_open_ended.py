"""Open-ended answers vote by what they mean, where the stack's worker embeds them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError, MissingDependencyError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.stack.build import load_stack
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.compare import CompareWorker

ANSWERS = ("Lyon", "Paris", "in Lyon town", "the city of Paris", "Paris, France")
STACK = {
    "controller": {
        "type": "MajorityVoteController",
        "args": {
            "default_sample_num": len(ANSWERS),
            "allocation": None,
            "generation_controller": {"type": "NativeGenerationController"},
        },
    },
    "workers": {
        "generation": {"type": f"{__name__}:Writer"},
        "compare": {"type": "CompareWorker", "args": {"embedding": "a/model", "similarity": 0.7}},
    },
    "prompt": None,
}


class SentenceTransformer:
    """The double of an encoder: a direction for each city that is named, and a little for everything else."""

    def __init__(self, model: str, device: str) -> None:
        assert (model, device) == ("a/model", "cpu")

    def encode(self, texts: list[str], show_progress_bar: bool) -> Any:
        assert not show_progress_bar
        return np.array([["Lyon" in text, "Paris" in text, 0.01 * len(text)] for text in texts], dtype=float)


class Writer(ScriptedWorker):
    """Gives one of the answers after the other."""

    def __init__(self) -> None:
        super().__init__(lambda task: rf"So it is \boxed{{{ANSWERS[len(self.tasks) - 1]}}}.")


def voted(llm: ScaffoldingLlm) -> tuple[Any, list[int]]:
    with llm:
        result = llm.generate("Where is it?")
    (event,) = [event for event in result.program.trace if event["event"] == "vote"]
    return result.answer, event["classes"]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = SentenceTransformer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or ModuleType(__name__))
    monkeypatch.setattr(sys.modules[__name__], "Writer", Writer, raising=False)


@pytest.mark.usefixtures("library")
def test_a_stack_file_has_answers_in_words_vote_by_what_they_mean(tmp_path: Path) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(plain_yaml.dump(STACK), encoding="utf-8")
    assert voted(load_stack(path)) == ("Paris", [0, 1, 0, 1, 1])
    assert voted(load_stack(path, ["workers.compare.args.embedding=null"])) == ("Lyon", [0, 1, 2, 3, 4])


def test_any_function_may_embed() -> None:
    embed = SentenceTransformer("a/model", "cpu").encode
    controller = MajorityVoteController(NativeGenerationController(), len(ANSWERS), allocation=None)
    workers = {"generation": Writer(), "compare": CompareWorker(embedding=lambda texts: embed(list(texts), False))}
    assert voted(ScaffoldingLlm(controller, workers, owns_workers=True)) == ("Paris", [0, 1, 0, 1, 1])


def test_what_it_takes_is_asked_for_when_the_worker_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingDependencyError, match="semantic"):
        CompareWorker(embedding="a/model")
    with pytest.raises(ConfigError, match="similarity: is 0; it must be above 0 and at most 1"):
        CompareWorker(similarity=0)
