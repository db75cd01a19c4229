"""Search over a tree of steps: a strategy chooses what is expanded, an expander writes it, a scorer judges it."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.answers.classes import AnswerClasses
from scaffolding_ext.controllers.answer_classes import classify
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController, finish
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.chain.chain import Prefix, without_end_token
from scaffolding_ext.controllers.chain.ending import close_with
from scaffolding_ext.controllers.chain.probe import asking, forced_answer
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.prompting import longest_len, prompt_family
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.expand import ControllerExpander, Expander, WorkerExpander
from scaffolding_ext.controllers.tree.gates.confidence import Gates
from scaffolding_ext.controllers.tree.in_time import SPARE, InTime
from scaffolding_ext.controllers.tree.score import Scorer
from scaffolding_ext.controllers.tree.select import Leaf, Selector
from scaffolding_ext.controllers.tree.steps import StepEnds
from scaffolding_ext.controllers.tree.stops import Budget, Certaindex, Look, SearchStop, Spent, leader_of
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.vote.samples import Variety
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.prompts.sampling_params import (
    apply_sampling_params,
    checked_sampling_params,
    refuse_greedy,
    set_sampling_params,
)
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.protocol.tasks import KeepKVTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.registry import (
    search_expanders,
    search_scorers,
    search_selectors,
    search_stops,
    search_strategies,
)
from scaffolding_ext.request.figures import FIGURES, Answers, Ratio
from scaffolding_ext.request.ledger import Ledger, Meter
from scaffolding_ext.request.program import (
    current_program,
    discard,
    next_seed,
    publish_figures,
    record,
    seconds_left,
)
from scaffolding_ext.request.seeds import derive_seed

TEMPLATE_LEN = 64  # tokens around a solution that is refined
ANSWER_LEN = 48  # tokens of a forced answer
SHARE_OF_DEADLINE = 1 / (1 + SPARE)  # of a search; what follows it takes the rest
MIN_SECONDS = 0.01
SCORE_DIGITS = 4  # of a score that decide: further digits depend on the other requests in the batch
MOST_CLOSED = 16  # open leaves with forced answers, where no solution has ended


class SearchController(BaseController):
    """Searches a tree of steps for a solution, and answers with the best or the most frequent one.

    Every part is an object, its name, or `{type, args}`, in Python and in stack files alike. The search ends when its
    strategy ends, when a stop says so, or when its budget is used up, always with the best that it has: where no
    solution has ended, the best leaf is closed and asked for its answer.

    Args:
        strategy: Which nodes are expanded, and how often.
        scorer: The scores of nodes: a scorer, or any reward controller.
        expander: Writes the steps: an expander, or any controller; None is the worker `generation`.
        selector: Which leaf is the answer.
        stop: When the search has seen enough: a stop, or a list of stops, of which any ends the search.
        widths: Rising widths: solutions (REBASE, best of n, particle filter) or nodes (the others). `stop` is asked
            between them.
        budget: `{nodes, tokens, computed_tokens, seconds}`, or a number of nodes.
        steps: Where a step ends: `{ends, max_tokens}`, or a number of tokens.
        max_tokens: Tokens of a solution from the root to its end.
        gates: `{skip, decode_exit}`, each a mapping of its arguments, true for the paper's values, false for never.
        insist_on_answer: Whether a leaf without an answer is asked for one.
        sampling_params: Sampling fields of the steps; the temperature is 0.7 by default.

    Raises:
        ConfigError: Parts do not go together.

    Reference:
        Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex", arXiv 2412.20993, Tables 1 and 3: the knob of
        REBASE is its width, that of MCTS its iterations (`widths`).
    """

    registries: ClassVar = {
        "strategy": search_strategies,
        "scorer": search_scorers,
        "expander": search_expanders,
        "selector": search_selectors,
        "stop": search_stops,
    }

    def __init__(
        self,
        strategy: Strategy | Mapping[str, Any] | str = "Beam",
        scorer: Scorer | Controller | Mapping[str, Any] | str = "mean_logprob",
        *,
        expander: Expander | Controller | Mapping[str, Any] | str | None = None,
        selector: Selector | Mapping[str, Any] | str = "best",
        stop: SearchStop | Mapping[str, Any] | str | Sequence[Any] | None = None,
        widths: Sequence[int] | None = None,
        budget: Budget | Mapping[str, Any] | int | None = None,
        steps: StepEnds | Mapping[str, Any] | int | None = None,
        max_tokens: int = 8192,
        gates: Gates | Mapping[str, Any] | None = None,
        insist_on_answer: bool = True,
        sampling_params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.strategy: Strategy = search_strategies.obtain(strategy, "strategy")
        self.scorer: Scorer = search_scorers.obtain(scorer, "scorer")
        writer: Expander = search_expanders.obtain("worker" if expander is None else expander, "expander")
        self.expander = cast("Expander", writer.clone())  # the search sets its attributes
        self.selector: Selector = search_selectors.obtain(selector, "selector")
        given = stop if isinstance(stop, list | tuple) else [] if stop is None else [stop]
        self.stops = tuple(search_stops.obtain(each, "stop") for each in given)
        self.widths = _checked_widths(widths, self.stops)
        for before, width in itertools.pairwise((0, *self.widths)):
            self.strategy.of_width(width - before)  # refuses what it cannot grow by
        if self.widths:
            self.strategy = self.strategy.of_width(self.widths[-1]) or self.strategy
        self.budget = Budget.of(budget)
        self.steps = StepEnds.of(steps)
        self.max_tokens = require.whole("max_tokens", max_tokens)
        self.gates = Gates.of(gates)
        self.insist_on_answer = insist_on_answer
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens",))
        reads = self.scorer.needs.num_logprobs or self.gates.skip is not None or self.gates.decode_exit is not None
        self.expander.needs = self.expander.needs._replace(num_logprobs=int(bool(reads)))
        self._check_together()
        writes = isinstance(self.expander, WorkerExpander)
        self.needs = Needs(tags=(WorkerTag.GENERATION,) if writes or insist_on_answer else (), fields=CHAIN_FIELDS)

    def _check_together(self) -> None:
        whole = self.strategy.max_depth == 1
        if not self.expander.writes_steps:
            looks = {"strategy": not whole, "gates.decode_exit": self.gates.decode_exit}
            key = next((key for key, looks_in in looks.items() if looks_in), None)
            if key is not None:
                raise ConfigError("needs steps, and the expander writes whole branches: leave it out", key)
        if isinstance(self.expander, ControllerExpander) and self.sampling_params:
            raise ConfigError("belong to the controller that writes the branches; set them there", "sampling_params")
        limits = [self.strategy.most_leaves, self.budget.nodes, *self.widths[-1:]]
        most = min((limit for limit in limits if limit is not None), default=None)
        for stop in self.stops:
            if isinstance(stop, Certaindex) and most is not None and stop.every >= most:
                raise ConfigError(
                    f"is {stop.every} leaves, and the search ends {most} at most, so that it never stops early: give a "
                    "smaller number, or a wider search",
                    "stop.every",
                )
        if self.gates.skip is not None and self.scorer.is_free:
            raise ConfigError("spares judgements, and the scorer asks nobody: leave it out", "gates.skip")
        if self.draws_alike and self.sampling_params.get("temperature") == 0:
            refuse_greedy("sampling_params.temperature")
        if self.draws_alike:
            self.expander.check_differ(2)

    @property
    def draws_alike(self) -> bool:
        """Whether two branches begin alike, so that only chance makes them differ."""
        num_first = getattr(self.strategy, "num_samples", None) if self.strategy.max_depth == 1 else None
        if num_first == 1:
            return False
        return (
            num_first is None or not isinstance(self.expander, WorkerExpander) or self.expander.draws_alike(num_first)
        )

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        set_sampling_params(task, sampling_params)
        prompt = copy.copy(task)
        prompt.streaming_output_flag = False
        apply_sampling_params(prompt, self.sampling_params)
        if prompt.seed is None:
            prompt.seed = next_seed()  # one for the whole tree
        self.scorer.prepare(prompt)
        beginnings = self.expander.beginnings(prompt)
        if self.draws_alike and isinstance(self.expander, WorkerExpander):
            Variety(self)([prompt])
        longest = max((task, *beginnings.wordings), key=lambda each: len(each.input_tokens or ()))
        root = Branch(
            prompt,
            (),
            self._branch_budget(longest, beginnings.hints),
            beginnings=beginnings,
            refines=self.expander.refines,
        )
        search = _Search(self, root)
        try:
            yield from search.meter.watch(search.grow_in_time())
            winner = yield from search.answer()
        finally:
            search.record_tree()
        search.write_out(task, winner)

    def _branch_budget(self, task: GenerationTask, hints: Sequence[str]) -> int:
        wanted = self.max_tokens if task.max_tokens is None else min(task.max_tokens, self.max_tokens)
        reserved = longest_len("", *hints)
        if self.insist_on_answer:
            family = prompt_family()
            reserved += max(self.scorer.reserved(), longest_len(family.close, family.close_closed) + ANSWER_LEN)
        else:
            reserved += self.scorer.reserved()
        if self.expander.refines:  # the prompt of a better solution holds another one
            return self.budget_within_context(WorkerTag.GENERATION, task, 2 * wanted, reserved + TEMPLATE_LEN) // 2
        return self.budget_within_context(WorkerTag.GENERATION, task, wanted, reserved)


class _Search:
    def __init__(self, controller: SearchController, root: Branch) -> None:
        self._parts = controller
        self._root = root
        seed = root.root.seed
        rng = np.random.default_rng(None if seed is None else derive_seed(seed, "search"))
        self._rng = rng
        self._strategy = controller.strategy
        self._asked_by: dict[tuple[int, ...], Strategy] = {}
        self._most_nodes: int | None = None  # of the present width
        self._look = Look((), (), 0)
        self._ledger = Ledger()
        self.meter = Meter(self._ledger)
        self._nodes: list[Branch] = []  # in the order of writing
        self._leaves: list[Branch] = []  # solutions that have ended
        self._judged: list[Branch] = []  # of the last round
        self._leaders: list[tuple[int, float]] = []
        self._known = AnswerClasses()
        self._reason = "unfinished"
        self._most_held = 0
        self._keeps_kv = (
            controller.strategy.max_depth > 1
            and isinstance(controller.expander, WorkerExpander)
            and controller.expander.can_serve(WorkerTag.GENERATION, KeepKVTask)
        )
        self._in_time = controller.expander.in_time = InTime(_seconds_of(controller.budget))
        self._closings: dict[tuple[int, ...], tuple[Prefix, str]] = {}
        self._winner: Branch | None = None
        self._program = current_program()
        self._section = type(controller).__name__

    def grow_in_time(self) -> ControllerGenerator:
        """Rounds until the search ends, or until its seconds are over; late steps are given up then."""
        yield from self._in_time.limit(self._grow())
        if self._in_time.is_late:
            self._reason = "budget"
            self._cut([node for node in self._nodes if not node.chain.num_generated])
            self._leaves = [node for node in self._nodes if node.is_whole and not node.is_cut]
            record("late", paths=[node.path for node in self._nodes if node.is_cut])

    def _grow(self) -> ControllerGenerator:
        """Rounds until the strategy, a stop or the budget ends the search; one width after the other."""
        before = 0
        for width in self._parts.widths or (None,):
            self._widen(before, width)
            yield from self._run_rounds()
            if self._reason != "finished" or width is None or width == self._parts.widths[-1]:
                break
            enough = self._enough()
            record("width", width=width, num_leaves=len(self._leaves), enough=enough)
            if enough:
                self._reason = "stopped"
                break
            before = width

    def _widen(self, before: int, width: int | None) -> None:
        """Begin a search, or let it grow from one width to the next."""
        strategy = self._parts.strategy
        added = None if width is None else strategy.of_width(width - before)
        if added is not None or not before:
            self._strategy = (added or strategy).begin(self._root, self._rng)
        if added is None:
            self._most_nodes = width

    def _run_rounds(self) -> ControllerGenerator:
        """Rounds until the strategy has no more nodes, a stop has seen enough, or the budget is used up."""
        nodes = self._asked()
        while nodes:
            yield from self._keep_live(nodes)
            yield from self._write(nodes)
            going = [node for node in nodes if not node.is_cut]
            if going:
                yield from self._judge(going)
            self._judged = going
            for node in nodes:
                if node.is_cut:
                    self._strategy.drop(node)
                else:
                    self._strategy.tell(node, node.value)
            ended = [node for node in going if node.is_whole]
            self._leaves += ended
            if ended and (yield from self._sees_enough()):
                self._reason = "stopped"
                return
            if self._in_time.is_over or self._parts.budget.used(self._spent()) >= 1:
                self._reason = "budget"
                return
            nodes = self._asked()
            if nodes:
                self._record_selected(self._judged, list(dict.fromkeys(node.parent for node in nodes)))
        self._reason = "finished"

    def answer(self) -> ControllerGenerator:
        """The branch that is the answer; a missing answer that counts is forced.

        Raises:
            NoOutputError: Nothing was written.
        """
        parts = self._parts
        written = [node for node in self._nodes if not node.is_cut]
        if not written:
            raise _nothing_written(parts.budget)
        candidates = _judged_ones(self._leaves)
        if not candidates:
            parents = {id(node.parent) for node in written}
            frontier = _judged_ones([node for node in written if id(node) not in parents])
            candidates = sorted(frontier, key=_rank)[:MOST_CLOSED]
        if parts.insist_on_answer:
            missing = self._unanswered(candidates)
            if not parts.selector.reads_all:
                best = min(missing, key=_rank, default=None)
                missing = [best] if best is not None and len(missing) == len(candidates) else []
            yield from self._close(missing)
        classes = yield from classify(parts, [node.answer for node in candidates], self._known)
        leaves = self._seen(candidates, classes)
        winner = candidates[parts.selector.choose(leaves)]
        if self._in_time.is_late and not winner.chain.text and winner.answer is None:
            raise _nothing_written(parts.budget)
        self._winner = winner
        self._record_selected(self._judged, [self._winner])
        record(
            "answer",
            paths=[node.path for node in candidates],
            answers=[node.answer for node in candidates],
            classes=classes,
            values=[leaf.value for leaf in leaves],
            visits=[leaf.visits for leaf in leaves],
            winner=self._winner.path,
        )
        publish_figures(self._section, answers=Answers([node.answer for node in candidates], classes))
        return self._winner

    def write_out(self, task: GenerationTask, winner: Branch) -> None:
        if winner.path in self._closings and winner.answer is not None:
            prefix, close = self._closings[winner.path]
            close_with(task, prefix, close, winner.answer, prompt_family(), self._exit_reason(winner))
            return
        if task.num_logprobs and not winner.hint:
            task.logprobs = winner.chain.prefix.logprobs
        reason = self._exit_reason(winner)
        finish(task, winner.chain.text, winner.chain.prefix.token_ids, winner.answer, reason)

    def record_tree(self) -> None:
        if self._program is None:
            return
        held = {"most_tokens_held": self._most_held}
        self._program.trace.record(
            "tree",
            strategy=type(self._parts.strategy).__name__,
            reason=self._reason,
            num_nodes=len(self._nodes),
            num_leaves=len(self._leaves),
            depth=max((node.depth for node in self._nodes), default=0),
            winner=None if self._winner is None else self._winner.path,
            best=min(self._nodes, key=_rank).path if self._nodes else None,
            **held,
            spent=self._spent()._asdict(),
        )
        figures = {"nodes": len(self._nodes), "leaves": len(self._leaves), "stop_reason": {self._reason: 1}, **held}
        figures["depth"] = max((node.depth for node in self._nodes), default=0)
        self._program.trace.record(FIGURES, section=self._section, figures=figures)

    def _exit_reason(self, winner: Branch) -> str:
        if self._reason == "stopped":
            return "certain"
        return "end" if winner.is_whole and winner.chain.finish_reason != "length" else "length"

    def _asked(self) -> list[Branch]:
        """The nodes of the next round, children of one parent together."""
        spent = self._spent()
        self._strategy.used = self._parts.budget.used(spent)
        limits = [self._parts.budget.nodes_left(spent)]
        if self._most_nodes is not None:
            limits.append(max(0, self._most_nodes - len(self._nodes)))
        nodes: list[Any] = self._strategy.ask(min((each for each in limits if each is not None), default=None))
        self._asked_by.update((node.path, self._strategy) for node in nodes)
        return sorted(nodes, key=lambda node: node.path)

    def _keep_live(self, nodes: Sequence[Branch]) -> ControllerGenerator:
        """Tell the worker which KV the search can still use, so that it frees that of ended and pruned branches.

        Live are the parents of the next round, each node that the strategy may come back to, and ended ones whose
        answer may be forced.
        """
        prompt = self._root.prompt.input_tokens
        if not (self._keeps_kv and prompt and self._nodes):
            return
        told = [node for node in self._nodes if node.score is not None and not node.is_cut]
        live = [node for node in told if self._asked_by[node.path].is_live(node)]
        live += [node.parent for node in nodes if node.parent is not None and node.parent.depth]
        if self._parts.insist_on_answer:
            live += self._unanswered(self._leaves)
        sequences = {node.path: [*(node.prompt.input_tokens or ()), *node.token_ids] for node in live}
        yield [KeepKVTask(worker_tag=WorkerTag.GENERATION, sequences=[prompt, *sequences.values()])]

    def _write(self, nodes: list[Branch]) -> ControllerGenerator:
        """Write the steps of a round; a decode exit may cut all of them but one."""
        expander, gate = self._parts.expander, self._parts.gates.decode_exit
        self._nodes += nodes
        going = nodes
        if gate is not None and len(nodes) > 1:
            first = [node.chain.num_tokens + gate.after for node in nodes]
            yield from expander.write(nodes, first, None)
            confidences = [node.confidence for node in nodes]
            leader = gate.leader(confidences)
            record("decode_exit", leader=leader, confidences=confidences)
            publish_figures(self._section, decode_exit_rate=Ratio(int(leader is not None), 1))
            if leader is not None:
                for node in nodes:
                    node.is_cut = node is not nodes[leader]
                discard(Purpose.CHAIN, sum(node.chain.num_generated for node in nodes if node.is_cut))
                going = [nodes[leader]]
        open_ones = [node for node in going if not node.is_whole]
        positions = self._positions(open_ones)
        steps = None if all(node.to_end for node in open_ones) else self._parts.steps
        in_slices = type(expander) is WorkerExpander
        late = yield from self._in_time.write(expander.write, open_ones, positions, steps, in_slices)
        self._cut(late)
        going = [node for node in going if not node.is_cut]
        lines: list[Any] = [each for node in going for each in (node, *node.ancestors())]
        held = {id(each): each.num_own_tokens for each in lines}
        self._most_held = max(self._most_held, sum(held.values()) + len(self._root.prompt.input_tokens or ()))
        has_logprobs = [node.logprobs is not None for node in going]
        record(
            "branches",
            paths=[node.path for node in going],
            answers=[node.answer for node in going],
            num_tokens=[node.chain.num_tokens for node in going],
            finish_reasons=[node.chain.finish_reason for node in going],
            confidences=[node.confidence if known else None for node, known in zip(going, has_logprobs, strict=True)],
            mean_probabilities=[
                node.mean_probability if known else None for node, known in zip(going, has_logprobs, strict=True)
            ],
        )

    def _cut(self, nodes: Sequence[Branch]) -> None:
        late = [node for node in nodes if not node.is_cut]
        if late and len(late) < sum(not node.is_cut for node in self._nodes):
            for node in late:
                node.is_cut = True
            discard(Purpose.CHAIN, sum(node.chain.num_generated for node in late))

    def _positions(self, nodes: Sequence[Branch]) -> list[int]:
        """Where each branch's step ends at the latest: at its own limit, the solution's, or the budget's."""
        left = self._parts.budget.tokens_left(self._spent())
        most = self._root.chain.max_tokens if left is None else max(1, left // max(1, len(nodes)))
        step = self._parts.steps.max_tokens
        return [node.chain.num_tokens + (most if node.to_end else min(most, step)) for node in nodes]

    def _judge(self, nodes: list[Branch]) -> ControllerGenerator:
        """Score the nodes. The scorer is not asked where there is no choice, or where the skip gate passes."""
        gate = self._parts.gates.skip
        if len(nodes) == 1 and self._parts.strategy.max_depth == 1:
            nodes[0].score = 1.0
            return
        if gate is not None:
            confidences = [node.confidence for node in nodes]
            leader = gate.leader(confidences)
            record("skip", leader=leader, confidences=confidences)
            publish_figures(self._section, skip_rate=Ratio(int(leader is not None), 1))
            if leader is not None:
                for node, confidence in zip(nodes, confidences, strict=True):
                    node.score = _settled(confidence)
                return
        yield from self._parts.scorer.score(nodes)
        layers = Counter(f"layer {node.exit_layer}" for node in nodes if node.exit_layer is not None)
        if layers:
            publish_figures(self._section, exit_layers=layers)
        for node in nodes:
            if node.score is None or not np.isfinite(node.score):
                raise NoOutputError(
                    f"{type(self._parts.scorer).__name__} gave the branch {node.path} the score {node.score}; a score "
                    "is a finite number"
                )
            node.score = _settled(node.score)

    def _sees_enough(self) -> ControllerGenerator:
        """Look at the leaves, and whether a stop has seen enough; one that decides between widths is asked there.

        Where a stop counts answers that all leaves must have at last, each leaf is asked for its own before the stop
        looks: a solution that its length has ended has an answer, too.
        """
        if self._parts.stops and self._parts.insist_on_answer and self._parts.selector.reads_all:
            yield from self._close(self._unanswered(self._leaves))
        classes = yield from classify(self._parts, [leaf.answer for leaf in self._leaves], self._known)
        leaves = self._seen(self._leaves, classes)
        self._leaders.append(leader_of(leaves))
        self._look = Look(leaves, self._leaders, self._leaves_left())
        enough = [] if self._parts.widths else self._enough()
        told = {"num_left": self._look.num_left, "certaindex": entropy_certaindex(classes), "enough": enough}
        left = self._parts.budget.nodes_left(self._spent()) or 0
        record("look", controller=self._section, done=len(self._nodes), left=left, classes=classes, **told)
        return bool(enough)

    def _enough(self) -> list[str]:
        return [type(stop).__name__ for stop in self._parts.stops if self._look.leaves and stop.is_enough(self._look)]

    def _leaves_left(self) -> int:
        """Solutions that strategy, widths and budget still allow, at the mean cost of those so far."""
        share = self._parts.budget.used(self._spent())
        if self._most_nodes is not None:
            share = max(share, min(1.0, len(self._nodes) / self._parts.widths[-1]))
        num = len(self._leaves)
        by_budget = int(num * (1 - share) / share) if share else num
        most = self._parts.strategy.most_leaves
        return max(0, by_budget if most is None else min(by_budget, most - num))

    def _unanswered(self, nodes: Sequence[Branch]) -> list[Branch]:
        """Nodes without an answer that were not asked for one yet."""
        return [node for node in nodes if node.answer is None and node.path not in self._closings]

    def _close(self, nodes: Sequence[Branch]) -> ControllerGenerator:
        family, asked = prompt_family(), []
        for node in nodes:
            prefix = node.chain.prefix
            if node.is_whole and prefix.token_ids:
                ids = without_end_token(prefix.token_ids)
                prefix = Prefix(len(ids), prefix.text, ids, None)
            close = family.close_closed if family.think_close in prefix.text else family.close
            self._closings[node.path] = prefix, close
            asked.append(asking(node.prompt, prefix, close, {"max_tokens": ANSWER_LEN, "temperature": 0.0}))
        if not asked:
            return
        yield self._in_time.step(asked)
        for node, task in zip(nodes, asked, strict=True):
            is_late = task.output_str is None and self._in_time.seconds is not None
            node.answer = None if is_late else forced_answer(task)
        record("force", paths=[node.path for node in nodes], answers=[node.answer for node in nodes])

    def _seen(self, nodes: Sequence[Branch], classes: Sequence[int]) -> list[Leaf]:
        return [
            Leaf(
                number,
                _value(node),
                self._asked_by[node.path].visits(node) if node.is_whole else 1.0,
                node.chain.num_tokens,
            )
            for node, number in zip(nodes, classes, strict=True)
        ]

    def _record_selected(self, judged: Sequence[Branch], kept: Sequence[Any]) -> None:
        record(
            "select",
            paths=[node.path for node in judged],
            values=[_value(node) for node in judged],
            kept=[node.path for node in kept],
        )

    def _spent(self) -> Spent:
        total = self._ledger.total
        decoded = total.decoded or sum(node.num_own_tokens for node in self._nodes)
        decoded = max(decoded, len(self._nodes))  # so that empty texts use the budget up, too
        return Spent(decoded, max(total.computed, decoded), len(self._nodes), self._in_time.spent)


def _checked_widths(widths: Sequence[int] | None, stops: Sequence[SearchStop]) -> tuple[int, ...]:
    """Rising widths; none where the search does not grow.

    Raises:
        ConfigError: They do not rise, or no stop decides between them.
    """
    found = tuple(require.whole(f"widths.{number}", width) for number, width in enumerate(widths or ()))
    if widths is not None and (not found or any(b <= a for a, b in itertools.pairwise(found))):
        raise ConfigError(f"is {list(widths)!r}; give whole numbers that rise, such as [4, 8, 16]", "widths")
    if found and not stops:
        raise ConfigError("needs a stop, which decides whether a search grows: give stop, such as agreement", "widths")
    return found


def _seconds_of(budget: Budget) -> float | None:
    """Seconds of a search from now on: those of its budget, and of the time until the request's deadline a share."""
    left = seconds_left()
    in_time = None if left is None else max(SHARE_OF_DEADLINE * left, MIN_SECONDS)
    return min((each for each in (budget.seconds, in_time) if each is not None), default=None)


def _nothing_written(budget: Budget) -> NoOutputError:
    return NoOutputError(f"the search wrote nothing within its budget ({budget}); give it more")


def _judged_ones(nodes: Sequence[Branch]) -> Sequence[Branch]:
    return [node for node in nodes if node.score is not None] or nodes


def _value(node: Branch) -> float:
    return 0.0 if node.score is None else node.value


def _rank(node: Branch) -> tuple[bool, float, tuple[int, ...]]:
    """Judged nodes come first, the best of them before the others."""
    return node.score is None, -_value(node), node.path


def _settled(score: float) -> float:
    """A score without the digits that depend on the other requests in the batch."""
    return float(f"{score:.{SCORE_DIGITS}g}")
