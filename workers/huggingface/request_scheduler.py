"""Requests that hold blocks of keys and values, and the selection of those that compute in a step.

Urgent requests (probes, forced answers, scores, verdicts) are admitted before new chains and compute before them. A
chain that no caller waits for runs ahead if there is room in the batch. If no block is left, paused requests are
preempted first, then the youngest. A preempted request gives up its blocks and later recomputes the tokens that the
cache has lost.
"""

from __future__ import annotations

import time
from itertools import chain

from scaffolding_ext.scheduling import WaitingLine
from scaffolding_ext.workers.huggingface.block_pool import Block, BlockPool
from scaffolding_ext.workers.huggingface.engine_request import EngineRequest, Work

_PATIENCE = 512  # maximum urgent requests admitted before a waiting chain
_OVERDUE = 16  # steps without a place, after which a request computes before others
_MOST_UNCHUNKED = 2048  # tokens per step that requests read in one piece, because they may exit early
_KEPT_SHARE = 8  # one in 8 blocks is reserved for urgent requests


class RequestScheduler:
    """Requests that wait for blocks, that hold blocks, or that were preempted."""

    def __init__(self, pool: BlockPool, max_batch_size: int, prefill_chunk: int) -> None:
        self.running: dict[EngineRequest, Work] = {}  # hold blocks; the work of each once it has read all its tokens
        self.reading: dict[EngineRequest, None] = {}  # have not read all their tokens, the oldest first
        self.max_batch_size = max_batch_size
        self.num_reused = self.num_preempted = 0
        self.longest_wait_s = 0.0
        self._pool, self._prefill_chunk, self._num_kept = pool, prefill_chunk, pool.num_blocks // _KEPT_SHARE
        self._urgent: WaitingLine[EngineRequest] = WaitingLine(_PATIENCE)
        self._chains: WaitingLine[EngineRequest] = WaitingLine(_PATIENCE)
        self._parked: dict[EngineRequest, None] = {}  # without blocks
        self._num_come = self._step = 0
        self._num_passed = 0  # urgent requests admitted since the last chain

    @property
    def num_waiting(self) -> int:
        return len(self._urgent) + len(self._chains)

    @property
    def num_paused(self) -> int:
        return len(self._parked) + sum(request.paused for request in list(self.running))

    @property
    def idle(self) -> bool:
        return not self.num_waiting and all(request.paused for request in chain(self.running, self._parked))

    def add(self, request: EngineRequest) -> None:
        request.number = self._num_come
        self._num_come += 1
        (self._urgent if request.urgent else self._chains).add(request, request.priority)

    def drop(self, request: EngineRequest) -> bool:
        """Forget a request if it holds no blocks; return True if it was forgotten."""
        for line in (self._urgent, self._chains):
            if request in line:
                line.remove(request)
                return True
        return self._parked.pop(request, False) is None

    def leave(self, request: EngineRequest, keep: bool) -> None:
        """Remove a running request, and free its blocks; with `keep`, its computed KV stays as cache."""
        del self.running[request]
        self.reading.pop(request, None)
        self._pool.free(request.sequence, keep, request.kv.priority)

    def admit(self) -> None:
        """Admit waiting requests, as long as there are blocks and the next steps can start reading them."""
        self._step += 1
        for request in [request for request in self._parked if not request.paused]:
            del self._parked[request]
            self._requeue(request)
        chains_first = self._num_passed >= _PATIENCE
        for line in (self._chains, self._urgent) if chains_first else (self._urgent, self._chains):
            num_kept = 0 if chains_first or line is self._urgent else self._num_kept
            if line and not self._admit_from(line, num_kept):
                break  # blocks stay free for this line

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
            now = time.monotonic()
            for skipped in [work.request for work in works[self.max_batch_size :]]:
                if skipped.awaited and skipped.skipped_since is None:
                    skipped.skipped_since = now
            works = works[: self.max_batch_size]
        block_len = self._pool.block_len
        full = [w.request for w in works if w.request.sequence.num_kv == w.request.sequence.num_blocks * block_len]
        if full:
            self._grow(full)
            works = [work for work in works if work.request in self.running]
        for work in works:
            request = work.request
            request.last_step = self._step
            if request.skipped_since is not None:
                self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - request.skipped_since)
                request.skipped_since = None
        return works

    def has_read(self, request: EngineRequest) -> None:
        del self.reading[request]

    def _rank(self, request: EngineRequest) -> int:
        """Order of computing: urgent requests, then chains that a caller waits for, then chains that run ahead."""
        if not request.awaited:
            return 2
        return 0 if request.urgent or self._step - request.last_step > _OVERDUE else 1

    def _admit_from(self, line: WaitingLine[EngineRequest], num_kept: int) -> bool:
        """Admit requests from a line, in order, until there is no room or enough to read.

        A request waits while another is about to compute their shared prefix. `num_kept` blocks must stay free. Returns
        True if there are blocks for the next request.
        """
        urgent, place = line is self._urgent, 0
        to_read = self._prefill_chunk - sum(read.num_pending for read in self.reading if read.urgent is urgent)
        while place < min(len(line), 2 * self.max_batch_size) and to_read > 0 and (urgent or self._is_place_left()):
            request = line[place]
            found = self._find(request)
            if not all(block.is_computed for block in found):
                place += 1
            elif self._pool.num_needed(request.sequence, found) + num_kept <= self._num_to_give:
                line.remove(request)
                self._begin(request, found)
                to_read -= request.num_pending
                self._num_passed = self._num_passed + bool(self._chains) if urgent else 0
            elif not self._make_room(only_paused=not (request.urgent or (urgent and request.awaited))):
                return False
        return True

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

    @property
    def _num_to_give(self) -> int:
        """Blocks for a new request: all, or all but one per running request, which will soon need it."""
        return self._pool.num_available - len(self.running) if self.running else self._pool.num_blocks

    def _is_place_left(self) -> bool:
        return sum(not (request.urgent or request.paused) for request in self.running) < self.max_batch_size

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
        """Free a request's blocks; tokens that the cache loses are recomputed."""
        self.leave(request, keep=True)
        self.num_preempted += 1
        request.num_preempted += 1
        if request.paused:
            self._parked[request] = None
        else:
            self._requeue(request)

    def _requeue(self, request: EngineRequest) -> None:
        """Let a preempted request wait for blocks before new chains."""
        request.skipped_since = time.monotonic()
        self._urgent.add(request, request.priority)
