"""Answer repeated questions from memory, and pass all others to another worker."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.prompts.sampling_params import SAMPLING_FIELDS
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus, Worker
from scaffolding_ext.protocol.meta import TokenCounts, note, token_counts_of
from scaffolding_ext.protocol.worker import WrappingWorker

ASKED = ("input_str", "input_tokens", *sorted(SAMPLING_FIELDS))
ANSWERED = ("output_str", "output_tokens", "finish_reason", "logprobs")


class CachingWorker(WrappingWorker):
    """Remembers the answers of another worker.

    Args:
        worker: Does the work, and is shut down with this one.
        max_answers: Answers kept; the oldest goes first.
    """

    def __init__(self, worker: Worker, max_answers: int = 1000) -> None:
        super().__init__(worker)  # declares the worker's capabilities, and passes its tasks on
        self.task_handlers[GenerationTask] = CachingWorker._generate
        self.task_handlers.pop(StreamGenerationTask, None)  # a stream would bypass the memory
        self.max_answers = max_answers
        self._answers: dict[str, tuple[dict[str, Any], TokenCounts]] = {}

    async def _generate(self, task: GenerationTask) -> TaskStatus | None:
        key = repr([getattr(task, name, None) for name in ASKED])
        if key not in self._answers:
            status = await self.worker.run_task(task)
            if status is TaskStatus.SUCCESS and (task.seed is not None or not task.temperature):  # else it may differ
                answer = {name: getattr(task, name, None) for name in ANSWERED}
                self._answers[key] = answer, token_counts_of(task) or TokenCounts()
                if len(self._answers) > self.max_answers:
                    del self._answers[next(iter(self._answers))]
            return status
        answer, counts = self._answers[key]
        for name, value in answer.items():
            setattr(task, name, value)
        note(task, counts=TokenCounts(reused=sum(counts)))
        return TaskStatus.SUCCESS
