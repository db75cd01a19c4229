"""A request's output and the handle that waits for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from tensorrt_llm import HAS_NEWEST_FIELDS, HAS_SCOPES


@dataclass
class ScaffoldingOutput:
    text: str
    token_ids: list[int]
    if HAS_SCOPES:
        data: Any = None
    if HAS_NEWEST_FIELDS:
        metadata: Any = None


class ScaffoldingResult:
    """Starts with an empty output, which stays where the request raised: the caller sees no error."""

    def __init__(self):
        self.outputs = [ScaffoldingOutput("", [])]
        self.streamed = []
        self.task_collections = None
        self._done = threading.Event()

    @property
    def finished(self):
        return self._done.is_set()

    def set_output(self, output):
        if output is not None:
            self.outputs[0] = output
        self._done.set()

    def set_output_streaming(self, output):
        self.streamed.append(output)

    def result(self, timeout=None):
        if not self._done.wait(timeout):
            raise TimeoutError
        return self
