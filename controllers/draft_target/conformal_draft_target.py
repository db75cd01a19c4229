"""Conformal draft and target: a small model drafts, and a large one takes over at a guaranteed rate.

Reference: A1, "Asynchronous test-time scaling via conformal prediction", equations 11 (score) and 12 (p-value).

Deviation: The p-value counts the score itself, each turn has its pool, and by default a rejected chunk is rewritten.
The guarantee is for a single decision; unlike the paper's propositions, it does not cover all decisions jointly.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController, sampling_params_of, side_by_side
from scaffolding_ext.controllers.calibration_file import CalibrationWarning
from scaffolding_ext.controllers.draft_target.aggregate import end_with_vote
from scaffolding_ext.controllers.draft_target.calibration_file import ConformalCalibration, DraftTargetSetting, OnReject
from scaffolding_ext.controllers.draft_target.chain import Decision, DraftTargetChain, Writers
from scaffolding_ext.controllers.draft_target.conformal_rule import Coverage, rule_from
from scaffolding_ext.controllers.draft_target.on_worker import on_their_workers, shares_tokens
from scaffolding_ext.controllers.draft_target.take_over import TakeOverRule
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.prompting import longest_len, prompt_family
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.sampler import ensure_sampling
from scaffolding_ext.prompts.sampling_params import checked_sampling_params
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Worker
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag, model_of, worker_for
from scaffolding_ext.registry import take_over_rules


class ConformalDraftTargetController(BaseController):
    """Several chains, each drafted by the small model and taken over by the large one if its p-value is small.

    The target scores each drafted chunk. By default the chunk's p-value among calibration scores decides, and its chain
    continues at once while others still draft. Chains stop at a boxed answer, at a model's end, after `max_turns`
    chunks or at `max_tokens`; then they vote.

    Both models read the same rendered prompt. Workers of the same `tokenizer_fingerprint` exchange ids, others text.

    Args:
        draft_controller: Drafts a chunk on the worker `draft`; None sends plain generation tasks. If there are several
            chains and no controller sets a temperature, it is 0.7.
        target_controller: Writes the target's chunks on the worker `target`; None sends plain generation tasks.
        alpha: Rate at which the target takes over, 0.4 by default. Like `coverage` and `calibration`, it belongs to the
            conformal rule.
        coverage: `"marginal"`, its default, ranks a score among the calibration's; `"conditional"` among the chains of
            the same question, and `alpha` then holds for first chunks only.
        calibration: A calibration, or its file; required for marginal coverage.
        rule: A rule, or its name. None takes the conformal rule with the three arguments above, which are refused with
            another rule.
        draft_tokens: Tokens of a drafted chunk.
        target_tokens: Tokens of a chunk that the target writes.
        num_chains: Chains of a request.
        max_turns: Maximum chunks that a chain drafts.
        max_tokens: Tokens of a chain.
        on_reject: `"resample"` lets the target rewrite the rejected chunk, `"continue"` lets it continue after it.
        shares_prompt: Let both read one rendered prompt even if their chat templates differ; else that is refused.
        answer_sampling_params: Sampling fields of a forced answer.
    """

    registries: ClassVar = {"rule": take_over_rules}

    def __init__(
        self,
        draft_controller: Controller | None = None,
        target_controller: Controller | None = None,
        *,
        alpha: float | None = None,
        coverage: Coverage | None = None,
        calibration: str | Path | ConformalCalibration | None = None,
        rule: str | TakeOverRule | None = None,
        draft_tokens: int = 64,
        target_tokens: int = 64,
        num_chains: int = 8,
        max_turns: int = 15,
        max_tokens: int = 8192,
        on_reject: OnReject = "resample",
        shares_prompt: bool = False,
        answer_sampling_params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.rule = rule_from(rule, alpha=alpha, coverage=coverage, calibration=calibration)
        self.num_chains = require.whole("num_chains", num_chains)
        self.max_turns = require.whole("max_turns", max_turns)
        self.max_tokens = require.whole("max_tokens", max_tokens)
        self.draft, self.target = on_their_workers(draft_controller, target_controller)
        self.setting = DraftTargetSetting(
            draft_model=None,
            target_model=None,
            draft_tokens=require.whole("draft_tokens", draft_tokens),
            target_tokens=require.whole("target_tokens", target_tokens),
            on_reject=require.one_of("on_reject", on_reject, get_args(OnReject)),
        )
        self.rule.check(self.setting)
        self.shares_prompt, self._shares_tokens = shares_prompt, False
        self.answer_sampling_params = {"max_tokens": 20, "temperature": 0.0} | checked_sampling_params(
            answer_sampling_params, "answer_sampling_params"
        )
        self.needs = Needs(
            tags=(WorkerTag.DRAFT, WorkerTag.TARGET),
            tasks=((WorkerTag.TARGET, ScoreTask),) if self.rule.scores_chunks else (),
            max_tokens=self.max_tokens + self.answer_sampling_params["max_tokens"],
            continues_answers=True,
            fields=CHAIN_FIELDS,
        )

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Bind; refuse models other than those of the calibration."""
        super().bind(workers)
        draft, target = (model_of(worker_for(workers, tag)) for tag in self.needs.tags)
        self.setting = self.setting.of_models(draft, target)
        self.rule.check(self.setting)
        self._shares_tokens = shares_tokens(workers, self.shares_prompt)
        _warn(self.rule.coverage_warning(self.max_turns))

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        """Grow all chains at once, each chunk by chunk: draft, score, decide, keep. Then they vote.

        Keyword arguments are this request's sampling fields, for both models.
        """
        run = Run(self, task)
        run.set(sampling_params)
        self._warn_of_coverage(run)
        rule = self.rule.for_request()  # a copy, if it keeps scores of the request
        chains = self.open_chains(task, scores=rule.scores_chunks)
        # Each chain's generator breaks ties of p-values, and decides turns without calibration at the rate alpha.
        rngs = run.rngs(self.num_chains, sampling_params_of(self.draft.controller).get("seed"))
        decided = (yield from self._decide_together(rule, chains, rngs)) if rule.is_joint else {}
        yield side_by_side([self._grow(run, each, rule, rngs[each.index], decided.get(each.index)) for each in chains])
        run.tell(rule, chains)
        yield from end_with_vote(run, chains, rule)

    def _grow(
        self, run: Run, chain: DraftTargetChain, rule: TakeOverRule, rng: np.random.Generator, first: Decision | None
    ) -> ControllerGenerator:
        """Write one chain; `first` is the decision on its first chunk if a joint rule has already made it."""
        decision = first
        while chain.exit_reason is None:
            if chain.draft_chunk is None:
                yield from self.propose(chain)
            if not chain.wrote_something:
                yield from chain.settle(taken_over=False)
                chain.end("end")
                break
            if chain.is_decided:  # a router left the rest to the draft
                decision = Decision(False, {})
            elif decision is None:
                (decision,) = yield from rule.decide([chain], [rng])  # take over if the p-value is at most alpha (12)
            yield from chain.carry_out(run, decision)  # keep the chunk, or let the target write; may end the chain
            decision = None
            if chain.turn >= self.max_turns:
                chain.end("max_turns")
        yield from chain.conclude(run.family, self.answer_sampling_params)  # if needed, forces the draft's answer

    def propose(self, chain: DraftTargetChain) -> ControllerGenerator:
        """Let the draft model write a chunk, and the target score it: its mean negative log-likelihood (11)."""
        yield from chain.draft()
        yield from chain.score_draft()

    def _decide_together(
        self, rule: TakeOverRule, chains: list[DraftTargetChain], rngs: Sequence[np.random.Generator]
    ) -> ControllerGenerator:
        """Draft all first chunks; return a joint rule's decisions on those that have a token, by chain.

        With conditional coverage each is ranked among the others; a router decides for all of them.
        """
        yield side_by_side([self.propose(chain) for chain in chains])
        drafted = [chain for chain in chains if chain.wrote_something]
        decisions = (yield from rule.decide(drafted, [rngs[chain.index] for chain in drafted])) if drafted else []
        return {chain.index: decision for chain, decision in zip(drafted, decisions, strict=True)}

    def open_chains(self, task: GenerationTask, *, scores: bool = True) -> list[DraftTargetChain]:
        """Build the chains of a task's prompt, none of which has begun."""
        family = prompt_family()
        reserved = longest_len(family.close, family.close_closed) + self.answer_sampling_params["max_tokens"]
        wanted = self.max_tokens if task.max_tokens is None else min(task.max_tokens, self.max_tokens)
        max_tokens = min(self.budget_within_context(tag, task, wanted, reserved) for tag in self.needs.tags)
        setting = self.setting
        writers = Writers(self.draft, self.target, setting.draft_tokens, setting.target_tokens, self._shares_tokens)
        keeps_rejected = setting.on_reject == "continue"
        visit = ensure_sampling(self) if self.num_chains > 1 else None
        numbers = range(self.num_chains)
        return [DraftTargetChain(task, n, writers, scores, max_tokens, keeps_rejected, visit) for n in numbers]

    def _warn_of_coverage(self, run: Run) -> None:
        warning = self.rule.coverage_warning(self.max_turns, run.task.input_str or "")
        if warning is not None:
            run.event("warning", what="calibration", reason=warning)
            _warn(None if warning == self.rule.coverage_warning(self.max_turns) else warning)  # else bind has warned


def _warn(warning: str | None) -> None:
    if warning is not None:
        warnings.warn(f"the take-over rule: {warning}", CalibrationWarning, stacklevel=3)
