"""Self-consistency: draw several samples of one question and elect the most frequent answer.

By default the vote is drawn step by step, and ends once the remaining samples are unlikely to change the winner.

Reference: Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models"; the allocation rules
    name their own sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

from scaffolding_ext import require
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.reward import prepare, reads_logprobs, score
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote import voting
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.draws import LATE, Draws, Order
from scaffolding_ext.controllers.vote.sample import Sample
from scaffolding_ext.controllers.vote.sampler import Sampler, end_vote, needs_of_samples
from scaffolding_ext.controllers.vote.weights import Weight
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask
from scaffolding_ext.registry import allocation_rules, vote_weights


class MajorityVoteController(BaseController):
    """Samples a sub-controller several times and returns the answer with the most votes.

    The output is the first sample that gave the winning answer. Ties go to the answer that appeared first. Samples
    without an answer do not vote; if no sample has one, the output is the first sample's, without an answer.

    Args:
        generation_controller: Draws one sample; any controller, a vote included.
        default_sample_num: Samples of a vote; with a rule, the maximum.
        allocation: The rule that ends the vote, or its name; by default `LeaderChange`, which ends it once the
            remaining samples change the winner with a probability of at most 0.2. None draws all samples.
        weight: Weight of a sample's vote: `"uniform"`, `"mean_logprob"`, `"answer_probability"`, `"shortness"`,
            `"reward"`, or a function of the sample. If it is not uniform, the allocation rule must read weights.
        reward_controller: Scores the samples; needed by `weight="reward"` and by rules that read rewards.
        in_flight: Samples that run at once; as one counts, the next begins. The rule is asked whenever it could end the
            vote, and then the others are cancelled: that takes less time than rounds, and more tokens. None draws
            rounds.
        order: Order in which samples in flight count. With `"tokens"` one counts once every other one that runs surely
            ends later, on a clock of tokens. With it, and with `"index"` for workers that cannot stream, a vote is
            reproducible from its seed; with `"arrival"` it is not.
        allow_failed: Samples that may fail in their worker; the others vote, and the trace counts failed ones apart.
            The vote fails if none is left. Under TensorRT-LLM's host any failure fails the vote.
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
        rule = None if allocation is None else allocation_rules.build(allocation, "allocation")
        self.allocation: AllocationRule | None = rule
        for key, reads in (("weight", weight == "reward"), ("allocation", rule and "rewards" in rule.inputs)):
            if reads and reward_controller is None:
                raise ConfigError("reads rewards, which needs a reward_controller", key)
        self.weight: Weight = vote_weights.build(weight, "weight")
        if rule is not None and not self.weight.is_uniform:
            rule.check_weights(self.weight.most)
        self.reward_controller = reward_controller
        self.in_flight = None if in_flight is None else require.whole("in_flight", in_flight)
        self.order: Order = require.one_of("order", order, get_args(Order))
        self.allow_failed = require.whole("allow_failed", allow_failed, 0)
        reads = self.weight.reads_logprobs or reads_logprobs(reward_controller)
        self.needs = needs_of_samples(generation_controller, reads)

    def run(self, task: GenerationTask, **asked: Any) -> ControllerGenerator:
        """Draw, count and ask the rule until it is certain, then elect. At a deadline those counted so far vote."""
        run = Run(self, task)
        sampler = self.sampler(task, **asked)
        draws = Draws(run, sampler, self.allocation, self.in_flight, self.order)
        weights = None if self.weight.is_uniform else ()
        votes = Votes((), sampler.max_samples, lengths=(), weights=weights, most_weight=self.weight.most)
        run.event("begin", controller=run.name, left=votes.num_remaining)
        num_more = max(1, self.num_more(votes))  # without a sample there is no output
        while num_more and not draws.are_over:
            new = yield from draws.next(num_more)  # a round, or the next sample in flight
            max_samples = sampler.max_samples - sampler.num_failed
            votes = replace(votes, max_samples=max_samples, running_tokens=draws.running_tokens)
            votes = yield from self.count(run, votes, new)
            num_more = self.num_more(votes)
            run.event("allocate", **self._progress(votes, num_more))
        yield from draws.close()  # cancel samples that still run
        elected = yield from self.elect(run, votes)
        if self.allocation is not None:
            run.tell(self.allocation, votes)
        reason = LATE if num_more else "certain" if votes.num_remaining else "vote"
        end_vote(run, votes, elected, reason, sampler.num_failed, num_rounds=draws.num_rounds)

    def sampler(
        self,
        task: GenerationTask,
        sample_num: int | None = None,
        generation_kwargs: Mapping[str, Any] | None = None,
        **sampling_params: Any,
    ) -> Sampler:
        """Return what starts a request's samples; its keywords also reach the sub-controller."""
        most = self.default_sample_num if sample_num is None else require.whole("sample_num", sample_num)
        self.weight.prepare(task)
        prepare(self.reward_controller, task)
        asked = {**(generation_kwargs or {}), **sampling_params}
        return Sampler(self.generation_controller, task, most, asked, self.allow_failed, self.vary)

    def vary(self, sample: Sample) -> None:
        """Change the task of a sample before it is drawn, in a subclass; all differ only by their seeds here."""

    def count(self, run: Run, votes: Votes, new: Sequence[Sample]) -> ControllerGenerator:
        """Return the votes with new samples: scored, weighed, and with all answers in classes of equal ones."""
        if self.reward_controller is not None and new:
            scores = yield from score(self.reward_controller, [sample.task for sample in new])
            for sample, value in zip(new, scores, strict=True):
                sample.reward = value
        weights = votes.weights
        if weights is not None:
            more = yield from self.weight.weigh(new)
            checked = [
                require.number(f"the weight of sample {sample.index}", value, least=0)
                for sample, value in zip(new, more, strict=True)
            ]
            weights = [*weights, *checked]
        samples = [*votes.samples, *new]
        classes = yield from run.group([sample.answer for sample in samples])
        rewards = [sample.reward for sample in samples if sample.reward is not None] or None
        lengths = [*(votes.lengths or ()), *[sample.num_decoded for sample in new]]
        return replace(votes, classes=classes, rewards=rewards, lengths=lengths, weights=weights, samples=samples)

    def elect(self, run: Run, votes: Votes) -> ControllerGenerator:
        """Return the election. It may yield work: a subclass can have a verifier decide a close vote."""
        yield from ()
        return voting.elect(votes.classes, votes.weights)

    def num_more(self, votes: Votes) -> int:
        """Return the number of samples that the rule still wants; 0 ends the vote."""
        return votes.num_remaining if self.allocation is None else self.allocation.num_more(votes)

    def _progress(self, votes: Votes, num_more: int) -> dict[str, Any]:
        left = votes.num_remaining if num_more else 0
        certaindex = 0.0 if self.allocation is None else entropy_certaindex(votes.classes)
        seen = {"done": len(votes.classes), "left": left, "certaindex": certaindex}
        return {**seen, "classes": votes.classes, "num_more": num_more}

    def unstopped(self) -> MajorityVoteController:
        twin = self.clone()
        assert isinstance(twin, MajorityVoteController)
        twin.allocation = twin.in_flight = None
        return twin
