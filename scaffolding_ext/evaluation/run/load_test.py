"""Load test: requests arrive by the clock, even if earlier ones are still running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from scaffolding_ext.errors import QueueFullError
from scaffolding_ext.evaluation.drawing import drawing
from scaffolding_ext.evaluation.run.runner import Engine, EvaluationJob, OnRecord, failed_record
from scaffolding_ext.evaluation.run.tally import OUTCOMES, Column
from scaffolding_ext.evaluation.traffic.served_requests import ServedRequests, queue_length

PICTURE = "load.png"


async def run_arrivals(
    engine: Engine,
    jobs: Sequence[EvaluationJob],
    arrivals: Sequence[float],
    on_record: OnRecord,
    is_stopped: Callable[[], bool],
    max_queue: int,
) -> None:
    """Start each job when it arrives, and wait for all; cancelling it cancels those in flight.

    A job that finds the engine and the queue full is refused: its record has the error `QueueFullError`.

    Args:
        arrivals: Seconds from the start, non-decreasing, one per job.
        on_record: Called with each record when it is done; an error that it raises ends the run.
        is_stopped: Asked before each arrival; once True, no more jobs are started.
        max_queue: Maximum waiting jobs, besides the engine's running ones.
    """
    most = engine.max_parallel_requests + max_queue
    running: set[asyncio.Task[None]] = set()

    async def run(job: EvaluationJob) -> None:
        on_record(await engine.run(job))

    began = time.monotonic()
    try:
        for job, arrival in zip(jobs, arrivals, strict=True):
            await asyncio.sleep(began + arrival - time.monotonic())
            for task in [task for task in running if task.done()]:
                running.remove(task)
                task.result()
            if is_stopped():
                break
            if len(running) >= most:
                message = f"{most} requests are already running or waiting: raise max_queue, or lower arrival_rate"
                on_record(failed_record(job, QueueFullError(message)))
            else:
                running.add(asyncio.create_task(run(job)))
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def requests_of(columns: dict[str, Column]) -> ServedRequests:
    """Convert a tally's columns to requests, in order of arrival."""
    arrived = columns["ended_at"] - columns["seconds"]
    order = np.argsort(arrived, kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    return ServedRequests(
        arrived=arrived[order],
        seconds=columns["seconds"],
        first_token=columns["first_token"].astype(np.float64),
        num_decoded=columns["decoded"].astype(np.float64),
        is_answered=columns["outcome"] < OUTCOMES.index("failed"),
        is_refused=columns["outcome"] == OUTCOMES.index("refused"),
        is_wanted=columns["is_wanted"].astype(bool),
        is_in_time=columns["is_in_time"].astype(bool),
    )


def draw_load(requests: ServedRequests, slo: float | None, path: Path) -> None:
    """Plot the requests in the system over time, and the distribution of response times over all requests."""
    found = queue_length(requests)
    with drawing(path, 1, 2, figsize=(11, 4)) as (_, (over_time, shares)):
        over_time.step(found.times, found.lengths, where="post", lw=1)
        over_time.set(xlabel="seconds", ylabel="requests that run or wait", title="A queue that grows is never served")
        shares.ecdf(np.where(requests.is_answered, requests.seconds, np.inf), label="to the answer")
        firsts = np.where(requests.is_answered, requests.first_token, np.nan)
        if not np.isnan(firsts).all():
            shares.ecdf(np.where(np.isnan(firsts), np.inf, firsts), label="to the first token")
        if slo is not None:
            shares.axvline(slo, color="black", ls=":", lw=1)
        shares.set(
            xlabel="seconds", ylabel="share of all requests", title="Left of the dotted line: in time", ylim=(0, 1)
        )
        shares.legend(loc="lower right")
