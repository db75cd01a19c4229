"""Run one sub-controller several times on one prompt, in parallel, with different seeds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.base import (
    ONE_GENERATION,
    BaseController,
    StackMemory,
    attributes_of,
    finish,
    honoured_by,
    sampling_params_of,
)
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.voting import elect
from scaffolding_ext.errors import NoOutputError, TaskError
from scaffolding_ext.prompts.sampling_params import SAMPLE_TEMPERATURE, refuse_greedy, vary
from scaffolding_ext.protocol import (
    Controller,
    ControllerGenerator,
    GenerationTask,
    ParallelProcess,
)
from scaffolding_ext.protocol.meta import Meta, Purpose, meta_of, purpose_of
from scaffolding_ext.protocol.relay import Visit, relay
from scaffolding_ext.protocol.task_results import sampled_logprobs
from scaffolding_ext.protocol.worker import WorkerTag, tag_name
from scaffolding_ext.request.figures import Answers, KeptSample
from scaffolding_ext.request.ledger import Ledger, Meter, enter_part
from scaffolding_ext.request.program import DEADLINE, Lifetime, current_program, discard, next_seed, record
from scaffolding_ext.request.seeds import branch_path, derive_seed
from scaffolding_ext.request.speculation import Speculation


class Variety:
    """Gives the chains of one request a temperature if none is set, and records that once in the trace.

    Args:
        controller: Draws the chains. If its worker's model brings its own sampling defaults, these are kept.
    """

    def __init__(self, controller: Controller) -> None:
        workers = attributes_of(controller).capabilities.items()
        self._sampling = frozenset(tag for tag, worker in workers if worker.is_sampled)
        self._told = False

    def __call__(self, work: Iterable[Any]) -> None:
        for task in work:
            if not isinstance(task, GenerationTask) or task.temperature:  # above 0: already sampled
                continue
            if task.temperature is None and tag_name(task.worker_tag or WorkerTag.GENERATION) in self._sampling:
                continue
            if purpose_of(task).written is Purpose.CHAIN:
                needed = vary(task)
                if needed and not self._told:
                    self._told = True
                    record("sampling", temperature=SAMPLE_TEMPERATURE, reason="no temperature is set")


def check_variety(num_samples: int, **controllers: Controller) -> None:
    """Refuse controllers whose sampling parameters would make all samples alike."""
    for key, params in _sampling(controllers) if num_samples > 1 else ():
        if params.get("temperature") == 0:
            refuse_greedy(f"{key}.temperature")


def _sampling(controllers: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the sampling parameters of the controllers and of the sub-controllers that draw for them."""
    for key, controller in controllers.items():
        yield f"{key}.sampling_params", sampling_params_of(controller)
        inner = {name: value for name, value in vars(controller).items() if name in _DRAWERS and value is not None}
        yield from _sampling({f"{key}.{name}": value for name, value in inner.items()})


_DRAWERS = ("generation_controller", "draft_controller", "target_controller")


_log = logging.getLogger(__name__)


def needs_of_samples(controller: Controller, num_samples: int, reads_logprobs: bool) -> Needs:
    """Return the needs of a controller that draws samples of another one.

    Args:
        reads_logprobs: True if the samples' log-probabilities are read; a chain cut at a thinking budget has none.

    Raises:
        ConfigError: All samples would be alike.
    """
    check_variety(num_samples, generation_controller=controller)
    fields = honoured_by(controller) - ONE_GENERATION - ({"thinking_budget"} if reads_logprobs else set())
    return Needs(tags=(), fields=fields)


class Sample:
    """One run of a sub-controller.

    Attributes:
        index: Number among the samples of its prompt; its seed derives from it.
        seconds: Duration, if the caller keeps samples or the vote runs against time.
    """

    def __init__(self, index: int, task: GenerationTask) -> None:
        self.index = index
        self.task = task
        self.ledger = Ledger()
        self.reward: float | None = None
        self.seconds: float | None = None

    @property
    def answer(self) -> str | None:
        """The sub-controller's extracted answer; extracted from the text here if the sub-controller is foreign."""
        fields = self.task.customized_result_fields
        answer: str | None = fields["answer"] if "answer" in fields else extract(self.task.output_str or "")
        return answer

    @property
    def num_decoded(self) -> int:
        """Decoded tokens, probes included, without those that were discarded."""
        return self.ledger.num_kept


def published_answers(
    samples: Sequence[Sample], answers: Sequence[str | None], classes: Sequence[int] | None = None
) -> Answers:
    """Return the samples' answers for an evaluation, with the samples themselves if the caller keeps them."""
    program = current_program()
    if program is None or not program.caller.keeps_samples:
        return Answers(answers, classes)
    kept = [
        KeptSample(
            answer,
            sample.num_decoded,
            sample.seconds,
            _mean_logprob(sample),
            sample.task.output_str or "",
            sample.reward,
        )
        for sample, answer in zip(samples, answers, strict=True)
    ]
    return Answers(answers, classes, kept)


def _mean_logprob(sample: Sample) -> float | None:
    try:
        logprobs = sampled_logprobs(sample.task.output_tokens, sample.task.logprobs or [])
    except NoOutputError:
        return None
    return sum(logprobs) / len(logprobs) if logprobs else None


def end_vote(
    run: Run,
    samples: Sequence[Sample],
    answers: Sequence[str | None],
    classes: Sequence[int],
    weights: Sequence[float],
    max_samples: int,
    **figures: Any,
) -> None:
    """Write the elected sample into the task, and the vote into the request's trace and figures.

    Args:
        run: Its task receives the output. The exit reason is `"no_answer"` if no sample has an answer, `"deadline"` if
            the deadline ended the vote, `"certain"` if samples were left undrawn, else `"vote"`.
    """
    winner, first = elect(classes, weights)
    reason = DEADLINE if run.is_late else "certain" if len(samples) < max_samples else "vote"
    reason = "no_answer" if winner < 0 else reason
    run.sum_up(samples=len(samples), stop_reason=reason, answers=published_answers(samples, answers, classes))
    run.event(
        "vote",
        num_samples=len(samples),
        num_answers=len(classes) - classes.count(-1),
        answers=answers,
        classes=classes,
        weights=weights,
        winner=winner,
        num_decoded=[sample.ledger.num_kept for sample in samples],
        **figures,
    )
    elected = samples[first]
    answer = answers[first] if winner >= 0 else None
    finish(run.task, elected.task.output_str or "", elected.task.output_tokens, answer, reason)


class Sampler:
    """Starts runs of one sub-controller on one task.

    Args:
        task: Its prompt and sampling fields are every run's; its seed, or one of the program's, seeds them all.
        max_samples: Maximum number of runs. If more than one may be drawn and no temperature is set, 0.7 is used and
            recorded in the trace.
        allow_failed: Runs that may fail in their worker; the others go on.

    Attributes:
        controller: Draws the next runs; it may be replaced between rounds.
        samples: Runs that count, without failed ones.
    """

    def __init__(
        self,
        controller: Controller,
        task: GenerationTask,
        max_samples: int,
        kwargs: Mapping[str, Any] | None = None,
        allow_failed: int = 0,
    ) -> None:
        self.allow_failed = min(allow_failed, max_samples - 1)
        self._failed: list[int] = []
        self.samples: list[Sample] = []
        self.max_samples = max_samples
        self._num_started = 0
        self.controller = controller
        self._task = task
        self._kwargs = dict(kwargs or {})
        self._variety = Variety(controller) if max_samples > 1 else None
        self._seed = next_seed() if task.seed is None else task.seed
        if self._seed is None and not isinstance(
            controller, BaseController
        ):  # upstream's controllers give every sample the same seed
            self._seed = sampling_params_of(controller).get("seed")

    def start(self, num_samples: int) -> ParallelProcess:
        """Return a step that runs `num_samples` more samples, which count, in parallel branches."""
        return self._step(self.runs(num_samples))

    def runs(self, num_samples: int) -> list[SampleRun]:
        """Return the next runs, to be started by the caller."""
        first = self._num_started
        self._num_started += num_samples
        return self._runs(range(first, self._num_started))

    def _runs(self, indices: Iterable[int]) -> list[SampleRun]:
        shared = self._task.__dict__
        meta = meta_of(self._task)._replace(counts=None)
        path = branch_path()
        new = [Sample(index, self._copy(index, shared, meta)) for index in indices]
        return [
            SampleRun(self.controller, sample, self._kwargs, self._variety, (*path, sample.index)) for sample in new
        ]

    def _step(self, runs: list[SampleRun]) -> ParallelProcess:
        self.samples += [run.sample for run in runs]
        process = ParallelProcess([], [], [])
        process.sub_gens = list(runs)
        if current_program() is None:  # inside a foreign controller no meter counts the parts
            process.sub_gens = [relay(run, self._variety, Meter(run.sample.ledger)) for run in runs]
        process.branch_paths = [run.path for run in runs]  # a branch keeps its sample's number in every round
        return process

    @property
    def num_left(self) -> int:
        """Runs that may still be started; stopped ones count as started."""
        return self.max_samples - self._num_started

    @property
    def num_failed(self) -> int:
        return len(self._failed)

    @property
    def most_votes(self) -> int:
        """Runs that can vote: the maximum, less failed ones."""
        return self.max_samples - self.num_failed

    def fail(self, sample: Sample, error: Exception) -> None:
        """Report a failed run; raise its error if no more may fail."""
        if not isinstance(error, TaskError) or self.num_failed >= self.allow_failed:
            raise error
        self._failed.append(sample.index)
        cause = error.__cause__ or error
        record("sample_failed", sample=sample.index, error=type(cause).__name__)
        _log.warning("sample %d failed, the vote goes on: %s", sample.index, error)
        self.discard([sample])

    def the_others(self) -> ParallelProcess | None:
        """Return a step that runs all samples that do not count yet, stopped ones again; None if none are left."""
        over = {*self._failed, *(sample.index for sample in self.samples)}
        runs = self._runs(index for index in range(self.max_samples) if index not in over)
        program = current_program()
        if program is not None:
            for run in runs:
                program.seeds.forget(run.path)
        return self._step(runs) if runs else None

    def only(self, index: int) -> ControllerGenerator:
        """Run the sample of one index, as the full vote would draw it, and return its output as the task's."""
        yield self._step(self._runs([require.whole("only_sample", index, 0, self.max_samples - 1)]))
        (drawn,) = self.samples
        reason = drawn.task.customized_result_fields.get("exit_reason")
        finish(self._task, drawn.task.output_str or "", drawn.task.output_tokens, drawn.answer, reason)

    def look_for_copies(self, memory: StackMemory) -> None:
        """Warn if all samples are the same text; such a vote is costly and says nothing."""
        texts = [sample.task.output_str for sample in self.samples]
        if len(texts) > 1 and len(set(texts)) == 1:
            reason = "all samples are the same text: set a temperature, and give each sample its own seed"
            record("warning", what="samples", reason=reason)
            if memory.is_new(reason):
                _log.warning("%s: %d samples, %s", type(self.controller).__name__, len(texts), reason)

    def discard(self, samples: Iterable[Sample]) -> int:
        """Count the samples' decoded tokens as discarded; return their number."""
        num_tokens = 0
        for sample in samples:
            num_tokens += sample.num_decoded
            for purpose, counts in sample.ledger.by_purpose.items():
                if purpose is not Purpose.DISCARDED:
                    discard(purpose, counts.decoded)
        return num_tokens

    def _copy(self, index: int, shared: dict[str, Any], meta: Meta) -> GenerationTask:
        twin: GenerationTask = object.__new__(self._task.__class__)  # as copy.copy, in a third of the time
        twin.__dict__ = shared.copy()  # faster than a dict display
        twin.__dict__["meta"] = meta._replace(draw=(*meta.draw, index))
        twin.customized_result_fields = {}
        twin.streaming_output_flag, twin.streaming_output_list = False, []  # no single sample is the output
        twin.seed = None if self._seed is None else derive_seed(self._seed, index)
        return twin


class SampleRun:
    """Work of one sample; the clone and the ledger part are created in the branch that runs it."""

    __slots__ = ("_controller", "_kwargs", "_look", "path", "sample", "speculation")

    def __init__(
        self,
        controller: Controller,
        sample: Sample,
        kwargs: Mapping[str, Any],
        look: Visit | None,
        path: tuple[int, ...],
    ) -> None:
        self.sample = sample
        self.path = path
        self.speculation: Speculation | None = None
        self._controller = controller
        self._kwargs = kwargs
        self._look = look

    def __iter__(self) -> Iterator[Any]:
        enter_part(self.sample.ledger, self._look)
        if self.speculation is not None:
            self.speculation.enter()
        work = self._controller.clone().process([self.sample.task], **self._kwargs)
        program = current_program()
        if program is not None and (self.speculation is not None or program.caller.keeps_samples):
            return self._timed(work, program.lifetime)
        return work if work.__class__ is GeneratorType else iter(work)

    def _timed(self, work: Iterable[Any], lifetime: Lifetime) -> Iterator[Any]:
        began = lifetime.elapsed()
        yield from work
        self.sample.seconds = round(lifetime.elapsed() - began, 6)
