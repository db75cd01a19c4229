"""Operator settings: limits of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scaffolding_ext import require

EFFORTS: Mapping[str, int] = {"minimal": 256, "low": 1024, "medium": 2048, "high": 4096}


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together.

    Attributes:
        max_body_bytes: Maximum bytes of a body.
        max_prompt_tokens: Maximum tokens of a prompt including earlier turns; bytes if no tokenizer is known.
        max_samples: Maximum choices of a request over all its prompts.
        max_request_tokens: Maximum decoded tokens of a choice including probes and discarded tokens; checked after each
            step.
        answer_tokens: Maximum extra tokens of an answer requested from a reasoning model that gave none.
        max_seconds: Maximum seconds of a request including waiting.
        max_queue: Maximum waiting choices of each stack, beyond the running ones.
        max_connections: Maximum open connections, half of them from one address; fewer if the process may open fewer
            descriptors. Further ones are closed at once.
        max_head_bytes: Maximum bytes of a request's first line and headers; then the connection is closed.
        head_seconds: Maximum seconds until a request's headers have arrived; then the connection is closed.
        body_seconds: Maximum seconds until a body has arrived.
        keep_alive_seconds: Seconds of silence in a stream after which a comment is sent.
        drain_seconds: Seconds that running requests have to end when the server stops.
        efforts: Thinking tokens for each `reasoning_effort`.
        ignores_unknown_fields: If True, unknown fields of a body are logged and ignored instead of refused.
        shows_content: If True, the log shows prompts and answers.

    Raises:
        ConfigError: A limit is outside its range.
    """

    max_body_bytes: int = 1 << 20
    max_prompt_tokens: int = 32768
    max_samples: int = 16
    max_request_tokens: int = 65536
    answer_tokens: int = 512
    max_seconds: float = 600.0
    max_queue: int = 256
    max_connections: int = 4096
    max_head_bytes: int = 1 << 16
    head_seconds: float = 15.0
    body_seconds: float = 30.0
    keep_alive_seconds: float = 10.0
    drain_seconds: float = 30.0
    efforts: Mapping[str, int] = field(default_factory=lambda: dict(EFFORTS))
    ignores_unknown_fields: bool = False
    shows_content: bool = False

    @property
    def max_objects(self) -> int:
        """Maximum objects and lists of a body, which cost its parser most: one for each token of a prompt."""
        return max(4096, self.max_prompt_tokens)

    def __post_init__(self) -> None:
        for key in ("max_body_bytes", "max_prompt_tokens", "max_samples", "max_request_tokens", "answer_tokens"):
            require.whole(key, getattr(self, key))
        require.whole("max_head_bytes", self.max_head_bytes, 1024)
        require.whole("max_connections", self.max_connections, 2)
        require.whole("max_queue", self.max_queue, 0)
        for key in ("max_seconds", "head_seconds", "body_seconds", "keep_alive_seconds", "drain_seconds"):
            require.number(key, getattr(self, key), above=0)
