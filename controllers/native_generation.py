"""Plain generation: one call of the model a task."""

from __future__ import annotations

import dataclasses
from typing import Any

from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.program import current_program
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, Task
from scaffolding_ext.tasks import WorkerTag, output_of

_RESULT_FIELDS = frozenset(
    (
        *("output_str", "output_tokens", "finish_reason", "context_logits", "logprobs", "customized_result_fields"),
        *("ttft_s", "latency_s", "usage_prompt_tokens", "usage_completion_tokens", "request_id"),
    )
)
_REQUEST_FIELDS = frozenset(("input_str", "input_tokens", *(field.name for field in dataclasses.fields(Task))))
SAMPLING_FIELDS = (
    frozenset(field.name for field in dataclasses.fields(GenerationTask)) - _RESULT_FIELDS - _REQUEST_FIELDS
)
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(GenerationTask)}


def checked_sampling_params(
    sampling_params: dict[str, Any] | None, key: str = "sampling_params", reserved: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A copy of the sampling parameters, every name checked.

    Args:
        sampling_params: Values by name of the field.
        key: Where they were given, for the error.
        reserved: Sampling fields that the controller sets itself, from arguments of its own.

    Raises:
        ConfigError: A name is no sampling field of GenerationTask, or is reserved.
    """
    for name in sampling_params or {}:
        if name in reserved:
            raise ConfigError(f"{name!r} is set by the controller; use its own arguments for it", key)
        if name not in SAMPLING_FIELDS:
            allowed = ", ".join(sorted(SAMPLING_FIELDS.difference(reserved)))
            raise ConfigError(f"{name!r} is no sampling field; allowed: {allowed}", key)
    return dict(sampling_params or {})


def apply_sampling_params(task: GenerationTask, sampling_params: dict[str, Any]) -> None:
    """Set every sampling field that the task's creator left at its default, and a seed where the program has one."""
    for name, value in sampling_params.items():
        current = getattr(task, name)
        if current is None or current == _DEFAULTS[name] or current == []:
            setattr(task, name, value)
    if task.seed is None:
        program = current_program()
        if program is not None:
            task.seed = program.next_seed()


def set_sampling_params(task: GenerationTask, sampling_params: dict[str, Any]) -> None:
    """Set sampling fields that a request brought as keyword arguments; they go before everything else.

    Raises:
        ConfigError: A name is no sampling field.
    """
    for name, value in checked_sampling_params(sampling_params, "request").items():
        setattr(task, name, value)


def inherit_sampling_params(piece: GenerationTask, task: GenerationTask) -> None:
    """Give a piece of a task's generation what the task itself asks for, but for its number of tokens."""
    for name in SAMPLING_FIELDS - {"max_tokens"}:
        value = getattr(task, name)
        if value is not None and value != _DEFAULTS[name] and value != []:
            setattr(piece, name, value)


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
        self.streaming = streaming

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
            task.customized_result_fields["exit_reason"] = "length" if task.finish_reason == "length" else "end"
