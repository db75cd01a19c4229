"""Differences of the releases of OpenAI-compatible servers: fields taken, refused, and named otherwise.

The source is their code of 2026: vLLM (`entrypoints/openai`), SGLang (`srt/entrypoints/openai`), TensorRT-LLM
(`serve/openai_protocol.py`, which forbids all fields that it does not know).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scaffolding_ext.errors import InvalidTaskError

_MAX_LOGPROBS = 20  # of vLLM, unless it is started with others
_MAX_TRTLLM_LOGPROBS = 100
_TRTLLM_FIELDS = frozenset(
    (
        *("model", "best_of", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty"),
        *("seed", "stop", "stream", "stream_options", "temperature", "top_p", "user", "use_beam_search", "top_k"),
        *("min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens", "skip_special_tokens"),
        *("add_special_tokens", "echo", "response_format", "thinking_token_budget"),
    )
)
_TRTLLM_ENDPOINTS = {
    "prompt": frozenset(("prompt", "detokenize")),
    "messages": frozenset(("messages", "top_logprobs", "reasoning_effort", "add_generation_prompt", "cache_salt")),
}


class Release(NamedTuple):
    """One release of one kind of server, as it was started.

    Attributes:
        flavor: Its kind, as `OpenAIServer` has it.
        is_older: Whether it lacks what its kind has had since 2026: SGLang token ids, vLLM log-probabilities of given
            tokens, trtllm-serve those of completions, and priorities.
        reasons: Whether it has a reasoning parser, which tells a chat's thinking apart.
        by_priority: Whether it schedules by priority.
        step_len: Tokens of a step of a trtllm-serve without chunked prefill, which refuses longer prompts; else None.
    """

    flavor: str
    is_older: bool = False
    reasons: bool = False
    by_priority: bool = False
    step_len: int | None = None

    def check(self, body: Mapping[str, Any]) -> None:
        """Refuse a body that this release does not take.

        Raises:
            InvalidTaskError: The body asks for something that it does not take.
        """
        kind = {"vllm": self._check_vllm, "sglang": self._check_sglang, "trtllm": self._check_trtllm}.get(self.flavor)
        if kind is not None:
            kind(body)

    def gives_ids(self, body: Mapping[str, Any]) -> bool:
        """True if an answer has token ids in their own field."""
        if self.flavor == "trtllm":
            return body.get("detokenize") is False
        has_field = self.flavor == "vllm" or (self.flavor == "sglang" and not self.is_older)
        return has_field and bool(body.get("return_token_ids"))

    def given_tokens(self, body: Mapping[str, Any]) -> list[int]:
        """Tokens whose log-probabilities are told, however unlikely they are. An older release ignores the field."""
        return [] if self.flavor != "vllm" or self.is_older else list(body.get("logprob_token_ids") or ())

    def names_tokens_by_ids(self, body: Mapping[str, Any]) -> bool:
        """True if log-probabilities come under `token_id:N` in place of the token's text."""
        return self.flavor == "vllm" and bool(body.get("return_tokens_as_token_ids"))

    def thinking_field(self, body: Mapping[str, Any]) -> str | None:
        """The field that holds a chat's thinking; None where the text stays whole."""
        if not self.reasons or "messages" not in body or self.flavor not in ("vllm", "sglang", "trtllm"):
            return None
        if self.flavor == "sglang" and body.get("separate_reasoning") is False:
            return None
        return "reasoning" if self.flavor == "vllm" and not self.is_older else "reasoning_content"

    def _check_vllm(self, body: Mapping[str, Any]) -> None:
        most = max(_number(body, "logprobs"), _number(body, "top_logprobs"))
        if most > _MAX_LOGPROBS:
            raise InvalidTaskError(f"Requested sample logprobs of {most}, which is greater than {_MAX_LOGPROBS}")
        if self.given_tokens(body) and body.get("logprobs") is None:
            raise InvalidTaskError("when using `logprob_token_ids`, `logprobs` must be set.")
        if body.get("priority") and not self.by_priority:
            raise InvalidTaskError(f"Got priority {body['priority']} but Priority scheduling is not enabled.")

    def _check_sglang(self, body: Mapping[str, Any]) -> None:
        if body["max_tokens"] <= 0:
            raise InvalidTaskError("max_tokens must be positive")
        if not self.is_older and body.get("return_token_ids") and body.get("stream") and "messages" in body:
            raise InvalidTaskError("return_token_ids is not supported with stream=true")

    def _check_trtllm(self, body: Mapping[str, Any]) -> None:
        endpoint = "messages" if "messages" in body else "prompt"
        known = _TRTLLM_FIELDS | _TRTLLM_ENDPOINTS[endpoint] | (frozenset() if self.is_older else {"priority"})
        unknown = body.keys() - known
        if unknown:
            raise InvalidTaskError(f"Extra inputs are not permitted: {', '.join(sorted(unknown))}")
        if self.is_older and body.get("logprobs") and endpoint == "prompt":
            raise InvalidTaskError("logprobs is not supported")
        if not 0 <= (body.get("priority") or 0) <= 1:
            raise InvalidTaskError("priority: Input should be between 0 and 1")
        if max(_number(body, "logprobs"), _number(body, "top_logprobs")) > _MAX_TRTLLM_LOGPROBS:
            raise InvalidTaskError(f"logprobs must be less than or equal to {_MAX_TRTLLM_LOGPROBS}")
        prompt = body.get("prompt")
        if self.step_len is not None and isinstance(prompt, list) and len(prompt) > self.step_len:
            raise InvalidTaskError(f"The sum of prompt length ({len(prompt)}) should not exceed max_num_tokens")


def _number(body: Mapping[str, Any], name: str) -> int:
    return int(body.get(name) or 0)
