"""Scores of solutions by their steps.

Reference: Lightman et al., "Let's Verify Step by Step", section 2 (a solution is as good as its steps; the minimum and
    the product over steps are its aggregates).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from scaffolding_ext import require
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.prompting import decode
from scaffolding_ext.controllers.reward import RewardController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.task_results import mean_token_probability, output_of, reported_logprobs, sampled_logprobs
from scaffolding_ext.request.program import record

Aggregate = Literal["min", "product", "mean", "last"]
StepReward = Literal["verdict", "mean_logprob"]
_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "product": math.prod,
    "mean": lambda scores: math.fsum(scores) / len(scores),
    "last": lambda scores: scores[-1],
}


class ProcessRewardController(RewardController):
    """Scores a solution by its steps: by P(yes) after each step, or by the probabilities of the step's tokens.

    The beginnings of a solution share their prefix, so an engine with prefix reuse reads each step once. The
    probabilities come with the samples: `reward="mean_logprob"` needs no reward worker.

    Args:
        step_separator: Text between steps; empty steps are ignored.
        aggregate: Aggregation of step scores: `"min"`, `"product"`, `"mean"` or `"last"`.
        max_steps: Maximum number of judged steps; of a longer solution, evenly spaced ones, including the last.
        reward: Score of a step: `"verdict"`, P(yes) to a question about it, or `"mean_logprob"`, the geometric mean of
            the probabilities of its tokens.
        **arguments: As for `RewardController`.
    """

    def __init__(
        self,
        step_separator: str = "\n\n",
        aggregate: Aggregate = "min",
        max_steps: int = 32,
        reward: StepReward = "verdict",
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        if not step_separator:
            raise ConfigError("is empty: give the text that separates steps", "step_separator")
        self.step_separator = step_separator
        self.aggregate = require.one_of("aggregate", aggregate, _AGGREGATES)
        self.max_steps = require.whole("max_steps", max_steps)
        self.reward = require.one_of("reward", reward, get_args(StepReward))
        if self.reward == "mean_logprob":
            self.needs = Needs(tags=(), num_logprobs=1)
        self.step_scores: list[list[float]] | None = None

    def prepare(self, task: GenerationTask) -> None:
        if self.reward == "mean_logprob":
            task.num_logprobs = max(1, task.num_logprobs or 0)

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        beginnings = [self._beginnings(output_of(task)) for task in tasks]
        if self.reward == "mean_logprob":
            self.step_scores = [_probabilities(task, texts) for task, texts in zip(tasks, beginnings, strict=True)]
        else:
            question = self._family().step_verdict if self.verdict is None else self.verdict
            asked = [[text + question for text in texts] for texts in beginnings]
            self.step_scores = yield from self._verdicts(tasks, asked)
        self.scores = [_AGGREGATES[self.aggregate](scores) for scores in self.step_scores]
        record("reward", scores=self.scores, step_scores=self.step_scores)

    def _beginnings(self, text: str) -> list[str]:
        """Return the solution up to the end of each judged step."""
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


def _probabilities(task: GenerationTask, beginnings: Sequence[str]) -> list[float]:
    """Geometric mean of each step's token probabilities; a token belongs to the step in which it ends."""
    ids = task.output_tokens or []
    logprobs = sampled_logprobs(task.output_tokens, reported_logprobs(task))

    def num_characters(num_tokens: int) -> int:
        text = decode(ids[:num_tokens])
        if text is None:
            raise ConfigError("needs a tokenizer to tell where steps end: set the stack's prompting", "reward")
        return len(text)

    ends = [bisect.bisect_left(range(len(ids)), len(text), key=num_characters) for text in beginnings]
    steps = [logprobs[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [mean_token_probability(step) if step else 1.0 for step in steps]
