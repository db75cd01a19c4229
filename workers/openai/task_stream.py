"""The stream that serves a task, from its request to its end."""

from __future__ import annotations

import time

from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.request.program import record
from scaffolding_ext.workers.openai.connection import Connection
from scaffolding_ext.workers.openai.filling import fill
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.stream import StreamReader


class TaskStream:
    """One task's stream.

    The task holds the stream, so the stream does not hold the task: each method is given the task.

    Args:
        connection: To the server.
        path: `"completions"` or `"chat"`.
        bodies: Makes the request.
        task: The task; its output is reset.
        end_at: Number of tokens at which the stream always ends, with `PAUSED` as its reason. None: it ends at its
            budget.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        bodies: RequestBodies,
        task: GenerationTask,
        end_at: int | None = None,
    ) -> None:
        body = bodies.generation(task, stream=True)
        self._is_piece = end_at is not None and end_at < body["max_tokens"]
        if self._is_piece and end_at is not None:
            bodies.shorten(body, end_at)
        lost_ids, stops = bodies.lost_ids(task), bodies.stops(task)
        self._reader = StreamReader(
            connection, path, body, bodies.flavor, bodies.gives_ids, lost_ids, stops, self._is_piece, path == "chat"
        )
        self._connection = connection
        self._bodies = bodies
        self._started_at = time.monotonic()
        task.output_tokens = None

    def may_run_to(self, num_tokens: int) -> None:
        """Set the number of tokens at which the stream is closed, unless it has a fixed end."""
        if not self._is_piece:
            self._reader.may_run_to = num_tokens

    async def advance(self, task: GenerationTask, num_tokens: int) -> bool:
        """Wait until the task has that many tokens, or the end.

        Returns:
            Whether it has ended.

        Raises:
            WorkerError: The stream broke off.
        """
        reader = self._reader
        first = task.output_str is None or task.output_tokens is None
        answer = await self._connection.run(reader.wait, num_tokens)
        if first:
            record_retries(reader.num_retries)
        fill(task, answer, self._bodies, time.monotonic() - self._started_at)
        if reader.error is not None:
            if answer.text:
                record("stream_lost", num_tokens=len(answer.token_ids or ()), error=str(reader.error))
            raise reader.error
        return answer.finish_reason is not None

    async def cancel(self, task: GenerationTask) -> bool:
        """End it; the task gets what has come.

        Returns:
            Whether it has ended; a stream that had not begun has not ended.
        """
        answer = await self._connection.run(self._reader.cancel)
        fill(task, answer, self._bodies, time.monotonic() - self._started_at)
        return answer.finish_reason is not None

    async def close(self) -> None:
        """End the stream if it still runs; its task is not changed."""
        if not self._reader.ended:
            await self._connection.run(self._reader.cancel)


def record_retries(num_retries: int) -> None:
    """Note in the trace how often a request was repeated, if it was."""
    if num_retries:
        record("retried", worker="OpenAIWorker", num_retries=num_retries)
