"""Rounds of a search: the strategy asks for nodes, and they are written, judged and reported back to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.deadline import by_deadline, is_over
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.closing import Closings
from scaffolding_ext.controllers.tree.expand import Expander, WorkerExpander
from scaffolding_ext.controllers.tree.score import Scorer
from scaffolding_ext.controllers.tree.select import Leaf, Selector
from scaffolding_ext.controllers.tree.steps import StepEnds
from scaffolding_ext.controllers.tree.stops import Budget, Look, SearchStop, Spent, leader_of
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.protocol.tasks import KeepKVTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.ledger import Ledger, Meter
from scaffolding_ext.request.program import DEADLINE, discard, record
from scaffolding_ext.request.seeds import derive_seed

SCORE_DIGITS = 4  # significant digits of a score; further ones depend on the other requests in the batch


class SearchParts(NamedTuple):
    """The parts of a search; see `SearchController`."""

    strategy: Strategy
    scorer: Scorer
    expander: Expander
    selector: Selector
    stops: Sequence[SearchStop]
    widths: Sequence[int]
    budget: Budget
    steps: StepEnds
    insist_on_answer: bool


class Rounds:
    """Grows a tree until its strategy, a stop or its budget ends it.

    Attributes:
        meter: Counts the cost of the growth.
        nodes: In order of writing.
        judged: Nodes of the last round.
        is_late: The request's deadline has cut a step.
        reason: Reason for the end: `"finished"` by the strategy, `"stopped"`, `"budget"`, or `"unfinished"`.
        most_held: Maximum number of tokens that the lines of a round held together.
    """

    def __init__(self, run: Run, parts: SearchParts, root: Branch) -> None:
        self.parts = parts
        self.closings = Closings()
        self.is_late = False
        self.nodes: list[Branch] = []
        self.leaves: list[Branch] = []
        self.judged: list[Branch] = []
        self.reason = "unfinished"
        self.most_held = 0
        self._run, self._root = run, root
        seed = root.root.seed
        self._rng = np.random.default_rng(None if seed is None else derive_seed(seed, "search"))
        self._strategy = parts.strategy
        self._asked_by: dict[tuple[int, ...], Strategy] = {}
        self._width: int | None = None  # current iterations, of a strategy that goes on
        self._look = Look((), (), 0)
        self._leaders: list[tuple[int, float]] = []
        self._ledger = Ledger()
        self.meter = Meter(self._ledger)
        self._keeps_kv = (
            parts.strategy.max_depth > 1
            and isinstance(parts.expander, WorkerExpander)
            and parts.expander.can_serve(WorkerTag.GENERATION, KeepKVTask)
        )

    def grow(self) -> ControllerGenerator:
        """Run rounds until the search ends or the request's deadline; unfinished steps are then dropped."""
        yield from self._grow()
        if self.is_late:
            self.reason = "budget"
            self.leaves = [node for node in self.nodes if node.is_whole and not node.is_cut]
            record("late", paths=[node.path for node in self.nodes if node.is_cut])

    def _grow(self) -> ControllerGenerator:
        """Run rounds until the strategy, a stop or the budget ends the search, one width after another."""
        before = 0
        for width in self.parts.widths or (None,):
            self._widen(before, width)
            yield from self._run_rounds()
            if self.reason != "finished" or width is None or width == self.parts.widths[-1]:
                break
            enough = self._enough()
            record("width", width=width, num_leaves=len(self.leaves), enough=enough)
            if enough:
                self.reason = "stopped"
                break
            before = width

    def _widen(self, before: int, width: int | None) -> None:
        wider = None if width is None else self.parts.strategy.wider(before, width)
        if wider is not None or not before:
            self._strategy = (wider or self.parts.strategy).begin(self._root, self._rng)
        if wider is None:
            self._width = width

    def _run_rounds(self) -> ControllerGenerator:
        nodes = self._asked()
        while nodes:
            yield from self._keep_live(nodes)
            late = yield from self._write(nodes)
            going = [node for node in nodes if node not in late]
            is_unjudged = bool(going) and (yield from self._judge(going))
            self.is_late = bool(late) or is_unjudged
            if is_unjudged or not going:
                return
            self.judged = going
            self._tell(nodes)
            ended = [node for node in going if node.is_whole]
            self.leaves += ended
            if ended and (yield from self._sees_enough()):
                self.reason = "stopped"
                return
            if self.is_late or is_over() or self.parts.budget.used(self.spent) >= 1:
                self.reason = "budget"
                return
            nodes = self._asked()
            if nodes:
                record_selected(self.judged, list(dict.fromkeys(node.parent for node in nodes)))
        self.reason = "finished"

    def _asked(self) -> list[Branch]:
        """Return the nodes of the next round that are not written yet, with the children of each parent adjacent."""
        spent = self.spent
        limits = [self.parts.budget.nodes_left(spent)]
        if self._width is not None:
            limits.append(max(0, self._width - self._iterations))
        most = min((each for each in limits if each is not None), default=None)
        while nodes := cast("list[Branch]", self._strategy.ask(most)):
            self._asked_by.update((node.path, self._strategy) for node in nodes)
            self._tell([node for node in nodes if node.is_settled])
            if new := [node for node in nodes if not node.is_settled]:
                return sorted(new, key=lambda node: node.path)
        return []

    @property
    def _iterations(self) -> int:
        """Iterations so far: solutions if each iteration of the strategy ends with one, else nodes."""
        return len(self.leaves if self.parts.strategy.goes_to_ends else self.nodes)

    def _tell(self, nodes: Sequence[Branch]) -> None:
        for node in nodes:
            if node.is_cut:
                self._strategy.drop(node)
            else:
                self._strategy.tell(node, node.value)

    def _keep_live(self, nodes: Sequence[Branch]) -> ControllerGenerator:
        """Tell the worker which KV the search can still use, so that it frees the rest.

        Live are the parents of the next round, nodes that the strategy may revisit, and ended ones whose answer may be
        forced.
        """
        prompt = self._root.prompt.input_tokens
        if not (self._keeps_kv and prompt and self.nodes):
            return
        scored = [node for node in self.nodes if node.score is not None and not node.is_cut]
        live = [node for node in scored if self._asked_by[node.path].is_live(node)]
        live += [node.parent for node in nodes if node.parent is not None and node.parent.depth]
        if self.parts.insist_on_answer:
            live += self.closings.missing(self.leaves)
        sequences = {node.path: [*(node.prompt.input_tokens or ()), *node.token_ids] for node in live}
        yield [KeepKVTask(worker_tag=WorkerTag.GENERATION, sequences=[prompt, *sequences.values()])]

    def _write(self, nodes: list[Branch]) -> ControllerGenerator:
        """Write the steps of a round; cut and return those that are late."""
        self.nodes += nodes
        open_ones = [node for node in nodes if not node.is_whole]
        positions = self._positions(open_ones)
        steps = None if all(node.to_end for node in open_ones) else self.parts.steps
        late: list[Branch] = yield from self.parts.expander.write_in_time(open_ones, positions, steps)
        self._cut(late)
        going = [node for node in nodes if not node.is_cut]
        lines: list[Any] = [each for node in going for each in (node, *node.ancestors())]
        held = {id(each): each.num_own_tokens for each in lines}
        self.most_held = max(self.most_held, sum(held.values()) + len(self._root.prompt.input_tokens or ()))
        record_branches(going)
        return late

    def _cut(self, nodes: Sequence[Branch]) -> None:
        late = [node for node in nodes if not node.is_cut]
        if len(late) < sum(not node.is_cut for node in self.nodes):
            for node in late:
                node.is_cut = True
            discard(Purpose.CHAIN, sum(node.chain.num_generated for node in late))

    def _positions(self, nodes: Sequence[Branch]) -> list[int]:
        """Return each branch's latest end: the limit of its step, of the solution, or of the budget."""
        left = self.parts.budget.tokens_left(self.spent)
        most = self._root.chain.max_tokens if left is None else max(1, left // max(1, len(nodes)))
        step = self.parts.steps.max_tokens
        return [node.chain.num_tokens + (most if node.to_end else min(most, step)) for node in nodes]

    def _judge(self, nodes: list[Branch]) -> ControllerGenerator:
        """Score the nodes, unless there is no choice; return True if the deadline cut that."""
        if len(nodes) == 1 and self.parts.strategy.max_depth == 1:
            nodes[0].score = 1.0
            return False
        return (yield from judge(self._run, self.parts.scorer, nodes))

    def _sees_enough(self) -> ControllerGenerator:
        """Return True if a stop has seen enough of the leaves; with `widths`, stops are asked between widths instead.

        If the selector reads all answers, missing ones are forced before a stop looks, including those of truncated
        solutions.
        """
        if self.parts.stops and self.parts.insist_on_answer and self.parts.selector.reads_all:
            yield from by_deadline(self.closings.close(self.closings.missing(self.leaves)), keeps_rest=True)
        classes = yield from self._run.group([leaf.answer for leaf in self.leaves])
        leaves = self.seen(self.leaves, classes)
        self._leaders.append(leader_of(leaves))
        self._look = Look(leaves, self._leaders, self._leaves_left())
        enough = [] if self.parts.widths else self._enough()
        figures = {"num_left": self._look.num_left, "certaindex": entropy_certaindex(classes), "enough": enough}
        left = self.parts.budget.nodes_left(self.spent) or 0
        record("look", controller=self._run.name, done=len(self.nodes), left=left, classes=classes, **figures)
        return bool(enough)

    def _enough(self) -> list[str]:
        return [type(stop).__name__ for stop in self.parts.stops if self._look.leaves and stop.is_enough(self._look)]

    def _leaves_left(self) -> int:
        """Return how many solutions strategy, widths and budget still allow, at the mean cost so far."""
        share = self.parts.budget.used(self.spent)
        if self._width is not None:
            share = max(share, min(1.0, self._iterations / self.parts.widths[-1]))
        num = len(self.leaves)
        by_budget = int(num * (1 - share) / share) if share else num
        most = self.parts.strategy.most_leaves
        return max(0, by_budget if most is None else min(by_budget, most - num))

    def seen(self, nodes: Sequence[Branch], classes: Sequence[int]) -> list[Leaf]:
        return [
            Leaf(
                number,
                node.value,
                self._asked_by[node.path].visits(node) if node.is_whole else 1.0,
                node.chain.num_tokens,
            )
            for node, number in zip(nodes, classes, strict=True)
        ]

    @property
    def spent(self) -> Spent:
        total = self._ledger.total
        decoded = total.decoded or sum(node.num_own_tokens for node in self.nodes)
        decoded = max(decoded, len(self.nodes))  # so that empty texts also use up the budget
        return Spent(decoded, max(total.computed, decoded), len(self.nodes))


def judge(run: Run, scorer: Scorer, branches: Sequence[Branch]) -> ControllerGenerator:
    """Score branches; return True if the deadline cut that."""
    try:
        if (yield from by_deadline(scorer.score(branches))):
            return True
    except NoOutputError:  # a branch that its writer cut at the deadline may lack what scores read
        if all(branch.chain.finish_reason != DEADLINE for branch in branches):
            raise
        return True
    layers = Counter(f"layer {branch.exit_layer}" for branch in branches if branch.exit_layer is not None)
    if layers:
        run.sum_up(exit_layers=layers)
    for branch in branches:
        if branch.score is None or not np.isfinite(branch.score):
            raise NoOutputError(
                f"{type(scorer).__name__} gave the branch {branch.path} the score {branch.score}; a score is a finite "
                "number"
            )
        branch.score = settled(branch.score)
    return False


def settled(score: float) -> float:
    """Round off the digits that depend on the other requests in the batch."""
    return float(f"{score:.{SCORE_DIGITS}g}")


def record_branches(nodes: Sequence[Branch]) -> None:
    has_logprobs = [node.logprobs is not None for node in nodes]
    record(
        "branches",
        paths=[node.path for node in nodes],
        answers=[node.answer for node in nodes],
        num_tokens=[node.chain.num_tokens for node in nodes],
        finish_reasons=[node.chain.finish_reason for node in nodes],
        confidences=[node.confidence if known else None for node, known in zip(nodes, has_logprobs, strict=True)],
        mean_probabilities=[
            node.mean_probability if known else None for node, known in zip(nodes, has_logprobs, strict=True)
        ],
    )


def record_selected(judged: Sequence[Branch], kept: Sequence[Any]) -> None:
    record(
        "select",
        paths=[node.path for node in judged],
        values=[node.value for node in judged],
        kept=[node.path for node in kept],
    )
