"""Which requests hold a row, and which of them compute in a step.

What others wait for (probes, forced answers, scores, verdicts) gets a row before new chains, and computes before them.
A chain that nobody waits for runs ahead where places are free, and gives its row up where others need one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain

from scaffolding_ext.workers.huggingface.engine_request import EngineRequest
from scaffolding_ext.workers.huggingface.kv_cache import KVRows
from scaffolding_ext.workers.huggingface.model_runner import Work
from scaffolding_ext.workers.huggingface.prefix_index import PrefixIndex
from scaffolding_ext.workers.huggingface.row_order import RowOrder
from scaffolding_ext.workers.waiting_line import WaitingLine

_PATIENCE = 512  # urgent requests that get a row before a chain that waits
_OVERDUE = 16  # steps without a place, after which a request computes before others
_KEPT_SHARE = 8  # one row in so many is kept for what others wait for


class RowScheduler:
    """Requests that wait for a row, those that hold one, and those that gave theirs up.

    Args:
        kv: The rows.
        index: The prefixes that can be reused.
        num_places: Rows that a step computes at most.
        prefill_chunk: Prompt tokens that a step computes at most.

    Attributes:
        rows: The requests that hold a row.
        num_reused: Prompt tokens taken from cached KV.
        num_put_back: Rows that had to make room.
        longest_wait_s: Longest that one that somebody waited for went without a place.
    """

    def __init__(self, kv: KVRows, index: PrefixIndex, num_places: int, prefill_chunk: int) -> None:
        self.rows: RowOrder
        self.num_places = min(num_places, kv.num_rows)
        self.num_reused = self.num_put_back = 0
        self.longest_wait_s = 0.0
        self._kv = kv
        self._index = index
        self._prefill_chunk = prefill_chunk
        self._num_kept = kv.num_rows // _KEPT_SHARE
        self._urgent: WaitingLine[EngineRequest]
        self._chains: WaitingLine[EngineRequest]
        self._num_passed = 0  # urgent requests that got a row since a chain did
        self._parked: dict[EngineRequest, None]  # without a row
        self._reading: dict[EngineRequest, None]  # those that have not read all their tokens, the oldest first
        self._step = 0
        self.clear()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a row."""
        return len(self._urgent) + len(self._chains)

    @property
    def num_paused(self) -> int:
        """Requests that may not run on for now."""
        return len(self._parked) + sum(request.paused for request in list(self.rows.requests))

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        held = chain(self.rows.requests, self._parked)
        return not self.num_waiting and all(request.paused for request in held)

    def add(self, request: EngineRequest) -> None:
        """Put a request behind those that wait."""
        (self._urgent if request.urgent else self._chains).add(request, request.priority)

    def drop(self, request: EngineRequest) -> bool:
        """Forget a request that holds no row; whether it is one."""
        for line in (self._urgent, self._chains):
            if request in line:
                line.remove(request)
                return True
        if request in self._parked:
            del self._parked[request]
            return True
        return False

    def clear(self) -> None:
        """Let go of every request."""
        self.rows = RowOrder(self._kv)
        self._urgent, self._chains = WaitingLine(_PATIENCE), WaitingLine(_PATIENCE)
        self._parked, self._reading = {}, {}

    def leave(self, request: EngineRequest) -> None:
        """Take a request out of its row."""
        self.rows.remove(request)
        self._reading.pop(request, None)

    def admit(self) -> None:
        """Give those that wait a row each, as many as the next steps can begin to read."""
        self._step += 1
        for request in [request for request in self._parked if not request.paused]:
            del self._parked[request]
            request.skipped_since = time.monotonic()
            self._urgent.add(request, request.priority)  # somebody waits, and it is on its way
        if not self.num_waiting:
            return
        if self._num_passed >= _PATIENCE:
            self._admit_chains()
            self._admit_urgent()
        else:
            self._admit_urgent()
            self._admit_chains()

    def works(self) -> list[Work]:
        """What the next pass computes: one token of each row that decodes, and some of the tokens to be read."""
        room = self._prefill_chunk
        reads: dict[EngineRequest, int] = {}
        for request in sorted(self._reading, key=self._rank):
            reads[request] = min(request.num_pending, room)
            room -= reads[request]
        works = [
            Work(request, num_tokens)
            for request in self.rows.requests
            if (num_tokens := reads.get(request, 0 if request.paused else 1))
        ]
        if len(works) > self.num_places:
            works.sort(key=lambda work: (self._rank(work.request), work.request.last_step))
            now = time.monotonic()
            for request, _ in works[self.num_places :]:
                if request.awaited and request.skipped_since is None:
                    request.skipped_since = now
            works = works[: self.num_places]
        for request, _ in works:
            request.last_step = self._step
            if request.skipped_since is not None:
                self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - request.skipped_since)
                request.skipped_since = None
        return works

    def reads(self, request: EngineRequest) -> bool:
        """Whether a request has not read all its tokens yet."""
        return request in self._reading

    def has_read(self, request: EngineRequest) -> None:
        """Note that a request has read all its tokens."""
        del self._reading[request]

    def _rank(self, request: EngineRequest) -> int:
        """Who computes first: what others wait for, then chains that somebody waits for, then those that run ahead."""
        if not request.awaited:
            return 2
        return 0 if request.urgent or self._step - request.last_step > _OVERDUE else 1

    def _admit_urgent(self) -> None:
        num_placed = self._admit_from(self._urgent, True, lambda: self._has_row(self._kv.num_rows, only_paused=False))
        self._num_passed += num_placed if self._chains else 0

    def _admit_chains(self) -> None:
        limit = self._kv.num_rows - (self._num_kept if self._num_passed < _PATIENCE else 0)
        if self._admit_from(self._chains, False, lambda: self._is_place_left() and self._has_row(limit, True)):
            self._num_passed = 0

    def _admit_from(self, line: WaitingLine[EngineRequest], urgent: bool, has_room: Callable[[], bool]) -> int:
        """Give rows to those of a line, until there is no room or enough to read; returns how many got one."""
        to_read = self._prefill_chunk - sum(read.num_pending for read in self._reading if read.urgent is urgent)
        num_placed = place = 0  # those in places before wait for a prefix that others are about to compute
        while place < len(line) and len(self.rows) + place < self._kv.num_rows + 1 and to_read > 0 and has_room():
            request = line[place]
            if self._place(request):
                line.remove(request)
                to_read -= request.num_pending
                num_placed += 1
            else:
                place += 1
        return num_placed

    def _is_place_left(self) -> bool:
        """Whether fewer chains run than a step computes."""
        return sum(not (request.urgent or request.paused) for request in self.rows.requests) < self.num_places

    def _has_row(self, limit: int, only_paused: bool) -> bool:
        """Whether one more request may have a row; one that nobody waits for makes room.

        Args:
            limit: Rows that may be held.
            only_paused: Whether only those that may not run on make room.
        """
        if len(self.rows) < limit:
            return True
        spare = [
            request
            for request in self.rows.requests
            if not (request.awaited or request.urgent or request in self._reading)
            and (request.paused or not only_paused)
        ]
        if not spare:
            return False
        self._park(min(spare, key=lambda request: (not request.paused, request.last_step)))
        return True

    def _park(self, request: EngineRequest) -> None:
        """Take a request's row; its KV is stored, and computed anew where the store has to give it up."""
        holder = request.holder
        tensors = None
        with suppress(RuntimeError, MemoryError):  # no memory for the copy
            tensors = self._kv.export(holder.row, holder.num_kv)
        self.rows.remove(request)
        if tensors is None:
            self._index.forget(holder)
        else:
            self._index.store(holder, tensors)
        self._parked[request] = None
        self.num_put_back += 1

    def _place(self, request: EngineRequest) -> bool:
        """Give a request a row with the longest cached prefix of its tokens, unless a longer one is on its way."""
        holder = request.holder
        if holder.tensors is not None:  # it was put back, and its own are there still
            self.rows.add(request, holder.num_kv)
            self._kv.load(holder.row, holder.tensors, holder.num_kv)
            self._index.take(holder)
        else:
            holder.num_kv = 0
            limit = len(holder.token_ids) - 1  # the last token is computed in any case: its logits are needed
            if request.score_from is not None:
                limit = min(limit, request.score_from - 1)
            if request.wants_logits:
                limit = 0
            match = self._index.find(holder, limit)
            num_cached = 0 if match is None else match.num_tokens
            if len(self.rows) and self._index.promised(holder, num_cached, limit):
                return False
            self.rows.add(request, num_cached)
            if match is not None:
                if match.holder.tensors is None:
                    self._kv.move(match.holder.row, holder.row, num_cached)
                else:
                    self._kv.load(holder.row, match.holder.tensors, num_cached)
                holder.num_kv = num_cached
                request.num_reused += num_cached
                self.num_reused += num_cached
            if request.max_tokens > 1 or self._index.max_bytes:  # else its KV is gone before anyone finds it
                self._index.promise(holder)
            self._reading[request] = None
        request.last_step = self._step
        return True
