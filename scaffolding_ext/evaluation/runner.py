"""Runs samples through a stack, a bounded number at once; a failed sample becomes a record with its error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.answers import extract
from scaffolding_ext.completion import Completion
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.datasets import Sample
from scaffolding_ext.evaluation.records import Record, RecordError, prompt_hash
from scaffolding_ext.evaluation.scoring import score
from scaffolding_ext.host.arguments import checked_prompt
from scaffolding_ext.host.llm import ScaffoldingLlm

OnRecord = Callable[[Record], None]
MAX_REQUESTS = 1_000_000  # of one run, whose records are all kept in memory


class _Job(NamedTuple):
    position: int
    sample: Sample
    epoch: int


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
    check_size(len(samples), epochs)
    for sample in samples:
        checked_prompt(sample.prompt)  # all of them before the first is run
    if len({sample.id for sample in samples}) < len(samples):
        raise ValueError("an id names two samples; ids must be unique, since seeds derive from them")
    pairs = [(sample, epoch) for sample in samples for epoch in range(epochs)]
    jobs = iter([_Job(position, *pair) for position, pair in enumerate(pairs)])
    records: dict[int, Record] = {}

    async def run_jobs(jobs: Iterator[_Job]) -> None:
        for job in jobs:
            record = await _run(llm, job, timeout, clock, units_implied)
            records[job.position] = record
            if on_record is not None:
                on_record(record)

    runners = [asyncio.create_task(run_jobs(jobs)) for _ in range(min(llm.max_parallel_requests, len(pairs)))]
    try:
        await asyncio.gather(*runners)
    finally:
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)
    return [records[position] for position in range(len(pairs))]


def check_size(num_samples: int, epochs: int) -> None:
    """Refuse a run that would never end.

    Raises:
        ConfigError: The epochs are below 1, or there are more requests than a run may have.
    """
    num_requests = num_samples * require.whole("epochs", epochs)
    if num_requests > MAX_REQUESTS:
        raise ConfigError(
            f"is {epochs:,}; with {num_samples:,} samples that makes {num_requests:,} requests, and a run may have "
            f"{MAX_REQUESTS:,}: take fewer epochs, or part of the samples by limit",
            "epochs",
        )


async def _run(
    llm: ScaffoldingLlm, job: _Job, timeout: float | None, clock: Callable[[], float], units_implied: bool
) -> Record:
    sample = job.sample
    started = clock()
    result = llm.generate_async(sample.prompt, sample_id=sample.id, epoch=job.epoch, timeout=timeout)
    error: Exception | None = None
    try:
        await result
    except asyncio.CancelledError:
        result.cancel()
        raise
    except Exception as failure:  # of any type: a controller's own errors reach its caller as they are
        error = failure
    seconds = round(clock() - started, 6)
    output = result.outputs[0] if error is None else None
    answer = None if output is None else _answer_of(output)
    scored = (
        None if output is None else await asyncio.to_thread(score, answer, sample.target, units_implied=units_implied)
    )
    return Record(
        id=sample.id,
        epoch=job.epoch,
        prompt_hash=prompt_hash(sample.prompt),
        target=sample.target,
        output=None if output is None else output.text,
        answer=answer,
        correct=scored is not None and scored.correct,
        verdict=None if scored is None else scored.verdict,
        exit_reason=result.exit_reason,
        ledger=result.program.ledger.to_json(),
        seconds={"total": seconds, **result.program.seconds},
        seed=result.program.seed,
        trace=list(result.program.trace),
        error=None if error is None else RecordError(type(error).__name__, str(error)),
        prompt=sample.prompt,
        kind=sample.kind,
    )


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _answer_of(output: Any) -> str | None:
    """The controller's answer; of a controller that gives none, what its text states."""
    return output.answer if isinstance(output, Completion) else extract(output.text or "")
