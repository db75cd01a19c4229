"""A request as an algorithm sees it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaffolding_ext.answers.classes import AnswerClasses
from scaffolding_ext.controllers.answer_classes import classify
from scaffolding_ext.controllers.base import BaseController, show
from scaffolding_ext.controllers.prompting import prompt_family
from scaffolding_ext.controllers.rule import DecisionRule, E
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.prompts.sampling_params import set_sampling_params
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, Task
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.figures import Figure, Ratio
from scaffolding_ext.request.parts import on_count
from scaffolding_ext.request.program import next_seed, publish_figures, record
from scaffolding_ext.request.seeds import derive_seed


class Run:
    """One request of one controller.

    Args:
        controller: Gives the capabilities of its workers.
        task: The task to answer; the output is written into it.
        family: The controller's prompt family; None takes the one behind the task's prompt.
    """

    def __init__(self, controller: BaseController, task: GenerationTask, family: PromptFamily | None = None) -> None:
        self.task = task
        self.family = family or prompt_family(task)
        self._controller = controller
        self._known = AnswerClasses()

    @property
    def name(self) -> str:
        return type(self._controller).__name__

    def can_serve(self, tag: WorkerTag, task_type: type[Task]) -> bool:
        return self._controller.can_serve(tag, task_type)

    def set(self, sampling_params: Mapping[str, Any]) -> None:
        set_sampling_params(self.task, sampling_params)

    def event(self, name: str, **figures: Any) -> None:
        """Record a decision in the request's trace; `left` reports the request's progress."""
        record(name, **figures)

    def fallback(self, what: str, **figures: Any) -> None:
        """Record that something asked for is replaced by something else."""
        record("fallback", what=what, **figures)

    def tell(self, rule: DecisionRule[E], ended: E) -> None:
        """Let the rule observe what has ended, once that counts."""
        on_count(functools.partial(rule.observe, ended))

    def sum_up(self, **figures: Any) -> None:
        """Record figures for reports: a bool counts as a share of requests, a string as a counted name."""
        publish_figures(self.name, **{name: _figure(value) for name, value in figures.items()})

    def budget(self, own: int, asked: int | None) -> int:
        if asked is None:
            return own
        record("thinking_budget", asked=asked, by="controller", reason="it bounds the chain")
        return min(own, asked)

    def rngs(self, num: int, fallback: int | None = None) -> list[np.random.Generator]:
        """Return a generator per branch from the request's seed; without one, from the fallback."""
        seed = next_seed() if self.task.seed is None else self.task.seed
        seed = fallback if seed is None else seed
        return [np.random.default_rng(None if seed is None else derive_seed(seed, number)) for number in range(num)]

    def show(self, text: str) -> None:
        show(self.task, text, None)

    def group(self, answers: Sequence[str | None]) -> ControllerGenerator:
        """Return the classes of answers, new ones and those of earlier calls, which are not compared again."""
        return classify(self._controller, answers, self._known)


def _figure(value: Any) -> Figure:
    if isinstance(value, bool):
        return Ratio(int(value), 1)
    figure: Figure = {value: 1} if isinstance(value, str) else value
    return figure
