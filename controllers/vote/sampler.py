"""Run one sub-controller several times on one prompt, in parallel, with different seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.base import (
    ONE_GENERATION,
    BaseController,
    attributes_of,
    finish,
    honoured_by,
    sampling_params_of,
)
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.allocation.base import Votes
from scaffolding_ext.controllers.vote.sample import Sample, published_answers
from scaffolding_ext.controllers.vote.voting import Election, end_reason
from scaffolding_ext.errors import TaskError
from scaffolding_ext.prompts.sampling_params import SAMPLE_TEMPERATURE, vary
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, ParallelProcess
from scaffolding_ext.protocol.meta import Meta, Purpose, meta_of, purpose_of
from scaffolding_ext.protocol.relay import Visit, relay
from scaffolding_ext.protocol.worker import WorkerTag, tag_name
from scaffolding_ext.request.ledger import Meter
from scaffolding_ext.request.program import current_program, discard, elapsed, next_seed, record
from scaffolding_ext.request.seeds import branch_path, derive_seed

_log = logging.getLogger(__name__)


def ensure_sampling(controller: Controller) -> Visit:
    """Return a visitor that gives the chains of one request a temperature if none is set; the trace says so once.

    Args:
        controller: Draws the chains. If its worker's model brings its own sampling defaults, these are kept.
    """
    workers = attributes_of(controller).capabilities.items()
    sampled = frozenset(tag for tag, worker in workers if worker.is_sampled)
    was_recorded = False

    def visit(work: Iterable[Any]) -> None:
        nonlocal was_recorded
        for task in work:
            if not isinstance(task, GenerationTask) or task.temperature:  # above 0: already sampled
                continue
            if task.temperature is None and tag_name(task.worker_tag or WorkerTag.GENERATION) in sampled:
                continue
            if purpose_of(task).written is Purpose.CHAIN and vary(task) and not was_recorded:
                was_recorded = True
                record("sampling", temperature=SAMPLE_TEMPERATURE, reason="no temperature is set")

    return visit


def needs_of_samples(controller: Controller, reads_logprobs: bool) -> Needs:
    """Return the needs of a controller that draws samples of another one.

    Args:
        reads_logprobs: True if the samples' log-probabilities are read; a chain cut at a thinking budget has none.
    """
    fields = honoured_by(controller) - ONE_GENERATION - ({"thinking_budget"} if reads_logprobs else set())
    if reads_logprobs and WorkerTag.GENERATION.value in attributes_of(controller).needs_by_tag():
        return Needs(num_logprobs=1, fields=fields)
    return Needs(tags=(), fields=fields)


def end_vote(run: Run, votes: Votes, elected: Election, reason: str, num_failed: int = 0, **figures: Any) -> None:
    """Write the elected sample into the task, and the vote into the request's trace and figures.

    Args:
        reason: Exit reason of a vote that elected an answer (see `end_reason`).
    """
    samples, classes = votes.samples, votes.classes
    sample = samples[elected.first]
    reason = end_reason(elected, reason, sample.task.customized_result_fields.get("exit_reason"))
    if num_failed:
        run.sum_up(failed_samples=num_failed)
        figures["num_failed"] = num_failed
    for each in samples:
        if len(samples) == 1 or each.task.output_str != samples[0].task.output_str:
            break
    else:
        run.event("equal_samples", num_samples=len(samples))
    run.sum_up(samples=len(samples), stop_reason=reason, answers=published_answers(samples, classes))
    run.event(
        "vote",
        num_samples=len(samples),
        max_samples=votes.max_samples,
        num_answers=len(classes) - classes.count(-1),
        answers=[sample.answer for sample in samples],
        classes=classes,
        weights=votes.weights or [1.0] * len(samples),
        winner=elected.winner,
        num_decoded=votes.lengths,
        **figures,
    )
    answer = sample.answer if elected.winner >= 0 else None
    finish(run.task, sample.task.output_str or "", sample.task.output_tokens, answer, reason)


class Sampler:
    """Starts runs of one sub-controller on one task.

    Args:
        task: Its prompt and sampling fields are every run's; its seed, or one of the program's, seeds them all.
        max_samples: Maximum number of runs. If more than one may be drawn and no temperature is set, 0.7 is used and
            recorded in the trace.
        allow_failed: Runs that may fail in their worker; the others go on.
        vary: Changes the task of a run before it starts.

    Attributes:
        controller: Draws the next runs; it may be replaced between rounds.
        samples: Runs that `start` has started.
    """

    def __init__(
        self,
        controller: Controller,
        task: GenerationTask,
        max_samples: int,
        kwargs: Mapping[str, Any] | None = None,
        allow_failed: int = 0,
        vary: Callable[[Sample], object] | None = None,
    ) -> None:
        self._vary = vary
        self.allow_failed = min(allow_failed, max_samples - 1)
        self.num_failed = 0
        self.samples: list[Sample] = []
        self.max_samples = max_samples
        self._num_begun = 0
        self.controller = controller
        self._task = task
        self._kwargs = dict(kwargs or {})
        self._visit = ensure_sampling(controller) if max_samples > 1 else None
        self._seed = next_seed() if task.seed is None else task.seed
        # Upstream's controllers give every sample the same seed.
        if self._seed is None and not isinstance(controller, BaseController):
            self._seed = sampling_params_of(controller).get("seed")

    def start(self, num_samples: int) -> ParallelProcess:
        """Return a step that runs `num_samples` more samples in parallel branches."""
        new = self.next(num_samples)
        self.samples += new
        return self.branches(new)

    def next(self, num_samples: int) -> list[Sample]:
        """Return the next samples, at most those that are left; they run in `branches`."""
        first = self._num_begun
        self._num_begun = min(first + num_samples, self.max_samples)
        meta = meta_of(self._task)._replace(counts=None)
        return [self._sample(index, meta) for index in range(first, self._num_begun)]

    def branches(self, samples: Sequence[Sample]) -> ParallelProcess:
        """Return a step with a branch for each sample, which keeps the sample's number in every round."""
        process, path = ParallelProcess([], [], []), branch_path()
        process.sub_gens = [self._run(sample) for sample in samples]
        if current_program() is None:  # inside a foreign controller no meter counts the parts
            process.sub_gens = [relay(self._run(each), self._visit, Meter(each.ledger)) for each in samples]
        process.branch_paths = [(*path, sample.index) for sample in samples]
        return process

    def _run(self, sample: Sample) -> ControllerGenerator:
        sample.enter()
        program = current_program()
        began = elapsed() if program is not None and program.caller.keeps_samples else None
        yield from self.controller.clone().process([sample.task], **self._kwargs)
        fields = sample.task.customized_result_fields
        sample.answer = fields["answer"] if "answer" in fields else extract(sample.task.output_str or "")
        if began is not None:
            sample.seconds = round(elapsed() - began, 6)

    @property
    def num_left(self) -> int:
        """Runs that may still be started; stopped ones count as started."""
        return self.max_samples - self._num_begun

    def fail(self, sample: Sample, error: Exception) -> None:
        """Report a failed run; raise its error if no more may fail."""
        if not isinstance(error, TaskError) or self.num_failed >= self.allow_failed:
            raise error
        self.num_failed += 1
        cause = error.__cause__ or error
        record("sample_failed", sample=sample.index, error=type(cause).__name__)
        _log.warning("sample %d failed, the vote goes on: %s", sample.index, error)
        self.discard([sample])

    def only(self, index: int) -> ControllerGenerator:
        """Run the sample of one index, as the full vote would draw it, and return its output as the task's."""
        number = require.whole("only_sample", index, 0, self.max_samples - 1)
        drawn = self._sample(number, meta_of(self._task)._replace(counts=None))
        yield self.branches([drawn])
        reason = drawn.task.customized_result_fields.get("exit_reason")
        finish(self._task, drawn.task.output_str or "", drawn.task.output_tokens, drawn.answer, reason)

    def discard(self, samples: Iterable[Sample]) -> int:
        """Count the samples' decoded tokens as discarded; return their number."""
        num_tokens = 0
        for sample in samples:
            num_tokens += sample.num_decoded
            for purpose, counts in sample.ledger.by_purpose.items():
                if purpose is not Purpose.DISCARDED:
                    discard(purpose, counts.decoded)
        return num_tokens

    def _sample(self, index: int, meta: Meta) -> Sample:
        twin: GenerationTask = object.__new__(self._task.__class__)  # as copy.copy, in a third of the time
        twin.__dict__ = self._task.__dict__.copy()  # faster than a dict display
        twin.__dict__["meta"] = meta._replace(draw=(*meta.draw, index))
        twin.customized_result_fields = {}
        twin.streaming_output_flag, twin.streaming_output_list = False, []  # no single sample is the output
        twin.seed = None if self._seed is None else derive_seed(self._seed, index)
        sample = Sample(index, twin, self._visit)
        if self._vary is not None:
            self._vary(sample)
        return sample
