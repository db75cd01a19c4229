"""What each kind of OpenAI-compatible server takes and gives on `/v1/completions` and `/v1/chat/completions`.

One table is all that tells servers apart: a request holds nothing that its server's row does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError, UnknownNameError
from scaffolding_ext.protocol.thinking import ThinkingBudget

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


class Flavor(NamedTuple):
    """One kind of server.

    Attributes:
        name: As `OpenAIWorker(flavor=...)` has it.
        owned_by: What its `/v1/models` says in `owned_by`, where that tells it.
        fields: Task fields that it takes beside the common ones, under the same name.
        neutral: Sent with each request that has a temperature, so that what its task does not set is the model's plain
            distribution and not a default of the server.
        seed_bits: Bits of a seed that it keeps apart.
        ask_ids: Request fields that make it give token ids; None where it gives none.
        ask_text: Whether it gives text beside token ids; else they are decoded here.
        logprobs_field: Request field for the number of log-probabilities on completions.
        ask_logprob_ids: Request fields that name alternatives by their ids.
        max_num_logprobs: Most alternatives a token that it reports with their ids.
        scores: Whether it gives the log-probabilities of a prompt (`echo`).
        continue_turn: Fields of a chat request that let the model go on with an unfinished assistant turn; None where
            it cannot be asked to.
        chat_fields: Task fields that it takes beside the others in chat requests.
        chat_neutral: Sent with every chat request, so that its answer is the model's whole text.
        takes_ids: Whether a prompt may be token ids; else they go as the text that gives them.
        draws_for_scores: Tokens that it must be asked to draw when it scores a prompt, where 0 is refused or no limit.
        loses_ids: Whether it leaves out the ids of tokens that end inside a character.
        streamed_for: Request fields with which a whole answer is wrong, and one in pieces is right.
        chat_ids: Whether a chat's answer has token ids, too, in streams as well.
        priority: The `priority` of a place in the queue (-1 before all others, then 0, 1, ...: the lower, the sooner),
            where the server schedules by it; None leaves it to the server.
        takes_salt: Whether it takes `cache_salt` on completions, and on chat.
        verdict_field: Request field for the tokens whose log-probabilities are told, likely or not; releases that lack
            it ignore it, and tell the likeliest.
        logits_field: Request field for the logits of a prompt, which are a reward model's scores.
        ask_plain_text: Request fields that make it tokenise a text without adding special tokens; None where it cannot.
        thinking: Request fields for a budget of thinking on completions, and in chats; None where it has none.
        chat_thinking: Likewise.
    """

    name: str
    owned_by: str | None
    fields: tuple[str, ...] = ()
    neutral: Mapping[str, Any] = MappingProxyType({})
    seed_bits: int = 63
    ask_ids: Mapping[str, Any] | None = None
    ask_text: bool = True
    logprobs_field: str = "logprobs"
    ask_logprob_ids: Mapping[str, Any] = MappingProxyType({})
    max_num_logprobs: int = 0
    scores: bool = False
    continue_turn: Mapping[str, Any] | None = None
    chat_fields: tuple[str, ...] = ()
    chat_neutral: Mapping[str, Any] = MappingProxyType({})
    takes_ids: bool = True
    draws_for_scores: int = 0
    loses_ids: bool = False
    streamed_for: tuple[str, ...] = ()
    chat_ids: bool = True
    priority: Callable[[int], float | None] | None = None
    takes_salt: tuple[bool, bool] = (False, False)
    verdict_field: str | None = None
    logits_field: str | None = None
    ask_plain_text: Mapping[str, Any] | None = None
    thinking: Callable[[ThinkingBudget], Mapping[str, Any]] | None = None
    chat_thinking: Callable[[ThinkingBudget], Mapping[str, Any]] | None = None


def _top_level(budget: ThinkingBudget) -> Mapping[str, Any]:
    return {"thinking_token_budget": budget.max_tokens}


def _custom_params(budget: ThinkingBudget) -> Mapping[str, Any]:
    """Read by strict thinking, and by the logit processor that a request may name beside it."""
    return {"custom_params": {"thinking_budget": budget.max_tokens}}


def _sampler(budget: ThinkingBudget) -> Mapping[str, Any]:
    """llama-server's sampler counts only where it knows both marks, was told of an open one, and has a message."""
    return {
        "reasoning_budget_tokens": budget.max_tokens,
        "reasoning_budget_start_tag": budget.open,
        "reasoning_budget_end_tag": budget.close,  # of releases before those with several
        "reasoning_budget_end_tags": [budget.close],
        "reasoning_budget_message": "",
        **({"generation_prompt": budget.open} if budget.is_open else {}),
    }


def _of_template(budget: ThinkingBudget) -> Mapping[str, Any]:
    return {"thinking_budget_tokens": budget.max_tokens}  # the chat template's own marks


_CONTINUE: Mapping[str, Any] = MappingProxyType({"add_generation_prompt": False, "continue_final_message": True})
# llama.cpp cuts the distribution before it heats it, unless it is told the order that the other servers have.
_SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")

FLAVORS: Mapping[str, Flavor] = MappingProxyType(
    {
        flavor.name: flavor
        for flavor in (
            Flavor(
                "vllm",
                "vllm",
                ("top_k", "min_tokens", "ignore_eos"),
                neutral={"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1},
                priority=lambda place: place,  # the lowest first; whoever says nothing has 0
                takes_salt=(True, True),
                verdict_field="logprob_token_ids",
                ask_plain_text={"add_special_tokens": False},
                ask_ids={"return_token_ids": True},
                ask_logprob_ids={"return_tokens_as_token_ids": True},
                max_num_logprobs=20,
                scores=True,
                continue_turn=_CONTINUE,
                chat_fields=("reasoning_effort",),
                thinking=_top_level,
                chat_thinking=_top_level,
            ),
            Flavor(
                "sglang",
                "sglang",
                ("top_k", "min_tokens", "ignore_eos"),
                neutral={"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1},
                # The highest first. It throws running requests out for one that is far above them: two levels alone.
                priority=lambda place: 1 if place < 0 else None,
                takes_salt=(True, True),
                ask_ids={"return_token_ids": True},
                max_num_logprobs=1,
                chat_ids=False,
                chat_neutral={"separate_reasoning": False},
                scores=True,
                draws_for_scores=1,
                continue_turn={"continue_final_message": True},
                chat_fields=("reasoning_effort",),
                thinking=_custom_params,
                chat_thinking=_custom_params,
            ),
            Flavor(
                "trtllm",
                "tensorrt_llm",
                ("top_k", "min_tokens", "ignore_eos", "best_of"),
                neutral={"top_p": 1},
                ask_plain_text={"add_special_tokens": False},
                ask_ids={"detokenize": False},
                ask_text=False,
                max_num_logprobs=1,
                chat_ids=False,
                priority=lambda place: 1.0 if place < 0 else 0.5 / (1 + place / 1024),  # the highest first, 0.5 unsaid
                takes_salt=(False, True),
                logits_field="return_context_logits",
                thinking=_top_level,
                chat_thinking=_top_level,
            ),
            Flavor(
                "llama_cpp",
                "llamacpp",
                ("top_k", "ignore_eos"),
                neutral={"top_p": 1, "top_k": 0, "min_p": 0, "repeat_penalty": 1, "samplers": _SAMPLERS},
                seed_bits=31,
                ask_ids={"n_probs": 1},
                logprobs_field="n_probs",
                max_num_logprobs=20,
                continue_turn=_CONTINUE,
                chat_neutral={"reasoning_format": "none"},
                loses_ids=True,
                # Whole, its answer lacks ids where it ends at a stop string, and begins with the turn it went on with.
                streamed_for=("stop", "continue_final_message"),
                thinking=_sampler,
                chat_thinking=_of_template,
            ),
            Flavor(
                "llama_cpp_python",
                "me",
                ("top_k",),
                neutral={"top_p": 1, "top_k": 0, "min_p": 0, "repeat_penalty": 1},
                seed_bits=31,
                scores=True,
                takes_ids=False,
                draws_for_scores=1,
            ),
            Flavor(  # this package's own `serve`
                "scaffolding_ext",
                "scaffolding_ext",
                ("top_k",),
                takes_ids=False,
                chat_fields=("reasoning_effort",),
                thinking=_top_level,
                chat_thinking=_top_level,
            ),
            Flavor("openai", None, ("best_of", "suffix"), chat_fields=("reasoning_effort",)),
        )
    }
)


def flavor_named(name: str) -> Flavor:
    """The flavour of that name.

    Raises:
        UnknownNameError: There is none.
    """
    if name not in FLAVORS:
        raise UnknownNameError(f"unknown flavor {name!r}; known: auto, {', '.join(FLAVORS)}", "flavor")
    return FLAVORS[name]


class ServedModel(NamedTuple):
    """What `/v1/models` says of a model.

    Attributes:
        flavor: The server's kind; plain `openai` where its answer does not tell.
        max_seq_len: Prompt and generated tokens at most, where it says.
    """

    flavor: Flavor
    max_seq_len: int | None


def described(models: list[Any], model: str, url: str) -> ServedModel:
    """Read `/v1/models`.

    Args:
        models: Its entries.
        model: Which of them is meant.
        url: For the error.

    Raises:
        ConfigError: The server does not list the model.
    """
    known = {str(getattr(entry, "id", "")): entry for entry in models}
    if model not in known:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"{url} does not serve {model!r}; it lists: {names}", "model")
    owner = getattr(known[model], "owned_by", None)
    flavor = next((flavor for flavor in FLAVORS.values() if flavor.owned_by == owner), FLAVORS["openai"])
    length = getattr(known[model], "max_model_len", None)
    if length is None:  # llama-server tells it of one of its slots
        length = (getattr(known[model], "meta", None) or {}).get("n_ctx")
    return ServedModel(flavor, length if isinstance(length, int) and length > 0 else None)
