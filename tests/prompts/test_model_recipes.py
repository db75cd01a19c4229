"""The recipes of well-known models: their prompts letter by letter, the family that is found, and their stack files."""

# ruff: noqa: RUF001  # marks of DeepSeek's tokenizer
from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext import plain_yaml, registry
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.documents import packaged_recipes
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.signature import Signature
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker

RECIPES = packaged_recipes()
BOX = "\nPlease reason step by step, and put your final answer within \\boxed{}."
TODAY = date.today().isoformat()
HARMONY = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
    "Current date: {today}\n\nReasoning: {effort}\n\n# Valid channels: analysis, commentary, final. Channel must be "
    "included for every message.<|end|>"
)  # openai-harmony 0.0.8 renders the same for that date and effort
MARKS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>")


def rendered(prompting: Prompting, question: str = "Q") -> str:
    task = GenerationTask(input_str=question)
    prompting.apply(task)
    assert task.input_str is not None
    return task.input_str


# ---- the prompts, letter by letter

EXPECTED = {
    "deepseek_r1_distill": "<｜begin▁of▁sentence｜><｜User｜>Q" + BOX + "<｜Assistant｜><think>\n",
    "qwen3": f"<|im_start|>user\nQ{BOX}<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "qwen3_no_thinking": f"<|im_start|>user\nQ{BOX}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "qwq": f"<|im_start|>user\nQ{BOX}<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "gpt_oss": HARMONY.format(today=TODAY, effort="medium")
    + f"<|start|>user<|message|>Q{BOX}<|end|><|start|>assistant<|channel|>analysis<|message|>",
    "nemotron": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ndetailed thinking on\n\n<|eot_id|>"
    f"<|start_header_id|>user<|end_header_id|>\n\nQ{BOX}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "nemotron3_nano": "<|im_start|>system\n<|im_end|>\n"
    f"<|im_start|>user\nQ{BOX}<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "phi4_reasoning": "<|im_start|>system<|im_sep|>Answer in two sections: <think> {Thought section} </think> "
    f"{{Solution section}}.<|im_end|><|im_start|>user<|im_sep|>Q{BOX}<|im_end|><|im_start|>assistant<|im_sep|><think>",
    "llama3_instruct": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
    "December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
    f"Q{BOX}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral_instruct": f"<s>[SYSTEM_PROMPT]You solve problems.[/SYSTEM_PROMPT][INST]Q{BOX}[/INST]",
    "smollm2": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    f"<|im_start|>user\nQ{BOX}<|im_end|>\n<|im_start|>assistant\n",
}
TEMPLATE_OF = {"qwen3_no_thinking": "qwen3", "nemotron": "nemotron_super_v1_5"}
FAMILY_OF = {
    **dict.fromkeys(("deepseek_r1_distill", "qwen3", "qwq", "nemotron", "nemotron3_nano"), "deepseek_r1"),
    **dict.fromkeys(("qwen3_no_thinking", "phi4_reasoning"), "deepseek_r1"),
    **dict.fromkeys(("llama3_instruct", "mistral_instruct", "smollm2"), "instruct"),
    "gpt_oss": "gpt_oss",
}
CLOSED = {"qwen3_no_thinking"}


def prompting_of(recipe: str, folder: str) -> Prompting:
    config = load_config(f"configs:models/{recipe}").prompt
    assert config is not None
    return Prompting.for_model(folder, **config.model_dump(exclude={"model"}))


def test_a_recipe_renders_its_models_prompt(saved_model: Callable[..., str]) -> None:
    promptings = {name: prompting_of(name, saved_model(TEMPLATE_OF.get(name, name))) for name in EXPECTED}
    assert {name: rendered(prompting) for name, prompting in promptings.items()} == EXPECTED
    assert {name: prompting.choice.name for name, prompting in promptings.items()} == FAMILY_OF
    behind = {name: prompting.family_behind(EXPECTED[name]) for name, prompting in promptings.items()}
    families = {name: family_named(family) for name, family in FAMILY_OF.items()}
    assert behind == {name: own.answering if name in CLOSED else own for name, own in families.items()}


def test_every_recipe_has_its_expected_prompt() -> None:
    assert {f"models/{name}" for name in EXPECTED} == RECIPES.keys()


def test_effort_and_system_prompt_of_gpt_oss_stand_where_harmony_has_them(saved_model: Callable[..., str]) -> None:
    folder = saved_model("gpt_oss")
    prompting = Prompting.for_model(
        folder, system_prompt="Be brief.", chat_template_kwargs={"reasoning_effort": "high"}
    )
    developer = "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n<|end|>"
    assert rendered(prompting) == (
        HARMONY.format(today=TODAY, effort="high") + f"{developer}<|start|>user<|message|>Q<|end|><|start|>assistant"
    )


# ---- the family, found from the model's files


def test_the_family_is_found_from_the_models_files(saved_model: Callable[..., str]) -> None:
    for name, config, family, reason in [
        ("qwen3", {}, "deepseek_r1", "the chat template mentions </think>"),
        ("qwen3_instruct_2507", {}, "instruct", "the chat template shows no thinking"),
        ("gpt_oss", {}, "gpt_oss", "config.json has model_type gpt_oss"),
        ("gpt_oss", {"model_type": "x", "architectures": ("GptOssForCausalLM",)}, "gpt_oss", "architectures GptOssFor"),
        ("gpt_oss", {"model_type": "x"}, "gpt_oss", "the chat template mentions <|channel|>"),
        ("magistral", {}, "magistral", r"the chat template mentions \[/THINK\]"),
        ("llama3_instruct", {}, "instruct", "the chat template shows no thinking"),
    ]:
        choice = Prompting.for_model(saved_model(name, **config)).choice
        assert (name, choice.name, choice.is_guess) == (name, family, True)
        assert re.search(reason.replace("|", r"\|"), choice.reason), (name, choice.reason)


def test_a_model_without_a_template_thinks_if_its_vocabulary_says_so(
    saved_model: Callable[..., str], tmp_path: Path
) -> None:
    folder = shutil.copytree(saved_model("qwen3"), tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    choice = Prompting.for_model(str(folder)).choice
    assert choice.name == "deepseek_r1"
    assert "the vocabulary has </think>" in choice.reason


@pytest.mark.parametrize("family", [None, "deepseek_r1"])
def test_a_prompt_that_closes_thinking_keeps_the_models_family(
    family: str | None, saved_model: Callable[..., str]
) -> None:
    folder = saved_model("nemotron3_nano")
    off = Prompting.for_model(folder, family, chat_template_kwargs={"enable_thinking": False})
    assert off.family is family_named("deepseek_r1")
    assert off.family_behind(rendered(off)) == family_named("instruct")
    on = Prompting.for_model(folder, family)
    assert on.family_behind(rendered(on)) is on.family


# ---- variables and beginnings of the assistant's turn


def test_a_variable_that_the_template_never_reads_is_refused(saved_model: Callable[..., str]) -> None:
    with pytest.raises(
        ConfigError,
        match=r"chat_template_kwargs\.enable_thinkin: 'enable_thinkin' is not a variable of the .*: enable_thinking$",
    ):
        Prompting.for_model(saved_model("qwen3"), chat_template_kwargs={"enable_thinkin": False})
    with pytest.raises(ConfigError, match=r"it reads: none$"):
        Prompting.for_model(saved_model("qwq"), chat_template_kwargs={"enable_thinking": False})


@pytest.mark.parametrize("option", [{"chat_template_kwargs": {"a": 1}}, {"assistant_prefix": "<think>\n"}])
def test_both_need_a_template(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs a chat template") as caught:
        Prompting.for_model("tinylm/draft", chat_template=False, **option)
    assert caught.value.key == next(iter(option))


def test_the_assistants_beginning_is_written_once_and_in_further_turns_too(saved_model: Callable[..., str]) -> None:
    prompting = Prompting.for_model(saved_model("qwq"), assistant_prefix="<think>\n")
    task = GenerationTask(input_str="Q")
    prompting.apply(task)
    assert (task.input_str or "").count("<think>\n") == 1
    task.output_str, task.output_tokens = "so</think>A", prompting.encode("so</think>A")
    further = prompting.next_turn(task, "Q2")
    assert (further.input_str or "").endswith("<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert "so</think>A" in (further.input_str or "")  # what the template would drop stays


# ---- gpt-oss: marks that a decoded text does not show


def test_a_chain_of_gpt_oss_is_closed_into_its_final_channel(saved_model: Callable[..., str]) -> None:
    prompting = prompting_of("gpt_oss", saved_model("gpt_oss"))
    controller = DynasorCoTController(max_tokens=64, chunk_size=8, certainty_threshold=2, mode="chunk")
    controller.prompting = prompting
    worker = ScriptedWorker(lambda task: "4}" if str(task.input_str).endswith("{") else "two and two, I count " * 9)
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        result = llm.generate("2 + 2?")
    text = result.outputs[0].text or ""
    assert (result.answer, result.exit_reason) == ("4", "certain")
    assert "assistantfinal**Final Answer:**" in text
    assert not any(mark in text for mark in MARKS)
    shown = prompting.family.split(text, None)
    assert shown.thinking.startswith("two and two")
    assert shown.answer.startswith("**Final Answer:**")
    assert "two and two" not in shown.answer


def test_the_forced_answer_of_gpt_oss_is_asked_for_by_its_special_tokens(saved_model: Callable[..., str]) -> None:
    prompting = Prompting.for_model(saved_model("gpt_oss"))
    tokenizer = load_tokenizer(saved_model("gpt_oss"))
    ids = prompting.encode(prompting.family.close)
    (channel,) = tokenizer.convert_tokens_to_ids(["<|channel|>"])
    assert ids.count(channel) == 1
    assert prompting.decode(ids) == prompting.family.as_shown(prompting.family.close)


# ---- the stack files


def test_a_recipe_is_a_stack_that_says_what_it_is_about() -> None:
    faults = []
    for name, path in RECIPES.items():
        text = path.read_text(encoding="utf-8")
        facts = dict(re.findall(r"^# (\w+) +(.+)$", text, re.MULTILINE))
        config = load_config(f"configs:{name}", ["workers.generation.args.model=tinylm/target"])
        holds = {
            "facts": {"thinking", "sampling", "stop", "context", "tried"} <= facts.keys(),
            "check": f"scaffolding-ext check configs:{name}" in text,
            "box": config.prompt is not None and "\\boxed{}" in (config.prompt.prompt_suffix or ""),
            "temperature": config.sampling["temperature"] > 0,
        }
        faults += [(name, what) for what, is_so in holds.items() if not is_so]
        check_stack(config)
    assert faults == []


def test_the_other_worker_of_a_recipe_takes_the_arguments_that_it_is_given() -> None:
    for name in RECIPES:
        text = RECIPES[name].read_text(encoding="utf-8")
        (line,) = re.findall(r"^# .* instead: (generation: \{.*\})$", text, re.MULTILINE)
        worker = plain_yaml.parse(line, name)["generation"]
        assert worker["type"] != load_config(f"configs:{name}").workers["generation"].type, name
        factory = registry.workers.resolve(worker["type"])
        Signature.of(factory).check(worker["type"], worker["args"], "workers.generation.args")


# ---- what the command line says of it
