"""Prompts that close thinking: all of the text is the answer, until a further prompt of the conversation opens it."""

# ruff: noqa: E501  (templates are lines)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")

from transformers import PreTrainedTokenizerFast

from scaffolding_ext import BudgetForcingController, DynasorCoTController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain
from scaffolding_ext.controllers.prompting import answer_of, next_turn, reading_of
from scaffolding_ext.plugins import behind_thinking
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.testing import ScriptedWorker

CLOSED = "<think>\n\n</think>\n\n"
# Thinking is closed, unless the last turn asks for it.
SWITCHED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% if '/think' not in messages[-1].content %}\n</think>\n\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def switched() -> Prompting:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{model_folder('tinylm/draft')}/tokenizer.json")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = SWITCHED
    return Prompting.for_model("nowhere", tokenizer=tokenizer)


@pytest.fixture
def closed(saved_model: Callable[..., str]) -> Prompting:
    return Prompting.for_model(saved_model("qwen3"), chat_template_kwargs={"enable_thinking": False})


def run(controller: Any, prompting: Prompting, worker: ScriptedWorker, prompt: str = "Q", **how: Any) -> Any:
    controller.prompting = prompting
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        return llm.generate_async(prompt, **how).result()


def test_the_marks_stay_and_all_is_answer_behind_the_prompt_that_closes(closed: Prompting) -> None:
    task = GenerationTask(input_str="Q")
    closed.apply(task)
    prompt = str(task.input_str)
    assert prompt.endswith(CLOSED)
    assert (closed.choice.name, closed.family) == ("deepseek_r1", family_named("deepseek_r1"))
    assert not closed.family_behind(prompt).thinks
    assert closed.split(prompt, "Marks such as <think> and </think> are text.").answer.startswith(
        "Marks such as <think>"
    )
    assert closed.family_behind(prompt.removesuffix(CLOSED)).thinks


@pytest.mark.parametrize("mode", ["chunk", "stream"])
def test_a_closed_prompt_is_probed_with_the_texts_of_answering(closed: Prompting, mode: str) -> None:
    worker = ScriptedWorker(lambda task: "5}" if str(task.input_str).endswith("{") else "so it is five, I count " * 9)
    controller = DynasorCoTController(max_tokens=64, rule="consecutive", chunk_size=8, mode=mode)  # type: ignore[arg-type]
    result = run(controller, closed, worker)
    assert (result.answer, result.exit_reason) == ("5", "certain")
    assert "think" not in result.outputs[0].text
    instruct = family_named("instruct")
    asked = [str(task.input_str) for task in worker.tasks if str(task.input_str).endswith("{")]
    assert asked
    assert all(text.endswith(instruct.probe) and text.count("</think>") == 1 for text in asked)


def test_a_budget_under_a_closed_prompt_closes_nothing(closed: Prompting) -> None:
    worker = ScriptedWorker(lambda task: "7}" if str(task.input_str).endswith("{") else "one by one " * 20)
    result = run(BudgetForcingController(16, max_answer_tokens=8), closed, worker)
    assert result.answer == "7"
    assert "</think>" not in result.outputs[0].text
    assert all(str(task.input_str).count("</think>") == 1 for task in worker.tasks)


class Twice(BaseController):
    """Asks, and then asks again in the same conversation."""

    def __init__(self, further: str, tell: Callable[[tuple[bool, str | None, str]], None]) -> None:
        super().__init__()
        self.further, self.tell = further, tell

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        task.worker_tag = WorkerTag.GENERATION
        yield [task]
        further = next_turn(task, self.further)
        yield [further]
        for asked in (task, further):
            text, family = str(asked.output_str), ChunkChain(asked, 8, {}).family
            self.tell((family.thinks, answer_of(asked, text), reading_of(asked, text).thinking.strip()))
        finish(task, text, None)


@pytest.mark.parametrize("is_closed_first", [True, False])
def test_each_turn_of_a_request_is_read_by_its_own_prompt(switched: Prompting, is_closed_first: bool) -> None:
    opened = (True, "2", "Is it 1?")
    shut = (False, "3", "")

    def respond(task: Any) -> str:
        return "\\boxed{3}" if str(task.input_str).rstrip().endswith("</think>") else "Is it 1?</think>\\boxed{2}"

    first, further = ("Q", "Sure? /think") if is_closed_first else ("Q /think", "Sure?")
    seen: list[tuple[bool, str | None, str]] = []
    run(Twice(further, seen.append), switched, ScriptedWorker(respond), first)
    assert seen == ([shut, opened] if is_closed_first else [opened, shut])


def test_a_tools_result_closes_and_the_next_message_opens(switched: Prompting) -> None:
    user, said = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "looking"}
    text = "1 </think> or 2"
    worker = ScriptedWorker(text)
    native = NativeGenerationController({"max_tokens": 20})
    after_tool = run(native, switched, worker, "sunny", history=[user, said], last_turn={"role": "tool"})
    after_user = run(native, switched, worker, "And now? /think", history=[user, said])
    assert (behind_thinking(after_tool), behind_thinking(after_user)) == (text, " or 2")
