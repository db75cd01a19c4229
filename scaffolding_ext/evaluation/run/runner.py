"""Runs samples through a stack, a bounded number at once; a failed sample becomes a record with its error."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.datasets import Sample
from scaffolding_ext.evaluation.run.engine import Engine, Job, LocalEngine
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.host.arguments import checked_prompt
from scaffolding_ext.host.llm import ScaffoldingLlm

OnRecord = Callable[[Record], None]
MAX_REQUESTS = 1_000_000  # of one run


def evaluate(
    llm: ScaffoldingLlm,
    samples: Sequence[Sample],
    epochs: int = 1,
    timeout: float | None = None,
    on_record: OnRecord | None = None,
    clock: Callable[[], float] = time.perf_counter,
    units_implied: bool = False,
) -> list[Record]:
    """Run every sample and wait for all; inside a running event loop await `evaluate_async` instead.

    As many requests are in flight as the host runs at once, so times and time-outs hold no waiting for the host.

    Args:
        llm: The stack.
        samples: What to run; ids must be unique.
        epochs: How often each sample is run, with seeds of its own each time.
        timeout: Seconds that a request may take, or None.
        on_record: Called with each record as soon as there is one; an error that it raises ends the run.
        clock: Seconds from any origin, monotonic.
        units_implied: Whether the questions imply units (see `scoring.score`).

    Returns:
        The records in the order of the samples, the epochs of a sample next to each other.

    Raises:
        RuntimeError: This thread runs an event loop, which would stand still meanwhile.
        ValueError: `epochs` is below 1, or an id names two samples.
    """
    if _in_event_loop():
        raise RuntimeError("evaluate() would block the running event loop; there, use `await evaluate_async(...)`")
    return asyncio.run(evaluate_async(llm, samples, epochs, timeout, on_record, clock, units_implied))


async def evaluate_async(
    llm: ScaffoldingLlm,
    samples: Sequence[Sample],
    epochs: int = 1,
    timeout: float | None = None,
    on_record: OnRecord | None = None,
    clock: Callable[[], float] = time.perf_counter,
    units_implied: bool = False,
) -> list[Record]:
    """As `evaluate`, for callers on an event loop. Cancelling it cancels the requests in flight."""
    records: dict[tuple[str, int], Record] = {}

    def keep(record: Record) -> None:
        records[record.id, record.epoch] = record
        if on_record is not None:
            on_record(record)

    check_samples(samples, epochs)
    await run_jobs(LocalEngine(llm, timeout, clock, units_implied), jobs_of(samples, epochs), keep)
    return [records[sample.id, epoch] for sample, epoch in jobs_of(samples, epochs)]


def jobs_of(samples: Iterable[Sample], epochs: int, without: Collection[tuple[str, int]] = ()) -> Iterator[Job]:
    """Every sample in every epoch, but those whose id and epoch are in `without`."""
    return (Job(sample, epoch) for sample in samples for epoch in range(epochs) if (sample.id, epoch) not in without)


async def run_jobs(
    engine: Engine, jobs: Iterator[Job], on_record: OnRecord, is_stopped: Callable[[], bool] = lambda: False
) -> None:
    """Run jobs, as many at once as the engine does; cancelling it cancels those in flight.

    Args:
        engine: What runs them.
        jobs: They are begun in this order.
        on_record: Called with each record as soon as there is one; an error that it raises ends the run.
        is_stopped: Asked after each job; where it says so, no more are begun, and those in flight are waited for.
    """

    async def run_from(job: Job | None) -> None:
        while job is not None:
            on_record(await engine.run(job))
            job = None if is_stopped() else next(jobs, None)

    runners = [asyncio.create_task(run_from(job)) for job in itertools.islice(jobs, engine.max_parallel_requests)]
    try:
        await asyncio.gather(*runners)
    finally:
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)


async def run_rounds(
    engine: Engine, rounds: Iterable[Iterator[Job]], on_record: OnRecord, is_stopped: Callable[[], bool]
) -> None:
    """Run jobs round by round, each as `run_jobs`; a round is asked for when the one before it has ended."""
    for jobs in rounds:
        await run_jobs(engine, jobs, on_record, is_stopped)
        if is_stopped():
            return


def check_samples(samples: Sequence[Sample], epochs: int) -> None:
    """Refuse samples that cannot be run, all of them before the first is, and a run that would never end.

    Raises:
        ConfigError: The epochs are below 1, or there are more requests than a run may have; or a prompt is unusable.
        ValueError: An id names two samples.
    """
    num_requests = len(samples) * require.whole("epochs", epochs)
    if num_requests > MAX_REQUESTS:
        raise ConfigError(
            f"is {epochs:,}; with {len(samples):,} samples that makes {num_requests:,} requests, and a run may have "
            f"{MAX_REQUESTS:,}: take fewer epochs, or part of the samples by limit",
            "epochs",
        )
    for sample in samples:
        checked_prompt(sample.prompt)
    if len({sample.id for sample in samples}) < len(samples):
        raise ValueError("an id names two samples; ids must be unique, since seeds derive from them")


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
