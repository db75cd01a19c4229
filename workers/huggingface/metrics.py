"""Figures that an engine reports about itself."""

from __future__ import annotations

from typing import NamedTuple


class EngineMetrics(NamedTuple):
    """A snapshot of an engine.

    Attributes:
        num_running: Requests that hold blocks of keys and values.
        num_waiting: Requests that wait for blocks.
        num_free_blocks: Blocks that hold nothing.
        num_held_blocks: Blocks that requests hold; a block that several requests share counts once.
        num_cached_blocks: Blocks that nobody holds, kept for later requests that begin alike.
        num_places: Most requests that one step computes: `max_batch_size`.
        num_paused: Streams that may not generate until their reader asks for more, with or without blocks.
        num_put_back: How often a request lost its blocks to others, since the start.
        longest_wait_s: Longest time, since the start, for which an admitted or put-back request got no place in a step
            although a caller waited for it.
        num_cached_tokens: Tokens in the cached blocks.
        num_decoded: Generated tokens whose KV was computed since the start (the last of a text needs none).
        num_prefilled: Prompt tokens whose KV was computed since the start.
        num_recomputed: Positions counted in these two whose KV had already been computed before their request was put
            back.
        num_reused: Prompt tokens taken from cached KV since the start.
        num_reread: Prompt tokens computed anew, in whole 16s, because their KV had left the cache, since the start.
        num_evicted: Blocks that left the cache for others.
        busy_s: Seconds spent in steps since the start; the engine idles the rest.
        num_steps: Steps begun since the start.
        num_probed: Number of prefix lengths, in 64s, for which the engine timed whether sharing pays.
        probes_s: Seconds that these timings took.
    """

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_held_blocks: int
    num_cached_blocks: int
    num_places: int
    num_paused: int
    num_put_back: int
    longest_wait_s: float
    num_cached_tokens: int
    num_decoded: int
    num_prefilled: int
    num_recomputed: int
    num_reused: int
    num_reread: int
    num_evicted: int
    busy_s: float
    num_steps: int
    num_probed: int = 0
    probes_s: float = 0.0

    @property
    def num_computed(self) -> int:
        """Positions whose KV was computed since the start."""
        return self.num_decoded + self.num_prefilled

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were taken from cached KV, 0 to 1; 0 before the first."""
        return self.num_reused / max(1, self.num_reused + self.num_prefilled)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second while the engine was busy; 0 before the first."""
        return self.num_decoded / self.busy_s if self.busy_s else 0.0
