"""Times whether it is faster that branches share the KV of their prefix (RKSC's KV probe)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from scaffolding_ext.protocol.branching import BranchTask, break_even_branches
from scaffolding_ext.protocol.notes import TokenCounts
from scaffolding_ext.request.program import record
from scaffolding_ext.workers.huggingface.engine_request import Ends, Kv, Waiter
from scaffolding_ext.workers.huggingface.request_builder import RequestBuilder
from scaffolding_ext.workers.shared.streaming import NEVER

if TYPE_CHECKING:
    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest
    from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine

BUCKET_LEN = 64  # tokens
NUM_TIMINGS = 3


class Reads(Protocol):
    """The operations that a probe times, in this order; none of their KV stays."""

    @property
    def fits(self) -> bool:
        """Whether there is enough unused memory for the timing."""

    async def whole(self) -> None:
        """Read a prefix and a suffix without reusing cached KV."""

    async def prefix(self) -> None:
        """Read the prefix without reusing cached KV, and hold its KV."""

    async def suffix(self) -> None:
        """Read the suffix behind it."""

    async def free(self) -> None:
        """Free the prefix's KV."""


class SharingProbe:
    """The number of branches from which sharing pays, timed once for each 64 tokens of prefix length.

    The first branches on a prefix of a new length wait for the timings; branches that come meanwhile share the prefix.
    `seconds` sums up all timings.

    Reference:
        RKSC, the probe and the break-even B* of table 9.

    Deviation: One branch is timed, not a batch of branches, so that the remembered timing holds for any number.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self._clock = clock
        self._break_even: dict[int, float] = {}

    @property
    def num_buckets(self) -> int:
        return len(self._break_even)

    async def pays(self, num_branches: int, prefix_len: int, reads: Reads) -> bool:
        """Whether this number of branches should share a prefix of that length; without timings they share it."""
        bucket = prefix_len // BUCKET_LEN
        if bucket not in self._break_even:
            if not reads.fits:
                return True
            self._break_even[bucket] = 0.0
            try:
                whole, prefix, suffix = await self._time(reads)
            except BaseException:
                del self._break_even[bucket]
                raise
            least = self._break_even[bucket] = break_even_branches(whole, prefix, suffix)
            record(
                "sharing_probe",
                prefix_len=[bucket * BUCKET_LEN, (bucket + 1) * BUCKET_LEN - 1],
                whole_s=whole,
                prefix_s=prefix,
                suffix_s=suffix,
                break_even=None if math.isinf(least) else least,
                shares=num_branches > least,
            )
        return num_branches > self._break_even[bucket]

    async def _time(self, reads: Reads) -> tuple[float, ...]:
        """Seconds for prefix and suffix together, for the prefix, and for the suffix: the shortest of three each."""
        timings = []
        for _ in range(NUM_TIMINGS):
            ticks = [self._clock()]
            try:
                for read in (reads.whole, reads.prefix, reads.suffix):
                    await read()
                    ticks.append(self._clock())
            finally:
                await reads.free()
            timings.append([end - start for start, end in pairwise(ticks)])
            self.seconds += ticks[-1] - ticks[0]
        return tuple(map(min, zip(*timings, strict=True)))


class _Sent(NamedTuple):
    request: EngineRequest
    waiter: Waiter


class EngineReads:
    """The prefix of a branch task and the longest of its suffixes, read by the generation engine."""

    def __init__(
        self, task: BranchTask, engine: GenerationEngine, builder: RequestBuilder, tokens_per_block: int
    ) -> None:
        self._task = task
        self._engine = engine
        self._builder = builder
        self._whole = task.prefix_tokens + max(task.suffixes, key=len)
        self._num_blocks = 2 * (len(self._whole) // tokens_per_block + 1)  # for the holder and the reader of the prefix
        self._sent: list[_Sent] = []

    @property
    def counts(self) -> TokenCounts:
        return TokenCounts(*map(sum, zip(TokenCounts(), *(sent.request.counts for sent in self._sent), strict=True)))

    @property
    def fits(self) -> bool:
        return self._engine.metrics.num_free_blocks >= self._num_blocks

    async def whole(self) -> None:
        await self._read(self._whole, kv=Kv(keep=False, reuses=False))

    async def prefix(self) -> None:
        """The request pauses after the prefix and so keeps its blocks."""
        ends, kv = Ends(2, ignore_end=True), Kv(keep=False, reuses=False)
        await self._read(self._task.prefix_tokens, 1, ends, kv)

    async def suffix(self) -> None:
        await self._read(self._whole)

    async def free(self) -> None:
        for request, waiter in self._sent:
            if not request.ended:
                self._engine.cancel(request)
                await waiter.wait(request, NEVER)

    async def _read(
        self,
        prompt: list[int],
        num_tokens: int = NEVER,
        ends: Ends = Ends(),  # noqa: B008  (it cannot change)
        kv: Kv = Kv(keep=False),  # noqa: B008
    ) -> None:
        """Wait until a request has generated so many tokens and paused, or has ended."""
        waiter = Waiter()
        (request,) = self._builder.reads(self._task, [prompt], [waiter.notify], ends, kv=kv)
        request.may_run_to = num_tokens
        self._engine.submit(request)
        self._sent.append(_Sent(request, waiter))
        await waiter.wait(request, num_tokens)
        if request.error is not None:
            raise request.error
