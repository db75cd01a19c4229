"""Ask a server with an HTTP interface of its own: it takes a prompt in JSON, and answers with a text."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any, ClassVar

from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import TokenCounts, note
from scaffolding_ext.protocol.worker import BaseWorker


class HttpWorker(BaseWorker):
    """Sends each task to a server; the server reads the prompt as text.

    Args:
        url: Takes a POST of `prompt`, `max_tokens`, `temperature` and `seed`, and answers `text`, `num_tokens` and
            `num_prompt_tokens`.
    """

    model = None  # the server applies its own chat template

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        asked = {"prompt": task.input_str, "max_tokens": task.max_tokens, "temperature": task.temperature}
        result = await asyncio.to_thread(
            self._post, asked | {"seed": task.seed}
        )  # a blocking call would stop all requests
        task.output_str = result["text"]
        task.finish_reason = "length" if result["num_tokens"] == task.max_tokens else "stop"
        note(task, counts=TokenCounts(decoded=result["num_tokens"], prefilled=result["num_prompt_tokens"]))
        return TaskStatus.SUCCESS

    def _post(self, asked: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self.url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _generate}
