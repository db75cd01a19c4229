"""Branches that share the KV of one prefix, and gates that omit verdicts which would not change the choice.

Reference: Sekar, "RKSC: Reasoning-Aware KV Cache Sharing and Confident Early Exit for Multi-Step LLM Inference", arXiv
2606.09937.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from scaffolding_ext import require
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.tree.answer import end_of
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration
from scaffolding_ext.controllers.tree.closing import Closings
from scaffolding_ext.controllers.tree.expand import Expander
from scaffolding_ext.controllers.tree.gates.confidence import Gates
from scaffolding_ext.controllers.tree.rounds import judge, record_branches, record_selected, settled
from scaffolding_ext.controllers.tree.score import Scorer, VerdictScorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.select import Leaf, Selector
from scaffolding_ext.controllers.tree.stops import Budget
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Worker
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.protocol.worker import WorkerTag, model_of, worker_for
from scaffolding_ext.registry import search_scorers
from scaffolding_ext.request.figures import Answers
from scaffolding_ext.request.program import discard


class KVShareBranchingController(SearchController):
    """Writes several branches on one prompt, judges them, and returns the answer with the most weight, or the best.

    It has one level; deeper trees are `SearchController`'s. All branches share the prompt's KV, through `BranchTask` or
    the engine's block reuse. A branch's confidence is the mean, over its tokens, of the likeliest token's probability
    (equation 3). With `scorer="verdict"`, as in the paper, a branch votes with P(yes) times the square root of its
    confidence. Three options, all off by default, save work:

    - The skip gate (equation 4) omits the verdicts if the highest confidence is at least `least` (0.70), and the next
      one is lower by at least `gap` (0.06) of it; branches then vote with their confidence.
    - The scorer's layer exit (equation 5) reads a verdict before the last layer, once the verdict's entropy and its
      change from layer to layer are small enough.
    - The decode exit is a skip gate after the first tokens (`after` 3, `least` 0.72, `gap` 0.10): then only the leading
      branch goes on.

    Args:
        branching_factor: Branches written at once.
        expander: Writes the branches: `{type: worker, args: {hints, hints_file, phrasings, least_similarity}}`, or any
            controller. None is the worker `generation` without hints.
        scorer: `"mean_logprob"` (geometric mean of the tokens' probabilities), `"verdict"` (times the square root of
            the branch's confidence), or any scorer of `SearchController`.
        selector: Chooses the answer: `vote` (weighted by scores), `best`, or any selector of `SearchController`.
        gates: `{skip: {least, gap}, decode_exit: {after, least, gap}}`. Each may be true for the paper's values, or
            false or None for never; but a `skip` of None takes the calibration's, if there is one.
        calibration: File of `scaffolding-ext calibrate branching`. Its skip gate and layer exit apply to verdicts if
            `gates.skip` and the scorer's `layer_exit` are None.
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
        *,
        expander: Expander | Controller | Mapping[str, Any] | str | None = None,
        scorer: Scorer | Controller | Mapping[str, Any] | str = "mean_logprob",
        selector: Selector | Mapping[str, Any] | str = "vote",
        gates: Gates | Mapping[str, Any] | None = None,
        calibration: str | os.PathLike[str] | None = None,
        max_tokens: int = 8192,
        insist_on_answer: bool = True,
        sampling_params: dict[str, Any] | None = None,
    ) -> None:
        self.branching_factor = require.whole("branching_factor", branching_factor)
        self.calibration = None if calibration is None else BranchingCalibration.load(calibration)
        scores: Scorer = search_scorers.build(scorer, "scorer")
        known_skip = None
        if isinstance(scores, VerdictScorer):
            known = self.calibration
            known_skip = None if known is None else known.skip_gate
            scores = scores.completed(  # the calibrated exit, and the paper's median rule
                None if known is None else known.layer_exit,
                None if known is None else known.median_exit,
                weighs_confidence=True,
            )
        self.gates = Gates.of(gates, known_skip)
        super().__init__(
            BestOfN(branching_factor),
            scores,
            expander=expander,
            selector=selector,
            budget=Budget(nodes=self.branching_factor + 1),
            max_tokens=max_tokens,
            insist_on_answer=insist_on_answer,
            sampling_params=sampling_params,
        )
        if self.gates.decode_exit is not None and not self.expander.writes_steps:
            raise ConfigError("needs steps, and the expander writes whole branches: leave it out", "gates.decode_exit")
        if self.gates.skip is not None and self.scorer.is_free:
            raise ConfigError("saves verdicts, and the scorer needs none: leave it out", "gates.skip")
        if self.gates.skip is not None or self.gates.decode_exit is not None:
            self.expander.needs = self.expander.needs._replace(num_logprobs=1)

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        """Share the prompt, gate by confidence, verify, and vote."""
        run = Run(self, task)
        root = self.root(run, sampling_params)
        branches = [cast("Branch", root.grow(to_end=True)) for _ in range(self.branching_factor)]
        going, is_late = yield from self._share(run, branches)  # one prefix, one BranchTask
        if len(going) == 1:
            going[0].score = 1.0
        elif self._has_clear_leader(run, going):  # equation 4
            for branch in going:
                branch.score = settled(branch.confidence)  # rounded
        else:
            is_late |= yield from judge(run, self.scorer, going)  # (5); the default scorer asks no worker
        closings = Closings()
        if self.insist_on_answer:
            yield from closings.force(going, self.selector.reads_all)  # of all if all vote, else of the best
        classes = yield from run.group([branch.answer for branch in going])
        # A branch's value is its score times its weight.
        leaves = [Leaf(n, each.value, 1.0, each.chain.num_tokens) for each, n in zip(going, classes, strict=True)]
        winner = going[self.selector.choose(leaves)]  # by default the best of the class with the largest sum of values
        record_selected(going, [winner])
        run.event("answer", answers=[each.answer for each in going], classes=classes, winner=winner.path)
        run.sum_up(nodes=len(branches), answers=Answers([each.answer for each in going], classes))
        closings.write_out(task, winner, end_of(winner, is_late))

    def _share(self, run: Run, branches: list[Branch]) -> ControllerGenerator:
        """Write the branches behind one prefix. Return those that nothing cut, and True if the deadline cut any."""
        gate, going, most = self.gates.decode_exit, branches, branches[0].chain.max_tokens
        if gate is not None and len(branches) > 1:
            first = [branch.chain.num_tokens + gate.after for branch in branches]
            yield from self.expander.write_in_time(branches, first, None)
            leader = gate.leader([branch.confidence for branch in branches])
            run.event("decode_exit", leader=leader, confidences=[branch.confidence for branch in branches])
            run.sum_up(decode_exit_rate=leader is not None)
            going = branches if leader is None else [branches[leader]]
        open_ones = [branch for branch in going if not branch.is_whole]
        positions = [branch.chain.num_tokens + most for branch in open_ones]
        late = yield from self.expander.write_in_time(open_ones, positions, None)
        going = [branch for branch in going if branch not in late] or going  # if all are late, all stay
        discard(Purpose.CHAIN, sum(branch.chain.num_generated for branch in branches if branch not in going))
        record_branches(going)
        return going, bool(late)

    def _has_clear_leader(self, run: Run, branches: Sequence[Branch]) -> bool:
        """Return True if one confidence is at least the skip gate's, and leads by its gap (equation 4)."""
        gate = self.gates.skip
        if gate is None:
            return False
        confidences = [branch.confidence for branch in branches]
        leader = gate.leader(confidences)
        run.event("skip", leader=leader, confidences=confidences)
        run.sum_up(skip_rate=leader is not None)
        return leader is not None

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Bind; warn if the calibration belongs to another model."""
        super().bind(workers)
        if self.calibration is not None:
            worker: Any = worker_for(workers, WorkerTag.GENERATION)
            self.calibration.check_model(model_of(worker))
