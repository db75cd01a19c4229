"""A further turn of the user: on the embedded models, and on the chat template of another family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from transformers import PreTrainedTokenizerFast

from scaffolding_ext import HuggingFaceWorker, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.prompting import next_turn
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.meta import meta_of, note
from scaffolding_ext.testing import ScriptedWorker

MODEL = "tinylm/draft"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chatml(template: str = CHATML) -> PreTrainedTokenizerFast:
    """The embedded tokenizer with the template of another family, whose marks are tokens."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(Path(model_folder(MODEL)) / "tokenizer.json"), eos_token="<|im_end|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    return tokenizer


def answered(prompting: Prompting, text: str, ids: list[int] | None) -> GenerationTask:
    task = GenerationTask.create_from_prompt("1+1?")
    prompting.apply(task)
    task.output_str, task.output_tokens = text, ids
    return task


def test_a_further_turn_by_another_familys_template() -> None:
    prompting = Prompting(chatml(), "instruct", system_prompt="Be brief.", prompt_suffix=" Box it.")
    task = answered(prompting, "2", [*prompting.encode("2"), *prompting.encode("<|im_end|>")])
    asked = prompting.next_turn(task, "Sure?")
    assert asked.input_str == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1? Box it.<|im_end|>\n<|im_start|>assistant\n"
        "2<|im_end|>\n<|im_start|>user\nSure? Box it.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert task.input_tokens is not None
    assert asked.input_tokens is not None
    assert asked.input_tokens[: len(task.input_tokens) + 1] == [*task.input_tokens, *prompting.encode("2")]
    assert asked.input_tokens == prompting.encode(asked.input_str)  # the token that ended the answer stands once


def test_a_further_turn_of_an_answer_without_ids_is_text() -> None:
    prompting = Prompting(chatml(), "instruct")
    asked = prompting.next_turn(answered(prompting, "2", None), "Sure?")
    assert asked.input_tokens is None
    assert str(asked.input_str).endswith("2<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n")


def test_without_a_template_the_prompt_is_a_paragraph() -> None:
    prompting = Prompting(chatml(), "instruct", chat_template=False)
    asked = prompting.next_turn(answered(prompting, "2", None), "Sure?")
    assert asked.input_str == "1+1?2\n\nSure?\n\n"


def test_there_is_no_further_turn_before_the_first_is_answered() -> None:
    prompting = Prompting(chatml(), "instruct")
    task = GenerationTask.create_from_prompt("1+1?")
    with pytest.raises(NoOutputError):
        prompting.next_turn(task, "Sure?")


class AskTwice(BaseController):
    """Asks the same again in one conversation."""

    def __init__(self) -> None:
        super().__init__()
        self.generation_controller = NativeGenerationController({"max_tokens": 24})

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        """Answer the task's prompt."""
        yield from self.generation_controller.process([task], **kwargs)
        again = next_turn(task, "Start with 5. Apply a+3,b-2. Find the total.")
        yield from self.generation_controller.process([again], **kwargs)
        finish(task, str(again.output_str), again.output_tokens, again.customized_result_fields.get("answer"))


def test_a_controller_asks_again_on_the_embedded_model() -> None:
    pytest.importorskip("torch")
    prompt = "Start with 5. Apply a+3,b-2. Find the total."
    with ScaffoldingLlm(AskTwice(), {"generation": HuggingFaceWorker(MODEL)}, owns_workers=True) as llm:
        result = llm.generate(prompt)
    assert result.outputs[0].text
    chain = result.program.ledger.by_purpose
    first_prompt = len(load_tokenizer(MODEL)(f"<|user|>{prompt}<|assistant|><think>\n").input_ids)
    read = sum(counts.prefilled + counts.reused for counts in chain.values())
    assert read > 2 * first_prompt + 20  # the second turn holds the first and its answer
    whole = (first_prompt + 20) // 32 * 32  # which are had from the cache, in whole blocks
    assert sum(counts.reused for counts in chain.values()) >= whole > 0


def test_without_prompting_nothing_says_how_a_turn_looks() -> None:
    with (
        ScaffoldingLlm(AskTwice(), {"generation": ScriptedWorker("2")}) as llm,
        pytest.raises(ConfigError, match=r"prompting: is not set.*set controller.prompting"),
    ):
        llm.generate("1+1?")


# ---- families


def test_a_model_that_marks_no_thinking_gets_a_family_that_closes_none(tmp_path: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=_without_marks(tmp_path))
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    prompting = Prompting.for_model(str(tmp_path / "model"))
    assert prompting.family is family_named("instruct")
    assert "think" not in prompting.family.close + prompting.family.probe
    controller = DynasorCoTController(max_tokens=64, rule="consecutive", chunk_size=8, mode="chunk")
    controller.prompting = prompting
    worker = ScriptedWorker(lambda task: "5}" if str(task.input_str).endswith("{") else "so it is five, I count " * 9)
    with (
        ScaffoldingLlm(controller, {"generation": worker}) as llm,
        pytest.warns(UserWarning, match=r"has no <think>.*family='deepseek_r1'"),
    ):
        result = llm.generate("How many?")
    assert (result.answer, result.exit_reason) == ("5", "certain")
    assert "</think>" not in result.outputs[0].text


def _without_marks(folder: Path) -> str:
    """A tokenizer file whose vocabulary has no mark of thinking."""
    text = (Path(model_folder(MODEL)) / "tokenizer.json").read_text(encoding="utf-8")
    path = folder / "tokenizer.json"
    path.write_text(text.replace("</think>", "<|mark|>").replace("<think>", "<|other|>"), encoding="utf-8")
    return str(path)


def test_a_continued_answer_is_whole_in_the_next_turn() -> None:
    task = GenerationTask(input_str="1+1?It is ")
    task.output_str = "2."
    note(task, turn_start=4)
    asked = Prompting(chat=True).next_turn(task, "Sure?")
    assert [turn["content"] for turn in meta_of(asked).turns] == ["1+1?", "It is 2."]
