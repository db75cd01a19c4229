"""Plain generation: one call of the model a task."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.sampling_params import (
    SAMPLING_FIELDS,
    apply_sampling_params,
    checked_sampling_params,
    set_sampling_params,
)
from scaffolding_ext.tasks import finish_reason_of, output_of
from scaffolding_ext.worker_tags import WorkerTag


class NativeGenerationController(BaseController):
    """Sends its tasks to the generation worker as they are.

    Args:
        sampling_params: Values for the sampling fields of GenerationTask. A field that a task sets itself (to anything
            but its default) stays. Unlike upstream's, fields whose default is not None (`stop`, `n`, penalties) can be
            set.
        streaming: Whether the output is streamed to the caller as it is generated.

    Raises:
        ConfigError: A name in `sampling_params` is no sampling field.
    """

    def __init__(self, sampling_params: dict[str, Any] | None = None, streaming: bool = False) -> None:
        super().__init__()
        self.sampling_params = checked_sampling_params(sampling_params)
        self.longest_request = self.sampling_params.get("max_tokens")
        self.streaming = streaming

    def honours(self) -> frozenset[str]:
        return SAMPLING_FIELDS

    def process(self, tasks: list[Any], **sampling_params: Any) -> ControllerGenerator:
        """Generate all tasks in one batch; keyword arguments are sampling fields of this request."""
        for task in tasks:
            set_sampling_params(task, sampling_params)
            task.worker_tag = WorkerTag.GENERATION
            task.streaming_output_flag |= self.streaming
            apply_sampling_params(task, self.sampling_params)
        yield tasks
        for task in tasks:
            text = output_of(task)
            task.customized_result_fields["answer"] = extract(text)
            task.customized_result_fields["exit_reason"] = "length" if finish_reason_of(task) == "length" else "end"
