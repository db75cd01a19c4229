"""Scores of solutions by their steps.

Reference: Lightman et al., "Let's Verify Step by Step", section 2 (a solution is as good as its steps; the minimum and
the product over steps are its aggregates).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from scaffolding_ext import require
from scaffolding_ext.controllers.reward import RewardController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.program import record
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.tasks import output_of

Aggregate = Literal["min", "product", "mean", "last"]
_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "product": math.prod,
    "mean": lambda scores: math.fsum(scores) / len(scores),
    "last": lambda scores: scores[-1],
}


class ProcessRewardController(RewardController):
    """Scores a solution from P(yes) after each of its steps.

    The beginnings of one solution share their prefix, so that an engine with prefix reuse reads each step once.

    Args:
        step_separator: Text between steps; empty steps are left out.
        aggregate: How step scores become the solution's: `"min"`, `"product"`, `"mean"` or `"last"`.
        max_steps: Most steps that are judged; of more, evenly spaced ones are, the last among them.
        **arguments: As for `RewardController`.

    Attributes:
        step_scores: Scores of the judged steps of each task of the last `process`.

    Raises:
        ConfigError: An argument is outside its range.
    """

    def __init__(
        self,
        step_separator: str = "\n\n",
        aggregate: Aggregate = "min",
        max_steps: int = 32,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        if not step_separator:
            raise ConfigError("is empty; give the text that stands between steps", "step_separator")
        self.step_separator = step_separator
        self.aggregate = require.one_of("aggregate", aggregate, _AGGREGATES)
        self.max_steps = require.whole("max_steps", max_steps)
        self.step_scores: list[list[float]] | None = None

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        """Score finished tasks, all steps of all of them in one batch."""
        beginnings = [self._beginnings(output_of(task)) for task in tasks]
        self.step_scores = yield from self._verdicts(tasks, beginnings)
        self.scores = [_AGGREGATES[self.aggregate](scores) for scores in self.step_scores]
        record("reward", scores=self.scores, step_scores=self.step_scores)

    def _beginnings(self, text: str) -> list[str]:
        """The solution up to the end of each judged step."""
        ends, position = [], 0
        for step in text.split(self.step_separator):
            position += len(step)
            if step.strip():
                ends.append(position)
            position += len(self.step_separator)
        ends = ends or [len(text)]
        count = min(self.max_steps, len(ends))
        judged = [ends[(number + 1) * len(ends) // count - 1] for number in range(count)]
        return [text[:end] for end in judged]
