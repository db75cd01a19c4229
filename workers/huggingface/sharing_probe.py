"""Times whether it is faster that branches share the KV of their prefix (RKSC's KV probe), and tells why.

B* comes in two forms. Timed: B* = T_prefix / (T_whole - T_suffix). By a latency model T = c0 + c1 tokens + c2 pairs, of
which branches that share spare all but one of their readings of the prefix, and pay one pass more:
B* = 1 + c0 / (c1 n + c2 n (n + 1) / 2). At B branches sharing pays from n* on, which solves (B - 1)(c1 n + c2 n (n + 1)
/ 2) = c0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from scaffolding_ext.protocol.branching import BranchTask, break_even_branches
from scaffolding_ext.protocol.meta import TokenCounts
from scaffolding_ext.request.program import record
from scaffolding_ext.workers.huggingface.engine_request import Ends, Kv, Waiter
from scaffolding_ext.workers.huggingface.request_builder import RequestBuilder
from scaffolding_ext.workers.shared.streaming import NEVER

if TYPE_CHECKING:
    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest
    from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine

BUCKET_LEN = 64  # tokens
NUM_TIMINGS = 3


class Pass(NamedTuple):
    """One forward pass over new tokens of one sequence, behind tokens whose KV is there."""

    num_tokens: int
    num_cached: int = 0

    @property
    def size(self) -> tuple[float, float, float]:
        """The pass itself, its tokens, and its pairs of a token and one that it attends to."""
        return 1.0, self.num_tokens, self.num_tokens * (self.num_cached + (self.num_tokens + 1) / 2)


class LatencyModel(NamedTuple):
    """Seconds of a pass, of each of its tokens, and of each of its pairs of tokens.

    Reference:
        RKSC's latency model (equations 6 to 10).

    Deviation: The paper counts layers; here three constants are fitted to timings.
    """

    per_pass: float
    per_token: float
    per_pair: float

    @classmethod
    def fit(cls, passes: Sequence[Pass], seconds: Sequence[float]) -> LatencyModel:
        """The constants, none below 0, with the least squared relative error; at least three timings above 0."""
        from scipy.optimize import nnls  # takes as long to import as a small model to load

        sizes, taken = np.array([each.size for each in passes]), np.array(seconds)
        return cls(*map(float, nnls(sizes / taken[:, None], np.ones(len(taken)))[0]))

    def seconds(self, work: Pass) -> float:
        return math.fsum(constant * part for constant, part in zip(self, work.size, strict=True))

    def break_even_branches(self, prefix_len: int) -> float:
        """B*: sharing a prefix pays with more branches than that."""
        reading = self.seconds(Pass(prefix_len)) - self.per_pass
        return 1 + self.per_pass / reading if reading else math.inf

    def break_even_len(self, num_branches: int) -> float:
        """n*: with so many branches sharing pays for longer prefixes, in tokens; infinite where it never does."""
        if num_branches < 2 or not (self.per_token or self.per_pair):
            return math.inf
        spared = self.per_pass / (num_branches - 1)
        if not self.per_pair:
            return spared / self.per_token
        linear = self.per_token + self.per_pair / 2
        return (math.sqrt(linear * linear + 2 * self.per_pair * spared) - linear) / self.per_pair


class Reads(Protocol):
    """The operations that a probe times, in this order; none of their KV stays."""

    @property
    def fits(self) -> bool:
        """Whether there is enough unused memory for the timing."""

    @property
    def suffix_len(self) -> int:
        """Tokens of the suffix, at least 1."""

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
    Where there is no room for timings, the latency model of two other lengths decides. `seconds` sums up all timings.

    Attributes:
        model: The latency model of all timings so far; None before two lengths were timed.

    Reference:
        RKSC, the probe and the break-even B* of table 9.

    Deviation: One branch is timed, not a batch of branches, so that the remembered timing holds for any number.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self._clock = clock
        self._break_even: dict[int, float] = {}
        self._passes: list[Pass] = []
        self._timings: list[float] = []
        self.model: LatencyModel | None = None

    @property
    def num_buckets(self) -> int:
        return len(self._break_even)

    async def pays(self, num_branches: int, prefix_len: int, reads: Reads) -> bool:
        """Whether this number of branches should share a prefix of that length; where nothing is known they do."""
        bucket = prefix_len // BUCKET_LEN
        if bucket not in self._break_even:
            if not reads.fits:
                return self.model is None or num_branches > self.model.break_even_branches(prefix_len)
            self._break_even[bucket] = 0.0
            try:
                whole, prefix, suffix = await self._time(reads)
            except BaseException:
                del self._break_even[bucket]
                raise
            least = self._break_even[bucket] = break_even_branches(whole, prefix, suffix)
            self._learn(prefix_len, reads.suffix_len, (whole, prefix, suffix))
            star = math.inf if self.model is None else self.model.break_even_len(num_branches)
            record(
                "sharing_probe",
                prefix_len=[bucket * BUCKET_LEN, (bucket + 1) * BUCKET_LEN - 1],
                whole_s=whole,
                prefix_s=prefix,
                suffix_s=suffix,
                break_even=None if math.isinf(least) else least,
                break_even_len=None if math.isinf(star) else star,
                shares=num_branches > least,
            )
        return num_branches > self._break_even[bucket]

    def _learn(self, prefix_len: int, suffix_len: int, seconds: tuple[float, ...]) -> None:
        """Fit the latency model anew; a clock that has seen no time pass tells nothing."""
        passes = Pass(prefix_len + suffix_len), Pass(prefix_len), Pass(suffix_len, prefix_len)
        if min(seconds) > 0 and prefix_len:
            self._passes += passes
            self._timings += seconds
        if len(self._passes) > len(passes):
            self.model = LatencyModel.fit(self._passes, self._timings)

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
    def suffix_len(self) -> int:
        return max(1, len(self._whole) - len(self._task.prefix_tokens))

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
