"""Branches that share the KV of one prefix, judged only if that can change the answer.

Reference: Sekar, "RKSC: Reasoning-Aware KV Cache Sharing and Confident Early Exit for Multi-Step LLM Inference", arXiv
2606.09937.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration
from scaffolding_ext.controllers.tree.expand import Expander
from scaffolding_ext.controllers.tree.gates.confidence import Gates
from scaffolding_ext.controllers.tree.score import ConfidenceWeighted, Scorer, VerdictScorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.select import Selector
from scaffolding_ext.controllers.tree.stops import Budget
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.protocol.worker import WorkerTag, model_of, worker_for
from scaffolding_ext.registry import search_expanders, search_scorers


class KVShareBranchingController(SearchController):
    """Writes several branches on one prompt, judges them, and returns the most frequent or the best answer.

    It is a `SearchController` of depth 1 with the gates of RKSC, or a beam search beyond depth 1. All branches share
    the prompt's KV, through `BranchTask` or the engine's block reuse. Three optional gates save work: a skip gate omits
    the verdicts if one branch is far more confident than the others, a layer exit reads verdicts before the last layer,
    and a decode exit ends all other branches after a few tokens.

    Args:
        branching_factor: Branches written at once.
        max_depth: Levels of the tree.
        expander: Writes the branches: `{type: worker, args: {hints, hints_file, phrasings, least_similarity}}`, or any
            controller, at depth 1. None is the worker `generation` without hints.
        scorer: `"mean_logprob"`, `"verdict"` (times the square root of the branch's confidence), or any scorer of
            `SearchController`.
        selector: Chooses the answer: `vote` (weighted by scores), `best`, or any selector of `SearchController`.
        gates: `{skip: {least, gap}, decode_exit: {after, least, gap}}`. Each may be true for the paper's values or
            false for never. A `skip` of None takes the calibration's.
        calibration: File of `scaffolding-ext calibrate branching`. Its skip gate and layer exit apply to verdicts if
            `gates.skip` and the scorer's `layer_exit` are None.
        beam_width: Branches kept for the next level; only beyond depth 1.
        step_tokens: Tokens of a branch at each level; the last level is written to its end.
        max_tokens: Tokens of a branch from the root to its end.
        insist_on_answer: Force the answer of a branch without one.
        sampling_params: `temperature`, `top_p` and `top_k` of the branches. The temperature is 0.7 by default, unless
            hints and phrasings make all branches differ.

    Raises:
        ConfigError: Arguments conflict, or all branches would be equal.
    """

    def __init__(
        self,
        branching_factor: int = 8,
        max_depth: int = 1,
        *,
        expander: Expander | Controller | Mapping[str, Any] | str | None = None,
        scorer: Scorer | Controller | Mapping[str, Any] | str = "mean_logprob",
        selector: Selector | Mapping[str, Any] | str = "vote",
        gates: Gates | Mapping[str, Any] | None = None,
        calibration: str | os.PathLike[str] | None = None,
        beam_width: int = 2,
        step_tokens: int = 128,
        max_tokens: int = 8192,
        insist_on_answer: bool = True,
        sampling_params: dict[str, Any] | None = None,
    ) -> None:
        self.branching_factor = require.whole("branching_factor", branching_factor)
        self.max_depth = depth = require.whole("max_depth", max_depth)
        require.whole("beam_width", beam_width)
        self.calibration = None if calibration is None else BranchingCalibration.load(calibration)
        writer: Expander = search_expanders.obtain("worker" if expander is None else expander, "expander")
        judge: Scorer = search_scorers.obtain(scorer, "scorer")
        if depth > 1 and not writer.writes_steps:
            raise ConfigError("needs steps, and the expander writes whole branches: leave it out", "max_depth")
        verdicts = judge.scorer if isinstance(judge, ConfidenceWeighted) else judge
        known_skip = None
        if isinstance(verdicts, VerdictScorer):
            known = self.calibration
            known_skip = None if known is None else known.skip_gate
            completed = verdicts.completed(
                None if known is None else known.layer_exit,
                None if known is None else known.median_exit,
                weighs_confidence=True,
            )
            judge = completed if judge is verdicts else ConfidenceWeighted(completed)
        with require.under("beam_width") if depth > 1 else require.under():
            strategy = Beam(branching_factor, beam_width, depth) if depth > 1 else BestOfN(branching_factor)
        super().__init__(
            strategy,
            judge,
            expander=writer,
            selector=selector,
            budget=Budget(nodes=self.branching_factor * depth + 1),
            steps=require.whole("step_tokens", step_tokens),
            max_tokens=max_tokens,
            gates=Gates.of(gates, known_skip),
            insist_on_answer=insist_on_answer,
            sampling_params=sampling_params,
        )

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Warn if the calibration belongs to another model."""
        super().bind(workers)
        if self.calibration is not None:
            worker: Any = worker_for(workers, WorkerTag.GENERATION)
            self.calibration.check_model(model_of(worker))
