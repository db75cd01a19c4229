"""Requests that wait for blocks of keys and values or hold some, and the selection of those that compute in a step.

They wait in one line: urgent requests (probes, forced answers, scores, verdicts, and what was preempted) before new
chains. Urgent requests also compute before chains, and chains that a caller waits for before those that run ahead. If
no block is left, paused requests are preempted first, then the youngest. A preempted request gives up its blocks and
later recomputes the tokens that the cache has lost.
"""

from __future__ import annotations

import math

from scaffolding_ext.scheduling import WaitingLine
from scaffolding_ext.workers.huggingface.block_pool import Block, BlockPool
from scaffolding_ext.workers.huggingface.engine_request import EngineRequest, Work

_PATIENCE = 512  # maximum later requests admitted before an earlier one
_OVERDUE = 16  # steps without a place, after which a request computes before others
_MOST_UNCHUNKED = 2048  # tokens per step that requests read in one piece, because they may exit early


class RequestScheduler:
    """Requests that wait for blocks, among them preempted and paused ones, and those that hold blocks."""

    def __init__(self, pool: BlockPool, max_batch_size: int, prefill_chunk: int) -> None:
        self.running: dict[EngineRequest, Work] = {}  # hold blocks; the work of each once it has read all its tokens
        self.reading: dict[EngineRequest, None] = {}  # have not read all their tokens, the oldest first
        self.max_batch_size = max_batch_size
        self.num_reused = self.num_preempted = 0
        self._pool, self._prefill_chunk = pool, prefill_chunk
        self._line: WaitingLine[EngineRequest] = WaitingLine(_PATIENCE)
        self._num_come = self._step = 0

    @property
    def num_waiting(self) -> int:
        return sum(not request.paused for request in list(self._line))

    @property
    def num_paused(self) -> int:
        return sum(request.paused for request in [*self.running, *self._line])

    @property
    def idle(self) -> bool:
        return all(request.paused for request in [*self._line, *self.running])

    def add(self, request: EngineRequest) -> None:
        request.number = self._num_come
        self._num_come += 1
        self._wait(request, request.urgent)

    def leave(self, request: EngineRequest, keep: bool) -> None:
        """Forget a request, and free its blocks if it has some; with `keep`, its computed KV stays as cache."""
        if request in self._line:
            self._line.remove(request)
        else:
            del self.running[request]
            self.reading.pop(request, None)
            self._pool.free(request.sequence, keep, request.kv.priority)

    def admit(self) -> None:
        """Admit waiting requests, in order, as long as there are blocks and the next steps can start reading them.

        A request waits while another is about to compute their shared prefix.
        """
        self._step += 1
        to_read = dict.fromkeys((False, True), self._prefill_chunk)
        for request in self.reading:
            to_read[request.urgent] -= request.num_pending
        place, num_places = 0, self.max_batch_size - sum(not (each.urgent or each.paused) for each in self.running)
        while place < min(len(self._line), 2 * self.max_batch_size):
            request = self._line[place]
            is_urgent = request.urgent or request.num_preempted > 0
            if request.paused or to_read[request.urgent] <= 0 or not (is_urgent or num_places > 0):
                place += 1
                continue
            found = self._find(request)
            num_to_give = self._pool.num_available - len(self.running)  # each running request will soon need one
            if not all(block.is_computed for block in found):
                place += 1
            elif self._pool.num_needed(request.sequence, found) <= num_to_give:
                self._line.remove(request)
                self._begin(request, found)
                to_read[request.urgent] -= request.num_pending
                num_places -= not request.urgent
            elif not self._make_room(only_paused=not (request.urgent or (is_urgent and request.awaited))):
                return  # blocks stay free for it

    def works(self) -> list[Work]:
        """Return the works of the next pass: one token of each decoding request, and part of the tokens to read."""
        room, whole_room = self._prefill_chunk, _MOST_UNCHUNKED
        reads: dict[EngineRequest, Work] = {}
        for request in sorted(self.reading, key=self._rank):
            num_pending = request.num_pending
            if request.wants.layer_exit is not None and num_pending <= _MOST_UNCHUNKED:  # only its last pass may leave
                num_tokens = num_pending if num_pending <= whole_room else 0
                whole_room -= num_tokens
            else:
                num_tokens = min(num_pending, room)
                room -= num_tokens
            reads[request] = Work(request, num_tokens, completes=num_tokens == num_pending)
        works = [
            reads.get(request, work)
            for request, work in self.running.items()
            if (reads[request].num_tokens if request in reads else request.num_decoded < request.may_run_to)
        ]
        if len(works) > self.max_batch_size:
            works.sort(key=lambda work: (self._rank(work.request), work.request.last_step))
            works = works[: self.max_batch_size]
        block_len = self._pool.block_len
        full = [w.request for w in works if w.request.sequence.num_kv == w.request.sequence.num_blocks * block_len]
        if full:
            self._grow(full)
            works = [work for work in works if work.request in self.running]
        for work in works:
            work.request.last_step = self._step
        return works

    def _wait(self, request: EngineRequest, is_urgent: bool) -> None:
        self._line.add(request, math.atan(request.priority) - math.pi * is_urgent)

    def _rank(self, request: EngineRequest) -> int:
        """Order of computing: urgent requests, then chains that a caller waits for, then chains that run ahead."""
        if not request.awaited:
            return 2
        return 0 if request.urgent or self._step - request.last_step > _OVERDUE else 1

    def _find(self, request: EngineRequest) -> list[Block]:
        """Return the blocks that a request can share; another request may be about to compute some of them."""
        limit = len(request.sequence.token_ids) - 1  # the last token is always computed for its logits
        if request.wants.score_from is not None:
            limit = min(limit, request.wants.score_from - 1)
        return self._pool.find(request.sequence, limit)

    def _begin(self, request: EngineRequest, found: list[Block]) -> None:
        others_find = request.ends.max_tokens > 1 or self._pool.max_cached > 0  # otherwise its blocks are gone too soon
        self._pool.begin(request.sequence, found, announces=others_find and request.wants.layer_exit is None)
        if not request.num_preempted:
            request.num_reused = request.sequence.num_kv
            self.num_reused += request.num_reused
        self.running[request], self.reading[request] = Work(request, 1), None
        request.last_step = self._step

    def _make_room(self, only_paused: bool) -> bool:
        """Preempt a request (or only a paused one) that no caller waits for; return True if there was one."""
        spare = [
            request
            for request in self.running
            if not (request.awaited or request.urgent or request in self.reading)
            and (request.paused or not only_paused)
        ]
        if spare:
            self._preempt(min(spare, key=lambda request: (not request.paused, request.last_step)))
        return bool(spare)

    def _grow(self, requests: list[EngineRequest]) -> None:
        """Give each of these requests one more block, oldest first; if none is left, a request is preempted."""
        for request in sorted(requests, key=lambda request: request.number):
            while request in self.running and not self._pool.num_available:
                if not self._make_room(only_paused=False):
                    self._preempt(max(self.running, key=lambda other: other.number))
            if request in self.running:
                self._pool.grow(request.sequence)

    def _preempt(self, request: EngineRequest) -> None:
        """Free a request's blocks, and let it wait before new chains; tokens that the cache loses are recomputed."""
        self.leave(request, keep=True)
        self.num_preempted += 1
        request.num_preempted += 1
        self._wait(request, is_urgent=True)
