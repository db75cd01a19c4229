"""One request inside the generation engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tokenizers.decoders import DecodeStream

from scaffolding_ext.errors import EngineError
from scaffolding_ext.tasks import TokenCounts
from scaffolding_ext.workers.kv_cache import Holder
from scaffolding_ext.workers.sampling import SamplingParams


class TokenLogprob(NamedTuple):
    """The log-probability of one alternative, as TensorRT-LLM's `Logprob` has it."""

    logprob: float
    rank: int | None = None


class Sequence:
    """One request in the engine; the engine's thread writes it, others read what it has published.

    Args:
        prompt: Token ids, at least one.
        max_tokens: Tokens to decode at most; 0 only reads the prompt.
        sampling: How to sample.
        stop: Strings that end the text (they are cut off).
        num_logprobs: Alternatives whose log-probabilities are reported for each token; 0 reports none.
        score_from: Position of the first prompt token whose log-probability is wanted, or None.
        keep: Whether the KV is worth storing when the request ends.
        ignore_end: Whether end-of-sequence tokens do not end the text.
        min_tokens: Tokens before which an end-of-sequence token cannot be drawn.
        notify: Called on the engine's thread when the request has ended or has `wanted` tokens.
    """

    def __init__(
        self,
        prompt: list[int],
        max_tokens: int,
        sampling: SamplingParams,
        *,
        stop: tuple[str, ...] = (),
        num_logprobs: int = 0,
        score_from: int | None = None,
        keep: bool = True,
        ignore_end: bool = False,
        min_tokens: int = 0,
        notify: Callable[[Sequence], None],
    ) -> None:
        self.holder = Holder(list(prompt))
        self.prompt_len = len(prompt)
        self.max_tokens = max_tokens
        self.sampling = sampling
        self.stop = stop
        self.num_logprobs = num_logprobs
        self.score_from = score_from
        self.keep = keep
        self.ignore_end = ignore_end
        self.min_tokens = min_tokens
        self.notify = notify
        self.wanted = max_tokens + 1
        self.cancelled = False
        self.finish_reason: str | None = None
        self.error: EngineError | None = None
        self.text_parts: list[str] = []
        self.logprobs: list[dict[int, TokenLogprob]] = []
        self.scores: list[float] = []
        self.num_reused = 0
        self.num_prefilled = 0
        self.submitted_at = time.monotonic()
        self.first_token_at: float | None = None
        self._decoder = DecodeStream(skip_special_tokens=True)

    @property
    def num_decoded(self) -> int:
        """Tokens generated so far."""
        return len(self.holder.token_ids) - self.prompt_len

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None

    @property
    def counts(self) -> TokenCounts:
        """What the request has cost so far."""
        return TokenCounts(self.num_decoded, self.num_prefilled, self.num_reused)

    def append_text(self, tokenizer: Any, token_id: int) -> None:
        """Decode one more token; a character split over several tokens appears with its last."""
        part = self._decoder.step(tokenizer, token_id)
        if part:
            self.text_parts.append(part)
