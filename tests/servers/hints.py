"""What servers read of hints, field by field as their sources declare them; a test double refuses everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from scaffolding_ext.errors import InvalidTaskError

_Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_Unsigned32 = Annotated[int, Field(ge=0, lt=2**32)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class TruncateTokens(_Strict):
    """trtllm-serve's `KVCacheTruncateTokensRequest`."""

    model: str | None = None
    prefixes: list[list[int]]
    num_tokens_to_keep: list[int]

    @model_validator(mode="after")
    def _are_parallel(self) -> TruncateTokens:
        if len(self.prefixes) != len(self.num_tokens_to_keep):
            raise ValueError("prefixes and num_tokens_to_keep differ in length")
        return self


class TruncateMessages(_Strict):
    """trtllm-serve's `KVCacheTruncateRequest`, of its fields those that are sent here."""

    model: str
    messages: list[dict[str, Any]] = []
    messages_to_retain: list[dict[str, Any]] = []


class OlderHint(TruncateMessages):
    """What its releases before the control plane read at `/v1/kv_cache_hints`."""

    action: Literal["truncate"]


class AgentHints(_Strict):
    """Dynamo's `AgentHints`."""

    priority: _Int32 | None = None
    strict_priority: _Unsigned32 | None = None
    osl: _Unsigned32 | None = None
    speculative_prefill: bool | None = None


class Extensions(_Strict):
    """Of Dynamo's `NvExt` what is sent here."""

    agent_hints: AgentHints | None = None


KV_PATHS: Mapping[str, type[_Strict]] = {
    "/_control/kv_cache/truncate_tokens": TruncateTokens,
    "/_control/kv_cache/truncate": TruncateMessages,
    "/v1/kv_cache_hints": OlderHint,
}


def check(kind: type[_Strict], body: Any) -> None:
    """Refuse a body that the server's source would not read.

    Raises:
        InvalidTaskError: It would not.
    """
    try:
        kind.model_validate(body)
    except ValidationError as error:
        raise InvalidTaskError(f"{kind.__name__}: {error}") from error
