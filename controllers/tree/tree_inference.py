"""TensorRT-LLM's own tree searches (`scaffolding.contrib.TreeInference`), run as they are under newer tasks.

`MCTSController` and `TOTController` leave their answer in `task.result`, and their reward controller reads a text from
a `GenerationResult`. Newer `GenerationTask`s have no field `result`; the two controllers here supply it. Each of their
prompts is rendered as the user's last message, where the stack has a prompting.
"""

from __future__ import annotations

import copy
from typing import Any

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, ParallelProcess
from scaffolding_ext.protocol.relay import relay
from scaffolding_ext.request.program import NO_QUESTION, Question, current_program

# What the answer's task tells of its answer.
_OUTPUT = ("output_str", "output_tokens", "finish_reason", "logprobs", "context_logits")


class TreeInferenceController(BaseController):
    """Runs a controller that leaves its answer in `task.result`, and writes that answer into the task.

    Every task that it yields, or hands to its `generation_controller`, gets a `result` that is the task itself, so that
    the controller finds one on its last. It reads the user's question without the chat template's marks, with the
    stack's `prompt_suffix`.

    Args:
        controller: TensorRT-LLM's `MCTSController` or `TOTController`, or any that ends with
            `tasks[0].result = last_task.result`.
    """

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        if not isinstance(controller, Controller):
            raise ConfigError(f"is a {type(controller).__name__}; give MCTSController or TOTController", "controller")
        self.controller = controller
        inner = getattr(controller, "generation_controller", None)
        if isinstance(inner, Controller):
            self.controller = copy.copy(controller)
            self.controller.generation_controller = _RenderedGeneration(inner)  # type: ignore[attr-defined]

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        """Run the controller on each task alone; raises NoOutputError if it left no answer in one."""
        if len(tasks) == 1:
            yield from self._answered(tasks[0], kwargs)
            return
        process = ParallelProcess([], [], [])
        process.sub_gens = [self._answered(task, kwargs, self.controller.clone()) for task in tasks]
        yield process

    def _answered(self, task: Any, kwargs: dict[str, Any], controller: Controller | None = None) -> ControllerGenerator:
        question = _question()
        asked = task
        if question.prompting is not None:
            suffix = "" if question.raw or question.last_turn is not None else question.prompting.prompt_suffix
            asked = GenerationTask.create_from_prompt(question.prompt + suffix)
        yield from relay((controller or self.controller).process([asked], **kwargs), _give_results)
        answer = getattr(asked, "result", None)
        if answer is None:
            raise NoOutputError(f"{type(self.controller).__name__} left no answer in task.result")
        if answer is not task and isinstance(answer, GenerationTask):
            for name in _OUTPUT:
                if hasattr(answer, name):
                    setattr(task, name, getattr(answer, name))
            task.customized_result_fields.update(answer.customized_result_fields)


class ResultRewardController(BaseController):
    """Scores the tasks of TensorRT-LLM's trees, whose text is in `task.result`.

    Args:
        controller: Any reward controller.
    """

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        if not isinstance(controller, Controller):
            raise ConfigError(f"is a {type(controller).__name__}; give a reward controller", "controller")
        self.controller = controller
        self.scores: list[float] | None = None

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        for task in tasks:
            outputs = getattr(getattr(task, "result", None), "_outputs", None)
            if task.output_str is None and outputs:
                task.output_str = outputs[0].text
            _render(task)
        yield from self.controller.process(tasks, **kwargs)
        self.scores = self.controller.scores  # type: ignore[attr-defined]


class _RenderedGeneration(BaseController):
    """Renders the prompts of a tree's tasks, and has another controller generate them."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.controller = controller

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        for task in tasks:
            _render(task)
        _give_results(tasks)
        yield from self.controller.process(tasks, **kwargs)


def _question() -> Question:
    program = current_program()
    return NO_QUESTION if program is None else program.question


def _render(task: GenerationTask) -> None:
    """Render a tree's prompt; its question has the suffix already."""
    question = _question()
    if question.prompting is not None and task.input_tokens is None:
        question.prompting.apply(task, question.history, question.raw, last_turn={})


def _give_results(tasks: Any) -> None:
    for task in tasks:
        if isinstance(task, GenerationTask) and getattr(task, "result", None) is None:
            task.result = task  # type: ignore[misc]
