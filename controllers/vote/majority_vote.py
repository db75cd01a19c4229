"""Self-consistency: several samples of one question, and the answer that most of them give.

With an allocation rule the vote is drawn in rounds. It ends as soon as the rule calls it certain; no sample runs then.

Reference: Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models"; the allocation rules
name their own sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from scaffolding_ext import require
from scaffolding_ext.answers.classes import AnswerClasses
from scaffolding_ext.controllers.answer_classes import classify
from scaffolding_ext.controllers.auditing import begin_audit, checked_share, is_audited, note_whole
from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.reward import prepare, reads_logprobs, score
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.deadline import SampleTimes, TimedRound, round_in_time
from scaffolding_ext.controllers.vote.samples import Sample, Sampler, check_variety, end_vote, honoured_by_samples
from scaffolding_ext.controllers.vote.voting import elect
from scaffolding_ext.controllers.vote.weights import AnswerProbabilityWeight, UniformWeight, Weight
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.tool_calls import classes_of
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.tasks import FirstBranches
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.registry import allocation_rules, vote_weights
from scaffolding_ext.request.audit import AuditFinding, Work
from scaffolding_ext.request.program import StepCounts, publish, record, seconds_left


class MajorityVoteController(BaseController):
    """Samples a sub-controller several times and gives the answer with the most votes.

    The output is the first sample that gave the winning answer. Ties go to the answer that appeared first, samples
    without an answer have no vote, and where no sample has one the output is the first sample's, without an answer.

    Args:
        generation_controller: Draws one sample; any controller, a vote included.
        default_sample_num: Samples of a vote; with a rule, the most samples.
        allocation: The rule that ends the vote, or its name. None draws all samples.
        weight: What a sample's vote weighs: `"uniform"`, `"mean_logprob"`, `"answer_probability"`, `"confidence"`,
            `"shortness"`, `"reward"`, or a function of the sample. A rule that cannot read weights is refused beside
            any but the first.
        reward_controller: Scores the samples; needed by `weight="reward"` and by rules that read rewards.
        sample_seconds: Seconds that a sample takes, as long as none has ended; for requests with a deadline.
        audit: Share of the requests, in [0, 1], that draw the rest of their samples behind the answer (see
            `controllers.auditing`).
    """

    required_tags: tuple[WorkerTag, ...] = ()
    registries: ClassVar = {"allocation": allocation_rules, "weight": vote_weights}

    def __init__(
        self,
        generation_controller: Controller,
        default_sample_num: int = 1,
        *,
        allocation: AllocationRule | str | None = "LeaderChange",
        weight: str | Weight | Callable[[Sample], float] = "uniform",
        reward_controller: Controller | None = None,
        sample_seconds: float | None = None,
        audit: float = 0.0,
    ) -> None:
        super().__init__()
        self.audit = checked_share(audit)
        if not isinstance(generation_controller, Controller):
            raise ConfigError(
                f"is a {type(generation_controller).__name__}; give the controller that draws one sample",
                "generation_controller",
            )
        if weight == "reward" and reward_controller is None:
            raise ConfigError("is 'reward', which needs a reward_controller", "weight")
        self.generation_controller = generation_controller
        self.sample_seconds = sample_seconds
        self.sample_times = SampleTimes(sample_seconds)
        self.default_sample_num = require.whole("default_sample_num", default_sample_num)
        check_variety(self.default_sample_num, generation_controller=generation_controller)
        rule = None if allocation is None else allocation_rules.obtain(allocation, "allocation")
        self.allocation: AllocationRule | None = rule
        if self.allocation is not None and "rewards" in self.allocation.looks_at and reward_controller is None:
            raise ConfigError("reads rewards, which needs a reward_controller", "allocation")
        self.weight: Weight = vote_weights.obtain(weight, "weight")
        self.reward_controller = reward_controller
        self._probabilities = self._asking()
        if self.allocation is not None and not isinstance(self.weight, UniformWeight):
            reason = self.allocation.refuses_weights(self.weight.most)
            if reason is not None:
                raise ConfigError(
                    f"{type(self.allocation).__name__} {reason}: set it to null to draw all samples, or to a rule that "
                    "reads weights (AgreementDoubling, Even; Curtailment for 'mean_logprob')",
                    "allocation",
                )

    def honours(self) -> frozenset[str]:
        return honoured_by_samples(
            self.generation_controller,
            self.weight.reads_logprobs or self._probabilities is not None or reads_logprobs(self.reward_controller),
        )

    def _asking(self) -> AnswerProbabilityWeight | None:
        """What asks each sample how probable its answer is; None where the rule does not read that."""
        if self.allocation is None or "probabilities" not in self.allocation.looks_at:
            return None
        return self.weight if isinstance(self.weight, AnswerProbabilityWeight) else AnswerProbabilityWeight()

    def run(
        self,
        task: GenerationTask,
        sample_num: int | None = None,
        generation_kwargs: Mapping[str, Any] | None = None,
        only_sample: int | None = None,
        **sampling_params: Any,
    ) -> ControllerGenerator:
        """Answer the task's prompt.

        Args:
            only_sample: Index of one sample of the vote. It is drawn as the vote would draw it, and is the output. For
                callers that count the votes themselves, such as an evaluation with one budget for all questions.
            **sampling_params: Sampling fields of this request; they reach the sub-controller, too. Beside `tools`,
                samples vote for their calls: those that are equal as canonical JSON are one class.
        """
        max_samples = self.default_sample_num if sample_num is None else require.whole("sample_num", sample_num)
        if only_sample is not None:
            require.whole("only_sample", only_sample, 0, max_samples - 1)
        self.weight.prepare(task)
        prepare(self.reward_controller, task)
        kwargs_of_a_sample = {**(generation_kwargs or {}), **sampling_params}
        sampler = Sampler(self.generation_controller, task, max_samples, kwargs_of_a_sample)
        if only_sample is not None:
            yield sampler.start(1, first=only_sample)
            drawn = sampler.samples[0]
            reason = drawn.task.customized_result_fields.get("exit_reason")
            finish(task, drawn.task.output_str or "", drawn.task.output_tokens, drawn.answer, reason)
            return
        answers: list[str | None] = []
        known = None if sampling_params.get("tools") else AnswerClasses()
        classes: list[int] = []
        weights: list[float] = []
        num_rounds = 0
        audited = is_audited(self.audit)
        is_cut = False
        num_more = max(1, self._num_more([], classes, weights, max_samples))
        while num_more:
            publish(self._steps(classes, max_samples))
            num_rounds += 1
            in_time = None
            left = seconds_left()
            if left is not None:
                own = [sample.seconds for sample in sampler.samples if sample.seconds is not None]
                num_left = max(num_more, max_samples - sampler.num_started)
                num_more, is_wide = round_in_time(num_more, num_left, left, self.sample_times, own)
                record("round_in_time", num_samples=num_more, wide=is_wide, seconds_left=round(left, 6))
                settles = self._settling(sampler.samples, weights, known, max_samples) if is_wide else None
                in_time = TimedRound(left, 0 if classes else 1, settles, self._num_needed)
            classes = yield from self._draw(num_more, sampler, answers, weights, known, in_time)
            num_more = self._num_more(sampler.samples, classes, weights, max_samples)
            left = seconds_left()
            if left is not None and num_more:
                num_more = min(num_more, max(0, max_samples - sampler.num_started))
                is_cut = left <= 0 or not num_more
                num_more = 0 if is_cut else num_more
            record("allocate", num_samples=len(classes), classes=classes, num_more=num_more)
        publish(StepCounts(type(self).__name__, len(classes), 0, 1.0))
        sampler.look_for_copies(self)
        end_vote(
            task,
            sampler.samples,
            answers,
            classes,
            weights,
            max_samples,
            type(self).__name__,
            is_cut=is_cut,
            num_rounds=num_rounds,
            min_answers=None if self.allocation is None else self.allocation.min_answers,
            drift=None if self.allocation is None else self.allocation.observe(Votes(classes, max_samples)),
        )
        if not audited or is_cut:  # what a deadline costs is not the rule's doing
            return
        if len(classes) < max_samples:
            first = elect(classes, weights).first
            begin_audit(self._whole_vote(max_samples, sampler, [*answers], [*weights], known, first))
        else:
            note_whole(task.customized_result_fields["answer"])

    def _draw(
        self,
        num_samples: int,
        sampler: Sampler,
        answers: list[str | None],
        weights: list[float],
        known: AnswerClasses | None,
        in_time: TimedRound | None = None,
    ) -> ControllerGenerator:
        """Draw further samples; see `_taken`.

        Args:
            known: What is known of earlier answers; None where the answers are calls of tools.
            in_time: Stops the samples that do not end in time; None waits for as many as the rule needs.
        """
        num_needed = self._num_needed
        if in_time is not None:
            yield sampler.start(num_samples, step=in_time.step)
            self.sample_times.add([sample.seconds for sample in in_time.ended if sample.seconds is not None])
            sampler.keep(in_time.ended[:], sampler.samples[-num_samples:])
        elif num_needed is None:
            yield sampler.start(num_samples)
        else:
            first = sampler.start(num_samples, step=lambda branches, _: FirstBranches(branches, num_needed))
            yield first
            assert isinstance(first, FirstBranches)
            sampler.keep_first(first)
        return (yield from self._taken(sampler, answers, weights, known))

    def _taken(
        self, sampler: Sampler, answers: list[str | None], weights: list[float], known: AnswerClasses | None
    ) -> ControllerGenerator:
        """Append the answers and the weights of the newest samples, and return the class of each answer so far."""
        new = sampler.samples[len(weights) :]
        if self.reward_controller is not None:
            scores = yield from score(self.reward_controller, [sample.task for sample in new])
            for sample, value in zip(new, scores, strict=True):
                sample.reward = value
        weights += yield from self.weight.weigh(new)
        if self._probabilities is not None:
            yield from self._probabilities.weigh(new)
        answers += [sample.answer for sample in new]
        return classes_of(answers) if known is None else (yield from classify(self, answers, known))

    @property
    def _num_needed(self) -> int | None:
        """Samples of a round for which the rule waits; None: all."""
        return None if self.allocation is None else self.allocation.num_to_wait_for

    def _settling(
        self, before: Sequence[Sample], weights: Sequence[float], known: AnswerClasses | None, max_samples: int
    ) -> Callable[[Sequence[Sample]], ControllerGenerator] | None:
        """Work that says whether further samples settle the vote; None where samples must be weighed for that."""
        if self.allocation is None or self.reward_controller is not None or not isinstance(self.weight, UniformWeight):
            return None
        seen = None if known is None else AnswerClasses()  # of its own: it may be stopped within a comparison
        earlier = list(before)

        def settles(ended: Sequence[Sample]) -> ControllerGenerator:
            samples = [*earlier, *ended]
            answers = [sample.answer for sample in samples]
            classes = classes_of(answers) if seen is None else (yield from classify(self, answers, seen))
            return not self._num_more(samples, classes, weights, max_samples)

        return settles

    def _whole_vote(
        self,
        max_samples: int,
        sampler: Sampler,
        answers: list[str | None],
        weights: list[float],
        known: AnswerClasses | None,
        elected: int,
    ) -> Work:
        """Draw the samples that an early end left out, and see whether the elected sample still stands for the vote."""
        yield sampler.start(max_samples - len(answers))
        classes = yield from self._taken(sampler, answers, weights, known)
        winner, first = elect(classes, weights)
        return AuditFinding(answers[elected], answers[first] if winner >= 0 else None, classes[elected] != winner)

    def _steps(self, classes: Sequence[int], max_samples: int) -> StepCounts:
        """How far the vote is: the samples that it may still draw, and how settled it is where a rule may stop it."""
        certaindex = 0.0 if self.allocation is None else entropy_certaindex(classes)
        return StepCounts(type(self).__name__, len(classes), max_samples - len(classes), certaindex)

    def _num_more(
        self, samples: Sequence[Sample], classes: Sequence[int], weights: Sequence[float], max_samples: int
    ) -> int:
        """Samples that the rule wants beside these; 0 ends the vote."""
        if self.allocation is None:
            return max_samples - len(samples)
        rewards = [sample.reward for sample in samples if sample.reward is not None]
        lengths = [sample.num_decoded for sample in samples]
        read = None if isinstance(self.weight, UniformWeight) else weights
        asked = None if self._probabilities is None else [self._probabilities(sample) for sample in samples]
        return self.allocation.num_more(
            Votes(classes, max_samples, rewards or None, lengths, read, self.weight.most, asked)
        )
