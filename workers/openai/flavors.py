"""Differences between OpenAI-compatible servers on `/v1/completions` and `/v1/chat/completions`.

One table holds them all: a request contains only fields named in its server's row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol.meta import ThinkingBudget

# Task fields that every server accepts under the same name.
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
"""Request fields for a thinking budget."""
Guide = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Request fields for a constraint on the answer's form: `json`, a schema, or `json_object`."""
_NONE: Mapping[str, Any] = MappingProxyType({})


class TokenIds(NamedTuple):
    """Support for token ids in prompts and answers.

    Attributes:
        ask: Request fields that make the server return token ids; None if it cannot.
        with_text: True if the server returns text beside token ids; otherwise the ids are decoded here.
        on_chat: True if chat answers have token ids, too, both whole and streamed.
        loses: True if the server omits the ids of tokens that end inside a character.
        in_prompts: True if prompts may be token ids; otherwise a text that encodes to them is sent.
    """

    ask: Mapping[str, Any] | None = None
    with_text: bool = True
    on_chat: bool = True
    loses: bool = False
    in_prompts: bool = True


class Logprobs(NamedTuple):
    """Request fields for log-probabilities of new tokens.

    Attributes:
        field: Field for their number on completions.
        by_ids: Fields that make alternatives be named by id.
        most: Maximum alternatives per token that the server reports with ids.
        given_field: Field with a list of tokens whose log-probabilities the server reports, however unlikely. Releases
            without it ignore it and report the likeliest tokens.
    """

    field: str = "logprobs"
    by_ids: Mapping[str, Any] = _NONE
    most: int = 0
    given_field: str | None = None


class PromptScores(NamedTuple):
    """Log-probabilities of a prompt's tokens.

    Attributes:
        are_echoed: True if the server returns them (`echo`).
        num_drawn: Tokens to draw beside the echo: some servers refuse 0.
    """

    are_echoed: bool = False
    num_drawn: int = 0


class Chat(NamedTuple):
    """Chat fields in addition to those of completions.

    Attributes:
        fields: Task fields.
        neutral: Sent with every chat request, so the answer is the model's whole text.
        continue_turn: Fields to continue an unfinished assistant turn; None if unsupported.
        thinking: Fields for a thinking budget; None if unsupported.
        guide: Fields for an answer in JSON; None if unsupported.
        takes_salt: True if chats accept `cache_salt`.
    """

    fields: tuple[str, ...] = ()
    neutral: Mapping[str, Any] = _NONE
    continue_turn: Mapping[str, Any] | None = None
    thinking: Budget | None = None
    guide: Guide | None = None
    takes_salt: bool = False


class Flavor(NamedTuple):
    """One kind of server.

    Attributes:
        name: Name in `OpenAIWorker(flavor=...)`.
        owned_by: `owned_by` in its `/v1/models`, if that identifies it.
        fields: Further task fields that it accepts under the same name.
        neutral: Fields sent with each request that has a temperature. They disable the server's defaults, so unset
            fields leave the model's plain distribution.
        seed_bits: Bits of a seed that the server accepts; higher bits are cut off.
        streamed_for: Request fields for which only streamed answers are correct.
        priority: Converts a place in the queue to the server's `priority`. Place -1 is served first, then 0, 1, and so
            on. None if unsupported.
        thinking: Completions fields for a thinking budget; None if unsupported.
        guide: Completions fields for an answer in JSON; None if unsupported.
        takes_salt: True if completions accept `cache_salt`.
        takes_end_ids: True if requests accept `stop_token_ids`.
        shows_special: Fields that make a text show special tokens; None if unsupported.
        tells_reuse: True if answers have the cached tokens of their prompts, or have none.
        reuse_option: Option of the server that makes it tell them; the worker tests if it is set.
        stream_usage: Fields of `stream_options` for usage in each piece, so that a closed stream's prompt is counted.
        takes_interval: True if a request may set how many tokens a streamed piece has, after the first of one token.
            Releases without the field ignore it.
        ids: Support for token ids.
        logprobs: Fields for log-probabilities.
        scores: Log-probabilities of prompts.
        chat: Fields of chats.
    """

    name: str
    owned_by: str | None
    fields: tuple[str, ...] = ()
    neutral: Mapping[str, Any] = _NONE
    seed_bits: int = 63
    streamed_for: tuple[str, ...] = ()
    priority: Callable[[int], float | None] | None = None
    thinking: Budget | None = None
    guide: Guide | None = None
    takes_salt: bool = False
    takes_end_ids: bool = False
    shows_special: Mapping[str, Any] | None = None
    tells_reuse: bool = True
    reuse_option: str | None = None
    stream_usage: Mapping[str, Any] = _NONE
    takes_interval: bool = False
    ids: TokenIds = TokenIds()
    logprobs: Logprobs = Logprobs()
    scores: PromptScores = PromptScores()
    chat: Chat = Chat()


def _as_it_is(place: int) -> float:
    """Lowest first; a request without a number counts as 0."""
    return place


def _two_levels(place: int) -> float | None:
    """Highest first. SGLang preempts running requests for much higher ones, so only two levels are used."""
    return 1 if place < 0 else None


def _up_to_one(place: int) -> float:
    """Highest first; a request without a number counts as 0.5."""
    return 1.0 if place < 0 else 0.5 / (1 + place / 1024)


def _top_level(budget: ThinkingBudget) -> Mapping[str, Any]:
    return {"thinking_token_budget": budget.max_tokens}


def _custom_params(budget: ThinkingBudget) -> Mapping[str, Any]:
    """Read by SGLang's strict thinking."""
    return {"custom_params": {"thinking_budget": budget.max_tokens}}


def _sampler(budget: ThinkingBudget) -> Mapping[str, Any]:
    """llama-server's sampler needs both marks, the state of thinking and a message in order to count."""
    return {
        "reasoning_budget_tokens": budget.max_tokens,
        "reasoning_budget_start_tag": budget.open,
        "reasoning_budget_end_tag": budget.close,  # for releases that accept only one end mark
        "reasoning_budget_end_tags": [budget.close],
        "reasoning_budget_message": "",
        **({"generation_prompt": budget.open} if budget.is_open else {}),
    }


def _of_template(budget: ThinkingBudget) -> Mapping[str, Any]:
    return {"thinking_budget_tokens": budget.max_tokens}  # the chat template's own marks


def _response_format(guide: Mapping[str, Any]) -> Mapping[str, Any]:
    if "json" not in guide:
        return {"response_format": {"type": "json_object"}}
    schema = {"name": "answer", "schema": guide["json"], "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _json_schema(guide: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"json_schema": guide.get("json", {"type": "object"})}


_CONTINUE: Mapping[str, Any] = MappingProxyType({"add_generation_prompt": False, "continue_final_message": True})
# By default llama.cpp truncates the distribution before it applies the temperature; the other servers do so after.
_SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")

_OPEN: Mapping[str, Any] = MappingProxyType({"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1})
_SHOWS_SPECIAL: Mapping[str, Any] = MappingProxyType({"skip_special_tokens": False})
_KNOWN = (
    Flavor(
        "vllm",
        "vllm",
        ("top_k", "min_tokens", "ignore_eos"),
        _OPEN,
        priority=_as_it_is,
        thinking=_top_level,
        guide=_response_format,
        takes_salt=True,
        takes_end_ids=True,
        shows_special=_SHOWS_SPECIAL,
        reuse_option="--enable-prompt-tokens-details",
        stream_usage={"continuous_usage_stats": True},
        takes_interval=True,
        ids=TokenIds({"return_token_ids": True}),
        logprobs=Logprobs("logprobs", {"return_tokens_as_token_ids": True}, 20, "logprob_token_ids"),
        scores=PromptScores(are_echoed=True),
        chat=Chat(
            ("reasoning_effort",),
            continue_turn=_CONTINUE,
            thinking=_top_level,
            guide=_response_format,
            takes_salt=True,
        ),
    ),
    Flavor(
        "sglang",
        "sglang",
        ("top_k", "min_tokens", "ignore_eos"),
        _OPEN,
        priority=_two_levels,
        thinking=_custom_params,
        guide=_response_format,
        takes_salt=True,
        takes_end_ids=True,
        shows_special=_SHOWS_SPECIAL,
        reuse_option="--enable-cache-report",
        ids=TokenIds({"return_token_ids": True}, on_chat=False),
        logprobs=Logprobs(most=1),
        scores=PromptScores(are_echoed=True, num_drawn=1),
        chat=Chat(
            ("reasoning_effort",),
            {"separate_reasoning": False},
            {"continue_final_message": True},
            _custom_params,
            _response_format,
            takes_salt=True,
        ),
    ),
    Flavor(
        "trtllm",
        "tensorrt_llm",
        ("top_k", "min_tokens", "ignore_eos", "best_of"),
        {"top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1},
        streamed_for=("stop",),  # a whole answer is decoded on behind a stop string, and cut afterwards
        priority=_up_to_one,
        shows_special=_SHOWS_SPECIAL,
        thinking=_top_level,
        guide=_response_format,
        takes_end_ids=True,
        ids=TokenIds({"detokenize": False}, with_text=False, on_chat=False),
        logprobs=Logprobs(most=1),
        chat=Chat(("reasoning_effort",), thinking=_top_level, guide=_response_format, takes_salt=True),
    ),
    Flavor(
        "llama_cpp",
        "llamacpp",
        ("top_k", "ignore_eos"),
        {"top_p": 1, "top_k": 0, "min_p": 0, "repeat_penalty": 1, "samplers": _SAMPLERS},
        seed_bits=31,
        # A whole answer lacks ids if it ends at a stop string, and repeats the turn that it continues.
        streamed_for=("stop", "continue_final_message"),
        thinking=_sampler,
        guide=_json_schema,
        ids=TokenIds({"n_probs": 1}, loses=True),
        logprobs=Logprobs("n_probs", most=20),
        chat=Chat(
            neutral={"reasoning_format": "none"},
            continue_turn=_CONTINUE,
            thinking=_of_template,
            guide=_response_format,
        ),
    ),
    Flavor(  # this package's `serve`
        "scaffolding_ext",
        "scaffolding_ext",
        ("top_k",),
        thinking=_top_level,
        ids=TokenIds(in_prompts=False),
        chat=Chat(("reasoning_effort",), thinking=_top_level, guide=_response_format),
    ),
    Flavor(
        "openai",
        None,
        ("best_of", "suffix"),
        tells_reuse=False,
        chat=Chat(("reasoning_effort",), guide=_response_format),
    ),
)
FLAVORS: Mapping[str, Flavor] = MappingProxyType({flavor.name: flavor for flavor in _KNOWN})


def flavor_named(name: str) -> Flavor:
    """Return the flavor with this name.

    Raises:
        ConfigError: There is none.
    """
    if name not in FLAVORS:
        raise ConfigError(f"unknown flavor {name!r}; known: auto, {', '.join(FLAVORS)}", "flavor")
    return FLAVORS[name]


class ModelEntry(NamedTuple):
    """A model's entry in `/v1/models`.

    Attributes:
        flavor: The server's kind; plain `openai` if its answer does not tell.
        max_seq_len: Maximum prompt and generated tokens; None if the server does not say.
        root: The model's folder or hub name behind an alias; None if the server does not say.
    """

    flavor: Flavor
    max_seq_len: int | None
    root: str | None = None


def described(models: list[Any], model: str, url: str) -> ModelEntry:
    """Read a model's entry in `/v1/models`.

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
    if length is None:  # llama-server: context length of one slot
        length = (getattr(known[model], "meta", None) or {}).get("n_ctx")
    root = getattr(known[model], "root", None)
    return ModelEntry(
        flavor,
        length if isinstance(length, int) and length > 0 else None,
        root if isinstance(root, str) and root else None,
    )
