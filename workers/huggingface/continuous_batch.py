"""Continuous batching: steps of a model over the running requests.

Requests join and leave between steps. A step computes one token of every decoding request. In the same pass it computes
a limited number of prompt tokens, so a long prompt delays other requests only slightly.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from scaffolding_ext.errors import EngineError
from scaffolding_ext.workers.huggingface.block_pool import BlockPool
from scaffolding_ext.workers.huggingface.engine_request import Ends, EngineRequest, Work, reported_logprobs
from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks
from scaffolding_ext.workers.huggingface.kv_limits import KVLimits
from scaffolding_ext.workers.huggingface.model_runner import ModelRunner
from scaffolding_ext.workers.huggingface.request_scheduler import RequestScheduler
from scaffolding_ext.workers.huggingface.sampling import GREEDY, Sampled, sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class EngineMetrics(NamedTuple):
    """Snapshot of an engine; counts and seconds are since its start."""

    num_running: int  # requests with blocks of keys and values
    num_waiting: int  # requests that wait for blocks
    num_free_blocks: int  # empty blocks
    num_held_blocks: int  # blocks held by requests; a shared block counts once
    num_cached_blocks: int  # blocks without a holder, kept for later requests with the same beginning
    max_batch_size: int  # maximum requests per step
    num_paused: int  # streams paused until their reader asks for more, with or without blocks
    num_preempted: int  # times that a request lost its blocks to others
    num_decoded: int  # generated tokens whose KV was computed (the last of a text needs none)
    num_prefilled: int  # prompt tokens whose KV was computed, and all tokens of preempted requests
    num_reused: int  # prompt tokens taken from cached KV
    num_evicted: int  # blocks that left the cache for others
    busy_s: float  # seconds spent in steps; the engine idles the rest
    num_steps: int  # steps begun

    @property
    def num_computed(self) -> int:
        return self.num_decoded + self.num_prefilled

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens taken from cached KV, in [0, 1]; 0 before the first."""
        return self.num_reused / max(1, self.num_reused + self.num_prefilled)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second while the engine was busy; 0 before the first."""
        return self.num_decoded / self.busy_s if self.busy_s else 0.0


logger = logging.getLogger(__name__)


class ContinuousBatch:
    """Requests that wait for a model or run on it; only one thread may use it.

    The model's attention is `ATTENTION`, and the tokenizer is a Rust backend. `on_end` is called with each request that
    ends, before the request reports its end.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        end_ids: frozenset[int],
        limits: KVLimits,
        max_batch_size: int,
        prefill_chunk: int,
        enable_block_reuse: bool = True,
        idle_first: bool = False,
    ) -> None:
        num_blocks, block_len, max_cached, *_ = limits
        self.on_end: Callable[[EngineRequest], None] = lambda _: None
        self.pool = BlockPool(num_blocks, block_len, max_cached, enable_block_reuse, idle_first)
        self._runner = ModelRunner(model, KVBlocks(num_blocks, block_len))
        self._tokenizer, self._end_ids, self._prefill_chunk = tokenizer, end_ids, prefill_chunk
        self._scheduler = RequestScheduler(self.pool, max_batch_size, prefill_chunk)
        self._num_decoded = self._num_prefilled = self._num_steps = 0
        self._busy_s = 0.0

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    @property
    def metrics(self) -> EngineMetrics:
        """A snapshot, readable from any thread."""
        scheduler, pool = self._scheduler, self.pool
        return EngineMetrics(
            len(scheduler.running),
            scheduler.num_waiting,
            pool.num_free,
            pool.num_held,
            pool.num_cached,
            scheduler.max_batch_size,
            scheduler.num_paused,
            scheduler.num_preempted,
            self._num_decoded,
            self._num_prefilled,
            scheduler.num_reused,
            pool.num_evicted,
            self._busy_s,
            self._num_steps,
        )

    def warm_up(self) -> None:
        """Run the model once, so that a model that does not fit or cannot be served fails immediately."""
        request = EngineRequest([0], Ends(), GREEDY, notify=lambda _: None)
        self.pool.begin(request.sequence, [], announces=False)
        self._runner.forward([Work(request, 1)])
        self._discard(request)

    def add(self, request: EngineRequest) -> None:
        self.pool.come(request.sequence)
        self._scheduler.add(request)

    def drop(self, request: EngineRequest) -> None:
        if self._scheduler.drop(request):
            self._end(request, "cancelled")
        else:
            self._release(request, "cancelled")

    def clear(self) -> None:
        """Drop every request without notifying it."""
        self._scheduler = RequestScheduler(self.pool, self._scheduler.max_batch_size, self._prefill_chunk)

    def step(self) -> None:
        """Admit requests that fit; then compute one token of every decoding request, and part of the prompts."""
        started = time.monotonic()
        self._num_steps += 1
        self._scheduler.admit()
        works = self._scheduler.works()
        if works:
            try:
                self._compute(works)
            except Exception as error:  # out of memory, or a bug of the model: the engine continues
                logger.info("a pass over %d requests failed", len(works), exc_info=error)
                traceback.clear_frames(error.__traceback__)  # they hold the pass's tensors
                error.__traceback__ = None
                for request in [work.request for work in works if work.request in self._scheduler.running]:
                    self._fail(request, caused_by(error))
        self._busy_s += time.monotonic() - started

    def _compute(self, works: list[Work]) -> None:
        """Run one pass, and draw the next token of each request that it completes."""
        logits = self._runner.forward(works)
        completed = [work.request for work in works if work.completes]
        broken = logits.isnan().any(-1).tolist()
        sampled = self._sample(completed, logits)
        self._advance(works)
        self._accept(completed, sampled)
        for request in [request for request, is_broken in zip(completed, broken, strict=True) if is_broken]:
            self._discard(request)
            self._fail(request, EngineError("the model computed logits that are no numbers (NaN): set another dtype"))
        read = set(completed)
        for work in works:
            request = work.request
            if request.error is not None:
                continue
            if request.finish_reason is not None:
                self._release(request, request.finish_reason)
            elif not request.ends.max_tokens and request in read:
                self._release(request, "length")
            elif request.num_decoded >= request.wanted:
                request.notify(request)

    def _discard(self, request: EngineRequest) -> None:
        for block in self.pool.discard(request.sequence):
            self._runner.kv.clear(block)

    def _fail(self, request: EngineRequest, error: EngineError) -> None:
        request.kv = request.kv._replace(keep=False)
        self._release(request, "error", error)

    def _sample(self, requests: list[EngineRequest], logits: torch.Tensor) -> Sampled | None:
        """Sample the next token of each generating request; logits have the shape (requests, vocabulary)."""
        for row, request in enumerate(requests):
            if request.wants.choices:
                request.choice_logits = logits[row, list(request.wants.choices)].tolist()
        drawing = [row for row, request in enumerate(requests) if request.ends.max_tokens]
        if not drawing:
            return None
        chosen = [requests[row] for row in drawing]
        logits = logits if len(drawing) == len(requests) else logits[drawing]
        adjusted = self._adjusted(chosen, logits)
        num_logprobs = max([request.wants.num_logprobs for request in chosen])
        positions = [request.prompt_len + request.num_decoded for request in chosen]
        return sample(logits, [request.sampling for request in chosen], positions, num_logprobs, adjusted)

    def _adjusted(self, requests: list[EngineRequest], logits: torch.Tensor) -> torch.Tensor | None:
        """Logits after the model's penalties and bans, and without ends of too short texts; None if they are equal."""
        too_short = [row for row, request in enumerate(requests) if request.num_decoded < request.ends.min_tokens]
        processed = [row for row, request in enumerate(requests) if request.sampling.processors]
        if not processed and not (too_short and self._end_ids):
            return None
        logits = logits.clone()
        for row in processed:
            ids = torch.tensor([requests[row].sequence.token_ids], device=logits.device)
            for process in requests[row].sampling.processors:
                logits[row : row + 1] = process(ids, logits[row : row + 1])
        logits[torch.tensor(too_short, dtype=torch.long)[:, None], torch.tensor(list(self._end_ids))] = -torch.inf
        return logits

    def _advance(self, works: list[Work]) -> None:
        reading = self._scheduler.reading
        decoding = [work.request for work in works if work.request not in reading]
        self._num_decoded += len(decoding)
        self.pool.advance([(request.sequence, 1) for request in decoding])
        if not reading:
            return
        for request, num_tokens, completes in [work for work in works if work.request in reading]:
            request.num_prefilled += num_tokens
            self._num_prefilled += num_tokens
            if completes:
                self._scheduler.has_read(request)
            if request.exit_layer is None:  # otherwise the KV of some layers may be missing
                self.pool.advance([(request.sequence, num_tokens)])

    def _accept(self, requests: list[EngineRequest], sampled: Sampled | None) -> None:
        if sampled is None:
            return
        now = time.monotonic()
        generating = [request for request in requests if request.ends.max_tokens]
        for row, (request, token_id) in enumerate(zip(generating, sampled.token_ids, strict=True)):
            request.first_token_at = request.first_token_at or now
            num_logprobs = request.wants.num_logprobs
            logprobs = reported_logprobs(sampled, row, num_logprobs) if num_logprobs else None
            request.accept(token_id, logprobs, self._tokenizer, self._end_ids)

    def _release(self, request: EngineRequest, reason: str, error: EngineError | None = None) -> None:
        """Free a request's blocks; they stay as cache if a later request may need them."""
        wanted = request.kv.keep or (
            error is None and self._scheduler.num_waiting
        )  # a request may wait for this prefix
        self._scheduler.leave(request, keep=bool(wanted))
        self._end(request, reason, error)

    def _end(self, request: EngineRequest, reason: str, error: EngineError | None = None) -> None:
        self.pool.leave(request.sequence)
        self.on_end(request)
        request.end(reason, error)


def caused_by(cause: BaseException, where: str = "") -> EngineError:
    error = EngineError(f"{where}{type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
