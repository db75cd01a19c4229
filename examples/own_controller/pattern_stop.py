"""End thinking when a pattern appears in it, and ask for the answer."""

from __future__ import annotations

import re
from typing import Any

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain.ending import conclude
from scaffolding_ext.controllers.chain.stream_chain import start_chain
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.sampling_params import checked_sampling_params
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask


class PatternStopController(BaseController):
    """Thinks until a regular expression matches the thinking, or to the end of the budget."""

    def __init__(
        self,
        pattern: str,
        max_tokens: int = 2048,
        look_every: int = 16,
        answer_tokens: int = 20,
        sampling_params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"is {pattern!r}, which is not a regular expression: {error}", "pattern") from error
        self.max_tokens = max_tokens
        self.look_every = look_every
        self.answer_params = {"max_tokens": answer_tokens, "temperature": 0.0}
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens",))

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        """Answer the task's prompt; keyword arguments are sampling fields of this request."""
        run = Run(self, task)
        run.set(kwargs)
        chain = start_chain(
            self,
            task,
            run.family,
            max_tokens=self.max_tokens,
            sampling_params=self.sampling_params,
            answer_tokens=self.answer_params["max_tokens"],
        )
        while not chain.ended:
            if chain.has_thought:
                yield from chain.grow(self.max_tokens)  # let it finish its answer
                continue
            if self.pattern.search(chain.text):
                run.event("stop", position=chain.num_tokens)
                break
            yield from chain.grow(chain.num_tokens + self.look_every)
        yield from conclude(chain, self.answer_params, exit_reason="pattern")
