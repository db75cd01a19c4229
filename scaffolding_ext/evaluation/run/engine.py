"""Engines run the jobs of an evaluation; `LocalEngine` runs them in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.base import honoured_by
from scaffolding_ext.evaluation.run.datasets import Sample
from scaffolding_ext.evaluation.run.records import Record, RecordError, prompt_hash
from scaffolding_ext.evaluation.run.scoring import Score, score, score_quickly
from scaffolding_ext.evaluation.run.sections import figures_of
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.request.completion import Completion
from scaffolding_ext.request.ledger import Ledger


class Job(NamedTuple):
    """One sample in one of its epochs."""

    sample: Sample
    epoch: int


class Engine(Protocol):
    """Runs jobs.

    Attributes:
        max_parallel_requests: Jobs that it runs at once; no more are given to it.
    """

    max_parallel_requests: int

    async def run(self, job: Job) -> Record:
        """Run a job to its end. A job that fails has a record, too; an exception ends the whole run."""


class LocalEngine:
    """Runs jobs on a stack in this process.

    Args:
        llm: The stack.
        timeout: Seconds that a request may take, or None.
        clock: Seconds from any origin, monotonic.
        units_implied: Whether the questions imply units (see `scoring.score`).
        deadline_times: How many times the stack's deadline a sample of a kind has; other kinds have it once.
        samples_of_votes: Whether a job is one sample of the stack's vote, its epoch the sample's index in it.
    """

    def __init__(
        self,
        llm: ScaffoldingLlm,
        timeout: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        units_implied: bool = False,
        samples_of_votes: bool = False,
        deadline_times: Mapping[str, float] | None = None,
    ) -> None:
        self.max_parallel_requests = llm.max_parallel_requests
        self._llm = llm
        self._timeout = timeout
        self._clock = clock
        self._units_implied = units_implied
        self._samples_of_votes = samples_of_votes
        self._deadline_times = deadline_times or {}

    async def run(self, job: Job) -> Record:
        """As `Engine`; cancelling it cancels the request."""
        sample = job.sample
        started = self._clock()
        which: dict[str, Any] = (
            {"epoch": 0, "only_sample": job.epoch} if self._samples_of_votes else {"epoch": job.epoch}
        )
        which |= self._type_of(sample)
        if self._llm.deadline is not None:
            which["deadline"] = self._llm.deadline * self._deadline_times.get(sample.kind or "", 1.0)
        result = self._llm.generate_async(sample.prompt, sample_id=sample.id, timeout=self._timeout, **which)
        error: Exception | None = None
        try:
            await result
        except asyncio.CancelledError:
            result.cancel()
            raise
        except Exception as failure:  # of any type: a controller's own errors reach its caller as they are
            error = failure
        seconds = round(self._clock() - started, 6)
        output = result.outputs[0] if error is None else None
        answer = None if output is None else _answer_of(output)
        ended_at = round(time.time(), 3)
        scored = None if output is None else await self._score(answer, sample)
        published = result.program.figures
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
            seconds={"total": seconds, "ended_at": ended_at, **result.program.meter.seconds},
            seed=result.program.seeds.seed,
            trace=list(result.program.trace),
            error=None if error is None else RecordError(type(error).__name__, str(error)),
            prompt=sample.prompt,
            kind=sample.kind,
            figures=await self._figures(published, scored, answer, sample) if published else {},
        )

    async def _figures(
        self, published: Mapping[str, Mapping[str, Any]], scored: Score | None, answer: str | None, sample: Sample
    ) -> dict[str, dict[str, Any]]:
        async def is_right(other: str) -> bool:
            assert scored is not None
            return (scored if other == answer else await self._score(other, sample)).correct

        return await figures_of(published, None if scored is None else is_right)

    def _type_of(self, sample: Sample) -> dict[str, Any]:
        """The sample's kind, for a controller that asks for types."""
        asks = "task_type" in honoured_by(self._llm.prototype_controller)
        return {"task_type": sample.kind} if asks and sample.kind is not None else {}

    async def _score(self, answer: str | None, sample: Sample) -> Score:
        if sample.verify is not None:
            return await asyncio.to_thread(sample.verify, answer)
        units_implied = self._units_implied
        quick = score_quickly(answer, sample.target, units_implied=units_implied)
        if quick is not None:
            return quick
        return await asyncio.to_thread(score, answer, sample.target, units_implied=units_implied)


def failed_record(job: Job, error: Exception) -> Record:
    """The record of a job that failed before it had one."""
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
        error=RecordError(type(error).__name__, str(error)),
        prompt=job.sample.prompt,
        kind=job.sample.kind,
    )


def _answer_of(output: Any) -> str | None:
    """The controller's answer; where a controller gives none, the answer that its text states."""
    return output.answer if isinstance(output, Completion) else extract(output.text or "")
