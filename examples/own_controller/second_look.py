"""Two parallel answers; if they differ, the model is told and asked again."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.answers import Verdict, compare
from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.prompting import next_turn
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.sampler import Sampler
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.task_results import output_of


class SecondLookController(BaseController):
    """Takes an answer that two tries agree on; if they differ, it asks again."""

    def __init__(self, generation_controller: Controller) -> None:
        super().__init__()
        self.generation_controller = generation_controller

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        """Answer the task's prompt."""
        sampler = Sampler(self.generation_controller, task, max_samples=2, kwargs=kwargs)
        yield sampler.start(2)
        first, second = (sample.answer for sample in sampler.samples)
        Run(self, task).event("second_look", first=first, second=second)
        last = sampler.samples[0].task
        if first is None or second is None or compare(first, second) is not Verdict.EQUAL:
            last = next_turn(last, f"Another try gave {second}. Which is right?")
            yield from self.generation_controller.process([last], **kwargs)
        answer = last.customized_result_fields.get("answer")
        finish(task, output_of(last), last.output_tokens, answer, "second_look")
