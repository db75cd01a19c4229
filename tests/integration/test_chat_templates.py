"""Marks and prompt ends of the chat templates of known models, which are not part of this repository.

CHAT_TEMPLATES names a folder of such files, NAME.jinja. The counts hold for llama.cpp's `models/templates`, as the
source distribution of llama-cpp-python 0.3.36 has them (70 files).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.chat_template import KEY, NAME, OFF, ON, VALUE, ChatTemplate, called
from scaffolding_ext.prompts.model_files import chosen_family, marks_of
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import GenerationTask

FOLDER = os.environ.get("CHAT_TEMPLATES", "")
FILES = sorted(Path(FOLDER).rglob("*.jinja")) if FOLDER else []
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not FILES, reason="CHAT_TEMPLATES names no folder of chat templates"),
]
UNTHINKING = {
    "CohereForAI-c4ai-command-r-plus-tool_use", "GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B", "Kimi-K2-Instruct",
    "LFM2-8B-A1B", "Mistral-Small-3.2-24B-Instruct-2506", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Qwen-Qwen2.5-7B-Instruct", "Qwen3-Coder",
    "fireworks-ai-llama-3-firefunction-v2", "google-gemma-2-2b-it", "ibm-granite-granite-4.0",
    "ibm-granite-granite-4.1", "meetkai-functionary-medium-v3.1", "meetkai-functionary-medium-v3.2",
    "meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct", "meta-llama-Llama-3.3-70B-Instruct",
    "microsoft-Phi-3.5-mini-instruct", "mistralai-Mistral-Nemo-Instruct-2407", "moonshotai-Kimi-K2",
    "unsloth-mistral-Devstral-Small-2507",
}  # fmt: skip
SILENT = {"MiMo-VL", "MiniMax-M1"}  # they think, and their templates show nothing of it


def tokenizer(path: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    file = os.path.join(model_folder("tinylm/target"), "tokenizer.json")
    found = PreTrainedTokenizerFast(tokenizer_file=file, bos_token="<|bos|>", eos_token="<|eos|>")
    found.chat_template = path.read_text(encoding="utf-8")
    return found


def test_marks_are_found_for_those_that_think_and_for_no_others() -> None:
    found = {path.stem: marks_of(tokenizer(path)) for path in FILES}
    assert {name for name, marks in found.items() if marks is None} == UNTHINKING | SILENT


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_end_of_each_prompt_says_whether_thinking_is_open(path: Path) -> None:
    known = tokenizer(path)
    if marks_of(known) is None:
        pytest.skip("it does not think")
    call = {"role": "assistant", "content": "", "tool_calls": [called({KEY: VALUE})]}
    turns: list[tuple[str, list[Any], Any]] = [
        ("Q1", [], None),
        ("Q1", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], None),
        ("Q1", [{"role": "user", "content": "a"}, call], {"role": "tool", "tool_call_id": "abcdefghi", "name": NAME}),
        ("/no_think Q1", [], None),
        ("/think Q1", [], None),
    ]
    for switch in ChatTemplate(known).switched([*ON, *OFF]):
        variables = dict(switch) or None
        prompting = Prompting(known, chosen_family("/nowhere", known).name, chat_template_kwargs=variables)
        marks = prompting.family.marks
        for text, history, last in turns:
            task = GenerationTask(input_str=text)
            try:
                prompting.apply(task, history, last_turn=last)
            except ConfigError:  # this template has no such turns
                continue
            tail = (task.input_str or "").rpartition("Q1")[2]
            opened, closed = tail.rfind(marks.think_open), tail.rfind(marks.think_close)
            expected = opened > closed if marks.think_open else None
            assert prompting.is_open(task.input_str or "") is expected, (switch, text, tail)
