"""Self-consistency: draw several samples of one question and elect the most frequent answer.

With an allocation rule the vote is drawn in rounds and ends once the rule is certain. No sample runs at that point.

Reference: Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models"; the allocation rules
    name their own sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, get_args

from scaffolding_ext import require
from scaffolding_ext.controllers.anytime import AnytimeController
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.ballot import Ballot
from scaffolding_ext.controllers.vote.flight import Flight, Order
from scaffolding_ext.controllers.vote.samples import Sample, Sampler, needs_of_samples
from scaffolding_ext.controllers.vote.weights import Rewarded, Weight
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator, StreamGenerationTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.registry import allocation_rules, vote_weights
from scaffolding_ext.request.program import current_program


class MajorityVoteController(AnytimeController[Ballot]):
    """Samples a sub-controller several times and returns the answer with the most votes.

    The output is the first sample that gave the winning answer. Ties go to the answer that appeared first. Samples
    without an answer do not vote; if no sample has one, the output is the first sample's, without an answer.

    Args:
        generation_controller: Draws one sample; any controller, a vote included.
        default_sample_num: Samples of a vote; with a rule, the maximum.
        allocation: The rule that ends the vote, or its name. None draws all samples.
        weight: Weight of a sample's vote: `"uniform"`, `"mean_logprob"`, `"answer_probability"`, `"confidence"`,
            `"shortness"`, `"reward"`, or a function of the sample. Any but the first needs a rule that reads weights.
        reward_controller: Scores the samples; needed by `weight="reward"` and by rules that read rewards.
        in_flight: Samples that run at once. The rule is asked whenever one counts, the next begins, and the others are
            cancelled once the vote is settled: that takes less time than rounds, and more tokens. None draws rounds.
        order: Order in which samples in flight count. By `"tokens"`, or by `"index"` if the worker cannot stream, the
            vote repeats from its seed; by `"arrival"` it does not. See `vote.flight`.
        allow_failed: Samples that may fail in their worker; the others vote, and the trace counts failed ones apart.
            The vote fails if none is left, or under TensorRT-LLM's host.
    """

    registries: ClassVar = {"allocation": allocation_rules, "weight": vote_weights}

    def __init__(
        self,
        generation_controller: Controller,
        default_sample_num: int = 1,
        *,
        allocation: AllocationRule | str | None = "LeaderChange",
        weight: str | Weight | Callable[[Sample], float] = "uniform",
        reward_controller: Controller | None = None,
        in_flight: int | None = None,
        order: Literal["tokens", "index", "arrival"] = "tokens",
        allow_failed: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(generation_controller, Controller):
            raise ConfigError(
                f"is a {type(generation_controller).__name__}; give the controller that draws one sample",
                "generation_controller",
            )
        self.generation_controller = generation_controller
        self.default_sample_num = require.whole("default_sample_num", default_sample_num)
        rule = None if allocation is None else allocation_rules.obtain(allocation, "allocation")
        self.allocation: AllocationRule | None = rule
        for key, reads in (("weight", weight == "reward"), ("allocation", rule and "rewards" in rule.looks_at)):
            if reads and reward_controller is None:
                raise ConfigError("reads rewards, which needs a reward_controller", key)
        self.weight: Weight = vote_weights.obtain(weight, "weight")
        if rule is not None and not self.weight.is_uniform:
            rule.check_weights(self.weight.most)
        self.reward_controller = reward_controller
        self.in_flight = None if in_flight is None else require.whole("in_flight", in_flight)
        self.order: Order = require.one_of("order", order, get_args(Order))
        self.allow_failed = require.whole("allow_failed", allow_failed, 0)
        reads_logprobs = self._weighing.reads_logprobs
        self.needs = needs_of_samples(generation_controller, self.default_sample_num, reads_logprobs)

    @property
    def _weighing(self) -> Weight:
        return self.weight if self.reward_controller is None else Rewarded(self.weight, self.reward_controller)

    def start(
        self,
        run: Run,
        sample_num: int | None = None,
        generation_kwargs: Mapping[str, Any] | None = None,
        **sampling_params: Any,
    ) -> Ballot:
        """Prepare the draws; keywords of the request also reach the sub-controller."""
        most = self.default_sample_num if sample_num is None else require.whole("sample_num", sample_num)
        weight = self._weighing
        weight.prepare(run.task)
        asked = {**(generation_kwargs or {}), **sampling_params}
        sampler = Sampler(self.generation_controller, run.task, most, asked, self.allow_failed)
        return Ballot(run, sampler, self.allocation, weight, self._flight(run, sampler))

    def _flight(self, run: Run, sampler: Sampler) -> Flight | None:
        program, order = current_program(), self.order
        if self.in_flight is None or sampler.max_samples == 1:
            return None
        if program is None or not program.can_roll:
            run.event("lowered", what="in_flight", to="rounds", reason="this host waits for all branches of a step")
            return None
        if order == "tokens" and not self.can_serve(WorkerTag.GENERATION, StreamGenerationTask):
            run.event("lowered", what="order", asked=order, given="index", reason="the worker cannot stream")
            order = "index"
        return Flight(sampler, order, self.in_flight)

    def more(self, ballot: Ballot) -> bool:
        return ballot.num_wanted > 0

    def advance(self, run: Run, ballot: Ballot) -> ControllerGenerator:
        return ballot.draw()

    def answer(self, run: Run, ballot: Ballot) -> ControllerGenerator:
        return ballot.close()

    def whole(self, run: Run, ballot: Ballot) -> ControllerGenerator | None:
        return ballot.whole()
