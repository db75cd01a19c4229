"""Search over a tree of steps: a strategy chooses nodes to expand, an expander writes them, a scorer judges them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from scaffolding_ext import require
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.prompting import longest_len, prompt_family
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.tree.answer import choose, exit_reason, record_tree
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.closing import ANSWER_LEN
from scaffolding_ext.controllers.tree.expand import ControllerExpander, Expander, WorkerExpander
from scaffolding_ext.controllers.tree.rounds import Rounds, SearchParts
from scaffolding_ext.controllers.tree.score import Scorer
from scaffolding_ext.controllers.tree.select import Selector
from scaffolding_ext.controllers.tree.steps import StepEnds
from scaffolding_ext.controllers.tree.stops import Budget, Certaindex, SearchStop
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.vote.sampler import ensure_sampling
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.sampling_params import apply_sampling_params, checked_sampling_params
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.registry import search_expanders, search_scorers, search_selectors, search_stops, search_strategies
from scaffolding_ext.request.program import next_seed


class SearchController(BaseController):
    """Searches a tree of steps for a solution, and answers with the best or the most frequent one.

    Every part is an object, its name, or `{type, args}`, in Python and in stack files. The search ends when its
    strategy or a stop ends it, or when its budget is used up. If no solution has ended by then, the answer of the best
    leaf is forced.

    Args:
        strategy: Chooses nodes to expand, and how often.
        scorer: Scores nodes: a scorer, or any reward controller.
        expander: Writes the steps: an expander, or any controller; None is the worker `generation`.
        selector: Chooses the leaf that is the answer.
        stop: Ends the search once it has seen enough: a stop, or a list of stops, any of which ends it.
        widths: Increasing widths: solutions (REBASE, in one tree; best of n; particle filter), iterations, each to the
            end of a solution (MCTS with rollouts), or nodes (the others). `stop` is asked between them.
        budget: `{nodes, tokens, computed_tokens}`, or a number of nodes.
        steps: End of a step: `{ends, max_tokens}`, or a number of tokens.
        max_tokens: Tokens of a solution from the root to its end.
        insist_on_answer: Force the answer of a leaf without one.
        sampling_params: Sampling fields of the steps; the temperature is 0.7 by default.

    Raises:
        ConfigError: Parts conflict.

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
        insist_on_answer: bool = True,
        sampling_params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.strategy: Strategy = search_strategies.build(strategy, "strategy")
        self.scorer: Scorer = search_scorers.build(scorer, "scorer")
        writer: Expander = search_expanders.build("worker" if expander is None else expander, "expander")
        self.expander = cast("Expander", writer.clone())  # the search sets its attributes
        self.selector: Selector = search_selectors.build(selector, "selector")
        given = stop if isinstance(stop, list | tuple) else [] if stop is None else [stop]
        self.stops = tuple(search_stops.build(each, "stop") for each in given)
        self.widths = _checked_widths(widths, self.stops)
        for before, width in itertools.pairwise((0, *self.widths)):
            self.strategy.wider(before, width)  # refuses a width that it cannot grow to
        if self.widths:
            self.strategy = self.strategy.of_width(self.widths[-1]) or self.strategy
        self.budget = Budget.of(budget)
        self.steps = StepEnds.of(steps)
        self.max_tokens = require.whole("max_tokens", max_tokens)
        self.insist_on_answer = insist_on_answer
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens",))
        self.expander.needs = self.expander.needs._replace(num_logprobs=int(bool(self.scorer.needs.num_logprobs)))
        self._check_together()
        writes = isinstance(self.expander, WorkerExpander)
        self.needs = Needs(tags=(WorkerTag.GENERATION,) if writes or insist_on_answer else (), fields=CHAIN_FIELDS)

    def _check_together(self) -> None:
        whole = self.strategy.max_depth == 1
        if not self.expander.writes_steps and not whole:
            raise ConfigError("needs steps, and the expander writes whole branches: leave it out", "strategy")
        if isinstance(self.expander, ControllerExpander) and self.sampling_params:
            raise ConfigError("belong to the controller that writes the branches; set them there", "sampling_params")
        limits = [self.strategy.most_leaves, self.budget.nodes, *self.widths[-1:]]
        most = min((limit for limit in limits if limit is not None), default=None)
        for stop in self.stops:
            if isinstance(stop, Certaindex) and most is not None and stop.every >= most:
                raise ConfigError(
                    f"is {stop.every} leaves, and the search ends {most} at most, so it never stops early: give a "
                    "smaller number, or a wider search",
                    "stop.every",
                )

    @property
    def draws_alike(self) -> bool:
        """True if two branches begin alike, so that only sampling makes them differ."""
        num_first = getattr(self.strategy, "num_samples", None) if self.strategy.max_depth == 1 else None
        if num_first == 1:
            return False
        return (
            num_first is None or not isinstance(self.expander, WorkerExpander) or self.expander.draws_alike(num_first)
        )

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        run = Run(self, task)
        root = self.root(run, sampling_params)
        rounds = Rounds(run, self._parts, root)
        winner: Branch | None = None
        try:
            yield from rounds.meter.watch(rounds.grow())
            winner = yield from choose(run, rounds)
        finally:
            record_tree(run, rounds, winner)
        rounds.closings.write_out(task, winner, exit_reason(rounds, winner))

    def root(self, run: Run, sampling_params: Mapping[str, Any]) -> Branch:
        """Return the root of a request's tree, with its prompt, sampling fields and budget."""
        task = run.task
        run.set(sampling_params)
        prompt = copy.copy(task)
        prompt.streaming_output_flag = False
        apply_sampling_params(prompt, self.sampling_params)
        if prompt.seed is None:
            prompt.seed = next_seed()  # one for the whole tree
        self.scorer.prepare(prompt)
        beginnings = self.expander.beginnings(prompt)
        if self.draws_alike and isinstance(self.expander, WorkerExpander):
            ensure_sampling(self)([prompt])
        longest = max((task, *beginnings.wordings), key=lambda each: len(each.input_tokens or ()))
        max_tokens = self._branch_budget(longest, beginnings.hints)
        return Branch(prompt, (), max_tokens, beginnings=beginnings)

    @property
    def _parts(self) -> SearchParts:
        return SearchParts(
            self.strategy,
            self.scorer,
            self.expander,
            self.selector,
            self.stops,
            self.widths,
            self.budget,
            self.steps,
            self.insist_on_answer,
        )

    def _branch_budget(self, task: GenerationTask, hints: Sequence[str]) -> int:
        wanted = self.max_tokens if task.max_tokens is None else min(task.max_tokens, self.max_tokens)
        reserved = longest_len("", *hints)
        if self.insist_on_answer:
            family = prompt_family()
            reserved += max(self.scorer.reserved(), longest_len(family.close, family.close_closed) + ANSWER_LEN)
        else:
            reserved += self.scorer.reserved()
        return self.budget_within_context(WorkerTag.GENERATION, task, wanted, reserved)


def _checked_widths(widths: Sequence[int] | None, stops: Sequence[SearchStop]) -> tuple[int, ...]:
    """Return the increasing widths; empty if the search does not grow.

    Raises:
        ConfigError: They do not increase, or no stop decides between them.
    """
    found = tuple(require.whole(f"widths.{number}", width) for number, width in enumerate(widths or ()))
    if widths is not None and (not found or any(b <= a for a, b in itertools.pairwise(found))):
        raise ConfigError(f"is {list(widths)!r}; give increasing whole numbers, such as [4, 8, 16]", "widths")
    if found and not stops:
        raise ConfigError("needs a stop that decides if the search grows: give stop, such as agreement", "widths")
    return found
