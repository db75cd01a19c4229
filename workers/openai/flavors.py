"""What each kind of OpenAI-compatible server takes and gives on `/v1/completions` and `/v1/chat/completions`.

One table holds all differences between servers: a request holds only fields that its server's row names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError, UnknownNameError
from scaffolding_ext.protocol.meta import ThinkingBudget

# Task fields that every server takes under the same name.
COMMON_FIELDS = (
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "user",
)


Budget = Callable[[ThinkingBudget], Mapping[str, Any]]
"""Request fields for a budget of thinking."""
_NONE: Mapping[str, Any] = MappingProxyType({})


class TokenIds(NamedTuple):
    """How prompts and answers are token ids.

    Attributes:
        ask: Request fields that make the server give token ids; None where it gives none.
        with_text: Whether the server gives text beside token ids; if not, the ids are decoded here.
        on_chat: Whether chat answers have token ids, too, both whole and streamed.
        loses: Whether it leaves out the ids of tokens that end inside a character.
        in_prompts: Whether a prompt may be token ids; if not, the text that gives these ids is sent.
        plain_text: Request fields that make it tokenise a text without adding special tokens; None where it cannot.
    """

    ask: Mapping[str, Any] | None = None
    with_text: bool = True
    on_chat: bool = True
    loses: bool = False
    in_prompts: bool = True
    plain_text: Mapping[str, Any] | None = None


class Logprobs(NamedTuple):
    """How the log-probabilities of new tokens are asked for.

    Attributes:
        field: Request field for their number on completions.
        by_ids: Request fields that name alternatives by their ids.
        most: Most alternatives a token that the server reports with their ids.
        given_field: Request field that lists tokens; the server reports their log-probabilities, however unlikely they
            are. Releases without this field ignore it and report the likeliest tokens.
    """

    field: str = "logprobs"
    by_ids: Mapping[str, Any] = _NONE
    most: int = 0
    given_field: str | None = None


class PromptScores(NamedTuple):
    """What the server tells of a prompt.

    Attributes:
        are_echoed: Whether it gives the log-probabilities of a prompt (`echo`).
        num_drawn: Tokens that the server must draw beside the echo: some servers refuse 0, or read it as no limit.
        logits_field: Request field for the logits of a prompt, which are a reward model's scores.
    """

    are_echoed: bool = False
    num_drawn: int = 0
    logits_field: str | None = None


class Chat(NamedTuple):
    """What chat requests take in addition to the fields of completions.

    Attributes:
        fields: Task fields.
        neutral: Sent with every chat request, so that its answer is the model's whole text.
        continue_turn: Fields that let the model go on with an unfinished assistant turn; None where there are none.
        thinking: Fields for a budget of thinking; None where chats have none.
        takes_salt: Whether chats take `cache_salt`.
    """

    fields: tuple[str, ...] = ()
    neutral: Mapping[str, Any] = _NONE
    continue_turn: Mapping[str, Any] | None = None
    thinking: Budget | None = None
    takes_salt: bool = False


class Flavor(NamedTuple):
    """One kind of server.

    Attributes:
        name: As `OpenAIWorker(flavor=...)` has it.
        owned_by: What its `/v1/models` says in `owned_by`, where that tells it.
        fields: Task fields that it takes beside the common ones, under the same name.
        neutral: Fields that are sent with each request that has a temperature. They switch off the server's defaults,
            so that fields that the task does not set leave the model's plain distribution.
        seed_bits: Bits of a seed that the server takes; higher bits are cut off.
        streamed_for: Request fields that the server answers right in streams alone; its whole answers are wrong.
        priority: Turns a place in the queue into the server's `priority`. Place -1 is served first, then 0, 1, and so
            on. None where the server takes no priority.
        takes_agent_hints: Whether it reads `nvext.agent_hints`, with the priority among them, and a session's header.
        has_kv_control: Whether some releases can be told to drop KV; the worker asks each server.
        thinking: Request fields for a budget of thinking on completions; None where they have none.
        takes_salt: Whether completions take `cache_salt`.
        ids: How prompts and answers are token ids.
        logprobs: How log-probabilities are asked for.
        scores: What it tells of a prompt.
        chat: What its chats take.
    """

    name: str
    owned_by: str | None
    fields: tuple[str, ...] = ()
    neutral: Mapping[str, Any] = _NONE
    seed_bits: int = 63
    streamed_for: tuple[str, ...] = ()
    priority: Callable[[int], float | None] | None = None
    takes_agent_hints: bool = False
    has_kv_control: bool = False
    thinking: Budget | None = None
    takes_salt: bool = False
    ids: TokenIds = TokenIds()
    logprobs: Logprobs = Logprobs()
    scores: PromptScores = PromptScores()
    chat: Chat = Chat()


def _as_it_is(place: int) -> float:
    """The lowest number is served first; a request without a number has 0."""
    return place


def _two_levels(place: int) -> float | None:
    """The highest number is served first. SGLang preempts running requests for far higher ones: use two levels."""
    return 1 if place < 0 else None


def _up_to_one(place: int) -> float:
    """The highest number is served first; a request without a number has 0.5."""
    return 1.0 if place < 0 else 0.5 / (1 + place / 1024)


def _of_31_bits(place: int) -> float:
    """The highest number is served first. It is a whole number of 32 bits; a request without one has 0."""
    return -min(place, 2**31 - 1)


def _top_level(budget: ThinkingBudget) -> Mapping[str, Any]:
    return {"thinking_token_budget": budget.max_tokens}


def _custom_params(budget: ThinkingBudget) -> Mapping[str, Any]:
    """Two parts of SGLang read it: strict thinking, and the logit processor that a request may name."""
    return {"custom_params": {"thinking_budget": budget.max_tokens}}


def _sampler(budget: ThinkingBudget) -> Mapping[str, Any]:
    """llama-server's sampler counts only if it knows both marks, knows that thinking is open, and has a message."""
    return {
        "reasoning_budget_tokens": budget.max_tokens,
        "reasoning_budget_start_tag": budget.open,
        "reasoning_budget_end_tag": budget.close,  # for releases that take only one end mark
        "reasoning_budget_end_tags": [budget.close],
        "reasoning_budget_message": "",
        **({"generation_prompt": budget.open} if budget.is_open else {}),
    }


def _of_template(budget: ThinkingBudget) -> Mapping[str, Any]:
    return {"thinking_budget_tokens": budget.max_tokens}  # the chat template's own marks


_CONTINUE: Mapping[str, Any] = MappingProxyType({"add_generation_prompt": False, "continue_final_message": True})
# By default llama.cpp truncates the distribution before it applies the temperature. The other servers do it after.
_SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")

_OPEN: Mapping[str, Any] = MappingProxyType({"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1})
_LLAMA: Mapping[str, Any] = MappingProxyType({"top_p": 1, "top_k": 0, "min_p": 0, "repeat_penalty": 1})
_KNOWN = (
    Flavor(
        "vllm",
        "vllm",
        ("top_k", "min_tokens", "ignore_eos"),
        _OPEN,
        priority=_as_it_is,
        thinking=_top_level,
        takes_salt=True,
        ids=TokenIds({"return_token_ids": True}, plain_text={"add_special_tokens": False}),
        logprobs=Logprobs("logprobs", {"return_tokens_as_token_ids": True}, 20, "logprob_token_ids"),
        scores=PromptScores(are_echoed=True),
        chat=Chat(("reasoning_effort",), continue_turn=_CONTINUE, thinking=_top_level, takes_salt=True),
    ),
    Flavor(
        "sglang",
        "sglang",
        ("top_k", "min_tokens", "ignore_eos"),
        _OPEN,
        priority=_two_levels,
        thinking=_custom_params,
        takes_salt=True,
        ids=TokenIds({"return_token_ids": True}, on_chat=False),
        logprobs=Logprobs(most=1),
        scores=PromptScores(are_echoed=True, num_drawn=1),
        chat=Chat(
            ("reasoning_effort",),
            {"separate_reasoning": False},
            {"continue_final_message": True},
            _custom_params,
            takes_salt=True,
        ),
    ),
    Flavor(
        "trtllm",
        "tensorrt_llm",
        ("top_k", "min_tokens", "ignore_eos", "best_of"),
        {"top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1},
        priority=_up_to_one,
        has_kv_control=True,
        thinking=_top_level,
        ids=TokenIds({"detokenize": False}, with_text=False, on_chat=False, plain_text={"add_special_tokens": False}),
        logprobs=Logprobs(most=1),
        scores=PromptScores(logits_field="return_context_logits"),
        chat=Chat(thinking=_top_level, takes_salt=True),
    ),
    Flavor(
        "llama_cpp",
        "llamacpp",
        ("top_k", "ignore_eos"),
        {**_LLAMA, "samplers": _SAMPLERS},
        seed_bits=31,
        # A whole answer lacks ids if it ends at a stop string, and it repeats the turn that it continues.
        streamed_for=("stop", "continue_final_message"),
        thinking=_sampler,
        ids=TokenIds({"n_probs": 1}, loses=True),
        logprobs=Logprobs("n_probs", most=20),
        chat=Chat(neutral={"reasoning_format": "none"}, continue_turn=_CONTINUE, thinking=_of_template),
    ),
    Flavor(
        "llama_cpp_python",
        "me",
        ("top_k",),
        _LLAMA,
        seed_bits=31,
        ids=TokenIds(in_prompts=False),
        scores=PromptScores(are_echoed=True, num_drawn=1),
    ),
    Flavor(  # this package's own `serve`
        "scaffolding_ext",
        "scaffolding_ext",
        ("top_k",),
        thinking=_top_level,
        ids=TokenIds(in_prompts=False),
        chat=Chat(("reasoning_effort",), thinking=_top_level),
    ),
    # NVIDIA Dynamo's frontend, with any engine behind it. Its answers have no token ids.
    Flavor(
        "dynamo",
        None,
        ("top_k", "min_tokens", "ignore_eos"),
        {"top_p": 1, "top_k": -1, "repetition_penalty": 1},
        priority=_of_31_bits,
        takes_agent_hints=True,
        chat=Chat(("reasoning_effort",)),
    ),
    Flavor("openai", None, ("best_of", "suffix"), chat=Chat(("reasoning_effort",))),
)
FLAVORS: Mapping[str, Flavor] = MappingProxyType({flavor.name: flavor for flavor in _KNOWN})


def flavor_named(name: str) -> Flavor:
    """The flavour of that name.

    Raises:
        UnknownNameError: There is none.
    """
    if name not in FLAVORS:
        raise UnknownNameError(f"unknown flavor {name!r}; known: auto, {', '.join(FLAVORS)}", "flavor")
    return FLAVORS[name]


class ModelEntry(NamedTuple):
    """What `/v1/models` says of a model.

    Attributes:
        flavor: The server's kind; plain `openai` where its answer does not tell.
        max_seq_len: Prompt and generated tokens at most; None where the server does not say.
    """

    flavor: Flavor
    max_seq_len: int | None


def described(models: list[Any], model: str, url: str) -> ModelEntry:
    """Read `/v1/models`: what it says of one model.

    Raises:
        ConfigError: The server does not list the model.
    """
    known = {str(getattr(entry, "id", "")): entry for entry in models}
    if model not in known:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"is {model!r}, which {url} does not serve; it serves: {names}", "model")
    owner = getattr(known[model], "owned_by", None)
    flavor = next((flavor for flavor in FLAVORS.values() if flavor.owned_by == owner), FLAVORS["openai"])
    length = getattr(known[model], "max_model_len", None)
    if length is None:  # llama-server reports the length of one slot
        length = (getattr(known[model], "meta", None) or {}).get("n_ctx")
    return ModelEntry(flavor, length if isinstance(length, int) and length > 0 else None)
