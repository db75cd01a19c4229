"""Request of the generation engine: its options, its state, and the wait of a coroutine for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol.branching import LayerExit
from scaffolding_ext.protocol.meta import TokenCounts
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.request.program import record
from scaffolding_ext.workers.huggingface.block_pool import BlockPriority, TokenSequence
from scaffolding_ext.workers.shared.streaming import NEVER, Answer, Stream

if TYPE_CHECKING:
    import torch


class Ends(NamedTuple):
    """Ends of a request's text."""

    max_tokens: int = 0  # 0 only reads the prompt
    stop: tuple[str, ...] = ()  # strings that end the text, and are cut off
    min_tokens: int = 0  # tokens before an end-of-sequence token may be drawn
    ignore_end: bool = False  # end-of-sequence tokens do not end the text
    own_ids: frozenset[int] = frozenset()  # further tokens that end the text: stop strings that are special tokens


class Wants(NamedTuple):
    """Results of a request besides its text."""

    num_logprobs: int = 0  # alternatives reported per token; 0 reports no log-probabilities
    score_from: int | None = None  # first prompt token to score, or None
    choices: tuple[int, ...] = ()  # token ids whose logits after the prompt are wanted
    states: bool = False  # hidden states of the prompt's last token
    # rule for reading the prompt's next token before the last layer; then no other request may reuse its KV
    layer_exit: LayerExit | None = None
    verdicts: bool = False  # the next token so far, after each layer


class Kv(NamedTuple):
    """Use of a request's KV by others."""

    keep: bool = True  # the KV stays as cache when the request ends
    priority: BlockPriority | None = None  # of its blocks in the cache; None evicts the least recently used
    salt: str | None = None  # requests with different salts share no KV
    owner: str | None = None  # the host's request that it serves


Processor = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""Changes logits, shape (1, vocabulary), given the ids so far, shape (1, tokens)."""


class SamplingParams(NamedTuple):
    """Sampling parameters of one request."""

    temperature: float  # 0 is greedy
    top_k: int  # the k likeliest tokens are kept; 0 keeps all
    top_p: float  # the smallest set of likeliest tokens with probability p is kept; 1 keeps all
    seed: int  # any integer; its low 64 bits count
    min_p: float = 0.0  # tokens of at least this share of the likeliest one's probability are kept; 0 keeps all
    processors: tuple[Processor, ...] = ()  # change the logits first


GREEDY = SamplingParams(0.0, 0, 1.0, 0)


TokenLogprobs = dict[int, TokenLogprob]
"""Log-probabilities of a token and of the likeliest in its place, by id, under the unmodified distribution."""


class LayerVerdict(NamedTuple):
    """Next token so far, after one layer."""

    entropy: float  # of its distribution, in nats
    choice_logits: list[float]  # logits of the request's `choices`


class EngineRequest(Stream):
    """A request in the engine, which it does not keep alive.

    Only the engine's thread writes it. Other threads wait for it, and read it through `answer`.

    Args:
        prompt: Token ids, at least one.
        urgent: Other tasks wait for its result: a probe, a forced answer, a score, a verdict.
    """

    pauses = True

    def __init__(
        self,
        prompt: list[int],
        ends: Ends,
        sampling: SamplingParams,
        *,
        wants: Wants = Wants(),  # noqa: B008  (it cannot change)
        kv: Kv = Kv(),  # noqa: B008
        urgent: bool = False,
    ) -> None:
        self.sequence = TokenSequence(list(prompt), kv.salt, kv.owner)
        self.prompt_len = len(prompt)
        self.ends, self.sampling, self.wants, self.kv = ends, sampling, wants, kv
        self.urgent = urgent
        self.priority = 0.0  # the lower, the sooner it is served
        self.wanted = ends.max_tokens + 1
        self.awaited = True  # by a caller; otherwise a stream that runs ahead of its reader
        self.may_run_to = NEVER  # number of generated tokens at which it pauses
        self.num_decoded = self.num_reused = self.num_prefilled = self.num_preempted = 0
        self.number = 0  # order of arrival
        self.last_step = 0  # last step of the engine that computed part of it, or admitted it
        self.finish_reason: str | None = None
        self.error: EngineError | None = None
        self.text = ""
        self.logprobs: list[TokenLogprobs] = []
        self.scores: list[float] = []
        self.verdicts: dict[int, LayerVerdict] = {}  # by layer, counted from 1; the last is the one of its `choices`
        # Of its last token after each layer, (width,), float32; the last is normed.
        self.states: list[torch.Tensor] = []
        self.submitted_at = time.monotonic()
        self.first_token_at: float | None = None
        self.engine: Callable[[], Any] = lambda: None  # a weak reference to the engine that runs it
        self._progress: asyncio.Future[None] | None = None  # awaited by the caller
        self._num_known = 0  # generated tokens in the caller's last answer
        self._decoder = _decode_stream()
        self._stops = StopStrings(ends.stop).matcher()
        self._lock = threading.Lock()  # readers see a token, its text and the end together

    @property
    def num_pending(self) -> int:
        """Tokens whose KV is not computed yet."""
        return self.prompt_len + self.num_decoded - self.sequence.num_kv

    @property
    def paused(self) -> bool:
        """True if it may not generate more for now."""
        return self.num_decoded >= self.may_run_to

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    @property
    def counts(self) -> TokenCounts:
        return TokenCounts(self.num_decoded, self.num_prefilled, self.num_reused)

    def answer(self) -> Answer:
        """Return its answer so far; from any thread."""
        with self._lock:
            finish_reason, counts = self.finish_reason, self.counts
            text, logprobs = self.text, self.logprobs[:]
            token_ids = self.sequence.token_ids[self.prompt_len :]
        if finish_reason is None and self.ends.stop:
            text = text[: len(text) - self._stops.num_undecided]
        error = self.error if finish_reason else None
        ttft_s = None if self.first_token_at is None else self.first_token_at - self.submitted_at
        latency_s = time.monotonic() - self.submitted_at
        return Answer(text, token_ids, finish_reason, counts, logprobs, error=error, ttft_s=ttft_s, latency_s=latency_s)

    def accept(self, token_id: int, logprobs: TokenLogprobs | None, tokenizer: Any, end_ids: frozenset[int]) -> None:
        """Append a drawn token and its text, which may end the request."""
        with self._lock:
            if not self.num_decoded:
                self.first_token_at = time.monotonic()
            self.sequence.token_ids.append(token_id)
            self.num_decoded += 1
            if logprobs:
                self.logprobs.append(logprobs)
            if token_id in self.ends.own_ids or (token_id in end_ids and not self.ends.ignore_end):
                self.finish_reason = "stop"
                return
            part: str | None = None
            if token_id not in end_ids:
                try:
                    part = self._decoder.step(tokenizer, token_id)
                except Exception:  # the bytes are not text, so the decoder has lost its state
                    self._decoder = _decode_stream()
                    part = self._decoder.step(tokenizer, token_id)
            if part:  # a character of several tokens appears with the last of them
                self.text += part
            if part and self.ends.stop and self._stops.feed(part):
                self.text = self.text[: self._stops.start]
                self.finish_reason = "stop"
            elif self.num_decoded >= self.ends.max_tokens:
                self.finish_reason = "length"

    def end(self, reason: str, error: EngineError | None = None) -> None:
        with self._lock:
            self.error = error
            self.finish_reason = reason
        self.notify()

    async def wait(self, num_tokens: int) -> Answer:
        """Wait until it has that many tokens or has ended; a cancelled wait cancels the request."""
        try:
            while not self.ended and self.num_decoded < num_tokens:
                self._progress = asyncio.get_running_loop().create_future()
                self.wanted, self.awaited = num_tokens, True
                if not self.ended and self.num_decoded < num_tokens:  # otherwise the engine may have checked before
                    await self._progress  # a late notice for an earlier wait may end this wait too soon
        except asyncio.CancelledError:
            await self.close()
            raise
        self.awaited = False
        self._num_known = self.num_decoded
        return self.answer()

    async def cancel(self) -> Answer:
        await self.close()
        return await self.wait(NEVER)

    async def close(self) -> None:
        engine = self.engine()
        if engine is not None and not self.ended:
            engine.cancel(self)

    def let_run_to(self, num_tokens: int) -> None:
        engine = self.engine()
        if engine is not None and num_tokens != self.may_run_to:
            if self.paused:
                record("paused", position=self._num_known, arrived=self.num_decoded)
            engine.let_run_to(self, num_tokens)

    def notify(self) -> None:
        """Wake the waiting coroutine: it has ended, or has the wanted tokens; on the engine's thread."""
        self.wanted, self.awaited = NEVER, False
        if (progress := self._progress) is not None:
            with suppress(RuntimeError):  # the loop is closed, so no coroutine waits
                progress.get_loop().call_soon_threadsafe(_resolve, progress)


def _resolve(progress: asyncio.Future[None]) -> None:
    if not progress.done():
        progress.set_result(None)


def _decode_stream() -> Any:
    from tokenizers.decoders import DecodeStream  # of the extra hf

    return DecodeStream(skip_special_tokens=True)


class Work(NamedTuple):
    """A request's part of a pass."""

    request: EngineRequest
    num_tokens: int  # pending tokens that the pass computes
    completes: bool = True  # nothing is pending afterwards, so that the next token can be drawn
