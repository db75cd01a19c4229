"""Every controller of the package keeps the contract, in each of its modes."""

import pytest

from scaffolding_ext import registry
from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.basic.best_of_n import BestOfNController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.basic.process_reward import ProcessRewardController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queue_aware_budget import QueueAwareBudgetController
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController, DynasorGenerationController
from scaffolding_ext.controllers.chain.probing import ProbeSchedule
from scaffolding_ext.controllers.chain.stopping.agreement import Window
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.prompting import next_turn
from scaffolding_ext.controllers.reward import RewardController
from scaffolding_ext.controllers.tree.expand import WorkerExpander
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.vote.allocation.leader_change import Curtailment
from scaffolding_ext.controllers.vote.deepconf import DeepConfController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.record_chain import RecordChainController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.plugins.opentelemetry import Telemetry
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol.task_results import output_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.testing.controller_contract import CONTROLLER_CHECKS, contract_reply
from scaffolding_ext.testing.doubles import ScriptedWorker

SCORING = {
    RewardController,
    ProcessRewardController,
}  # they judge what others wrote, and write nothing
NEEDS_LOGPROBS = {DeepConfController, RecordChainController}  # the contract's script has none


PLAN = PlannedBudgets.of(Demand((TaskType("all", 1.0, A=0.5, b=0.02, D=0.3, t0=0.2, c=0.01),), 0.3, 30, 400))


class LongestFirst(BaseController):
    """Scores a text by its length."""

    scores = None

    def process(self, tasks, **kwargs):
        self.scores = [len(task.output_str) for task in tasks]
        yield []


def branching(*args, **kwargs):
    """Branches that are scored without log-probabilities, which the contract's script has not."""
    return KVShareBranchingController(*args, scorer=LongestFirst(), max_tokens=400, **kwargs)


def search(strategy, **kwargs):
    """A search over steps of 60 tokens, the longest of which are best."""
    arguments = {"steps": 60, "budget": 12, "max_tokens": 400, **kwargs}
    return SearchController(strategy, LongestFirst(), **arguments)


CONTROLLERS = {
    "native": NativeGenerationController,
    "native_streaming": lambda: NativeGenerationController(streaming=True),
    "dynasor_stream": lambda: DynasorCoTController(rule="consecutive", chunk_size=24),
    "dynasor_streaming": lambda: DynasorCoTController(rule="consecutive", chunk_size=24, streaming=True),
    "dynasor_chunk": lambda: DynasorCoTController(rule="consecutive", chunk_size=24, mode="chunk"),
    "dynasor_chunk_in_turn": lambda: DynasorCoTController(
        rule="consecutive", chunk_size=24, mode="chunk", overlap=False
    ),
    "dynasor_window": lambda: DynasorCoTController(chunk_size=24, rule=Window(share=0.5)),
    "dynasor_geometric": lambda: DynasorCoTController(rule="consecutive", schedule=ProbeSchedule(8, growth=1.5)),
    "dynasor_to_the_end": lambda: DynasorCoTController(rule="consecutive", chunk_size=24, certainty_threshold=99),
    "dynasor_out_of_budget": lambda: DynasorCoTController(max_tokens=60, chunk_size=24, certainty_threshold=99),
    "dynasor_alias": lambda: DynasorGenerationController(chunk_size=24),
    "conformal_conditional": lambda: ConformalDraftTargetController(
        coverage="conditional", alpha=0.4, draft_tokens=40, target_tokens=40, num_chains=4
    ),
    "conformal_continue": lambda: ConformalDraftTargetController(
        coverage="conditional", alpha=0.4, draft_tokens=40, target_tokens=40, num_chains=2, on_reject="continue"
    ),
    "branching": lambda: branching(3),
    "branching_in_other_words": lambda: branching(
        3, expander=WorkerExpander(phrasings=["{question}", "Well, {question}"])
    ),
    "branching_over_chains": lambda: branching(3, expander=DynasorCoTController(rule="consecutive", chunk_size=24)),
    "search_beam": lambda: search({"type": "Beam", "args": {"width": 3, "keep": 2, "max_depth": 4}}),
    "search_dvts": lambda: search("DVTS"),
    "search_rebase": lambda: search({"type": "Rebase", "args": {"width": 3}}, selector="vote"),
    "search_best_first": lambda: search("BestFirst", stop="unchanged"),
    "search_mcts": lambda: search({"type": "MCTS", "args": {"rollouts": True}}),
    "search_over_chains": lambda: search("BestOfN", expander=DynasorCoTController(rule="consecutive", chunk_size=24)),
    "vote_of_searches": lambda: MajorityVoteController(search({"type": "Beam", "args": {"width": 2}}), 2),
    "budget_cut": lambda: BudgetForcingController(40),
    "budget_unused": lambda: BudgetForcingController(4000),
    "budget_exact": lambda: BudgetForcingController(40, exact=True),
    "budget_of_a_controller": lambda: BudgetForcingController(
        60, DynasorCoTController(rule="consecutive", chunk_size=24)
    ),
    "budget_by_queue": lambda: QueueAwareBudgetController(PLAN),
    "vote": lambda: MajorityVoteController(NativeGenerationController(), 3, allocation=None),
    "vote_in_rounds": lambda: MajorityVoteController(NativeGenerationController(), 3, allocation=Curtailment()),
    "vote_of_streams": lambda: MajorityVoteController(
        DynasorCoTController(rule="consecutive", chunk_size=24), 3, allocation=Curtailment()
    ),
    "vote_of_votes": lambda: MajorityVoteController(MajorityVoteController(NativeGenerationController(), 2), 2),
    "best_of_n": lambda: BestOfNController(NativeGenerationController(), LongestFirst(), 3),
    "best_of_votes": lambda: BestOfNController(
        MajorityVoteController(DynasorCoTController(rule="consecutive", chunk_size=24), 2), LongestFirst(), 2
    ),
}


@pytest.mark.filterwarnings("ignore:the take-over rule. coverage 'conditional'")
@pytest.mark.parametrize("name", CONTROLLERS)
def test_contract(name):
    for check in CONTROLLER_CHECKS:
        check(CONTROLLERS[name])


def test_no_controller_is_left_out():
    checked = {type(make()) for make in CONTROLLERS.values()}
    known = {registry.controllers.resolve(name) for name in registry.controllers.names()}
    assert {
        factory for factory in known if factory.__module__.startswith("scaffolding_ext.")
    } <= checked | SCORING | NEEDS_LOGPROBS


MARKER = "xylophone"
WITH_LOGPROBS = {
    "deepconf": lambda: DeepConfController(3, warm_up_sample_num=2, group_size=16, max_tokens=80),
    "record_chain": lambda: RecordChainController(DynasorCoTController(rule="consecutive", chunk_size=24)),
}


def marked_reply(task):
    """Every word that it writes is the marker."""
    if isinstance(task, ScoreTask):
        return contract_reply(task)
    return f"{MARKER}}}" if task.input_str.endswith("{") else f"{MARKER} is {MARKER}.\n" * 9 + f"\\boxed{{{MARKER}}}"


@pytest.mark.filterwarnings("ignore:the take-over rule. coverage 'conditional'")
def test_no_span_holds_what_was_asked_or_answered():
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = in_memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    worker = ScriptedWorker(marked_reply, logprobs=lambda task, index: dict.fromkeys(range(128), -5.0))
    workers = dict.fromkeys(("generation", "draft", "target", "reward"), worker)
    telling = []
    for name, make in (CONTROLLERS | WITH_LOGPROBS).items():
        with ScaffoldingLlm(make(), workers, seed=0, telemetry=Telemetry(provider)) as llm:
            assert MARKER in llm.generate(f"Which {MARKER}?").outputs[0].text
        spans = exporter.get_finished_spans()
        assert spans
        texts = [f"{span.name} {dict(span.attributes)} {span.events} {span.status.description}" for span in spans]
        telling += [name] if MARKER in "".join(texts) else []
        exporter.clear()
    assert not telling


class AskingAgain(BaseController):
    """Asks a second time in the same conversation."""

    def __init__(self, prompting: Prompting | None = None) -> None:
        super().__init__()
        self.generation_controller = NativeGenerationController()
        self.prompting = prompting

    def run(self, task, **kwargs):
        yield from self.generation_controller.process([task], **kwargs)
        last = next_turn(task, "Are you sure?")
        yield from self.generation_controller.process([last], **kwargs)
        finish(task, output_of(last), last.output_tokens)


def test_a_controller_that_asks_again_keeps_the_contract_with_the_prompting_that_it_names():
    for check in CONTROLLER_CHECKS:
        check(lambda: AskingAgain(Prompting.for_model("tinylm/target")))


def test_without_a_prompting_the_error_of_a_further_turn_says_the_line():
    with pytest.raises(ConfigError, match=r"controller.prompting = Prompting.for_model.*contract.*tinylm/target"):
        CONTROLLER_CHECKS[0](AskingAgain)
