"""Branches on one prefix whose KV they share, and verdicts only where they can change the answer.

Reference: Sekar, "RKSC: Reasoning-Aware KV Cache Sharing and Confident Early Exit for Multi-Step LLM Inference", arXiv
2606.09937.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from scaffolding_ext import require
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController, finish
from scaffolding_ext.controllers.capabilities import refuse_worker
from scaffolding_ext.controllers.prompting import longest_len, prompt_family
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration
from scaffolding_ext.controllers.tree.expand import ControllerExpander, Expander, WorkerExpander
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate
from scaffolding_ext.controllers.tree.gates.settings import DecodeExit, Reward, gate_from
from scaffolding_ext.controllers.tree.hints import PACKAGED_HINTS, hints_of, in_turn
from scaffolding_ext.controllers.tree.phrasings import least_similarity_of, phrased, templates_of
from scaffolding_ext.controllers.tree.score import ControllerScorer, LogprobScorer, Scorer, VerdictScorer
from scaffolding_ext.controllers.tree.select import best, value_of
from scaffolding_ext.controllers.vote.variety import Variety, check_variety
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.sampling_params import (
    apply_sampling_params,
    checked_sampling_params,
    refuse_greedy,
    set_sampling_params,
)
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Worker
from scaffolding_ext.protocol.branching import LAYER_EXIT, SIMILARITY_GATE, BranchTask, LayerExit, VerifyTask
from scaffolding_ext.protocol.notes import Purpose
from scaffolding_ext.protocol.worker_tags import WorkerTag, worker_for
from scaffolding_ext.request.program import discard, record


class KVShareBranchingController(BaseController):
    """Writes several branches on one prompt, judges them, and gives the best.

    The prompt's KV is there once: a worker that serves `BranchTask` shares it by itself, on others block reuse does.
    Verdicts are the second cost, and each way to do without some of them can be switched by itself: a skip gate asks
    for none where one branch is far surer than the others, a layer exit reads them before the last layer, and a decode
    exit ends all other branches after a few tokens.

    Beyond depth 1 it is a beam search: at each depth the kept branches have `branching_factor` children in all, and
    the best `beam_width` go on; a branch that has ended stays in the running.

    Args:
        branching_factor: Branches that are written at once.
        hints: How branches begin, in turn: texts, or the name of a domain in `hints_file`. None: they differ by chance.
        hints_file: JSON file of domains, each a list of hints.
        phrasings: What branches read for the prompt, in turn: texts with one `{question}`. None: all read the prompt.
        least_similarity: From which similarity on a branch with its own phrasing stays on the prompt's KV; None: it is
            computed on that phrasing. Reuse changes answers (docs/kv_share_branching.md). A stack whose worker cannot
            compare hidden states is refused.
        max_depth: Levels of the tree.
        beam_width: Branches that go on to the next level; only beyond depth 1.
        step_tokens: Tokens of a branch at each level but the last, where it is written to its end.
        max_tokens: Tokens of a branch from the root to its end.
        generation_controller: Writes each branch in the place of the worker, at depth 1: any controller.
        reward: What a branch scores: `"verdict"`, P(yes) to a question behind it, or `"mean_logprob"`, the geometric
            mean of its tokens' probabilities, which came with them.
        reward_controller: Scores branches instead, as in `BestOfNController`.
        verdict: The question; None takes that of the model's prompt family.
        weighs_confidence: Whether a score counts times the square root of the branch's confidence.
        skip_gate: When no branch is judged: `{least, gap}`, true for the paper's, false for never. None takes the
            calibration's, where there is one.
        decode_exit: When the others end: `{after, least, gap}`, true for the paper's, false or None for never.
        layer_exit: When a verdict is read early: `{max_entropy, max_change, min_layer}`, false for never. None takes
            the calibration's. A stack whose worker cannot stop at a layer is refused.
        calibration: A file of `scaffolding-ext calibrate branching`.
        sampling_params: `temperature`, `top_p` and `top_k` of the branches; 0.7 where nobody says and hints and
            phrasings do not make all of them differ.

    Raises:
        ConfigError: An argument is outside its range, arguments do not go together, or branches would all be alike.
    """

    def __init__(
        self,
        branching_factor: int = 8,
        hints: str | Sequence[str] | None = None,
        max_depth: int = 1,
        *,
        hints_file: str | os.PathLike[str] = PACKAGED_HINTS,
        phrasings: Sequence[str] | None = None,
        least_similarity: float | None = None,
        beam_width: int = 2,
        step_tokens: int = 128,
        max_tokens: int = 8192,
        generation_controller: Controller | None = None,
        reward: Reward = "verdict",
        reward_controller: Controller | None = None,
        verdict: str | None = None,
        weighs_confidence: bool = True,
        skip_gate: ConfidenceGate | Mapping[str, Any] | bool | None = None,
        decode_exit: DecodeExit | Mapping[str, Any] | bool | None = None,
        layer_exit: LayerExit | Mapping[str, Any] | bool | None = None,
        calibration: str | os.PathLike[str] | None = None,
        sampling_params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.branching_factor = require.whole("branching_factor", branching_factor)
        self.hints = hints_of(hints, hints_file)
        self.phrasings = templates_of(phrasings)
        self.least_similarity = least_similarity_of(least_similarity, self.phrasings, self.hints)
        self.max_depth = require.whole("max_depth", max_depth)
        self.beam_width = require.whole("beam_width", beam_width, most=self.branching_factor if max_depth > 1 else None)
        self.step_tokens = require.whole("step_tokens", step_tokens)
        self.max_tokens = require.whole("max_tokens", max_tokens)
        self.generation_controller = generation_controller
        self.reward: Reward = require.one_of("reward", reward, get_args(Reward))
        self.reward_controller = reward_controller
        self.verdict = verdict
        self.weighs_confidence = weighs_confidence
        self.calibration = None if calibration is None else BranchingCalibration.load(calibration)
        known_gate, known_exit = _calibrated(self.calibration)
        self.skip_gate = gate_from("skip_gate", ConfidenceGate, skip_gate, known_gate)
        self.decode_exit = gate_from("decode_exit", DecodeExit, decode_exit)
        self.layer_exit = gate_from("layer_exit", LayerExit, layer_exit, known_exit)
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens",))
        self._check_together()
        if self.reward == "mean_logprob" and reward_controller is None:
            self.skip_gate = None  # the calibration's: there is nothing to skip
        self._asks_verdicts = self.reward == "verdict" and reward_controller is None
        needs_worker = generation_controller is None or self._asks_verdicts
        self.required_tags = (WorkerTag.GENERATION,) if needs_worker else ()
        self.continues_answers = bool(self.hints) or self.decode_exit is not None or self.max_depth > 1

    def _check_together(self) -> None:
        """Refuse arguments that do not go together."""
        require.alone("reward_controller", self.reward_controller, verdict=self.verdict)
        if self.generation_controller is not None:
            looks = {"decode_exit": self.decode_exit, "least_similarity": self.least_similarity}
            key = "max_depth" if self.max_depth > 1 else next((key for key in looks if looks[key] is not None), None)
            if key is not None:
                raise ConfigError("looks into branches that a generation_controller writes to their end at once", key)
            if self.sampling_params:
                raise ConfigError("are the generation_controller's to say; set them there", "sampling_params")
        if self.reward == "mean_logprob":
            require.alone("reward_controller", self.reward_controller, reward=self.reward)
            if self.layer_exit is not None and self.calibration is None:
                raise ConfigError("reads verdicts early, and 'mean_logprob' asks for none: leave it out", "layer_exit")
            if self.skip_gate is not None and self.calibration is None:
                raise ConfigError("skips verdicts, and 'mean_logprob' asks for none: leave it out", "skip_gate")
        if self._draws_alike and self.branching_factor > 1:
            if self.sampling_params.get("temperature") == 0:
                refuse_greedy("sampling_params.temperature")
            if self.generation_controller is not None:
                check_variety(self.branching_factor, generation_controller=self.generation_controller)

    @property
    def _draws_alike(self) -> bool:
        """Whether some branches begin alike, so that only chance makes them differ."""
        readings = self.phrasings if self.least_similarity is None else ()  # branches may stay on the prompt
        beginnings = {
            (in_turn(readings, number), in_turn(self.hints, number)) for number in range(self.branching_factor)
        }
        return len(beginnings) < self.branching_factor or self.max_depth > 1

    def honours(self) -> frozenset[str]:
        return CHAIN_FIELDS

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Tell the controller what its workers can do; refuse a layer exit or a similarity gate that they cannot."""
        super().bind(workers)
        tag, name = WorkerTag.GENERATION, type(self).__name__
        worker: Any = worker_for(workers, tag)
        refused = getattr(worker, "refused", ())
        can_compare = self.can_serve(tag, BranchTask) and SIMILARITY_GATE not in refused
        if self.least_similarity is not None and not can_compare:
            refuse_worker(worker, tag, "compare hidden states (least_similarity)", SIMILARITY_GATE, name)
        if not self._asks_verdicts:
            return
        if self.layer_exit is not None and not (self.can_serve(tag, VerifyTask) and LAYER_EXIT not in refused):
            refuse_worker(worker, tag, "stop at a layer (layer_exit)", LAYER_EXIT, name)
        if self.calibration is not None:
            self.calibration.check_model(getattr(worker, "model", None))

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        """Answer the task's prompt.

        Args:
            task: Gets the output.
            **sampling_params: Sampling fields of this request.
        """
        set_sampling_params(task, sampling_params)
        prompt = copy.copy(task)
        prompt.streaming_output_flag = False
        apply_sampling_params(prompt, self.sampling_params)  # a seed, too: one for the whole tree
        wordings = [phrased(prompt, template) for template in self.phrasings]
        budget = self._budget(max((task, *wordings), key=lambda each: len(each.input_tokens or ())))
        expander, scorer = self._expander(), self._scorer()
        kept: list[Branch] = []
        for depth in range(1, self.max_depth + 1):
            open_ones = [branch for branch in kept if not branch.chain.ended]
            if depth > 1 and not open_ones:
                break
            new = self._children(prompt, wordings, open_ones, budget)
            position = budget if depth == self.max_depth else depth * self.step_tokens
            new = yield from self._grow(expander, new, position)
            candidates = [*(branch for branch in kept if branch.chain.ended), *new]
            kept = yield from self._judged(scorer, candidates, 1 if depth == self.max_depth else self.beam_width)
        winner = kept[0]
        if task.num_logprobs and not winner.hint:
            task.logprobs = winner.chain.prefix.logprobs
        reason = "length" if winner.chain.finish_reason == "length" else "end"
        finish(task, winner.chain.text, winner.chain.prefix.token_ids, winner.answer, reason)

    def _budget(self, task: GenerationTask) -> int:
        wanted = self.max_tokens if task.max_tokens is None else min(task.max_tokens, self.max_tokens)
        question = prompt_family().verdict if self.verdict is None else self.verdict
        reserved = longest_len("", *self.hints) + (longest_len(question) if self._asks_verdicts else 0)
        return self.budget_within_context(WorkerTag.GENERATION, task, wanted, reserved)

    def _expander(self) -> Expander:
        variety = Variety() if self._draws_alike and self.branching_factor > 1 else None
        if self.generation_controller is not None:
            return ControllerExpander(self.generation_controller, variety, self._reads_confidence)
        return WorkerExpander(self, variety, self._reads_confidence, self.least_similarity)

    @property
    def _reads_confidence(self) -> bool:
        return self.weighs_confidence or self.reward == "mean_logprob" or bool(self.skip_gate or self.decode_exit)

    def _scorer(self) -> Scorer:
        if self.reward_controller is not None:
            return ControllerScorer(self.reward_controller)
        if self.reward == "mean_logprob":
            return LogprobScorer()
        return VerdictScorer(self, self.verdict, layer_exit=self.layer_exit)

    def _children(
        self, prompt: GenerationTask, wordings: Sequence[GenerationTask], parents: Sequence[Branch], budget: int
    ) -> list[Branch]:
        """The next branches: `branching_factor` of them, shared among their parents, of which the better come first."""
        if not parents:
            return [
                Branch(prompt, (number,), in_turn(self.hints, number) or "", budget, phrasing=in_turn(wordings, number))
                for number in range(self.branching_factor)
            ]
        each, more = divmod(self.branching_factor, len(parents))
        return [
            Branch(prompt, (*parent.path, number), "", budget, parent)
            for rank, parent in enumerate(parents)
            for number in range(each + (rank < more))
        ]

    def _grow(self, expander: Expander, branches: list[Branch], position: int) -> ControllerGenerator:
        """Write branches up to a position; returns those that were not ended before."""
        gate = self.decode_exit
        if gate is not None and len(branches) > 1:
            yield from expander.write(branches, branches[0].chain.num_tokens + gate.after)
            confidences = [branch.confidence for branch in branches]
            leader = gate.leader(confidences)
            record("decode_exit", leader=leader, confidences=confidences)
            if leader is not None:
                discard(Purpose.CHAIN, sum(b.chain.num_generated for i, b in enumerate(branches) if i != leader))
                branches = [branches[leader]]
        yield from expander.write([branch for branch in branches if not branch.chain.ended], position)
        record(
            "branches",
            paths=[branch.path for branch in branches],
            answers=[branch.answer for branch in branches],
            num_tokens=[branch.chain.num_tokens for branch in branches],
            finish_reasons=[branch.chain.finish_reason for branch in branches],
            confidences=[None if branch.logprobs is None else branch.confidence for branch in branches],
            mean_probabilities=[None if branch.logprobs is None else branch.mean_probability for branch in branches],
        )
        return branches

    def _judged(self, scorer: Scorer, branches: Sequence[Branch], num_kept: int) -> ControllerGenerator:
        """The best branches; nobody is asked where there is no choice, or where the gate knows it."""
        if len(branches) == 1:
            return list(branches)
        if self.skip_gate is not None:
            confidences = [branch.confidence for branch in branches]
            leader = self.skip_gate.leader(confidences)
            record("skip", leader=leader, confidences=confidences)
            if leader is not None:
                for branch, confidence in zip(branches, confidences, strict=True):
                    branch.score = confidence
                return best(branches, num_kept, weighs_confidence=False)
        yield from scorer.score(branches)
        kept = best(branches, num_kept, self.weighs_confidence)
        values = [value_of(branch, self.weighs_confidence) for branch in branches]
        record("select", values=values, kept=[branch.path for branch in kept])
        return kept


def _calibrated(calibration: BranchingCalibration | None) -> tuple[ConfidenceGate | None, LayerExit | None]:
    return (None, None) if calibration is None else (calibration.skip_gate, calibration.layer_exit)
