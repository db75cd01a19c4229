"""TensorRT-LLM's own tree searches, their files as they are, on our host and the embedded model.

They come from an installed tensorrt_llm; or from `tree_controllers.py` of TensorRT-LLM's sources
(`tensorrt_llm/scaffolding/contrib/TreeInference`), which SCAFFOLDING_TREE_INFERENCE names. The names that this file
imports are then the stand-ins of `scaffolding_ext.protocol`.

    SCAFFOLDING_TREE_INFERENCE=~/tree_controllers.py pytest -m integration tests/integration/test_tree_inference.py
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scaffolding_ext import protocol
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.reward import RewardController
from scaffolding_ext.controllers.tree.tree_inference import ResultRewardController, TreeInferenceController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

SOURCE = "SCAFFOLDING_TREE_INFERENCE"
QUESTION = "What is 4 plus 3, times 2?"
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("default")]
if not protocol.UPSTREAM and not os.environ.get(SOURCE):
    pytest.skip(
        f"tensorrt_llm is not installed, and {SOURCE} names no tree_controllers.py of its sources",
        allow_module_level=True,
    )


@dataclass
class CompletionOutput:
    """What a reward task's text stands in."""

    index: int
    text: str = ""


class GenerationResult:
    """Made without its `__init__`, and filled by the tree."""


class SamplingParams:
    """Without values."""


@pytest.fixture(scope="module")
def trees() -> Iterator[Any]:
    """The module of their controllers."""
    with pytest.MonkeyPatch.context() as patch:
        if protocol.UPSTREAM:
            yield importlib.import_module("tensorrt_llm.scaffolding.contrib.TreeInference.tree_controllers")
            return
        path = Path(os.environ[SOURCE]).expanduser()
        assert path.is_file(), f"{SOURCE} is {path}, and no file is there"
        for name, has in {
            "": {},
            ".executor": {},
            ".executor.result": {"CompletionOutput": CompletionOutput, "GenerationResult": GenerationResult},
            ".executor.params": {},
            ".executor.params.sampling": {"SamplingParams": SamplingParams},
            ".scaffolding": {},
            ".scaffolding.controller": vars(protocol),
            ".scaffolding.task": vars(protocol),
        }.items():
            module = ModuleType(f"tensorrt_llm{name}")
            vars(module).update({key: value for key, value in has.items() if not key.startswith("__")})
            patch.setitem(sys.modules, module.__name__, module)
        spec = importlib.util.spec_from_file_location("tree_controllers", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "tree_controllers", module)  # their data classes look themselves up
        spec.loader.exec_module(module)
        yield module


def respond(task: Any) -> str:
    """Three thoughts, a mark, or the answer, by what their prompts ask for."""
    asked = task.input_str
    if "succinctly" in asked:
        return f"The answer is {asked.count('seven')}."
    if "Evaluate this proposed step" in asked:
        proposed = asked.partition("Proposed next step:")[2]
        return f"Score: {9 if 'seven' in proposed else 2}/10\nConfidence: High\nReasoning: it is"
    return "1. add seven\n2. add eight\n3. add nine"


class Sevens(RewardController):
    """Prefers texts with more sevens."""

    def process(self, tasks: list[Any], **kwargs: Any) -> Any:
        yield from ()
        self.scores = [min(0.99, 0.1 + 0.2 * task.output_str.count("seven")) for task in tasks]


def scripted(controller: Any, num: int = 1) -> tuple[list[Any], list[Any]]:
    worker = ScriptedWorker(respond)
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        return llm.generate([f"Question {number}" for number in range(num)]), worker.tasks


def test_mcts_asks_once_an_iteration_and_once_for_the_answer(trees: Any) -> None:
    controller = TreeInferenceController(trees.MCTSController(NativeGenerationController(), max_iterations=6))
    [result], tasks = scripted(controller)
    assert result.outputs[0].text.startswith("The answer is ")
    assert [task.temperature for task in tasks] == [0.7] * 6 + [0.2]
    assert [task.max_tokens for task in tasks] == [200] * 6 + [256]
    assert result.program.ledger.total.decoded == sum(len(task.output_tokens) for task in tasks)


def test_a_reward_controller_of_ours_steers_mcts(trees: Any) -> None:
    """With a judge that likes sevens, all steps of the best path are sevens."""
    judge = ResultRewardController(Sevens())
    search = trees.MCTSController(NativeGenerationController(), judge, max_iterations=30, max_depth=2)
    [result], _ = scripted(TreeInferenceController(search))
    assert result.outputs[0].text == "The answer is 2."


def test_tree_of_thoughts_marks_its_own_thoughts_one_after_the_other(trees: Any) -> None:
    [result], tasks = scripted(TreeInferenceController(trees.TOTController(NativeGenerationController(), max_depth=2)))
    assert result.outputs[0].text == "The answer is 2."
    num_nodes = 1 + 2
    assert len(tasks) == num_nodes + 3 * num_nodes + 1  # three thoughts a node, each marked; and the answer
    assert tasks[-1].stop == ["</think>"]


def test_a_reward_controller_of_ours_steers_a_tree_of_thoughts_of_each_request_alone(trees: Any) -> None:
    judge = ResultRewardController(Sevens())
    results, tasks = scripted(TreeInferenceController(trees.TOTController(NativeGenerationController(), judge)), 3)
    assert [result.outputs[0].text for result in results] == ["The answer is 4."] * 3
    assert len(tasks) == 3 * (1 + 2 + 4 + 8 + 1)


Make = Callable[[Any], Any]
TREES: dict[str, Make] = {
    "mcts": lambda trees: trees.MCTSController(NativeGenerationController(), max_iterations=4),
    "mcts_with_two_samples": lambda trees: trees.MCTSController(
        NativeGenerationController(), max_iterations=2, expansion_parallel_samples=2
    ),
    "mcts_with_our_judge": lambda trees: trees.MCTSController(
        NativeGenerationController(),
        ResultRewardController(RewardController(worker_tag="generation")),
        max_iterations=4,
    ),
    "tot": lambda trees: trees.TOTController(NativeGenerationController(), max_depth=2),
    "tot_with_our_judge": lambda trees: trees.TOTController(
        NativeGenerationController(),
        ResultRewardController(RewardController(worker_tag="generation")),
        max_depth=2,
    ),
    "tot_of_our_votes": lambda trees: trees.TOTController(
        MajorityVoteController(NativeGenerationController(), 3), max_depth=1
    ),
}


@pytest.fixture(scope="module")
def model() -> Iterator[HuggingFaceWorker]:
    with HuggingFaceWorker("tinylm/target") as worker:
        yield worker


@pytest.mark.parametrize("name", TREES)
def test_on_the_embedded_model_every_tree_ends_with_an_answer_and_every_token_is_counted(
    trees: Any, model: HuggingFaceWorker, name: str
) -> None:
    """It writes solutions, no lists of thoughts: its trees are small, and the answer is asked for all the same."""
    controller = TreeInferenceController(TREES[name](trees))
    with ScaffoldingLlm(controller, {"generation": model}, seed=0) as llm:
        results = llm.generate([QUESTION, QUESTION])
    for result in results:
        ledger = result.program.ledger
        assert result.outputs[0].text
        assert ledger.total.decoded > 0
        assert (ledger.by_purpose.get(Purpose.VERIFY) is not None) is name.endswith("our_judge")
