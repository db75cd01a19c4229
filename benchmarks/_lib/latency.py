"""A worker that takes as long as a model of a given latency would."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from scaffolding_ext.evaluation.preflight.schedule import Latency
from scaffolding_ext.protocol import StreamGenerationTask, TaskStatus, Worker
from scaffolding_ext.protocol.notes import TokenCounts, token_counts_of
from scaffolding_ext.protocol.worker import WrappingWorker


class SetLatency(WrappingWorker):
    """Another worker whose calls take at least as long as those of a model of a given latency.

    Args:
        worker: Does the work; the caller shuts it down.
        latency: Of the model.

    Attributes:
        set_s: Seconds that the calls should have taken so far, in all.
        late_s: Seconds that the worker itself took beyond them.
    """

    def __init__(self, worker: Worker, latency: Latency) -> None:
        super().__init__(worker)
        self.task_handlers.pop(StreamGenerationTask, None)
        self.latency = latency
        self.set_s = self.late_s = 0.0

    def shutdown(self) -> None:
        """Leave the worker to the caller."""

    async def _hand_on(self, task: Any) -> TaskStatus | None:
        started = time.monotonic()
        status = await super()._hand_on(task)
        seconds = self.latency.of(token_counts_of(task) or TokenCounts())
        rest = seconds - (time.monotonic() - started)
        self.set_s += seconds
        self.late_s += max(0.0, -rest)
        await asyncio.sleep(max(0.0, rest))
        return status
