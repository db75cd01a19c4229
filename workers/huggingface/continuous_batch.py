"""Continuous batching: steps of a model over the running requests.

Requests join and leave between steps. A step computes one token of every decoding request. In the same pass it computes
a limited number of prompt tokens, so a long prompt delays other requests only slightly.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from scaffolding_ext.errors import EngineError
from scaffolding_ext.workers.huggingface.block_pool import BlockPool
from scaffolding_ext.workers.huggingface.engine_request import EngineRequest, Work
from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks, KVLimits
from scaffolding_ext.workers.huggingface.model_runner import ModelRunner
from scaffolding_ext.workers.huggingface.request_scheduler import RequestScheduler
from scaffolding_ext.workers.huggingface.sampling import sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class EngineMetrics(NamedTuple):
    """Snapshot of an engine; counts of tokens, blocks and steps are since its start."""

    num_running: int  # requests with blocks of keys and values
    num_waiting: int  # requests that wait for blocks
    num_free_blocks: int  # empty blocks
    num_held_blocks: int  # blocks held by requests; a shared block counts once
    num_cached_blocks: int  # blocks without a holder, kept for later requests with the same beginning
    num_paused: int  # streams paused until their reader asks for more, with or without blocks
    num_preempted: int  # times that a request lost its blocks to others
    num_decoded: int  # generated tokens whose KV was computed (the last of a text needs none)
    num_prefilled: int  # prompt tokens whose KV was computed, and all tokens of preempted requests
    num_reused: int  # prompt tokens taken from cached KV
    num_evicted: int  # blocks that left the cache for others
    num_steps: int  # steps begun


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
        self._runner.warm_up()
        self._tokenizer, self._end_ids, self._prefill_chunk = tokenizer, end_ids, prefill_chunk
        self._scheduler = RequestScheduler(self.pool, max_batch_size, prefill_chunk)
        self._num_decoded = self._num_prefilled = self._num_steps = 0

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
            scheduler.num_paused,
            scheduler.num_preempted,
            self._num_decoded,
            self._num_prefilled,
            scheduler.num_reused,
            pool.num_evicted,
            self._num_steps,
        )

    def add(self, request: EngineRequest) -> None:
        self.pool.count(request.sequence, 1)
        self._scheduler.add(request)

    def drop(self, request: EngineRequest) -> None:
        """End a request unless it has ended."""
        if not request.ended:
            self._release(request, "cancelled")

    def clear(self) -> None:
        """Drop every request without notifying it."""
        self._scheduler = RequestScheduler(self.pool, self._scheduler.max_batch_size, self._prefill_chunk)

    def step(self) -> None:
        """Admit requests that fit; then compute one token of every decoding request, and part of the prompts."""
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
                    self._release(request, "error", caused_by(error))

    def _compute(self, works: list[Work]) -> None:
        """Run one pass, and draw the next token of each request that it completes."""
        requests, logits = self._runner.forward(works)
        broken = {requests[row] for row in logits.isnan().any(-1).nonzero()[:, 0].tolist()}
        drawing = [row for row, request in enumerate(requests) if request.ends.max_tokens]
        generating = [requests[row] for row in drawing]
        logits = logits if len(drawing) == len(requests) else logits[drawing]
        params = [request.sampling for request in generating]
        positions = [request.prompt_len + request.num_decoded for request in generating]
        num_logprobs = [request.wants.num_logprobs for request in generating]
        sampled = sample(logits, params, positions, num_logprobs, self._adjusted(generating, logits))
        self._advance(works)
        for request, token_id, logprobs in zip(generating, *sampled, strict=True):
            request.accept(token_id, logprobs, self._tokenizer, self._end_ids)
        for request in [work.request for work in works if work.completes]:
            if request in broken:
                for block in self.pool.discard(request.sequence):
                    self._runner.kv.clear(block)
                error = EngineError("the model computed logits that are no numbers (NaN): set another dtype")
                self._release(request, "error", error)
            elif request.finish_reason is not None:
                self._release(request, request.finish_reason)
            elif not request.ends.max_tokens:
                self._release(request, "length")
            elif request.num_decoded >= request.wanted:
                request.notify()

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
        """Count the computed tokens, and let others find the blocks that they fill."""
        reading, computed = self._scheduler.reading, []
        for request, num_tokens, completes in works:
            if request not in reading:
                self._num_decoded += 1
            else:
                request.num_prefilled += num_tokens
                self._num_prefilled += num_tokens
                if completes:
                    del reading[request]
            if request.wants.layer_exit is None or not completes:  # otherwise the KV of some layers may be missing
                computed.append((request.sequence, num_tokens))
        self.pool.advance(computed)

    def _release(self, request: EngineRequest, reason: str, error: EngineError | None = None) -> None:
        """End a request, and free its blocks; they stay as cache if a later request may need them."""
        keep = error is None and (request.kv.keep or self._scheduler.num_waiting > 0)  # one may wait for this prefix
        self._scheduler.leave(request, keep)
        self.pool.count(request.sequence, -1)
        self.on_end(request)
        request.end(reason, error)


def caused_by(cause: BaseException, where: str = "") -> EngineError:
    error = EngineError(f"{where}{type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
