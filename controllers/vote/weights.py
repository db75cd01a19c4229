"""How much the vote of a sample weighs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import get_args

from scaffolding_ext import require
from scaffolding_ext.controllers.vote.samples import Sample
from scaffolding_ext.controllers.vote.trace_confidence import Aggregate, trace_confidence
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.task_results import mean_token_probability, reported_logprobs, sampled_logprobs


class Weight(ABC):
    """A weight of votes. Where samples need no preparation, a plain function of the finished sample is enough.

    Attributes:
        most: The most that a sample can weigh; infinite where nobody knows it.
    """

    most: float = math.inf

    def prepare(self, task: GenerationTask) -> None:  # noqa: B027  (most weights need nothing)
        """Have the samples of a task bring what the weight reads."""

    @abstractmethod
    def __call__(self, sample: Sample) -> float:
        """The weight of a finished sample, finite and at least 0."""

    def of_all(self, samples: Sequence[Sample]) -> list[float]:
        """The weight of each of several samples."""
        return [self(sample) for sample in samples]


class FunctionWeight(Weight):
    """A weight that a plain function of the finished sample gives."""

    def __init__(self, function: Callable[[Sample], float]) -> None:
        self._function = function

    def __call__(self, sample: Sample) -> float:
        return self._function(sample)


class UniformWeight(Weight):
    """Every vote weighs the same."""

    most = 1.0

    def __call__(self, sample: Sample) -> float:
        return 1.0

    def of_all(self, samples: Sequence[Sample]) -> list[float]:
        return [1.0] * len(samples)


class MeanLogprobWeight(Weight):
    """The geometric mean of the probabilities of a sample's tokens, in [0, 1].

    Reference:
        Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models", table 1 (normalised
        weighted sum).
    """

    most = 1.0

    def prepare(self, task: GenerationTask) -> None:
        task.num_logprobs = max(1, task.num_logprobs or 0)

    def __call__(self, sample: Sample) -> float:
        return mean_token_probability(sampled_logprobs(sample.task.output_tokens, reported_logprobs(sample.task)))


class ConfidenceWeight(Weight):
    """DeepConf's confidence of a trace, in nats.

    Args:
        top_k: How many of a position's likeliest tokens it reads.
        aggregate: How positions become one figure; see `trace_confidence`.
        group_size: Tokens in a group.

    Reference:
        Fu et al., "Deep Think with Confidence", section 3.
    """

    def __init__(self, top_k: int = 20, aggregate: Aggregate = "lowest_group", group_size: int = 2048) -> None:
        self.top_k = require.whole("top_k", top_k)
        self.aggregate: Aggregate = require.one_of("aggregate", aggregate, get_args(Aggregate))
        self.group_size = require.whole("group_size", group_size)

    def prepare(self, task: GenerationTask) -> None:
        task.num_logprobs = max(self.top_k, task.num_logprobs or 0)

    def __call__(self, sample: Sample) -> float:
        top = top_logprobs(sample.task, self.top_k)
        return trace_confidence(top, self.aggregate, self.group_size) if top else 0.0


class RewardWeight(Weight):
    """The score that the vote's reward controller gave."""

    def __call__(self, sample: Sample) -> float:
        if sample.reward is None:
            raise NoOutputError("a sample has no reward: the vote needs a reward_controller to weigh by it")
        return sample.reward


_NAMED: dict[str, type[Weight]] = {
    "uniform": UniformWeight,
    "mean_logprob": MeanLogprobWeight,
    "confidence": ConfidenceWeight,
    "reward": RewardWeight,
}


def weight_from(weight: str | Weight | Callable[[Sample], float]) -> Weight:
    """The weight that a name, a function of the finished sample or a weight stands for.

    Raises:
        ConfigError: No weight has that name, or it cannot be called.
    """
    if isinstance(weight, Weight):
        return weight
    if callable(weight):
        return FunctionWeight(weight)
    return _NAMED[require.one_of("weight", weight, _NAMED, instead="a function")]()


def top_logprobs(task: GenerationTask, top_k: int) -> list[list[float]]:
    """The k highest log-probabilities of each position, shape (tokens, k).

    A position reports k tokens, or k + 1 with the sampled one; the k highest count. Where a worker reports fewer at
    some position, all positions are cut to the fewest.

    Raises:
        NoOutputError: The sample brought none.
    """
    positions = [sorted((entry.logprob for entry in step.values()), reverse=True) for step in reported_logprobs(task)]
    width = min(top_k, min(map(len, positions), default=0))
    return [position[:width] for position in positions] if width else []
