"""Any strategy, budget, scorer and faults: a search ends, keeps its budget, and answers with a judged, uncut leaf."""

import random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.tree.rounds import Rounds
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.strategies.adaptive_branching import AdaptiveBranching
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.tree.strategies.best_first import BestFirst
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.controllers.tree.strategies.dvts import DVTS
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.particle_filter import ParticleFilter
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.errors import ConfigError, ScaffoldingExtError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.lowering import lower_branch, write_back_branch
from scaffolding_ext.protocol.meta import TokenCounts, note
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.request.program import Lifetime
from scaffolding_ext.testing import ScriptedWorker
from tests.controllers.tree.characters import Characters

SECONDS = 100.0


class Faulty(ScriptedWorker):
    """Writes steps of a letter and solutions of a few steps. By chance it is slow, fails, or writes nothing.

    Args:
        seed: Of its chances; they follow from a task, not from the order in which tasks arrive.
        faults: Chance that a task fails.
        silence: Chance that a text comes back empty.
        seconds: By how many seconds at most a task takes longer than one, on the clock.
        tells: Whether it tells log-probabilities.
    """

    def __init__(self, seed, faults, silence, seconds, tells):
        super().__init__("never scripted")
        self.seed, self.faults, self.silence, self.seconds, self.tells = seed, faults, silence, seconds, tells
        self.now = 0.0

    def _rng(self, ids, seed):
        rng = random.Random(f"{self.seed} {ids} {seed}")
        self.now += 1.0 + self.seconds * rng.random()
        if rng.random() < self.faults:
            raise RuntimeError("the worker is gone")
        return rng

    def _write(self, task):
        rng = self._rng(task.input_tokens, task.seed)
        text = ""
        while rng.random() > self.silence:
            text = "".join(f"{rng.choice('ab')}\n\n" for _ in range(rng.randrange(4)))
            text += rf"\boxed{{{rng.randrange(3)}}}" if rng.random() < 0.6 else "so be it"
            break
        at = min((text.find(stop) + len(stop) for stop in task.stop or () if stop in text), default=len(text))
        text = text[:at][: task.max_tokens]
        task.finish_reason = "length" if len(text) == task.max_tokens else "stop"
        task.output_str, task.output_tokens = text, list(map(ord, text))
        if task.num_logprobs and self.tells:
            task.logprobs = [{token: TokenLogprob(-rng.random())} for token in task.output_tokens]
        note(task, counts=TokenCounts(len(text), len(task.input_tokens)))

    async def _generate(self, task):
        self._write(task)
        return TaskStatus.SUCCESS

    async def _branch(self, task):
        pieces = lower_branch(task)
        for piece in pieces:
            self._write(piece)
        write_back_branch(task, pieces)
        num_written = sum(len(piece.output_tokens) for piece in pieces)
        note(task, counts=TokenCounts(num_written, sum(len(piece.input_tokens) for piece in pieces)))
        return TaskStatus.SUCCESS

    async def _verify(self, task):
        task.scores = [self._rng(branch, 0).random() for branch in task.branches]
        note(task, counts=TokenCounts(0, sum(map(len, task.branches))))
        return TaskStatus.SUCCESS

    task_handlers = {GenerationTask: _generate, BranchTask: _branch, VerifyTask: _verify}  # noqa: RUF012


class Judge(BaseController):
    """Scores texts by chance, in a range; it may give no number."""

    def __init__(self, least, most, gives_nan):
        super().__init__()
        self.least, self.most, self.gives_nan, self.scores = least, most, gives_nan, None

    def process(self, tasks, **kwargs):
        rngs = [random.Random(task.output_str) for task in tasks]
        self.scores = [
            float("nan") if self.gives_nan and rng.random() < 0.02 else rng.uniform(self.least, self.most)
            for rng in rngs
        ]
        yield []


def few(least, most):
    return st.integers(least, most)


STRATEGIES = st.one_of(
    st.builds(lambda width, keep, **rest: Beam(width, min(width, keep), **rest), few(1, 5), few(1, 3),
              max_depth=few(1, 5), ended=st.sampled_from(["compete", "leave"])),
    st.builds(DVTS, few(1, 3), few(1, 3), few(1, 5)),
    st.builds(Rebase, few(1, 6), st.sampled_from(["paper", "code"]), max_depth=few(1, 5)),
    st.builds(ParticleFilter, few(2, 5), st.sampled_from(["systematic", "multinomial"]),
              st.sampled_from(["last", "product"]), st.sampled_from(["stay", "resampled"]), st.sampled_from([0.0, 0.5]),
              few(1, 3), few(1, 5)),
    st.builds(BestFirst, few(1, 3), few(1, 4), few(1, 5), st.booleans()),
    st.builds(BestOfN, few(1, 6)),
    st.builds(MCTS, few(1, 3), rollouts=st.booleans(), at_once=few(1, 4), max_depth=few(1, 5)),
    st.builds(AdaptiveBranching, st.sampled_from(["gaussian", "beta", "widening"]), at_once=few(1, 4),
              saturation=st.sampled_from([0.75, 1.0]), max_depth=few(1, 5)),
)  # fmt: skip
SCORERS = st.one_of(
    st.sampled_from(["mean_logprob", "random", "verdict"]),
    st.builds(Judge, st.sampled_from([-5.0, 0.0]), st.sampled_from([-0.5, 0.5, 1.0]), st.booleans()),
)
STOPS = st.sampled_from([None, "agreement", "unchanged", "accepted", ["certaindex", "agreement"]])
BUDGETS = st.fixed_dictionaries(
    {},
    optional={
        "nodes": few(1, 40),
        "tokens": few(1, 300),
        "computed_tokens": few(1, 900),
    },
).filter(bool)
SEARCHES = st.fixed_dictionaries(
    {
        "strategy": STRATEGIES,
        "scorer": SCORERS,
        "budget": BUDGETS,
        "stop": STOPS,
        "selector": st.sampled_from(["best", "vote", {"type": "vote", "args": {"weight": "visits"}}]),
        "steps": st.sampled_from([{"ends": ["\n\n"], "max_tokens": 5}, 3]),
        "insist_on_answer": st.booleans(),
        "has_deadline": st.booleans(),
    }
)
WORKERS = st.builds(
    Faulty, few(0, 10**6), st.sampled_from([0.0, 0.0, 0.02]), st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([0.0, 3.0, 30.0]), st.sampled_from([True, True, True, False]),
)  # fmt: skip


def check(arguments, worker, rounds):
    """Run one search, and hold it to what every search promises.

    Args:
        arguments: Of the controller, and if the request has a deadline.
        worker: Writes, and moves the clock.
        rounds: The share of the budget that was used at the beginning of each round is appended.
    """
    arguments = dict(arguments)
    has_deadline = arguments.pop("has_deadline")
    try:
        controller = SearchController(**arguments)
    except ConfigError:
        return  # these do not go together
    controller.prompting = Characters()
    used, roots, ask, asked = [], [], Strategy.ask, Rounds._asked

    def strategy_asks(strategy, most=None):
        roots.append(strategy.root)
        return ask(strategy, most)

    def rounds_ask(search):
        share = search.parts.budget.used(search.spent)
        nodes = asked(search)
        used.extend([share] if nodes else [])
        return nodes

    with (
        patch.object(Lifetime, "left", property(lambda _: SECONDS - worker.now if has_deadline else None)),
        patch.object(Strategy, "ask", strategy_asks),
        patch.object(Rounds, "_asked", rounds_ask),
        ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm,
    ):
        result = llm.generate_async("What?", timeout=20)
        error = result.exception(20)
    rounds += used
    assert all(share < 1 for share in used), "a round began when the budget was used up"
    tree = next((event for event in result.program.trace if event["event"] == "tree"), None)
    if error is not None:
        assert isinstance(error, ScaffoldingExtError), repr(error)
        assert tree is not None or not used
        return
    limit = controller.budget.nodes
    assert limit is None or tree["num_nodes"] <= limit
    nodes = {node.path: node for node in roots[0].subtree() if node.depth}
    winner = nodes[tree["winner"]]
    leaves = [node for node in nodes.values() if node.is_whole and not node.is_cut]
    judged = [node for node in leaves if node.score is not None]
    assert not winner.is_cut
    assert winner in (judged or leaves or nodes.values())
    assert not any(each.is_cut for each in winner.ancestors() if each.depth)


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


LATE = {  # the whole second round is late
    "strategy": DVTS(1, 3, 2),
    "scorer": "verdict",
    "budget": {"nodes": 5},
    "has_deadline": True,
    "steps": {"ends": ["\n\n"], "max_tokens": 5},
    "insist_on_answer": False,
}


@settings(max_examples=60, derandomize=True, **QUIET)
@given(SEARCHES, WORKERS)
@example(LATE, Faulty(0, 0.0, 0.0, 30.0, True))
def test_a_search_ends_within_its_budget_with_a_judged_and_uncut_leaf(arguments, worker):
    check(arguments, worker, [])


@pytest.mark.slow
def test_ten_thousand_rounds_of_any_search():
    rounds = []

    @settings(max_examples=6000, **QUIET)
    @given(SEARCHES, WORKERS)
    def examples(arguments, worker):
        check(arguments, worker, rounds)

    examples()
    assert len(rounds) >= 10_000
