"""Branches on one prefix whose KV they share, and judgements only where they can change the answer.

Reference: Sekar, "RKSC: Reasoning-Aware KV Cache Sharing and Confident Early Exit for Multi-Step LLM Inference", arXiv
2606.09937.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration
from scaffolding_ext.controllers.tree.expand import ControllerExpander, Expander, WorkerExpander
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate
from scaffolding_ext.controllers.tree.gates.settings import DecodeExit, Reward, gate_from
from scaffolding_ext.controllers.tree.hints import PACKAGED_HINTS
from scaffolding_ext.controllers.tree.score import (
    ConfidenceWeighted,
    ControllerScorer,
    LogprobScorer,
    Scorer,
    VerdictScorer,
)
from scaffolding_ext.controllers.tree.search import Gates, SearchController
from scaffolding_ext.controllers.tree.select import Selector
from scaffolding_ext.controllers.tree.stops import Budget
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.protocol.branching import LayerExit
from scaffolding_ext.protocol.worker_tags import WorkerTag, worker_for


class KVShareBranchingController(SearchController):
    """Writes several branches on one prompt, judges them, and gives the best, or the answer that most of them give.

    It is a `SearchController` of depth 1 with the gates of RKSC. The prompt's KV is there once: a worker that serves
    `BranchTask` shares it by itself, on others block reuse does. Judgements are the second cost, and each way to do
    without some of them can be switched by itself: a skip gate asks for none where one branch is far surer than the
    others, a layer exit reads verdicts before the last layer, and a decode exit ends all other branches after a few
    tokens. Beyond depth 1 it is a beam search.

    Args:
        branching_factor: Branches that are written at once.
        hints: How branches begin, in turn: texts, or the name of a domain in `hints_file`. None: they differ by chance.
        max_depth: Levels of the tree.
        hints_file: JSON file of domains, each a list of hints.
        phrasings: What branches read for the prompt, in turn: texts with one `{question}`. None: all read the prompt.
        least_similarity: From which similarity on a branch with its own phrasing stays on the prompt's KV; None: it is
            computed on that phrasing. Reuse changes answers (docs/kv_share_branching.md). A stack whose worker cannot
            compare hidden states is refused.
        beam_width: Branches that go on to the next level; only beyond depth 1.
        step_tokens: Tokens of a branch at each level but the last, where it is written to its end.
        max_tokens: Tokens of a branch from the root to its end.
        generation_controller: Writes each branch in the place of the worker, at depth 1: any controller.
        reward: What a branch scores: `"mean_logprob"`, the geometric mean of its tokens' probabilities, which came with
            them, or `"verdict"`, P(yes) to a question behind it.
        reward_controller: Scores branches instead, as in `BestOfNController`.
        selector: Which branch is the answer: `best`, `vote` (over the branches' answers), or as for `SearchController`.
        verdict: The question; None takes that of the model's prompt family.
        weighs_confidence: Whether a score counts times the square root of the branch's confidence; None: verdicts do.
        skip_gate: When no branch is judged: `{least, gap}`, true for the paper's, false for never. None takes the
            calibration's, where there is one.
        decode_exit: When the others end: `{after, least, gap}`, true for the paper's, false or None for never.
        layer_exit: When a verdict is read early: `{max_entropy, max_change, min_layer}`, false for never. None takes
            the calibration's. A stack whose worker cannot stop at a layer is refused.
        calibration: A file of `scaffolding-ext calibrate branching`.
        insist_on_answer: As for `SearchController`.
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
        reward: Reward = "mean_logprob",
        reward_controller: Controller | None = None,
        selector: Selector | Mapping[str, Any] | str = "best",
        verdict: str | None = None,
        weighs_confidence: bool | None = None,
        skip_gate: ConfidenceGate | Mapping[str, Any] | bool | None = None,
        decode_exit: DecodeExit | Mapping[str, Any] | bool | None = None,
        layer_exit: LayerExit | Mapping[str, Any] | bool | None = None,
        calibration: str | os.PathLike[str] | None = None,
        insist_on_answer: bool = True,
        sampling_params: dict[str, Any] | None = None,
    ) -> None:
        self.branching_factor = require.whole("branching_factor", branching_factor)
        self.hints_given, self.reward = hints, require.one_of("reward", reward, get_args(Reward))
        self.calibration = None if calibration is None else BranchingCalibration.load(calibration)
        known = self.calibration if self.reward == "verdict" and reward_controller is None else None
        gate = gate_from("skip_gate", ConfidenceGate, skip_gate, None if known is None else known.skip_gate)
        leave = gate_from("layer_exit", LayerExit, layer_exit, None if known is None else known.layer_exit)
        if leave is not None and (self.reward != "verdict" or reward_controller is not None):
            raise ConfigError("reads verdicts early, and the scorer asks for none: leave it out", "layer_exit")
        require.alone("reward_controller", reward_controller, verdict=verdict)
        expander: Expander = (
            WorkerExpander(hints, hints_file=hints_file, phrasings=phrasings, least_similarity=least_similarity)
            if generation_controller is None
            else ControllerExpander(generation_controller, hints=hints, hints_file=hints_file, phrasings=phrasings)
        )
        scorer: Scorer = (
            ControllerScorer(reward_controller)
            if reward_controller is not None
            else VerdictScorer(verdict, layer_exit=leave)
            if self.reward == "verdict"
            else LogprobScorer()
        )
        if weighs_confidence if weighs_confidence is not None else isinstance(scorer, VerdictScorer):
            scorer = ConfidenceWeighted(scorer)
        depth = require.whole("max_depth", max_depth)
        looks = {"max_depth": depth > 1, "least_similarity": least_similarity is not None}
        key = next((key for key, looks_in in looks.items() if looks_in and generation_controller is not None), None)
        if key is not None:
            raise ConfigError("looks into branches that a generation_controller writes to their end at once", key)
        with require.under("beam_width") if depth > 1 else require.under():
            strategy = Beam(branching_factor, beam_width, depth) if depth > 1 else BestOfN(branching_factor)
        super().__init__(
            strategy,
            scorer,
            expander=expander,
            selector=selector,
            budget=Budget(nodes=self.branching_factor * depth + 1),
            steps=require.whole("step_tokens", step_tokens),
            max_tokens=max_tokens,
            gates=Gates(gate, gate_from("decode_exit", DecodeExit, decode_exit)),
            insist_on_answer=insist_on_answer,
            sampling_params=sampling_params,
        )
        self.max_depth = depth

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Tell the controller what its workers can do, and warn of a calibration of another model."""
        super().bind(workers)
        if self.calibration is not None:
            worker: Any = worker_for(workers, WorkerTag.GENERATION)
            self.calibration.check_model(getattr(worker, "model", None))
