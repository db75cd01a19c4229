"""Questions to a stack: the requests to its workers, their replies, and a probe of the chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.answers import up_to_brace
from scaffolding_ext.controllers.base import attributes_of, honoured_by
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, TaskStatus, Worker
from scaffolding_ext.protocol.meta import Purpose, num_decoded_of, purpose_of
from scaffolding_ext.protocol.task_results import finish_reason_of
from scaffolding_ext.protocol.worker import BaseWorker, WorkerTag, declared, worker_for
from scaffolding_ext.request.program import current_program
from scaffolding_ext.request.seeds import branch_path
from scaffolding_ext.stack.config import DatasetConfig

if TYPE_CHECKING:
    from scaffolding_ext.prompts.families import PromptFamily
    from scaffolding_ext.stack.config import StackConfig

QUESTIONS = (
    "What is 17 + 25?",
    "A train goes 60 km in 45 minutes. How far does it go in 3 hours, in km?",
)
_EMBEDDED = "tinylm/"


class ServedTask(NamedTuple):
    """One task as its worker left it.

    Attributes:
        tag: The worker's role.
        worker: The worker.
        purpose: Purpose of its new tokens.
        task: The task, which its controller may have changed since.
        text: The returned text.
        token_ids: Its token ids; None if the worker returns none.
        num_decoded: Decoded tokens, as the worker reports or by its ids; None if unknown.
        finish_reason: Reason for the end; None if unknown or unfinished.
        has_logprobs: True if log-probabilities came back.
        branch: Branch of the request that sent it; each sample of a vote has one.
    """

    tag: str
    worker: Worker
    purpose: Purpose
    task: GenerationTask
    text: str
    token_ids: list[int] | None
    num_decoded: int | None
    finish_reason: str | None
    has_logprobs: bool
    branch: tuple[int, ...] = ()


class CallLog:
    """Records the generation tasks that workers serve, in the order first sent.

    Args:
        workers: Workers by tag. Those of this package are watched; their behaviour does not change.
    """

    def __init__(self, workers: Mapping[Any, Worker]) -> None:
        self._calls: dict[str, dict[int, ServedTask]] = {}
        for tag, worker in workers.items():
            if isinstance(worker, BaseWorker):
                self._watch(str(getattr(tag, "value", tag)), worker)

    def of(self, program_id: str) -> list[ServedTask]:
        """Calls of one request."""
        return list(self._calls.get(program_id, {}).values())

    def _watch(self, tag: str, worker: BaseWorker) -> None:
        handlers = dict(worker.task_handlers)

        async def handle(served_by: Any, task: Any) -> TaskStatus | None:
            status: TaskStatus | None = await handlers[type(task)](served_by, task)
            if isinstance(task, GenerationTask):
                self._record(tag, served_by, task)
            return status

        worker.task_handlers = dict.fromkeys(handlers, handle)  # type: ignore[misc]  # looked up on the instance

    def _record(self, tag: str, worker: Worker, task: GenerationTask) -> None:
        program = current_program()
        ids = None if task.output_tokens is None else list(task.output_tokens)
        call = ServedTask(
            *(tag, worker, purpose_of(task).written, task, task.output_str or "", ids),
            num_decoded=num_decoded_of(task),
            finish_reason=finish_reason_of(task),
            has_logprobs=bool(task.logprobs),
            branch=branch_path(),
        )
        self._calls.setdefault("" if program is None else program.identity.id, {})[id(task)] = call


class Probed(NamedTuple):
    """A probe of an unfinished chain.

    Attributes:
        suffix: The probe's text.
        response: The model's reply.
        answer: The answer in it; None if the box is empty or not closed.
    """

    suffix: str
    response: str
    answer: str | None


class Written(NamedTuple):
    """A chain of an answer: a plain answer's only one, or one sample of a vote.

    Attributes:
        text: Text by the model, without the stack's additions.
        calls: The tasks that wrote it.
        probe: Its first probe; None if none could be sent.
    """

    text: str
    calls: list[ServedTask]
    probe: Probed | None

    @property
    def has_ended(self) -> bool:
        """True if the model ended it."""
        return any(call.finish_reason == "stop" for call in self.calls)


class Exchange(NamedTuple):
    """A question to the stack and its outcome.

    Attributes:
        question: The question as a user would ask it.
        prompt: The prompt as the model reads it if the stack renders it, else the question.
        calls: Tasks sent to the workers.
        written: The chains.
        text: The stack's output; None if the request failed.
        answer: The stack's answer.
        exit_reason: The controller's reason to stop.
        confidences: Confidence of the answer at each of the controller's probes, if recorded.
        error: The error; None if the request succeeded.
    """

    question: str
    prompt: str
    calls: list[ServedTask]
    written: list[Written]
    text: str | None
    answer: str | None
    exit_reason: str | None
    confidences: list[float]
    error: str | None

    @property
    def chains(self) -> list[ServedTask]:
        """Calls that wrote the chains."""
        return [call for call in self.calls if call.purpose is Purpose.CHAIN]


def questions_of(config: StackConfig) -> list[str]:
    """Choose two questions that the stack's model can read.

    The embedded models read only their own problems. Other models get questions of the stack's data set if it is a
    local file, else two arithmetic questions.
    """
    from scaffolding_ext.evaluation.run.datasets import load_dataset

    models = {name for worker in config.workers.values() for name in _models_in(worker.args)}
    if models and all(name.startswith(_EMBEDDED) for name in models):
        own = DatasetConfig(source="tinylm:held_out", num_samples=2)
    elif config.dataset is not None and Path(config.dataset.source).is_file():
        own = config.dataset
    else:
        return list(QUESTIONS)
    return [sample.prompt for sample in load_dataset(**own.model_dump(), limit="2")]


def _models_in(args: Any) -> Iterator[str]:
    """Models named in a worker's arguments, including those of nested workers."""
    if isinstance(args, Mapping):
        for key, value in args.items():
            if key == "model" and isinstance(value, str):
                yield value
            yield from _models_in(value)


def ask(llm: ScaffoldingLlm, log: CallLog, question: str, max_tokens: int | None, timeout: float) -> Exchange:
    """Ask the stack one question.

    Args:
        llm: The stack.
        log: Watches its workers.
        question: The question.
        max_tokens: Token limit of the chain, if the controller takes one; None, or a controller that takes none,
            leaves the stack's own.
        timeout: Seconds for the request.
    """
    controller: Any = llm.prototype_controller
    limit = _limit(llm, max_tokens)
    limits: dict[str, Any] = {} if limit is None else {"max_tokens": limit}
    result = llm.generate_async(question, timeout=timeout, **limits)
    error = result.exception()
    calls = log.of(result.id)
    chains = [call for call in calls if call.purpose is Purpose.CHAIN]
    prompt = (chains[0].task.input_str if chains else None) or question
    prompting = attributes_of(controller).prompting
    written = _written(calls, None if prompting is None else prompting.family_behind(prompt))
    looks = (event.get("confidence") for event in result.program.trace if event["event"] == "probe")
    return Exchange(
        *(question, prompt, calls, written),
        text=None if error is not None else result.outputs[0].text,
        answer=result.answer,
        exit_reason=result.exit_reason,
        confidences=[float(seen) for seen in looks if seen is not None],
        error=None if error is None else f"{type(error).__name__}: {error}",
    )


def _written(calls: Sequence[ServedTask], family: PromptFamily | None) -> list[Written]:
    """The chains of a request, each with the first probe of its branch."""
    branches = list(dict.fromkeys(call.branch for call in calls if call.purpose is Purpose.CHAIN))
    found = []
    for branch in branches:
        own = [call for call in calls if call.branch[: len(branch)] == branch]
        pieces = [call for call in own if call.purpose is Purpose.CHAIN and call.branch == branch]
        found.append(Written("".join(piece.text for piece in pieces), pieces, _probe(own, family)))
    return found


def _limit(llm: ScaffoldingLlm, max_tokens: int | None) -> int | None:
    """Token limit to send; None if the controller's is lower, or it takes none."""
    controller: Any = llm.prototype_controller
    if max_tokens is None or "max_tokens" not in honoured_by(controller):
        return None
    sent = controller.needs_by_tag().get(WorkerTag.GENERATION.value)
    own = None if sent is None else sent.max_tokens
    worker = worker_for(llm.workers, WorkerTag.GENERATION)
    context_len = declared(worker).max_seq_len
    room = max_tokens if context_len is None else min(max_tokens, context_len // 2)
    return None if own is not None and own <= room else room


def _probe(calls: Sequence[ServedTask], family: PromptFamily | None) -> Probed | None:
    for call in calls:
        if call.purpose is Purpose.PROBE and family is not None:
            asked = call.task.input_str or ""
            suffixes = (family.probe, family.close, family.close_closed)
            suffix = next((suffix for suffix in suffixes if asked.endswith(suffix)), None)
            if suffix is not None:
                return Probed(suffix, call.text, up_to_brace(call.text) or None)
    return None
