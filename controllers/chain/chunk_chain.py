"""A chain of thought in chunks: the kind that any worker serves."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.controllers.chain.chain import Chain, Prefix
from scaffolding_ext.controllers.chain.continuation import continuation
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.tasks import CHAIN, CHAIN_START, cost_of, finish_reason_of, output_of, set_purpose


class ChunkChain(Chain):
    """Plain generation tasks, one a chunk; token ids are carried on, so that no text is tokenised twice."""

    runs_on = False

    def __init__(self, prompt: GenerationTask, max_tokens: int, sampling_params: dict[str, Any]) -> None:
        super().__init__(prompt, max_tokens, sampling_params)
        self._ids: list[int] | None = []
        self._logprobs: list[Any] = []
        self._num_generated = 0
        self._chunk: GenerationTask | None = None

    @property
    def prefix(self) -> Prefix:
        logprobs = list(self._logprobs) if len(self._logprobs) == self._num_tokens > 0 else None
        return Prefix(self._num_tokens, self.text, None if self._ids is None else list(self._ids), logprobs)

    @property
    def num_generated(self) -> int:
        return self._num_generated

    def advance(self, num_tokens: int) -> list[Task]:
        asked = min(num_tokens, self.max_tokens) - self._num_tokens
        if self.ended or asked < 1:
            return []
        self._chunk = continuation(self.prompt, self.prefix, asked)
        set_purpose(self._chunk, CHAIN if self._num_tokens else CHAIN_START)
        self._configure(self._chunk, self._num_tokens)
        return [self._chunk]

    def absorb(self) -> None:
        chunk, self._chunk = self._chunk, None
        if chunk is None:
            return
        text = output_of(chunk)
        asked = chunk.max_tokens or 0
        produced = asked if chunk.output_tokens is None else len(chunk.output_tokens)
        cost = cost_of(chunk)
        if cost is not None:  # the ledger knows of no others either
            self._num_generated += cost.written.decoded + cost.written.reused
        self._num_tokens += produced
        if chunk.output_tokens is None:
            self._ids = None
        elif self._ids is not None:
            self._ids += chunk.output_tokens
        self._logprobs += chunk.logprobs or ()
        holds_stop_string = self._text.add(text, chunk.output_tokens, chunk.stop)
        reason = finish_reason_of(chunk) or "length"  # without token ids either, all that was asked for is assumed
        if reason == "length" and (holds_stop_string or produced < asked):
            reason = "stop"
        self.ended = reason != "length" or self._num_tokens >= self.max_tokens
        self.finish_reason = reason if self.ended else None

    def stop(self) -> list[Task]:
        return []
