"""A worker that groups equal answers without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar

from scaffolding_ext import require
from scaffolding_ext.answers.classes import AnswerClasses
from scaffolding_ext.answers.comparison import Verdict
from scaffolding_ext.answers.equality import Equality
from scaffolding_ext.answers.semantic import Embed, group_by_meaning, sentence_embedder
from scaffolding_ext.protocol import TaskStatus
from scaffolding_ext.protocol.tasks import CompareTask, MeaningTask
from scaffolding_ext.protocol.worker import BaseWorker

if TYPE_CHECKING:
    from scaffolding_ext.protocol.standins import TaskHandler


class CompareWorker(BaseWorker):
    """Serves `CompareTask` with processes that can be killed; give it the tag `compare`.

    If the text of two answers leaves their equality open, an algebra system decides, in another process and under a
    deadline. The classes do not depend on the order of the answers; undetermined pairs count as different.

    With an `embedding` it serves `MeaningTask`, too. Every controller of the stack then groups all of its answers by
    meaning, including those whose text settles their equality as mathematics.

    Args:
        deadline_seconds: Maximum time for a pair of answers once a process is free.
        units_implied: Treat a number as equal with and without its unit: 5 and 5 cm, 50 and 50 %.
        num_processes: Maximum number of processes, about 150 MB each, started on demand.
        max_remembered: Verdicts kept.
        embedding: For open-ended answers: a sentence-transformers model (a hub name or a folder), or a function from
            texts to rows of numbers.
        similarity: Mean cosine similarity, in (0, 1], from which answers mean the same.

    Raises:
        ConfigError: An argument is outside its range.
        MissingDependencyError: A model is named, and sentence-transformers is not installed.
    """

    def __init__(
        self,
        deadline_seconds: float = 2.0,
        *,
        units_implied: bool = False,
        num_processes: int = 2,
        max_remembered: int = 10_000,
        embedding: str | Embed | None = None,
        similarity: float = 0.8,
    ) -> None:
        self._similarity = require.share("similarity", similarity)
        if embedding is not None:
            self._embed = sentence_embedder(embedding) if isinstance(embedding, str) else embedding
            self.register_task_handler(MeaningTask, CompareWorker._group_by_meaning)
        self._equality = Equality(
            require.number("deadline_seconds", deadline_seconds, above=0),
            units_implied=units_implied,
            num_processes=require.whole("num_processes", num_processes),
            max_remembered=require.whole("max_remembered", max_remembered),
        )

    def shutdown(self) -> None:
        self._equality.close()

    async def _compare(self, task: CompareTask) -> TaskStatus:
        if task.pairs is not None:
            task.verdicts = await self._verdicts([(task.answers[i], task.answers[j]) for i, j in task.pairs])
            return TaskStatus.SUCCESS
        steps = AnswerClasses(self._equality.units_implied).group(task.answers)
        try:
            pairs = next(steps)
            while True:
                await asyncio.sleep(0)  # many answers must not block the loop
                pairs = steps.send(await self._verdicts(pairs))
        except StopIteration as stop:
            task.classes, task.num_undetermined = stop.value
        return TaskStatus.SUCCESS

    async def _group_by_meaning(self, task: MeaningTask) -> TaskStatus:
        task.classes = await asyncio.to_thread(group_by_meaning, task.answers, self._embed, self._similarity)
        task.num_undetermined = 0
        return TaskStatus.SUCCESS

    async def _verdicts(self, pairs: Sequence[tuple[str | None, str | None]]) -> list[Verdict]:
        futures = [self._equality.submit(a, b) for a, b in pairs if a is not None and b is not None]
        return [future.result() if future.done() else await _shared(future) for future in futures]

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {CompareTask: _compare}


async def _shared(future: Future[Verdict]) -> Verdict:
    """Wait for a shared future; cancelling the wait does not cancel it."""
    return await asyncio.shield(asyncio.wrap_future(future))
