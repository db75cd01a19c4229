"""A model's thinking marks are read off its chat template, whatever way it takes thinking, or nothing is."""

# ruff: noqa: E501  (templates are lines)
from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.answers.reading import Marks
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.model_files import as_shown, chosen_family, marks_of
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask

pytest.importorskip("transformers")

TURN = "{%% for m in messages %%}<|im_start|>{{ m.role }}\n%s<|im_end|>\n{%% endfor %%}{%% if add_generation_prompt %%}<|im_start|>assistant\n%s{%% endif %%}"
MM = Marks("<mm:think>", "</mm:think>")
PLAIN = "{{ m.content }}"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}"
FIELD = "{% if m.reasoning_content %}<mm:think>{{ m.reasoning_content }}</mm:think>{% endif %}{{ m.content }}"
SPLIT = (
    "{% if '</mm:think>' in m.content %}{{ m.content.split('</mm:think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
)

TEMPLATES: dict[str, tuple[str, Marks | None]] = {
    "a field": (TURN % (FIELD, ""), MM),
    "a field with lines": (TURN % (FIELD.replace("<mm:think>{{", "<mm:think>\n{{").replace("}}</mm:think>", "}}\n</mm:think>\n\n"), ""), MM),
    "the older name of the field": (TURN % (FIELD.replace("reasoning_content", "thinking"), ""), MM),
    "square marks": (TURN % (FIELD.replace("<mm:think>", "[T]").replace("</mm:think>", "[/T]"), ""), Marks("[T]", "[/T]")),
    "marks that are no pair": (TURN % (FIELD.replace("<mm:think>", "<|channel>thought\n").replace("</mm:think>", "<channel|>"), ""), Marks("<|channel>thought", "<channel|>")),
    "a framed answer": (TURN % (FIELD.replace("{{ m.content }}", "<|START_TEXT|>{{ m.content }}<|END_TEXT|>"), ""), Marks("<mm:think>", "</mm:think>", "<|START_TEXT|>", "<|END_TEXT|>")),
    "messages for each part": (
        "{% for m in messages %}{% if m.role == 'user' %}<|s|>user<|m|>{{ m.content }}<|e|>{% else %}{% if m.reasoning_content %}<|s|>bot<|c|>think<|m|>{{ m.reasoning_content }}<|e|>{% endif %}<|s|>bot<|c|>final<|m|>{{ m.content }}<|e|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|s|>bot{% endif %}",
        Marks("<|c|>think<|m|>", "<|e|>", "<|s|>bot<|c|>final<|m|>"),
    ),
    "only the last turn": (TURN % (FIELD.replace("if m.reasoning_content", "if m.reasoning_content and loop.last"), ""), MM),
    "only beside a call": (TURN % (FIELD.replace("if m.reasoning_content", "if m.reasoning_content and m.tool_calls") + CALLS, ""), MM),
    "only under a switch": (TURN % (FIELD.replace("if m.reasoning_content", "if m.reasoning_content and enable_thinking"), ""), MM),
    "a switch to close it": (TURN % (FIELD, "{% if enable_thinking is false %}<mm:think>\n\n</mm:think>\n\n{% endif %}"), MM),
    "parts of the content": (TURN % ("{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'thinking' %}<mm:think>{{ p.thinking }}</mm:think>{% elif p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endif %}", ""), MM),
    "content that is split": (TURN % (SPLIT, ""), MM),
    "an empty block": (TURN % ("{% if m.role == 'assistant' %}<mm:think></mm:think>{% endif %}{{ m.content }}", ""), MM),
    "a prompt that opens it": (TURN % (PLAIN, "<mm:think>\n"), MM),
    "a prompt with its own words": (TURN % ("{% if m.role == 'assistant' %}Steps:\n{{ m.reasoning_content }}\n[ANSWER]\n{% endif %}{{ m.content }}", "Steps:\n"), Marks("", "[ANSWER]")),
    "a prompt whose words turns leave out": (TURN % ("{% if m.role == 'assistant' %}{{ m.reasoning_content }}\n[ANSWER]\n{% endif %}{{ m.content }}", "Steps:\n"), Marks("Steps:", "[ANSWER]")),
    "no mark before it": (TURN % ("{% if m.reasoning_content %}{{ m.reasoning_content }}\n[ANSWER]\n{% endif %}{{ m.content }}", ""), Marks("", "[ANSWER]")),
    "words of the prompt": ("Think between <think> and </think>. " + TURN % (PLAIN, ""), Marks()),
    "a comment": ("{# it writes [/THINK] #}" + TURN % (PLAIN, ""), Marks("[THINK]", "[/THINK]")),
    "nothing": (TURN % (PLAIN + CALLS, ""), None),
    "any list, printed": (TURN % ("{{ m.content }}{{ m.tool_calls }}", ""), None),
    "no lists": ("{% for m in messages %}{{ m.role + m.content }}{% endfor %}", None),
    "errors": ("{{ raise_exception('no') }}", None),
}  # fmt: skip


def tokenizer(template: str | None, special: tuple[str, ...] = ()) -> Any:
    found = copy.deepcopy(load_tokenizer("tinylm/draft"))
    found.add_special_tokens({"additional_special_tokens": list(special)})
    found.chat_template = template
    return found


def test_marks_are_found_by_rendering() -> None:
    for name in TEMPLATES:
        template, marks = TEMPLATES[name]
        found = marks_of(tokenizer(template))
        assert (found and found.marks) == marks


def test_a_family_is_named_by_its_marks() -> None:
    family = family_named("<a>...</a>...<r>...</r>")
    assert family.marks == Marks("<a>", "</a>", "<r>", "</r>")
    assert "</a><r>" in family.close
    assert family_named("<think>...</think>") == family_named("deepseek_r1")
    assert family_named("...[END]").marks == Marks("", "[END]")


def test_a_vocabulary_against_its_template_is_warned_of(saved_model: Any, caplog: Any) -> None:
    Prompting.for_model(saved_model("qwen3_instruct_2507"))  # its vocabulary has </think>
    assert "which the chat template never writes" in caplog.text
    caplog.clear()
    Prompting.for_model(saved_model("qwen3"))
    assert not caplog.text


@pytest.mark.parametrize(
    ("roles", "is_warned"),
    [
        ("m.role in ('user', 'assistant')", True),
        ("m.role == 'user'", True),
        ("not loop.first", True),
        ("m.role != 'tool'", False),
        ("m.role != 'system' or raise_exception('no')", False),  # refused at each prompt
    ],
)
def test_a_template_that_skips_system_turns_is_warned_of(roles: str, is_warned: bool, caplog: Any) -> None:
    template = "{% for m in messages %}{% if " + roles + " %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
    Prompting(tokenizer(template), "instruct", system_prompt="Be brief.")
    assert ("the chat template skips system turns" in caplog.text) == is_warned


@pytest.mark.parametrize("name", ["MiniMax-M1-80k", "MiMo-VL-7B-RL", "Magistral-Small-2506"])
def test_models_known_to_think_whose_templates_are_silent_are_warned_of(name: str, tmp_path: Path) -> None:
    choice = chosen_family(str(tmp_path / name), tokenizer(TURN % (PLAIN, "")))
    assert choice.name == "deepseek_r1"
    assert "known only by its name" in choice.doubt


def test_a_response_template_of_the_tokenizer_comes_first() -> None:
    found = tokenizer(TURN % (FIELD, ""))
    found.response_template = {"fields": {"reasoning_content": {"open": "<|t|>\n", "close": "<|/t|>"}}}
    assert marks_of(found).marks == Marks("<|t|>", "<|/t|>")  # type: ignore[union-attr]
    found.response_template = {"fields": {"reasoning_content": {"open_pattern": "<.>", "close": "<|/t|>"}}}
    assert marks_of(found).marks == MM  # type: ignore[union-attr]


# ---- open or not, read off each prompt

SWITCHED = TURN % (
    FIELD,
    "{% if enable_thinking is false or '/no_think' in messages[-1].content %}<mm:think>\n\n</mm:think>\n\n{% elif messages[-1].role != 'tool' %}<mm:think>\n{% endif %}",
)
USER, SAID = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "reasoning_content": "R"}


@pytest.mark.parametrize(
    ("text", "history", "last", "variables", "is_open"),
    [
        ("Q", [], None, {}, True),
        ("Q", [USER, SAID], None, {}, True),
        ("sunny", [USER, SAID], {"role": "tool", "tool_call_id": "a"}, {}, False),
        ("Q /no_think", [], None, {}, False),
        ("Q", [], None, {"enable_thinking": False}, False),
        ("Does a prompt end with <mm:think>", [], None, {"enable_thinking": False}, False),
    ],
)
def test_each_prompts_end_says_whether_thinking_is_open(
    text: str, history: Any, last: Any, variables: Any, is_open: bool
) -> None:
    prompting = Prompting(tokenizer(SWITCHED), "<mm:think>...</mm:think>", chat_template_kwargs=variables or None)
    task = GenerationTask(input_str=text)
    prompting.apply(task, history, last_turn=last)
    assert prompting.is_open(task.input_str or "") is is_open


def test_without_an_opening_mark_or_a_template_it_is_unknown() -> None:
    assert Prompting(tokenizer(TURN % (PLAIN, "")), "...[END]").is_open("anything") is None
    assert Prompting(tokenizer(None), "deepseek_r1").is_open("<think>\n") is None


def test_a_misspelt_variable_is_refused_though_the_template_has_a_tag_that_only_transformers_knows() -> None:
    found = tokenizer("{% generation %}x{% endgeneration %}" + SWITCHED)
    with pytest.raises(ConfigError, match="'enable_thinkin' is not a variable of the chat template"):
        Prompting(found, "<mm:think>...</mm:think>", chat_template_kwargs={"enable_thinkin": False})


# ---- marks that are special tokens

MARKED = FIELD.replace("<mm:think>", "[THINK]").replace("</mm:think>", "[/THINK]")
SPECIAL = ("[THINK]", "[/THINK]", "[CALL]", "[ARGS]", "<|im_start|>", "<|im_end|>")


@pytest.fixture
def marked(tmp_path: Path) -> str:
    """A model whose marks are special tokens; its folder."""
    folder = Path(shutil.copytree(model_folder("tinylm/draft"), tmp_path / "model"))
    calls = "{% for c in m.tool_calls or [] %}[CALL]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"
    found = tokenizer("{{ tools | tojson if tools }}" + TURN % (MARKED + calls, ""), SPECIAL)
    found.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(found)}))
    return str(folder)


def test_special_tokens_that_are_marks_are_visible_in_decoded_text(marked: str) -> None:
    prompting = Prompting.for_model(marked)
    assert (prompting.choice.name, prompting.shows_special) == ("magistral", True)
    text = "[THINK]hm[/THINK]4"
    assert prompting.decode(prompting.encode(f"{text}<|im_end|>")) == text
    assert len(prompting.encode("[THINK]")) == 1
    assert as_shown(tokenizer(None, SPECIAL), text) == "hm4"  # as it would be otherwise
    task = GenerationTask(input_str="[/THINK]")
    prompting.apply(task)
    (close,) = prompting.encode("[/THINK]")
    assert close not in (task.input_tokens or [])  # a user does not close it


def test_a_worker_of_the_model_writes_them(marked: str) -> None:
    pytest.importorskip("torch")
    from scaffolding_ext.workers.huggingface.engine_request import _decode_stream

    loaded = load_tokenizer(marked)
    stream, ids = _decode_stream(), loaded.backend_tokenizer.encode("[THINK]hm[/THINK]4", add_special_tokens=False).ids
    assert "".join(stream.step(loaded.backend_tokenizer, token) or "" for token in ids) == "[THINK]hm[/THINK]4"


def test_gpt_oss_stays_as_decoded_text_shows_it(saved_model: Any) -> None:
    prompting = Prompting.for_model(saved_model("gpt_oss"))
    assert (prompting.choice.name, prompting.shows_special) == ("gpt_oss", False)
