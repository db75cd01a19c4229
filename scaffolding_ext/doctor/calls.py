"""What a stack's workers were sent, and what they gave back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scaffolding_ext.protocol import GenerationTask, TaskStatus, Worker
from scaffolding_ext.protocol.notes import Purpose, num_decoded_of, purpose_of
from scaffolding_ext.protocol.task_results import finish_reason_of
from scaffolding_ext.protocol.worker import BaseWorker
from scaffolding_ext.request.program import current_program


class Call(NamedTuple):
    """One task as its worker left it.

    Attributes:
        tag: The worker's role.
        worker: The worker.
        purpose: What its new tokens are for.
        task: The task itself, which its controller may have changed since.
        text: The text that came back.
        token_ids: Its ids; None where the worker tells none.
        num_decoded: Tokens that the worker says, or that its ids count; None if unknown.
        finish_reason: Why it ended; None where nobody says, or where it goes on.
        has_logprobs: Whether log-probabilities came back.
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


class CallLog:
    """Records the generation tasks that workers serve, in the order in which they were first sent.

    Args:
        workers: Worker by tag. Those of this package are watched; nothing that they do changes.
    """

    def __init__(self, workers: Mapping[Any, Worker]) -> None:
        self._calls: dict[str, dict[int, Call]] = {}
        for tag, worker in workers.items():
            if isinstance(worker, BaseWorker):
                self._watch(str(getattr(tag, "value", tag)), worker)

    def of(self, program_id: str) -> list[Call]:
        """The calls of one request."""
        return list(self._calls.get(program_id, {}).values())

    def _watch(self, tag: str, worker: BaseWorker) -> None:
        handlers = dict(worker.task_handlers)

        async def handle(served_by: Any, task: Any) -> TaskStatus | None:
            status: TaskStatus | None = await handlers[type(task)](served_by, task)
            if isinstance(task, GenerationTask):
                self._record(tag, served_by, task)
            return status

        worker.task_handlers = dict.fromkeys(handlers, handle)  # type: ignore[misc]  # read from the instance

    def _record(self, tag: str, worker: Worker, task: GenerationTask) -> None:
        program = current_program()
        ids = None if task.output_tokens is None else list(task.output_tokens)
        call = Call(
            *(tag, worker, purpose_of(task).written, task, task.output_str or "", ids),
            num_decoded=num_decoded_of(task),
            finish_reason=finish_reason_of(task),
            has_logprobs=bool(task.logprobs),
        )
        self._calls.setdefault("" if program is None else program.identity.id, {})[id(task)] = call
