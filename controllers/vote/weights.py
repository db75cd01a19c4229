"""Weights of votes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.ending import ANSWER_PROBABILITY, without_end
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.controllers.chain.probing import ProbeNeeds, Prober
from scaffolding_ext.controllers.prompting import prompt_family
from scaffolding_ext.controllers.vote.sample import Sample
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.task_results import mean_token_probability, reported_logprobs, sampled_logprobs


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
        self._prober = Prober(probe, ProbeNeeds(answer=True, answer_logprobs=True))

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
                asked.append((task, prefix, self._prober.asking(task, prefix, family)))
        if asked:
            yield [probe for *_, probe in asked]
        for task, prefix, probe in asked:
            confidence = self._prober.read(prefix, probe, family).confidence
            task.customized_result_fields[ANSWER_PROBABILITY] = confidence
        return [self(sample) for sample in samples]


class ShortnessWeight(Weight):
    """Weighs by the inverse of a sample's decoded tokens: a model in doubt writes more."""

    most = 1.0

    def __call__(self, sample: Sample) -> float:
        return 1 / max(1, sample.num_decoded)


def weight_of_function(part: Any) -> Weight | None:
    return FunctionWeight(part) if callable(part) else None
