"""OpenAIWorker against this package's own front: each stack that ships runs there, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from scaffolding_ext import load_stack
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker

# The plan that ships is for another model than the small one of these tests.
pytestmark = pytest.mark.filterwarnings("ignore::scaffolding_ext.controllers.calibration_file.CalibrationWarning")
QUESTION = "Start with 5. Apply a+3,b-2. Find the total."
FORCING = ("budget_forcing", "queue_aware_budget", "dynasor_cot")


@pytest.fixture(scope="module")
def front() -> Iterator[FrontThread]:
    """A plain stack behind the front."""
    limits = Limits()
    with HuggingFaceWorker("tinylm/draft") as worker:
        llm = ScaffoldingLlm(NativeGenerationController(), {"generation": worker})
        with FrontThread(Front([ServedStack("model", llm, limits)], limits)) as thread:
            yield thread


def worker_at(front: FrontThread, **options: Any) -> dict[str, Any]:
    args = {"base_url": f"{front.url}/v1", "model": "model", "tokenizer": "tinylm/draft", "max_seq_len": 2048}
    return {"type": "OpenAIWorker", "args": args | options}


def answered(front: FrontThread, name: str, tags: tuple[str, ...] = ("generation",), **options: Any) -> str | None:
    overrides = [f"workers.{tag}={worker_at(front, **options)}" for tag in tags]
    short = {
        "native": "sampling_params.temperature=0.0",
        "dynasor_cot": "rule={type: consecutive, args: {threshold: 2}}",
        "budget_forcing": "thinking_tokens=64",
    }.get(name)
    if short is not None:
        overrides.append(f"controller.args.{short}")
    with load_stack(f"configs:{name}", overrides) as llm:
        kind = {"task_type": "sum"} if name == "queue_aware_budget" else {}
        return llm.generate(QUESTION, seed=1, **kind).answer


@pytest.mark.parametrize("flavor", ["auto", "scaffolding_ext"])
def test_the_front_is_known(front: FrontThread, flavor: str) -> None:
    with OpenAIWorker(f"{front.url}/v1", "model", flavor=flavor, tokenizer="tinylm/draft") as worker:
        assert worker.flavor == "scaffolding_ext"


@pytest.mark.parametrize("name", ["native", "majority_vote", *FORCING])
def test_a_stack_runs_on_completions(front: FrontThread, name: str) -> None:
    assert answered(front, name) == "6"


@pytest.mark.parametrize("name", ["native", "majority_vote"])
def test_a_stack_that_continues_no_answer_runs_on_chat(front: FrontThread, name: str) -> None:
    assert answered(front, name, endpoint="chat") == "6"


@pytest.mark.parametrize("flavor", ["auto", "openai"])
@pytest.mark.parametrize("name", FORCING)
def test_a_stack_that_continues_answers_is_refused_on_chat_when_it_is_built(
    front: FrontThread, name: str, flavor: str
) -> None:
    with pytest.raises(ConfigError, match="cannot continue an unfinished answer"):
        answered(front, name, endpoint="chat", flavor=flavor)


def test_a_stack_that_scores_is_refused_when_it_is_built(front: FrontThread) -> None:
    with pytest.raises(ConfigError, match="cannot serve ScoreTask"):
        answered(front, "conformal_draft_target", ("draft", "target"))


@pytest.mark.parametrize("name", ["kv_share_branching", "rksc", "search"])
def test_a_stack_that_reads_log_probabilities_is_refused_when_it_is_built(front: FrontThread, name: str) -> None:
    """A server of unknown kind tells none: the request would fail."""
    with pytest.raises(ConfigError, match=r"log-probabilities of at most 0 tokens|cannot stop at a layer"):
        answered(front, name)


def test_prompts_of_token_ids_are_those_of_their_text(front: FrontThread) -> None:
    from scaffolding_ext.prompts.prompting import Prompting

    prompting = Prompting.for_model("tinylm/draft")
    ids = prompting.encode(QUESTION)
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client:

        def texts(prompt: Any) -> list[str]:
            answer = client.completions.create(model="model", prompt=prompt, max_tokens=8, temperature=0)
            return [choice.text for choice in answer.choices]

        assert texts(ids) == texts(QUESTION)
        assert texts([ids, ids]) == texts([QUESTION, QUESTION])
        letters = [token for letter in "total" for token in prompting.encode(letter)]  # the text is read as fewer
        with pytest.raises(openai.BadRequestError, match="no text encodes to"):
            texts(letters)
        for wrong in ([1, "a"], [[]], [-1], [[1], "a"], [1.5]):
            with pytest.raises(openai.BadRequestError):
                texts(wrong)
