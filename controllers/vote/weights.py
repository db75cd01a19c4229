"""Weights of votes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.ending import ANSWER_PROBABILITY, without_end
from scaffolding_ext.controllers.chain.looking import Looker, LookNeeds
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.controllers.prompting import prompt_family
from scaffolding_ext.controllers.vote.sample import Sample
from scaffolding_ext.controllers.vote.trace_confidence import (
    Aggregate,
    confidence_of_positions,
    position_confidences,
    trace_confidence,
)
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.task_results import (
    highest_logprobs,
    mean_token_probability,
    reported_logprobs,
    sampled_logprobs,
)

_POSITIONS = 256  # per turn on the event loop


class Weight(ABC):
    """Interface for weights of votes. If samples need no preparation, a plain function of the finished sample is
    enough.

    Attributes:
        most: Largest weight of a sample; infinite if unknown.
        is_uniform: True if every vote weighs 1.
        reads_logprobs: True if the log-probabilities of the samples' tokens are read.
    """

    most: float = math.inf
    is_uniform: bool = False
    reads_logprobs: bool = False

    def prepare(self, task: GenerationTask) -> None:  # noqa: B027  (most weights need nothing)
        """Make the samples of a task bring the fields that the weight reads."""

    @abstractmethod
    def __call__(self, sample: Sample) -> float:
        """Return the weight of a finished sample, finite and at least 0."""

    def weigh(self, samples: Sequence[Sample]) -> ControllerGenerator:
        """Return the weight of each sample, letting other work run between samples."""
        weights = []
        for sample in samples:
            weights.append(self(sample))
            yield []
        return weights


class FunctionWeight(Weight):
    def __init__(self, function: Callable[[Sample], float]) -> None:
        self._function = function

    def __call__(self, sample: Sample) -> float:
        return self._function(sample)


class UniformWeight(Weight):
    """Weighs every vote the same."""

    most = 1.0
    is_uniform = True

    def __call__(self, sample: Sample) -> float:
        return 1.0

    def weigh(self, samples: Sequence[Sample]) -> ControllerGenerator:
        return [1.0] * len(samples)
        yield  # makes this a generator


class MeanLogprobWeight(Weight):
    """Weighs by the geometric mean of the probabilities of a sample's tokens, in [0, 1].

    Reference: Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models", table 1
        (normalised weighted sum).
    """

    most = 1.0
    reads_logprobs = True

    def prepare(self, task: GenerationTask) -> None:
        task.num_logprobs = max(1, task.num_logprobs or 0)

    def __call__(self, sample: Sample) -> float:
        return mean_token_probability(sampled_logprobs(sample.task.output_tokens, reported_logprobs(sample.task)))


class ConfidenceWeight(Weight):
    """Weighs by DeepConf's confidence of a trace, in nats.

    Args:
        top_k: Likeliest tokens read at each position.
        aggregate: Aggregation over positions; see `trace_confidence`.
        group_size: Tokens in a group.

    Reference: Fu et al., "Deep Think with Confidence", section 3.
    """

    reads_logprobs = True

    def __init__(self, top_k: int = 20, aggregate: Aggregate = "lowest_group", group_size: int = 2048) -> None:
        self.top_k = require.whole("top_k", top_k)
        self.aggregate: Aggregate = require.one_of("aggregate", aggregate, get_args(Aggregate))
        self.group_size = require.whole("group_size", group_size)

    def prepare(self, task: GenerationTask) -> None:
        task.num_logprobs = max(self.top_k, task.num_logprobs or 0)

    def __call__(self, sample: Sample) -> float:
        top = top_logprobs(sample.task, self.top_k)
        return trace_confidence(top, self.aggregate, self.group_size) if top else 0.0

    def weigh(self, samples: Sequence[Sample]) -> ControllerGenerator:
        weights = []
        for sample in samples:
            reported = reported_logprobs(sample.task)
            width = _width(reported, self.top_k)
            pieces = []
            for begin in range(0, len(reported) if width else 0, _POSITIONS):
                pieces.append(position_confidences(_highest(reported[begin : begin + _POSITIONS], width)))
                yield []
            positions = np.concatenate(pieces) if pieces else None
            weight = 0.0 if positions is None else confidence_of_positions(positions, self.aggregate, self.group_size)
            weights.append(weight)
        return weights


class RewardWeight(Weight):
    """Weighs by the reward controller's score."""

    def __call__(self, sample: Sample) -> float:
        if sample.reward is None:
            raise NoOutputError("a sample has no reward: the vote needs a reward_controller to weigh by it")
        return sample.reward


class AnswerProbabilityWeight(Weight):
    """Weighs by the geometric mean of the token probabilities of a sample's answer, in [0, 1].

    A finished sample is asked for its answer once more, greedily, which costs one look. A chain that stopped at a look
    with a probability is not asked again. A sample without an answer weighs 0.

    Args:
        max_tokens: Tokens of the requested answer; at least 1.

    Reference: Taubenfeld et al., "Confidence Improves Self-Consistency in LLMs" (CISC), arXiv 2502.06233: votes weighed
        by the model's own probability.

    Deviation: The paper asks for the probability that the answer is right; here it is that of the answer itself.
    """

    most = 1.0
    reads_logprobs = True

    def __init__(self, max_tokens: int = 20) -> None:
        probe = AnswerProbe(max_tokens, {"temperature": 0.0})
        self.max_tokens = probe.max_tokens
        self._looker = Looker(probe, LookNeeds(answer=True, answer_logprobs=True))

    def __call__(self, sample: Sample) -> float:
        return float(sample.task.customized_result_fields.get(ANSWER_PROBABILITY) or 0.0)

    def weigh(self, samples: Sequence[Sample]) -> ControllerGenerator:
        family = prompt_family()
        asked = []
        for sample in samples:
            task = sample.task
            if sample.answer is not None and ANSWER_PROBABILITY not in task.customized_result_fields:
                ids = task.output_tokens
                prefix = without_end(Prefix(len(ids or ()), task.output_str or "", ids))
                asked.append((task, prefix, self._looker.asking(task, prefix, family)))
        if asked:
            yield [task for *_, look in asked for task in look.tasks]
        for task, prefix, look in asked:
            confidence = self._looker.read(prefix, look, family).confidence
            task.customized_result_fields[ANSWER_PROBABILITY] = confidence
        return [self(sample) for sample in samples]


class ShortnessWeight(Weight):
    """Weighs by the inverse of a sample's decoded tokens: a model in doubt writes more."""

    most = 1.0

    def __call__(self, sample: Sample) -> float:
        return 1 / max(1, sample.num_decoded)


def weight_of_function(part: Any) -> Weight | None:
    return FunctionWeight(part) if callable(part) else None


def top_logprobs(task: GenerationTask, top_k: int) -> list[list[float]]:
    """Return the k highest log-probabilities of each position, shape (tokens, k).

    A worker may report k + 1 with the sampled token; the k highest are used. If some position has fewer than k, all
    positions are cut to the fewest.
    """
    reported = reported_logprobs(task)
    width = _width(reported, top_k)
    return _highest(reported, width) if width else []


def _width(reported: Sequence[Mapping[int, Any]], top_k: int) -> int:
    return min(top_k, min(map(len, reported), default=0))


def _highest(reported: Sequence[Mapping[int, Any]], width: int) -> list[list[float]]:
    return [highest_logprobs(step, width) for step in reported]
