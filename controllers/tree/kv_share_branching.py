"""Branches on one prefix whose KV they share, and judgements only where they can change the answer.

Reference: Sekar, "RKSC: Reasoning-Aware KV Cache Sharing and Confident Early Exit for Multi-Step LLM Inference", arXiv
2606.09937.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration
from scaffolding_ext.controllers.tree.expand import Expander, expander_from
from scaffolding_ext.controllers.tree.gates.settings import Gates
from scaffolding_ext.controllers.tree.score import ConfidenceWeighted, Scorer, VerdictScorer, scorer_from
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.select import Selector
from scaffolding_ext.controllers.tree.stops import Budget
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.protocol.worker import model_of
from scaffolding_ext.protocol.worker_tags import WorkerTag, worker_for


class KVShareBranchingController(SearchController):
    """Writes several branches on one prompt, judges them, and gives the answer that most of them give, or the best.

    It is a `SearchController` of depth 1 with the gates of RKSC; beyond depth 1 it is a beam search. The prompt's KV is
    there once: a worker that serves `BranchTask` shares it by itself, on others block reuse does. Judgements are the
    second cost, and each way to do without some of them can be switched by itself: a skip gate asks for none where one
    branch is far surer than the others, a layer exit reads verdicts before the last layer, and a decode exit ends all
    other branches after a few tokens.

    Args:
        branching_factor: Branches that are written at once.
        max_depth: Levels of the tree.
        expander: Who writes branches; None is the worker `generation`. `{type: worker, args: {hints, hints_file,
            phrasings, least_similarity}}` says how they begin; without hints they differ by chance. Any controller
            writes branches, too, at depth 1.
        scorer: What a branch is worth: `"mean_logprob"`, the geometric mean of its tokens' probabilities, which came
            with them, or `"verdict"`, P(yes) to a question behind it, times the square root of its confidence; or as
            for `SearchController`.
        selector: Which branch is the answer: `vote` (over the branches' answers, weighed by their scores), `best`, or
            as for `SearchController`.
        gates: `{skip, decode_exit}`: when no branch is judged (`{least, gap}`), and when the others end (`{after,
            least, gap}`). Each is true for the paper's, false for never. A `skip` of None takes the calibration's.
        calibration: A file of `scaffolding-ext calibrate branching`. Its skip gate and its layer exit hold for
            verdicts, where `gates.skip` and the scorer's `layer_exit` are None.
        beam_width: Branches that go on to the next level; only beyond depth 1.
        step_tokens: Tokens of a branch at each level but the last, where it is written to its end.
        max_tokens: Tokens of a branch from the root to its end.
        insist_on_answer: As for `SearchController`.
        sampling_params: `temperature`, `top_p` and `top_k` of the branches; 0.7 where nobody says and hints and
            phrasings do not make all of them differ.

    Raises:
        ConfigError: An argument is outside its range, arguments do not go together, or branches would all be alike.
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
        writer, judge = expander_from(expander), scorer_from(scorer)
        if depth > 1 and not writer.writes_steps:
            raise ConfigError("looks into branches that the expander writes to their end at once", "max_depth")
        verdicts = judge.scorer if isinstance(judge, ConfidenceWeighted) else judge
        known_skip = None
        if isinstance(verdicts, VerdictScorer):
            known = self.calibration
            known_skip = None if known is None else known.skip_gate
            completed = verdicts.completed(None if known is None else known.layer_exit, weighs_confidence=True)
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
        """Tell the controller what its workers can do, and warn of a calibration of another model."""
        super().bind(workers)
        if self.calibration is not None:
            worker: Any = worker_for(workers, WorkerTag.GENERATION)
            self.calibration.check_model(model_of(worker))
