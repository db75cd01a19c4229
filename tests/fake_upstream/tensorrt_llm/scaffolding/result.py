"""A request's output and the handle that waits for it."""

import threading
from dataclasses import dataclass
from typing import Any


@dataclass
class ScaffoldingOutput:
    text: str | None
    token_ids: list[int] | None
    data: Any = None


class ScaffoldingResult:
    """Completes with None where the request raised: the caller sees no error."""

    def __init__(self):
        self.cur_output = None
        self.streamed = []
        self.task_collections = None
        self._done = threading.Event()

    @property
    def outputs(self):
        return [self.cur_output]

    @property
    def finished(self):
        return self._done.is_set()

    def set_output(self, output):
        self.cur_output = output
        self._done.set()

    def set_output_streaming(self, output):
        self.streamed.append(output)

    def result(self, timeout=None):
        if not self._done.wait(timeout):
            raise TimeoutError
        return self
