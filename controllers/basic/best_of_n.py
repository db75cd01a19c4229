"""Best of N: draw several samples of one question and keep the one with the highest score.

Reference: Cobbe et al., "Training Verifiers to Solve Math Word Problems", section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from scaffolding_ext import require
from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.reward import checked_scores, prepare, reads_logprobs, score
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.sample import Sample, published_answers
from scaffolding_ext.controllers.vote.sampler import Sampler, needs_of_samples
from scaffolding_ext.controllers.vote.weights import Weight
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask
from scaffolding_ext.registry import vote_weights


class BestOfNController(BaseController):
    """Samples a sub-controller several times and returns the sample with the highest score, the earliest on a tie.

    Args:
        generation_controller: Draws one sample; any controller, a vote included.
        reward_controller: Scores the samples: its `process` leaves one score per task in its attribute `scores`.
        default_sample_num: Number of samples.
        reward: Instead of a reward controller, without a further request: `"mean_logprob"`, or a function of the
            sample.

    Raises:
        ConfigError: Neither or both of `reward_controller` and `reward` are given.
    """

    registries: ClassVar = {"reward": vote_weights}

    def __init__(
        self,
        generation_controller: Controller,
        reward_controller: Controller | None = None,
        default_sample_num: int = 4,
        reward: str | Weight | Callable[[Sample], float] | None = None,
    ) -> None:
        super().__init__()
        require.alone("reward", reward, reward_controller=reward_controller)
        if reward is None and reward_controller is None:
            raise ConfigError("there is neither a reward_controller nor a reward; give one of the two", "reward")
        if isinstance(reward, str):
            require.one_of("reward", reward, ("mean_logprob",), instead="a function")
        self.generation_controller = generation_controller
        self.reward_controller = reward_controller
        self.reward: Weight | None = None if reward is None else vote_weights.build(reward, "reward")
        self.default_sample_num = require.whole("default_sample_num", default_sample_num)
        reads = reads_logprobs(reward_controller) if self.reward is None else self.reward.reads_logprobs
        self.needs = needs_of_samples(generation_controller, reads)

    def run(
        self,
        task: GenerationTask,
        sample_num: int | None = None,
        generation_kwargs: Mapping[str, Any] | None = None,
        **sampling_params: Any,
    ) -> ControllerGenerator:
        run = Run(self, task)
        num = self.default_sample_num if sample_num is None else require.whole("sample_num", sample_num)
        prepare(self.reward_controller, task)
        if self.reward is not None:
            self.reward.prepare(task)
        sampler = Sampler(self.generation_controller, task, num, {**(generation_kwargs or {}), **sampling_params})
        run.event("begin", controller=run.name, left=num)
        yield sampler.start(num)
        samples = sampler.samples
        if self.reward_controller is not None:
            scores = yield from score(self.reward_controller, [sample.task for sample in samples])
        else:
            assert self.reward is not None
            scores = checked_scores("the reward", [self.reward(sample) for sample in samples])
        best = max(samples, key=lambda sample: (scores[sample.index], -sample.index))
        answers = [sample.answer for sample in samples]
        run.sum_up(samples=num, score=scores[best.index], answers=published_answers(samples))
        run.event("best_of_n", done=num, left=0, answers=answers, scores=scores, best=best.index)
        fields = best.task.customized_result_fields
        finish(task, best.task.output_str or "", best.task.output_tokens, best.answer, fields.get("exit_reason"))
