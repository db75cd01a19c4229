"""DeepConf: a vote of the most confident traces that stops unsure traces early.

Reference: Fu et al., "Deep Think with Confidence" (DeepConf), arXiv 2508.15260.
Deviations: A trace is cut at the exact token at which its group falls below the threshold, even if more has arrived.
    Consensus is tested between rounds of traces, so the vote is the same at any concurrency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scaffolding_ext import require
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController, finish
from scaffolding_ext.controllers.chain.chain import Chain
from scaffolding_ext.controllers.chain.ending import conclude
from scaffolding_ext.controllers.chain.stream_chain import start_chain
from scaffolding_ext.controllers.deadline import is_over
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.prompting import prompt_family
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.allocation.base import Votes
from scaffolding_ext.controllers.vote.sample import Sample
from scaffolding_ext.controllers.vote.sampler import Sampler, end_vote
from scaffolding_ext.controllers.vote.trace_confidence import (
    RunningGroupConfidence,
    filtered_weights,
    token_confidence,
    warm_up_threshold,
)
from scaffolding_ext.controllers.vote.voting import elect, vote
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.sampling_params import checked_sampling_params, set_sampling_params
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.request.program import DEADLINE, record

_POSITIONS = 256  # per turn on the event loop
_CONFIDENCE = "lowest_group_confidence"  # key in customized_result_fields


class DeepConfController(BaseController):
    """Draws traces, weighs each vote by the trace's lowest group confidence, and drops the least confident ones.

    A token's confidence is the negative mean log-probability of the `top_k` likeliest tokens at its position. A group's
    confidence is the mean over `group_size` consecutive tokens.

    *Offline*, all traces run to their end and the `keep_share` with the highest confidence vote. *Online*, warm-up
    traces set a threshold that `keep_share` of them exceed. Later traces are stopped once a group falls below the
    threshold, and do not vote. Drawing ends once `consensus_share` of at least two votes agree.

    Args:
        default_sample_num: Maximum number of traces.
        mode: `"offline"` or `"online"`.
        warm_up_sample_num: Online: traces of the warm-up, and of each later round.
        keep_share: eta as a share, in (0, 1]: 0.1 or 0.9 in the paper.
        consensus_share: Online: tau, in (0, 1].
        group_size: Tokens in a group.
        top_k: Likeliest tokens read at each position.
        check_every: Online: tokens between checks of a trace; fewer waste fewer tokens and stop at the same places.
        max_tokens: Token budget of a trace; at its end the controller asks for an answer.
        answer_tokens: Tokens of that answer.
        sampling_params: Sampling fields of the traces.
        family: Name of the prompt family; None takes the one of the stack's prompting.
    """

    def __init__(
        self,
        default_sample_num: int = 16,
        mode: Literal["offline", "online"] = "offline",
        *,
        warm_up_sample_num: int = 4,
        keep_share: float = 0.9,
        consensus_share: float = 0.95,
        group_size: int = 2048,
        top_k: int = 20,
        check_every: int = 64,
        max_tokens: int = 8192,
        answer_tokens: int = 20,
        sampling_params: dict[str, Any] | None = None,
        family: str | None = None,
    ) -> None:
        super().__init__()
        self.default_sample_num = require.whole("default_sample_num", default_sample_num)
        self.mode = require.one_of("mode", mode, ("offline", "online"))
        self.warm_up_sample_num = require.whole("warm_up_sample_num", warm_up_sample_num)
        self.keep_share = require.share("keep_share", keep_share)
        self.consensus_share = require.share("consensus_share", consensus_share)
        self.trace_controller = _TraceController(
            group_size, top_k, check_every, max_tokens, answer_tokens, sampling_params, family
        )
        self.needs = self.trace_controller.needs._replace(fields=CHAIN_FIELDS)

    def run(self, task: GenerationTask, sample_num: int | None = None, **sampling_params: Any) -> ControllerGenerator:
        run = Run(self, task)
        num = self.default_sample_num if sample_num is None else require.whole("sample_num", sample_num)
        sampler = Sampler(self.trace_controller, task, num, sampling_params)
        threshold = -math.inf
        if self.mode == "offline":
            yield sampler.start(num)
        else:
            yield sampler.start(min(self.warm_up_sample_num, num))
            threshold = warm_up_threshold([_confidence(sample) for sample in sampler.samples], self.keep_share)
            run.event("warm_up", num_samples=len(sampler.samples), threshold=threshold)
            sampler.controller = self.trace_controller.stopping_below(threshold)
        while True:
            samples = sampler.samples
            classes = yield from run.group([sample.answer for sample in samples])
            weights = self._weights(samples, classes, threshold)
            share = _share(classes, weights)
            agree = share >= self.consensus_share and sum(weight > 0 for weight in weights) > 1
            if len(samples) == num or agree or is_over():
                break
            yield sampler.start(min(self.warm_up_sample_num, num - len(samples)))
        unsure = [sample for sample in samples if _is_unsure(sample)]
        num_discarded, stopped = sampler.discard(unsure), [sample.index for sample in unsure]
        run.sum_up(stopped_traces=Ratio(len(unsure), len(samples)), discarded_tokens=num_discarded)
        figures: dict[str, Any] = {"share": share, "stopped": stopped, "num_discarded": num_discarded}
        reason = "vote" if len(samples) == num else "certain" if agree else DEADLINE
        lengths = [sample.num_decoded for sample in samples]
        votes = Votes(classes, num, lengths=lengths, weights=weights, samples=samples)
        end_vote(run, votes, elect(classes, weights), reason, **figures)

    def _weights(self, samples: list[Sample], classes: list[int], threshold: float) -> list[float]:
        """Return each trace's confidence; 0 for those that do not vote."""
        confidences = [_confidence(sample) for sample in samples]
        if self.mode == "offline":
            return filtered_weights(classes, confidences, self.keep_share)
        votes = [kind >= 0 and confidence >= threshold for kind, confidence in zip(classes, confidences, strict=True)]
        return [confidence if has_vote else 0.0 for confidence, has_vote in zip(confidences, votes, strict=True)]


class _TraceController(BaseController):
    """One chain that is abandoned without an answer once its confidence falls below the threshold."""

    def __init__(
        self,
        group_size: int,
        top_k: int,
        check_every: int,
        max_tokens: int,
        answer_tokens: int,
        sampling_params: dict[str, Any] | None,
        family: str | None,
    ) -> None:
        super().__init__()
        self.group_size = require.whole("group_size", group_size)
        self.top_k = require.whole("top_k", top_k)
        self.check_every = require.whole("check_every", check_every)
        self.max_tokens = require.whole("max_tokens", max_tokens)
        self.answer_tokens = require.whole("answer_tokens", answer_tokens)
        self.needs = Needs(max_tokens=self.max_tokens + self.answer_tokens, num_logprobs=self.top_k)
        self.threshold = -math.inf
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens", "num_logprobs"))
        self.family = None if family is None else family_named(family)

    def stopping_below(self, threshold: float) -> _TraceController:
        twin = self.clone()
        assert isinstance(twin, _TraceController)
        twin.threshold = threshold
        return twin

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        set_sampling_params(task, sampling_params)
        family = self.family or prompt_family(task)
        chain = start_chain(
            self,
            task,
            family,
            max_tokens=self.max_tokens,
            sampling_params={**self.sampling_params, "num_logprobs": self.top_k},
            answer_tokens=self.answer_tokens,
        )
        group = RunningGroupConfidence(self.group_size)
        confidence = math.inf
        while not chain.ended and confidence >= self.threshold:
            yield from chain.grow(chain.num_tokens + self.check_every)
            logprobs = self._logprobs(chain)
            while group.num_tokens < len(logprobs) and confidence >= self.threshold:
                for step in logprobs[group.num_tokens : group.num_tokens + _POSITIONS]:
                    confidence = group.add(token_confidence(step, self.top_k))
                    if confidence < self.threshold:
                        break
                yield []  # let other work run
        if confidence < self.threshold:
            record("unsure", position=group.num_tokens, confidence=confidence, threshold=self.threshold)
            yield from chain.leave()
            prefix = chain.prefix
            finish(task, prefix.text, prefix.token_ids, None, "unsure")
        else:
            yield from conclude(chain, {"temperature": 0.0, "max_tokens": self.answer_tokens})
        task.customized_result_fields[_CONFIDENCE] = group.lowest

    def _logprobs(self, chain: Chain) -> Sequence[Mapping[int, Any]]:
        prefix = chain.prefix
        if prefix.logprobs is None and prefix.num_tokens:
            raise NoOutputError(
                f"the worker returned no log-probabilities, though num_logprobs is {self.top_k}; DeepConfController "
                "needs them: use another worker"
            )
        return prefix.logprobs or []


def _confidence(sample: Sample) -> float:
    confidence: float = sample.task.customized_result_fields[_CONFIDENCE]
    return 0.0 if math.isinf(confidence) else confidence  # a trace without a token


def _is_unsure(sample: Sample) -> bool:
    return sample.task.customized_result_fields.get("exit_reason") == "unsure"


def _share(classes: list[int], weights: list[float]) -> float:
    winner, total = vote(classes, weights), math.fsum(weights)
    return math.fsum(w for w, kind in zip(weights, classes, strict=True) if kind == winner) / total if total else 0.0
