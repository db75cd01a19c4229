"""Prompts: the template once, exact token ids, families, embedded models, and a tokenizer that is never copied."""

import copy

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask, ParallelProcess
from scaffolding_ext.testing import ScriptedWorker

MODEL = "tinylm/draft"
EMBEDDED = (MODEL, "tinylm/target")


def bare_tokenizer():
    """A tokenizer without a chat template that puts a token of its own before every prompt."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", bos_token="<s>")


def applied(prompting, prompt):
    task = GenerationTask(input_str=prompt)
    prompting.apply(task)
    return task


# ---- applying


def test_the_template_wraps_the_prompt_and_opens_thinking():
    task = applied(Prompting.for_model(MODEL), "Two and two?")
    assert task.input_str == "<|user|>Two and two?<|assistant|><think>\n"


def test_a_system_prompt_goes_first():
    task = applied(Prompting.for_model(MODEL, system_prompt="Be brief."), "Hi")
    assert task.input_str.index("Be brief.") < task.input_str.index("Hi")


@pytest.mark.parametrize("prompt", ["Start with 5. Apply a+3.", "", "∫ x² dx — ü"])
def test_token_ids_are_the_tokenizers_for_the_rendered_text(prompt):
    task = applied(Prompting.for_model(MODEL), prompt)
    tokenizer = load_tokenizer(MODEL)
    assert task.input_tokens == tokenizer(task.input_str, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(task.input_tokens, skip_special_tokens=False) == task.input_str


def test_without_a_template_the_prompt_stays_and_gets_its_special_tokens():
    prompting = Prompting(bare_tokenizer())
    task = applied(prompting, "a b")
    assert (task.input_str, task.input_tokens) == ("a b", [0, 1, 2])
    assert prompting.encode("a b") == [1, 2]  # what continues a chain gets none


def test_a_template_that_writes_special_tokens_gets_no_second_ones():
    tokenizer = bare_tokenizer()
    tokenizer.chat_template = "<s>{{ messages[0]['content'] }}"
    task = applied(Prompting(tokenizer), "a b")
    assert (task.input_str, task.input_tokens) == ("<s>a b", [0, 1, 2])


def test_the_template_can_be_turned_off():
    task = applied(Prompting.for_model(MODEL, chat_template=False), "plain")
    assert task.input_str == "plain"


def test_the_template_is_applied_once_however_deep_controllers_nest():
    class Nested(BaseController):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def run(self, task, **kwargs):
            copies = [GenerationTask(input_str=task.input_str, input_tokens=task.input_tokens) for _ in range(2)]
            yield ParallelProcess([self.inner.clone() for _ in copies], [[c] for c in copies], [{}, {}])
            task.output_str = copies[0].output_str

    controller = Nested(Nested(NativeGenerationController()))
    controller.prompting = Prompting.for_model(MODEL)
    worker = ScriptedWorker("ok")
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        result = llm.generate("Q")
    assert len(worker.tasks) == 4
    expected = applied(controller.prompting, "Q")
    assert {task.input_str for task in worker.tasks} == {expected.input_str}
    assert all(task.input_tokens == expected.input_tokens for task in worker.tasks)
    assert result.program.question.prompting is controller.prompting


# ---- errors


def test_unknown_families_list_the_known_ones():
    for unknown in (lambda: family_named("gpt"), lambda: Prompting(bare_tokenizer(), "gpt")):
        with pytest.raises(
            ConfigError,
            match="unknown prompt family 'gpt'; known: deepseek_r1, instruct, gpt_oss, magistral, tinylm",
        ):
            unknown()


def test_a_system_prompt_needs_a_template():
    with pytest.raises(ConfigError, match="needs a chat template") as caught:
        Prompting(bare_tokenizer(), system_prompt="Be brief.")
    assert caught.value.key == "system_prompt"
    with pytest.raises(ConfigError, match="needs a chat template"):
        Prompting.for_model(MODEL, system_prompt="Be brief.", chat_template=False)


# ---- embedded models


def test_embedded_names_resolve_to_folders_and_others_pass_through():
    assert model_folder(MODEL).endswith("draft")
    assert model_folder("some/model") == "some/model"
    with pytest.raises(ConfigError, match=r"unknown embedded model 'tinylm/huge'; known: .*tinylm/draft"):
        model_folder("tinylm/huge")


def test_the_family_is_guessed_from_the_name_unless_given():
    assert Prompting.for_model(MODEL).family is family_named("tinylm")
    assert Prompting.for_model(model_folder(MODEL)).family is family_named("deepseek_r1")
    assert Prompting.for_model(MODEL, "deepseek_r1").family is family_named("deepseek_r1")


@pytest.mark.parametrize("model", EMBEDDED)
def test_the_end_of_thinking_stays_visible(model):
    prompting = Prompting.for_model(model)
    assert len(prompting.encode("</think>")) == 1
    assert prompting.decode(prompting.encode("so 5</think>\nThe")) == "so 5</think>\nThe"
    assert prompting.decode(prompting.encode("5.<|end|>")) == "5."  # the end of the text does not


# ---- sharing


def test_copies_share_the_tokenizer():
    prompting = Prompting.for_model(MODEL)
    assert copy.deepcopy(prompting) is prompting
    assert copy.deepcopy({"p": [prompting]})["p"][0] is prompting
    assert load_tokenizer(MODEL) is load_tokenizer(MODEL)
    controller = NativeGenerationController()
    controller.prompting = prompting
    assert controller.clone().prompting is prompting


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_encode_and_decode_are_inverse(text):
    assume(not any(token in text for token in load_tokenizer(MODEL).all_special_tokens))  # decoding leaves those out
    prompting = Prompting.for_model(MODEL)
    ids = prompting.encode(text)
    assert prompting.decode(ids) == text
    ids.append(-1)
    assert -1 not in prompting.encode(text)  # the cache is not the caller's


def test_a_prompt_that_was_counted_is_not_tokenised_again(monkeypatch):
    prompting = Prompting.for_model("tinylm/target")
    first, second = GenerationTask(input_str="Long. " * 500), GenerationTask(input_str="Long. " * 500)
    prompting.apply(first)
    monkeypatch.setattr("scaffolding_ext.prompts.prompting.token_ids", lambda *_: pytest.fail("it was tokenised again"))
    prompting.apply(second)
    assert second.input_tokens == first.input_tokens
    second.input_tokens.append(7)  # each task has its own list
    prompting.apply(third := GenerationTask(input_str="Long. " * 500))
    assert third.input_tokens == first.input_tokens


def test_an_answer_that_names_a_mark_stays_whole_where_the_server_separates_thinking() -> None:
    said = "The mark </think> ends it."
    assert Prompting(chat=True, separates_thinking=True).split("", said).answer == said
