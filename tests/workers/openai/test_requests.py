"""Requests to each kind of server: its own fields and no others, and nothing is dropped without a word."""

import contextvars
import itertools

import pytest

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PROBE, note
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import Program, enter_program
from scaffolding_ext.workers.openai.flavors import COMMON_FIELDS, FLAVORS
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.shared.task_reading import NEUTRAL

# Of trtllm-serve's CompletionRequest, which forbids all others.
TRTLLM_FIELDS = frozenset(
    (
        *("model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias"),
        *("logprobs", "max_tokens", "n", "presence_penalty", "seed", "stop"),
        *("stream", "stream_options", "suffix", "temperature", "top_p", "user"),
        *("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens"),
        *("skip_special_tokens", "return_context_logits", "detokenize", "add_special_tokens"),
    )
)
ASKED = {
    "best_of": 2,
    "echo": True,
    "frequency_penalty": 0.5,
    "ignore_eos": True,
    "logit_bias": {"5": 1.0},
    "max_tokens": 9,
    "min_tokens": 2,
    "n": 2,
    "num_logprobs": 1,
    "presence_penalty": 0.5,
    "reasoning_effort": "low",
    "return_context_logits": True,
    "seed": 2**40 + 3,
    "skip_detokenizer": True,
    "skip_tokenizer": True,
    "stop": ["x"],
    "suffix": "end",
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.9,
    "user": "me",
}


def bodies(flavor, chat=False, max_seq_len=100):
    return RequestBodies(FLAVORS[flavor], "served", "tinylm/draft", max_seq_len, chat)


def task(**fields):
    return GenerationTask(**{"input_tokens": [5, 6], "max_tokens": 9, **fields})


def test_every_field_is_sent_or_refused_by_name():
    assert ASKED.keys() == NEUTRAL.keys()
    wrong = []
    for flavor, name in itertools.product(FLAVORS, ASKED):
        kind, given = FLAVORS[flavor], task(**{name: ASKED[name]})
        sent = kind.logprobs.field if name == "num_logprobs" else name
        expected = ASKED[name] & (2**kind.seed_bits - 1) if name == "seed" else ASKED[name]
        is_sent = name in (*COMMON_FIELDS, *kind.fields) or (name == "num_logprobs" and kind.logprobs.most)
        try:
            found = bodies(flavor).generation(given, stream=False)[sent]
        except InvalidTaskError as error:
            found = str(error).partition(" is ")[0]
            expected = expected if is_sent else name
        if found != expected:
            wrong.append((flavor, name, found))
    assert wrong == []


@pytest.mark.parametrize("stream", [True, False])
def test_trtllm_serve_gets_only_what_it_knows(stream):
    given = task(
        **{
            name: ASKED[name]
            for name in ("best_of", "ignore_eos", "min_tokens", "num_logprobs", "seed", "stop", "top_k")
        }
    )
    body = bodies("trtllm").generation(given, stream)
    assert body.keys() <= TRTLLM_FIELDS
    assert body["detokenize"] is False


def test_without_a_temperature_the_server_decides():
    """Nothing of its own is switched off, and no temperature is sent; with one, all that the task leaves out is off."""
    for flavor in FLAVORS:
        own = FLAVORS[flavor].neutral.keys() | {"temperature"}
        assert own.isdisjoint(bodies(flavor).generation(task(), stream=False)), flavor
        assert own & bodies(flavor).generation(task(top_p=0.9), stream=False).keys() == {"top_p"} & own, flavor
        assert own <= bodies(flavor).generation(task(temperature=0.0), stream=False).keys(), flavor


@pytest.mark.parametrize("chat", [False, True])
def test_trtllm_serve_fills_nothing_from_the_models_own_file(chat):
    """With `generation_config: auto` it takes from there what a request leaves out."""
    body = bodies("trtllm", chat).generation(task(input_str="x", temperature=0.7), stream=False)
    assert {name: body[name] for name in ("top_p", "top_k", "min_p", "repetition_penalty")} == {
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "repetition_penalty": 1,
    }
    assert bodies("trtllm", chat).generation(task(input_str="x", temperature=0.7, top_p=0.9), False)["top_p"] == 0.9


def test_prompts_are_sent_as_ids_where_there_are_any():
    assert bodies("vllm").generation(task(input_str="Hello"), stream=False)["prompt"] == [5, 6]
    assert bodies("vllm").generation(GenerationTask(input_str="Hello", max_tokens=1), False)["prompt"] == "Hello"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_tokens": []}, "input is empty"),
        ({"input_tokens": None}, "set one of them to the prompt"),
        ({"input_tokens": [-1]}, "contains -1"),
        ({"input_tokens": ["a"]}, "integer token ids"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 99}, "2 tokens and max_tokens is 99"),
        ({"stop": [3]}, "stop is"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"num_logprobs": 21}, "num_logprobs is 21"),
        (
            {"custom_input_params": {"guided_decoding": {"regex": "7"}}},
            r"guided_decoding is \{'regex': '7'\}; OpenAIWorker takes",
        ),
        ({"custom_input_params": {"stop_token_ids": [7]}}, "has stop_token_ids, which OpenAIWorker cannot"),
    ],
)
def test_unusable_fields_are_named(fields, message):
    with pytest.raises(InvalidTaskError, match=message):
        bodies("vllm").generation(task(**fields), stream=False)


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    ("flavor", "chat", "guide", "fields"),
    [
        ("vllm", False, {"json": SCHEMA}, {"response_format": FORMAT}),
        ("vllm", True, {"json_object": True}, {"response_format": {"type": "json_object"}}),
        ("sglang", False, {"json": SCHEMA}, {"response_format": FORMAT}),
        ("trtllm", True, {"json": SCHEMA}, {"response_format": FORMAT}),
        ("llama_cpp", False, {"json": SCHEMA}, {"json_schema": SCHEMA}),
        ("llama_cpp", False, {"json_object": True}, {"json_schema": {"type": "object"}}),
        ("llama_cpp", True, {"json": SCHEMA}, {"response_format": FORMAT}),
        ("openai", True, {"json": SCHEMA}, {"response_format": FORMAT}),
    ],
)
def test_a_form_of_the_answer_goes_in_the_servers_field(flavor, chat, guide, fields):
    given = GenerationTask(input_str="?", max_tokens=3, custom_input_params={"guided_decoding": guide})
    sender = RequestBodies(FLAVORS[flavor], "served", "tinylm/draft", 100, chat=chat)
    body = sender.generation(given, stream=False)
    assert {name: body.get(name) for name in ("response_format", "json_schema") if name in body} == fields


@pytest.mark.parametrize(("flavor", "chat"), [("openai", False), ("scaffolding_ext", False)])
def test_a_form_of_the_answer_is_refused_where_the_server_has_no_field(flavor, chat):
    given = GenerationTask(input_str="?", max_tokens=3, custom_input_params={"guided_decoding": {"json": SCHEMA}})
    with pytest.raises(InvalidTaskError, match="has guided_decoding, which OpenAIWorker cannot honour"):
        RequestBodies(FLAVORS[flavor], "served", "tinylm/draft", 100, chat=chat).generation(given, stream=False)


def test_no_budget_takes_all_the_context_or_is_refused():
    assert bodies("vllm").generation(task(max_tokens=None), stream=False)["max_tokens"] == 98
    with pytest.raises(InvalidTaskError, match="max_tokens is None"):
        bodies("vllm", max_seq_len=None).generation(task(max_tokens=None), stream=False)


def test_a_chat_goes_on_with_an_unfinished_turn_where_the_server_can():
    given = GenerationTask(input_str="QuestionHalf", max_tokens=3)
    note(given, turn_start=len("Question"))
    body = bodies("vllm", chat=True).generation(given, stream=False)
    assert body["messages"] == [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Half"}]
    assert (body["add_generation_prompt"], body["continue_final_message"]) == (False, True)
    with pytest.raises(InvalidTaskError, match="unfinished answer"):
        bodies("trtllm", chat=True).generation(given, stream=False)


def test_scores_of_text_take_the_tokenizers_ids():
    text = bodies("vllm").reader.scored(ScoreTask(input_str="Start with 5.", continuation_str=" Add 3."))
    whole = bodies("vllm").encode("Start with 5. Add 3.", True)
    assert text.token_ids == whole
    assert 0 < text.start < len(whole)


@pytest.mark.parametrize("flavor", ["vllm", "sglang", "llama_cpp", "trtllm"])
def test_a_stop_string_that_is_a_special_token_goes_as_an_id(flavor):
    """A server decodes without special tokens, so that the string never appears in the text."""
    body = bodies(flavor).generation(task(stop=["<|end|>", "x"]), stream=False)
    assert body["stop"] == ["<|end|>", "x"]
    assert body.get("stop_token_ids") == ([3] if FLAVORS[flavor].takes_end_ids else None)


def test_trtllm_serve_sends_ids_that_are_matched_here_too():
    assert bodies("trtllm").generation(task(stop=["<|end|>"]), stream=False)["stop_token_ids"] == [3]
    stops = bodies("trtllm").stops(task(stop=["<|end|>"]))
    assert stops.feed([5, 6, 3, 7], 4) == 3


@pytest.mark.parametrize("flavor", ["vllm", "sglang", "trtllm"])
def test_no_place_of_a_policy_goes_before_what_others_wait_for(flavor):
    program = Program()
    program.place.order = lambda progress: -3.0
    prioritized = RequestBodies(FLAVORS[flavor], "served", "tinylm/draft", 100, False, prioritize=True)

    def sent(**notes):
        own = task()
        note(own, **notes)
        enter_program(program)
        return prioritized.generation(own, stream=False).get("priority")

    assert contextvars.copy_context().run(sent) is None
    assert contextvars.copy_context().run(lambda: sent(purpose=PROBE)) is not None
