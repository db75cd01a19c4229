"""Plain generation: one call of the model a task."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.prompts.sampling_params import (
    SAMPLING_FIELDS,
    apply_sampling_params,
    checked_sampling_params,
    set_sampling_params,
)
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.protocol.task_results import finish_reason_of, output_of
from scaffolding_ext.protocol.worker_tags import WorkerTag

_ANSWER_TOKENS = 1024  # behind thinking that has a budget, where nobody says how long the whole may be
_FORCED_TOKENS = 64  # of an answer for which the whole left no room


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
        return SAMPLING_FIELDS | {"thinking_budget"}

    def process(
        self, tasks: list[Any], thinking_budget: int | None = None, **sampling_params: Any
    ) -> ControllerGenerator:
        """Generate all tasks in one batch.

        Args:
            tasks: Get the outputs.
            thinking_budget: Tokens after which thinking is closed: by the worker's server where that can and does, and
                else by a `BudgetForcingController`, in the place of this one.
            **sampling_params: Sampling fields of this request.
        """
        if thinking_budget is not None:
            yield from self._within(thinking_budget).process(tasks, **sampling_params)
            return
        for task in tasks:
            if sampling_params:
                set_sampling_params(task, sampling_params)
            task.worker_tag = WorkerTag.GENERATION
            task.streaming_output_flag |= self.streaming
            apply_sampling_params(task, self.sampling_params)
        yield tasks
        for task in tasks:
            text = output_of(task)
            task.customized_result_fields["answer"] = extract(text)
            task.customized_result_fields["exit_reason"] = "length" if finish_reason_of(task) == "length" else "end"

    def _within(self, thinking_budget: int) -> BudgetForcingController:
        params = {name: value for name, value in self.sampling_params.items() if name != "max_tokens"}
        total = self.sampling_params.get("max_tokens")
        forcing = BudgetForcingController(
            thinking_budget if total is None else min(thinking_budget, total),
            max_answer_tokens=_ANSWER_TOKENS if total is None else max(_FORCED_TOKENS, total - thinking_budget),
            sampling_params=params,
            insist_on_answer=False,
            kept_by="server",
        )
        forcing.bind_as(self)
        return forcing
