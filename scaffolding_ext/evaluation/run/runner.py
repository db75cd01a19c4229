"""Run samples through a stack with bounded concurrency; a failed sample becomes a record with its error."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from scaffolding_ext import require
from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.base import honoured_by
from scaffolding_ext.errors import ConfigError, ServerBusyError, ServerDownError, ServerTimeoutError
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.outage import Outage
from scaffolding_ext.evaluation.run.records import CUT_OFF, Record, RecordError, prompt_hash
from scaffolding_ext.evaluation.run.scoring import Score, letter_of, score, score_quickly
from scaffolding_ext.evaluation.run.sections import figures_of
from scaffolding_ext.host.arguments import checked_prompt
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.worker import num_written_by, workers_within
from scaffolding_ext.request.audit import AuditFinding
from scaffolding_ext.request.figures import Answers
from scaffolding_ext.request.ledger import Ledger
from scaffolding_ext.request.results import Completion


class EvaluationJob(NamedTuple):
    """A sample in one epoch."""

    sample: Example
    epoch: int


class Engine(Protocol):
    """Runs jobs.

    Attributes:
        max_parallel_requests: Maximum number of jobs that it is given at once.
    """

    max_parallel_requests: int

    async def run(self, job: EvaluationJob) -> Record:
        """Run a job. A failed job also gives a record; an exception ends the whole run."""

    async def is_up(self) -> bool:
        """Return True if all of the stack's servers answer, as far as its workers can tell."""

    def num_written(self) -> int:
        """Return the tokens that its workers have written so far, as far as they tell."""


class LocalEngine:
    """Runs jobs on a stack in this process.

    Args:
        units_implied: Questions imply units (see `scoring.score`).
        samples_of_votes: A job is one sample of the stack's vote, its epoch the sample's index.
    """

    def __init__(
        self,
        llm: ScaffoldingLlm,
        timeout: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        units_implied: bool = False,
        samples_of_votes: bool = False,
    ) -> None:
        self.max_parallel_requests = llm.max_parallel_requests
        self._llm = llm
        self._timeout = timeout
        self._clock = clock
        self._units_implied = units_implied
        self._samples_of_votes = samples_of_votes
        self._asks_for_types = "task_type" in honoured_by(llm.prototype_controller)

    async def run(self, job: EvaluationJob) -> Record:
        """Run a job; cancelling it cancels the request."""
        sample = job.sample
        started = self._clock()
        which: dict[str, Any] = (
            {"epoch": 0, "only_sample": job.epoch} if self._samples_of_votes else {"epoch": job.epoch}
        )
        if self._asks_for_types and sample.kind is not None:
            which["task_type"] = sample.kind
        if self._llm.deadline is not None:
            which["deadline"] = self._llm.deadline
        result = self._llm.generate_async(sample.prompt, sample_id=sample.id, timeout=self._timeout, **which)
        error: Exception | None = None
        try:
            await result
        except asyncio.CancelledError:
            result.cancel()
            raise
        except Exception as failure:  # a controller may raise anything
            error = failure
        seconds = round(self._clock() - started, 6)
        output = result.outputs[0] if error is None else None
        exit_reason = result.exit_reason
        answer = None if output is None else _answer_of(output, sample, exit_reason)
        ended_at = round(time.time(), 3)
        scored = None if output is None else await self._score(answer, sample)
        published = result.program.figures
        audited = await result.audited() if error is None and result.is_audited else None
        return replace(
            _record_of(job),
            output=None if output is None else output.text,
            answer=answer,
            correct=scored is not None and scored.correct,
            verdict=None if scored is None else scored.verdict,
            exit_reason=exit_reason,
            ledger=result.program.ledger.to_json(),
            seconds={
                "total": seconds,
                "ended_at": ended_at,
                **({} if self._llm.deadline is None else {"within": self._llm.deadline}),
                **result.program.meter.seconds,
            },
            seed=result.program.seeds.seed,
            trace=result.program.trace.decisions,
            error=None if error is None else _told(error),
            figures=await self._figures(published, scored, answer, sample) if published else {},
            audit=None if audited is None else await self._audit(audited, scored, sample),
            samples=await self._samples(published, sample) if self._llm.keep_samples and output is not None else None,
        )

    def num_written(self) -> int:
        return num_written_by(self._llm.workers.values())

    async def is_up(self) -> bool:
        asks = [worker.is_up for worker in workers_within(self._llm.workers.values()) if hasattr(worker, "is_up")]
        return all(await asyncio.gather(*(ask() for ask in asks)))

    async def _audit(self, audited: AuditFinding, scored: Score | None, sample: Example) -> dict[str, Any]:
        """Return the finding of an audit, with the score of the answer without stopping."""
        whole = await self._score(audited.whole, sample) if audited.changed or scored is None else scored
        return {"whole": audited.whole, "changed": audited.changed, "correct": whole.correct}

    async def _samples(
        self, published: Mapping[str, Mapping[str, Any]], sample: Example
    ) -> list[dict[str, Any]] | None:
        """Return the samples of the request's vote, scored; None if it has none."""
        found = [value for named in published.values() for value in named.values() if isinstance(value, Answers)]
        kept = next((each.samples for each in reversed(found) if each.samples is not None), None)
        if kept is None:
            return None
        right = {each.answer: (await self._score(each.answer, sample)).correct for each in kept}
        return [each._asdict() | {"correct": right[each.answer]} for each in kept]

    async def _figures(
        self, published: Mapping[str, Mapping[str, Any]], scored: Score | None, answer: str | None, sample: Example
    ) -> dict[str, dict[str, Any]]:
        async def is_right(other: str) -> bool:
            assert scored is not None
            return (scored if other == answer else await self._score(other, sample)).correct

        return await figures_of(published, None if scored is None else is_right, self._units_implied)

    async def _score(self, answer: str | None, sample: Example) -> Score:
        if sample.verify is not None:
            return await asyncio.to_thread(sample.verify, answer)
        if sample.options:
            answer = letter_of(answer, sample.options)
        units_implied = self._units_implied
        quick = score_quickly(answer, sample.target, units_implied=units_implied)
        if quick is not None:
            return quick
        return await asyncio.to_thread(score, answer, sample.target, units_implied=units_implied)


def failed_record(job: EvaluationJob, error: Exception) -> Record:
    return replace(_record_of(job), error=RecordError(type(error).__name__, str(error)))


def _record_of(job: EvaluationJob) -> Record:
    """Return the record of a job that has not run."""
    return Record(
        id=job.sample.id,
        epoch=job.epoch,
        prompt_hash=prompt_hash(job.sample.prompt),
        target=job.sample.target,
        output=None,
        answer=None,
        correct=False,
        verdict=None,
        exit_reason=None,
        ledger=Ledger().to_json(),
        seconds={"total": 0.0, "ended_at": round(time.time(), 3)},
        seed=None,
        trace=[],
        error=None,
        prompt=job.sample.prompt,
        kind=job.sample.kind,
    )


def _told(error: Exception) -> RecordError:
    """Return the error of a record; a server that is busy, down or silent is named instead of its task."""
    cause = error.__cause__
    named = cause if isinstance(cause, ServerBusyError | ServerDownError | ServerTimeoutError) else error
    return RecordError(type(named).__name__, str(error))


def _answer_of(output: Any, sample: Example, exit_reason: str | None) -> str | None:
    """Return the controller's answer, or else the one in its text. Of a multiple-choice question, return its letter."""
    text = output.text or ""
    answer = output.answer if isinstance(output, Completion) else extract(text)
    if sample.options:
        return letter_of(answer, sample.options, text)
    if answer is None and sample.answers_anyhow and exit_reason != CUT_OFF:
        return extract(text, fallback="last")
    return answer


OnRecord = Callable[[Record], None]
MAX_REQUESTS = 20_000_000  # of one run


def evaluate(
    llm: ScaffoldingLlm,
    samples: Sequence[Example],
    epochs: int = 1,
    timeout: float | None = None,
    on_record: OnRecord | None = None,
    clock: Callable[[], float] = time.perf_counter,
    units_implied: bool = False,
) -> list[Record]:
    """Run every sample and wait for all; on a running event loop, call it with `asyncio.to_thread`.

    Only as many requests as the host runs at once are in flight, so times and time-outs include no waiting for it.

    Args:
        samples: Their ids must be unique.
        epochs: Runs of each sample, each with other seeds.
        on_record: Called with each record when it is done; an error that it raises ends the run.
        units_implied: Questions imply units (see `scoring.score`).

    Returns:
        The records in the order of the samples, with the epochs of a sample adjacent.

    Raises:
        RuntimeError: This thread runs an event loop.
        ValueError: `epochs` is below 1, or two questions have the same id.
    """
    check_samples(samples, epochs)
    records: dict[tuple[str, int], Record] = {}

    def keep(record: Record) -> None:
        records[record.id, record.epoch] = record
        if on_record is not None:
            on_record(record)

    asyncio.run(run_jobs(LocalEngine(llm, timeout, clock, units_implied), jobs_of(samples, epochs), keep))
    return [records[sample.id, epoch] for sample, epoch in jobs_of(samples, epochs)]


def jobs_of(
    samples: Iterable[Example], epochs: int, without: Container[tuple[str, int]] = ()
) -> Iterator[EvaluationJob]:
    return (
        EvaluationJob(sample, epoch)
        for sample in samples
        for epoch in range(epochs)
        if (sample.id, epoch) not in without
    )


async def run_jobs(
    engine: Engine,
    jobs: Iterator[EvaluationJob],
    on_record: OnRecord,
    is_stopped: Callable[[], bool] = lambda: False,
    outage: Outage | None = None,
) -> None:
    """Run as many jobs at once as the engine allows; cancelling it cancels those in flight.

    Args:
        outage: Waits for a server that is down; None records such jobs as failed.
        on_record: Called with each record when it is done; an error that it raises ends the run.
        is_stopped: Asked after each job; once True, no more are started, and those in flight are finished.
    """

    async def run_from(job: EvaluationJob | None) -> None:
        while job is not None:
            run = functools.partial(engine.run, job)
            record = await (run() if outage is None else outage.through(run))
            if record is not None:
                on_record(record)
            job = None if record is None or is_stopped() else next(jobs, None)

    runners = [asyncio.create_task(run_from(job)) for job in itertools.islice(jobs, engine.max_parallel_requests)]
    try:
        await asyncio.gather(*runners)
    finally:
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)


def check_samples(samples: Sequence[Example], epochs: int) -> None:
    """Refuse unusable samples before any is run, and a run that would never end.

    Raises:
        ConfigError: The epochs are below 1, there are too many requests, or a prompt is unusable.
        ValueError: Two samples have the same id.
    """
    num_requests = len(samples) * require.whole("epochs", epochs)
    if num_requests > MAX_REQUESTS:
        raise ConfigError(
            f"is {epochs:,}; with {len(samples):,} questions that makes {num_requests:,} requests, but a run may have "
            f"{MAX_REQUESTS:,}: use fewer epochs, or fewer questions with limit",
            "epochs",
        )
    for sample in samples:
        checked_prompt(sample.prompt)
    if len({sample.id for sample in samples}) < len(samples):
        raise ValueError("two questions have the same id; ids must be unique, because seeds derive from them")
