"""Think only when unsure: a few quick guesses, then a whole chain of thought if they differ."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.answers import Verdict, compare, up_to_brace
from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.prompting import encode, prompt_family
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.meta import PROBE, note
from scaffolding_ext.protocol.task_results import output_of
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import next_seed


class GlanceController(BaseController):
    """Asks for the answer a few times without thinking; if the guesses differ, a sub-controller thinks."""

    def __init__(
        self,
        generation_controller: Controller,
        num_guesses: int = 2,
        max_answer_tokens: int = 16,
        temperature: float = 0.7,
    ) -> None:
        super().__init__()
        if num_guesses < 2:
            raise ConfigError(f"is {num_guesses}; it takes at least 2 guesses to agree", "num_guesses")
        if temperature <= 0:
            raise ConfigError(f"is {temperature}; it must be above 0, so that guesses can differ", "temperature")
        self.generation_controller = generation_controller
        self.num_guesses = num_guesses
        self.max_answer_tokens = max_answer_tokens
        self.temperature = temperature

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        """Answer the task's prompt."""
        run = Run(self, task)
        guesses = [self._guess(task) for _ in range(self.num_guesses)]
        yield guesses  # one list: the host runs them concurrently and resumes here when all are done
        answers = [up_to_brace(output_of(guess)) for guess in guesses]
        first = answers[0]
        agree = first is not None and all(
            answer is not None and compare(first, answer) is Verdict.EQUAL for answer in answers[1:]
        )
        run.event("glance", answers=answers, agree=agree)
        run.sum_up(agreed=agree, guesses=self.num_guesses)
        if first is None or not agree:
            yield from self.generation_controller.process([task], **kwargs)
            return
        family = run.family
        text = family.close + first + family.answer_end
        finish(task, text, encode(text), answer=first, exit_reason="glance")

    def _guess(self, task: GenerationTask) -> GenerationTask:
        """Build a task that closes thinking before it starts, and opens the box for the answer."""
        suffix = prompt_family().close
        suffix_ids = encode(suffix)
        ids = None  # the worker tokenizes the text
        if task.input_tokens is not None and suffix_ids is not None:
            ids = task.input_tokens + suffix_ids
        guess = GenerationTask(
            worker_tag=WorkerTag.GENERATION,
            input_str=f"{task.input_str}{suffix}",
            input_tokens=ids,
            max_tokens=self.max_answer_tokens,
            temperature=self.temperature,
            seed=next_seed(),
        )
        note(guess, purpose=PROBE)
        return guess
