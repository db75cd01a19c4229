"""Conformal draft and target: a small model drafts, and a large one takes over at a guaranteed rate.

Reference: A1, "Asynchronous test-time scaling via conformal prediction", equations 11 (score) and 12 (p-value).

Deviation: the p-value counts the score itself, each turn has its pool, and a rejected chunk is written anew. What is
guaranteed is one decision by itself; nothing is claimed of all decisions at once, as the paper's propositions do.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.answer_classes import classify
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController, finish, sampling_params_of, side_by_side
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.calibration_file import CalibrationWarning
from scaffolding_ext.controllers.capabilities import Requests
from scaffolding_ext.controllers.draft_target.calibration_file import ConformalCalibration, DraftTargetSetting, OnReject
from scaffolding_ext.controllers.draft_target.chain import DraftTargetChain
from scaffolding_ext.controllers.draft_target.conformal_rule import ConformalRule, Coverage
from scaffolding_ext.controllers.draft_target.on_worker import OnWorker
from scaffolding_ext.controllers.draft_target.scores import SCORES
from scaffolding_ext.controllers.draft_target.take_over import Decision, TakeOverRule
from scaffolding_ext.controllers.prompting import longest_len, prompt_family
from scaffolding_ext.controllers.vote.samples import Variety, check_variety
from scaffolding_ext.controllers.vote.voting import elect
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.sampling_params import checked_sampling_params, set_sampling_params
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Worker
from scaffolding_ext.protocol.task_results import mean_token_probability
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag, declared, model_of, worker_for
from scaffolding_ext.registry import chain_weights, take_over_rules
from scaffolding_ext.request.figures import Answers, Ratio
from scaffolding_ext.request.program import elapsed, next_seed, publish_figures, record
from scaffolding_ext.request.seeds import derive_seed

Aggregator = Callable[[DraftTargetChain], float]


class ConformalDraftTargetController(BaseController):
    """Several chains, each drafted by the small model and taken over by the large one where its p-value says so.

    After each drafted chunk the target scores it; its p-value among calibration scores decides for that chain alone,
    and a chain that is accepted goes straight on while others still draft. Chains stop at an answer in a box, at a
    model's end, after `max_turns` chunks or at `max_tokens`; then they vote.

    Both models read the same rendered prompt. Workers with the same `tokenizer_fingerprint` exchange token ids, others
    exchange text.

    Args:
        draft_controller: Drafts a chunk on the worker `draft`; None generates plainly. Several chains have temperature
            0.7 unless a controller sets one.
        target_controller: Writes the target's chunks on the worker `target`; None as for the draft.
        alpha: Share of the chunks that the target takes over; of the conformal rule, like the next two.
        coverage: `"marginal"`, its default, or `"conditional"`.
        calibration: A calibration, or its file; needed for marginal coverage.
        rule: A rule, or its name. None takes the conformal rule with the three arguments above, which are refused
            beside another rule.
        draft_tokens: Tokens of a drafted chunk.
        target_tokens: Tokens of a chunk that the target writes.
        num_chains: Chains of a request.
        max_turns: Chunks that a chain may draft.
        max_tokens: Tokens of a chain.
        on_reject: `"resample"` has the target write the rejected chunk anew, `"continue"` has it go on behind it.
        score: Name of the nonconformity score, in `controllers.draft_target.scores`.
        shares_prompt: Whether both models read one rendered prompt even where their chat templates differ; else such
            a stack is refused.
        aggregator: What the vote of a chain weighs: `"uniform"`, `"target_likelihood"` (geometric mean of the target's
            probabilities of its drafted chunks), or a function.
        answer_sampling_params: Sampling fields of an answer that a chain without one is asked for.
    """

    required_tags: tuple[WorkerTag, ...] = (WorkerTag.DRAFT, WorkerTag.TARGET)
    continues_answers = True
    registries: ClassVar = {"rule": take_over_rules, "aggregator": chain_weights}

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
        score: str = "mean_nll",
        shares_prompt: bool = False,
        aggregator: str | Aggregator = "uniform",
        answer_sampling_params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        conformal = {"alpha": alpha, "coverage": coverage, "calibration": calibration}
        given: dict[str, Any] = {name: value for name, value in conformal.items() if value is not None}
        if rule is None:
            self.rule: TakeOverRule = ConformalRule(**given)
        elif isinstance(rule, ConformalRule):
            self.rule = rule.changed(**given)
        else:
            require.alone("rule", rule, **conformal)
            self.rule = take_over_rules.obtain(rule, "rule")
        if aggregator == "target_likelihood" and (score != "mean_nll" or not self.rule.scores_chunks):
            raise ConfigError("is 'target_likelihood', which needs chunks to be scored by mean_nll", "aggregator")
        self.num_chains = require.whole("num_chains", num_chains)
        self.max_turns = require.whole("max_turns", max_turns)
        self.max_tokens = require.whole("max_tokens", max_tokens)
        plain = {"temperature": 0.7}
        draft_controller = draft_controller or NativeGenerationController(plain)
        target_controller = target_controller or NativeGenerationController(plain)
        check_variety(self.num_chains, draft_controller=draft_controller, target_controller=target_controller)
        self.draft = OnWorker(draft_controller, WorkerTag.DRAFT)
        self.target = OnWorker(target_controller, WorkerTag.TARGET)
        self.setting = DraftTargetSetting(
            draft_model=None,
            target_model=None,
            draft_tokens=require.whole("draft_tokens", draft_tokens),
            target_tokens=require.whole("target_tokens", target_tokens),
            on_reject=require.one_of("on_reject", on_reject, get_args(OnReject)),
            score=require.one_of("score", score, SCORES),
        )
        self.rule.check(self.setting)
        self.calibration_cost = self.rule.calibration_cost
        self.shares_prompt = shares_prompt
        self.aggregator: Aggregator = chain_weights.obtain(aggregator, "aggregator")
        self._shares_tokens = False
        self.answer_sampling_params = {"max_tokens": 20, "temperature": 0.0} | checked_sampling_params(
            answer_sampling_params, "answer_sampling_params"
        )

    def own_requests(self) -> dict[WorkerTag, Requests]:
        """Chunks and answers of both models, and the scores that the rule asks the target for."""
        longest = self.max_tokens + self.answer_sampling_params["max_tokens"]
        scores = frozenset({ScoreTask}) if self.rule.scores_chunks else frozenset()
        return {WorkerTag.DRAFT: Requests(max_tokens=longest), WorkerTag.TARGET: Requests(scores, longest)}

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Bind; the models must be those of the calibration."""
        super().bind(workers)
        draft, target = worker_for(workers, WorkerTag.DRAFT), worker_for(workers, WorkerTag.TARGET)
        self.setting = self.setting.of_models(model_of(draft), model_of(target))
        self.rule.check(self.setting)
        templates = [declared(worker).chat_template for worker in (draft, target)]
        if not self.shares_prompt and None not in templates and templates[0] != templates[1]:
            raise ConfigError(
                "the models of draft and target have different chat templates, and both models read the prompt that "
                "one of them renders: take models of one family, or set shares_prompt if this does no harm",
                "workers.draft",
            )
        tokenizers = [declared(worker).tokenizer_fingerprint for worker in (draft, target)]
        self._shares_tokens = tokenizers[0] is not None and tokenizers[0] == tokenizers[1]
        self._warn(self.rule.doubt(self.max_turns))

    def _warn(self, doubt: str | None) -> None:
        if doubt is not None:
            warnings.warn(f"the take-over rule: {doubt}", CalibrationWarning, stacklevel=3)

    def honours(self) -> frozenset[str]:
        return CHAIN_FIELDS

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        """Answer the task's prompt; keyword arguments are sampling fields of this request, of both models."""
        set_sampling_params(task, sampling_params)
        if (doubt := self.rule.doubt(self.max_turns, task.input_str or "")) is not None:
            record("warning", what="calibration", reason=doubt)
            if doubt != self.rule.doubt(self.max_turns):  # else it was said when the stack was built
                self._warn(doubt)
        rule = self.rule.for_request()
        chains = self.open_chains(task, scores=rule.scores_chunks)
        seed = next_seed() if task.seed is None else task.seed
        if seed is None:  # without a program and its seed, that of the drafts decides ties, too
            seed = sampling_params_of(self.draft.controller).get("seed")
        rngs = [np.random.default_rng(None if seed is None else derive_seed(seed, c.index)) for c in chains]
        decisions: dict[int, Decision] = {}
        turn = 0
        while rule.in_step(turn) and (going := [chain for chain in chains if chain.exit_reason is None]):
            yield side_by_side([self._advance(chain, decisions.get(chain.index)) for chain in going])
            waiting = [chain for chain in going if chain.wrote_something]
            decided = (yield from rule.decide(waiting, [rngs[chain.index] for chain in waiting])) if waiting else []
            decisions = {chain.index: decision for chain, decision in zip(waiting, decided, strict=True)}
            turn += 1
        if going := [chain for chain in chains if chain.exit_reason is None]:
            yield side_by_side([self._run_chain(c, rule, rngs[c.index], decisions.get(c.index)) for c in going])
        rule.observe(chains)
        yield from self._vote(task, chains, rule.figures())

    def open_chains(self, task: GenerationTask, *, scores: bool = True) -> list[DraftTargetChain]:
        """The chains of a task's prompt, none of which has begun; on request their chunks are not scored."""
        family = prompt_family()
        reserved = longest_len(family.close, family.close_closed) + self.answer_sampling_params["max_tokens"]
        wanted = self.max_tokens if task.max_tokens is None else min(task.max_tokens, self.max_tokens)
        variety = Variety(self) if self.num_chains > 1 else None
        max_tokens = min(self.budget_within_context(tag, task, wanted, reserved) for tag in self.required_tags)
        return [
            DraftTargetChain(
                task,
                index,
                self.draft,
                self.target,
                SCORES[self.setting.score] if scores else None,
                draft_tokens=self.setting.draft_tokens,
                target_tokens=self.setting.target_tokens,
                max_tokens=max_tokens,
                keeps_rejected=self.setting.on_reject == "continue",
                shares_tokens=self._shares_tokens,
                variety=variety,
            )
            for index in range(self.num_chains)
        ]

    def _advance(self, chain: DraftTargetChain, decision: Decision | None) -> ControllerGenerator:
        """Carry out the decision on a chain's chunk, if there is one, and have the next drafted, or the answer read."""
        if decision is not None:
            yield from self._settle(chain, decision)
        if chain.exit_reason is None:
            yield from chain.draft()
            if not chain.wrote_something:
                yield from chain.settle(False)
                chain.end("end")
        if chain.exit_reason is not None:
            yield from chain.conclude(prompt_family(), self.answer_sampling_params)

    def _settle(self, chain: DraftTargetChain, decision: Decision) -> ControllerGenerator:
        assert chain.draft_chunk is not None, "a chunk waits"
        figures = {"chain": chain.index, "turn": chain.turn, "score": chain.score} | decision.figures
        figures["num_draft_tokens"] = num_draft_tokens = chain.draft_chunk.num_tokens
        began = elapsed()
        seconds_waited = began - chain.waits_since
        figures["seconds_waited"] = round(seconds_waited, 6)
        num_target_tokens = yield from chain.settle(decision.taken_over, decision.priority, decision.is_final)
        record("take_over" if decision.taken_over else "accept", **figures, num_target_tokens=num_target_tokens)
        rejected = decision.taken_over and self.setting.on_reject == "resample"
        level, num_calibration = decision.figures.get("alpha"), decision.figures.get("num_calibration")
        publish_figures(
            type(self).__name__,
            take_over_rate=Ratio(int(decision.taken_over), 1),
            **({} if num_calibration is None else {"decided_by_coin": Ratio(int(num_calibration == 0), 1)}),
            **({} if level is None else {"alpha": Ratio(level, 1)}),
            draft_tokens=num_draft_tokens,
            target_tokens=num_target_tokens,
            rejected_drafts=Ratio(int(rejected), 1),
            rejected_draft_tokens=num_draft_tokens if rejected else 0,
            intensity=Ratio(chain.seconds_drafting + elapsed() - began, seconds_waited),
        )
        if chain.turn >= self.max_turns:
            chain.end("max_turns")

    def _run_chain(
        self, chain: DraftTargetChain, rule: TakeOverRule, rng: np.random.Generator, decision: Decision | None
    ) -> ControllerGenerator:
        """Draft, decide and go on until the chain has ended."""
        while True:
            if decision is not None or chain.draft_chunk is None:
                yield from self._advance(chain, decision)
            if chain.exit_reason is not None:
                return
            if chain.is_decided:
                decision = Decision(False, {})
            else:
                (decision,) = yield from rule.decide([chain], [rng])

    def _vote(
        self, task: GenerationTask, chains: list[DraftTargetChain], figures: dict[str, Any]
    ) -> ControllerGenerator:
        answers = [chain.answer for chain in chains]
        classes = yield from classify(self, answers)
        weights = [self.aggregator(chain) for chain in chains]
        winner, first = elect(classes, weights)
        elected = chains[first]
        record("vote", answers=answers, classes=classes, weights=weights, winner=winner, **figures)
        ends = Counter(str(chain.exit_reason) for chain in chains)
        publish_figures(type(self).__name__, chain_ends=ends, answers=Answers(answers, classes))
        reason = elected.exit_reason if len(chains) == 1 else "vote" if winner >= 0 else "no_answer"
        finish(task, elected.text, elected.token_ids, elected.answer, reason)


class EqualChains:
    """The vote of each chain weighs the same."""

    def __call__(self, chain: DraftTargetChain) -> float:
        return 1.0


class TargetLikelihood:
    """A chain weighs the geometric mean, over its drafted chunks, of what the target gives their tokens.

    A chain without a drafted chunk weighs 1.
    """

    def __call__(self, chain: DraftTargetChain) -> float:
        scores = chain.accepted_scores
        return mean_token_probability([-score for score in scores]) if scores else 1.0
