"""What an engine tells about itself."""

from __future__ import annotations

from typing import NamedTuple


class EngineMetrics(NamedTuple):
    """A snapshot of an engine.

    Attributes:
        num_running: Requests that hold a row.
        num_waiting: Requests that wait for one.
        num_rows: Rows in all: twice `max_batch_size`, or fewer where the memory for keys and values holds no more.
        num_places: Rows that one step computes at most: `max_batch_size`, or all rows where they are fewer.
        num_paused: Streams that may not run on before more is asked of them, whether they hold a row or not.
        num_put_back: Rows whose KV had to make room for others since the start.
        longest_wait_s: Longest that a request with a row, or one that was put back, went without a place in a step
            though somebody waited for it, since the start.
        num_stored_tokens: Tokens whose KV is stored for reuse, running rows not counted.
        num_decoded: Generated tokens whose KV was computed since the start (the last of a text needs none).
        num_prefilled: Prompt tokens whose KV was computed since the start.
        num_reused: Prompt tokens taken from cached KV since the start.
        num_evicted: Stored prefixes that left under the memory cap.
        busy_s: Seconds spent in steps since the start; the engine idles the rest.
        num_steps: Steps begun since the start.
    """

    num_running: int
    num_waiting: int
    num_rows: int
    num_places: int
    num_paused: int
    num_put_back: int
    longest_wait_s: float
    num_stored_tokens: int
    num_decoded: int
    num_prefilled: int
    num_reused: int
    num_evicted: int
    busy_s: float
    num_steps: int

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
