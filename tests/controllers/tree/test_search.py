"""Searches: what is asked of workers, what ends them, what they answer, what goes wrong, and that trees repeat."""

import asyncio
import copy
import itertools
import math
import random
import string

import pytest

from scaffolding_ext.controllers.base import BaseController, side_by_side
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.reward import RewardController
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.select import Leaf, Vote
from scaffolding_ext.controllers.tree.steps import StepEnds
from scaffolding_ext.controllers.tree.stops import Certaindex, Look
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError, NoOutputError, RequestTimeoutError, TaskError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.host.request import abort
from scaffolding_ext.protocol import GenerationTask, RewardTask, TaskStatus, current_scope
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.lowering import lower_branch, write_back_branch
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, note, token_counts_of
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.protocol.tasks import REWARD, KeepKVTask
from scaffolding_ext.request.program import Lifetime
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.testing.doubles import Gate
from scaffolding_ext.workers.checker import CheckWorker
from tests.controllers.tree.characters import END, Characters

STRATEGIES = [
    "AdaptiveBranching",
    "Beam",
    "BestFirst",
    "BestOfN",
    "DVTS",
    "MCTS",
    "ParticleFilter",
    "Rebase",
]


class Stepper(ScriptedWorker):
    """Writes steps `aN` with blank lines between them, and a box after a few, by the task's seed and its prefix.

    Args:
        num_steps: Of a solution.
        answers: Whether solutions end in a box.
        before: As for every scripted worker.
        num_answers: How many answers there are.
        letters: A step is one of them and a number.
        keeps_stop: Whether the tokens of a stop string stay in the ids, as this package's engine does it.
    """

    def __init__(self, num_steps=3, answers=True, before=None, keeps_stop=True, num_answers=3, letters="abc"):
        super().__init__("never scripted", before=before)
        self.num_answers, self.letters = num_answers, letters
        self.num_steps, self.answers, self.keeps_stop = num_steps, answers, keeps_stop

    def _whole(self, written, seed):
        rng = random.Random(f"{written} {seed}")
        text = ""
        for number in range(written.count("\n\n"), self.num_steps):
            text += f"{rng.choice(self.letters)}{number}\n\n"
        return text + (rf"\boxed{{{rng.randrange(self.num_answers)}}}" if self.answers else "so be it")

    def _serve(self, task):
        prompt = "".join(map(chr, task.input_tokens))
        if task.worker_tag == "generation" and prompt.endswith("{"):
            ids = [*map(ord, "9}"), END]
        else:
            ids = [*map(ord, self._whole(prompt.partition("?")[2], task.seed)), END]
        ids = ids[: task.max_tokens]
        task.finish_reason = "stop" if ids[-1:] == [END] else "length"
        text = Characters().decode(ids)
        stops = [task.stop] if isinstance(task.stop, str) else task.stop or []
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            at = min(found)
            ids = ids[: at + (2 if self.keeps_stop else 0)]
            text, task.finish_reason = text[:at], "stop"
        task.output_tokens, task.output_str = ids, text
        if task.num_logprobs:
            rng = random.Random(f"{text} {task.seed}")
            task.logprobs = [{token: TokenLogprob(-rng.random())} for token in ids]
        note(task, counts=TokenCounts(len(ids), len(task.input_tokens)))

    async def _generate(self, task):
        await self._arrive(task)
        self._serve(task)
        return TaskStatus.SUCCESS

    async def _branch(self, task):
        await self._arrive(task)
        pieces = lower_branch(task)
        for piece in pieces:
            self._serve(piece)
        write_back_branch(task, pieces)
        note(task, counts=TokenCounts(*map(sum, zip(*map(token_counts_of, pieces), strict=True))))
        return TaskStatus.SUCCESS

    async def _verify(self, task):
        await self._arrive(task)
        task.scores = [random.Random(str(branch)).random() for branch in task.branches]
        note(task, counts=TokenCounts(0, sum(map(len, task.branches))))
        return TaskStatus.SUCCESS

    task_handlers = {GenerationTask: _generate, BranchTask: _branch, VerifyTask: _verify}  # noqa: RUF012


class Plain(Stepper):
    """Serves plain generation alone."""

    task_handlers = {GenerationTask: Stepper._generate}  # noqa: RUF012


class Judge(BaseController):
    """Scores texts by a function."""

    def __init__(self, function):
        super().__init__()
        self.function, self.scores = function, None

    def process(self, tasks, **kwargs):
        self.scores = [self.function(task.output_str) for task in tasks]
        yield []


def searched(controller, worker=None, prompt="What?", workers=None, **arguments):
    controller.prompting = Characters()
    with ScaffoldingLlm(controller, {"generation": worker or Stepper(), **(workers or {})}, seed=0) as llm:
        return llm.generate(prompt, **{"timeout": 30, **arguments})


def tree_of(result):
    (tree,) = [event for event in result.program.trace if event["event"] == "tree"]
    return tree


def of_type(worker, kind):
    return [task for task in worker.tasks if type(task) is kind]


@pytest.mark.parametrize(
    ("strategy", "scorer"), [*zip(STRATEGIES, itertools.cycle(["mean_logprob", "verdict", "random"]), strict=False)]
)
def test_every_strategy_ends_with_an_answer(strategy, scorer, events):
    result = searched(SearchController(strategy, scorer, budget=40))
    tree = tree_of(result)
    assert tree["reason"] in ("finished", "budget")
    assert tree["winner"] is not None
    assert result.outputs[0].answer in {"0", "1", "2", "9"}
    assert rf"\boxed{{{result.outputs[0].answer}}}" in result.outputs[0].text.replace("{\n", "{")
    assert tree["num_nodes"] <= 40
    paths = [tuple(path) for each in events(result, "branches") for path in each["paths"]]
    assert len(paths) == len(set(paths)) == tree["num_nodes"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_tree_is_the_same_alone_and_among_sixteen_and_on_a_plain_worker(strategy, events):
    def rounds(result):
        return [(each["paths"], each["answers"]) for each in events(result, "branches")], result.outputs[0].text

    controller = SearchController(strategy, "mean_logprob", budget=30)
    controller.prompting = Characters()
    prompts = [f"What {number}?" for number in range(16)]
    with ScaffoldingLlm(controller, {"generation": Stepper()}, seed=0, max_parallel_requests=16) as llm:
        asked = [llm.generate_async(prompt, sample_id=prompt, timeout=60) for prompt in prompts]
        together = [each.result() for each in asked]
    for worker in (Stepper(), Plain()):
        with ScaffoldingLlm(controller, {"generation": worker}, seed=0, max_parallel_requests=1) as llm:
            alone = [llm.generate(prompt, sample_id=prompt, timeout=60) for prompt in prompts]
        assert list(map(rounds, alone)) == list(map(rounds, together))


@pytest.mark.parametrize("keeps_stop", [True, False])
def test_steps_end_behind_their_text_and_carry_the_tokens_on(keeps_stop):
    worker = Stepper(keeps_stop=keeps_stop)
    result = searched(SearchController(Beam(3, 1), "mean_logprob"), worker)
    tasks = of_type(worker, BranchTask)
    read = [Characters().decode(task.prefix_tokens) for task in tasks]
    assert [each.count("\n\n") for each in read] == [0, 1, 2, 3]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(read))
    assert all(text.endswith("\n\n") for text in read[1:])
    assert result.outputs[0].text.count("\n\n") == 3
    assert len(result.outputs[0].token_ids) == len(result.outputs[0].text) + 1  # the end token
    assert all(task.depth == number + 1 for number, task in enumerate(tasks))
    assert len({seed for task in tasks for seed in task.seeds}) == 12


def test_of_beams_with_the_same_text_one_continues():
    class Copying(Stepper):
        def _whole(self, written, seed):
            rest = super()._whole(written, 0)
            return rest if written or seed % 2 else rest.replace("0", "0 by another way")

    worker = Copying()
    judge = Judge(lambda text: 0.4 if "another way" in text else 0.5)
    searched(SearchController(Beam(8, 2), judge), worker)
    read = [Characters().decode(task.prefix_tokens).partition("?")[2] for task in of_type(worker, BranchTask)]
    second = {text for text in read if text.count("\n\n") == 1}
    assert len(second) == 2
    assert sum("another way" in text for text in second) == 1


def test_steps_end_after_tokens_and_at_the_chains_own_marks():
    worker = Stepper()
    searched(SearchController(Beam(2, 1, max_depth=3), steps=2), worker)
    assert [task.max_tokens for task in of_type(worker, BranchTask)][:2] == [2, 2]
    assert of_type(worker, BranchTask)[0].stop is None
    assert of_type(worker, BranchTask)[2].max_tokens > 1000  # the last level is written to its end
    searched(SearchController(Beam(2, 1), steps={"ends": "marks"}), worker)
    assert "\nWait" in of_type(worker, BranchTask)[-1].stop
    for wrong in ({"ends": []}, {"ends": [""]}, {"max_tokens": 0}, {"end": "x"}, "\n\n"):
        with pytest.raises(ConfigError, match=r"steps|ends|max_tokens"):
            StepEnds.of(wrong)


def test_a_stop_of_the_request_ends_the_solution_not_the_step():
    result = searched(SearchController(Beam(2, 1), sampling_params={"stop": "1"}, insist_on_answer=False))
    assert "1" not in result.outputs[0].text
    assert tree_of(result)["depth"] <= 2


def test_a_budget_of_tokens_holds_and_counts_judges_and_leaves_are_closed(events):
    for tokens in (1, 3, 10, 40):
        result = searched(SearchController("MCTS", "mean_logprob", budget={"tokens": tokens}, steps=8))
        tree = tree_of(result)
        assert tree["reason"] == "budget"
        assert tokens <= tree["spent"]["tokens"] <= tokens + 4  # a node has a token at least
        assert result.outputs[0].answer is not None
    assert events(searched(SearchController("BestOfN", budget={"tokens": 5})), "force")[0]["answers"] == ["9"]


def test_leaves_that_end_without_an_answer_are_asked_for_it(events):
    result = searched(SearchController("Beam", selector="vote"), Stepper(answers=False))
    assert result.outputs[0].answer == "9"
    assert result.outputs[0].text.endswith(r"\boxed{9}$.")
    by_purpose = result.program.ledger.by_purpose
    assert by_purpose[Purpose.PROBE].decoded > 0
    kept = searched(SearchController("Beam", insist_on_answer=False), Stepper(answers=False))
    assert kept.outputs[0].answer is None


def test_scores_weigh_votes_and_the_first_that_is_accepted_wins(events):
    def judge(text):
        return {"0": 0.9, "1": 0.2, "2": 0.3}[text[-2]] if text.endswith("}") else 0.5

    best = searched(SearchController({"type": "BestOfN", "args": {"num_samples": 12}}, Judge(judge)))
    assert best.outputs[0].answer == "0"
    weighed = searched(
        SearchController({"type": "BestOfN", "args": {"num_samples": 12}}, Judge(judge), selector="vote")
    )
    (answer,) = events(weighed, "answer")
    totals = {}
    for given, value in zip(answer["answers"], answer["values"], strict=True):
        totals[given] = totals.get(given, 0) + value
    assert weighed.outputs[0].answer == max(totals, key=totals.get)


@pytest.mark.parametrize(
    "stop",
    [
        {"type": "certaindex", "args": {"thresholds": [{"measure": "max_reward", "at_least": 0.1}]}},
        {"type": "agreement"},
        {"type": "unchanged", "args": {"rounds": 2, "share": 0.3}},
        {"type": "accepted", "args": {"at_least": 0.2}},
        ["accepted", {"type": "unchanged", "args": {"rounds": 2, "share": 0.3}}],
    ],
)
def test_stops_end_a_search_before_its_budget(stop):
    free = searched(SearchController("MCTS", "mean_logprob", budget=60), Stepper(num_steps=1, num_answers=1))
    stopped = searched(
        SearchController("MCTS", "mean_logprob", budget=60, stop=stop), Stepper(num_steps=1, num_answers=1)
    )
    assert tree_of(stopped)["reason"] == "stopped"
    assert tree_of(stopped)["num_nodes"] < tree_of(free)["num_nodes"]
    assert stopped.outputs[0].exit_reason == "certain"


def test_any_controller_writes_and_judges_and_a_search_is_a_votes_sample(events):
    over_chains = SearchController(
        {"type": "BestOfN", "args": {"num_samples": 3}}, "mean_logprob", expander=NativeGenerationController()
    )
    assert searched(over_chains, Plain()).outputs[0].answer in "012"
    steps = SearchController(
        Beam(2, 1, max_depth=3),
        "mean_logprob",
        steps=4,
        expander={"type": "controller", "args": {"controller": NativeGenerationController(), "writes_steps": True}},
    )
    result = searched(steps, Plain())
    assert next(each["num_tokens"] for each in events(result, "branches")) == [4, 4]
    assert result.outputs[0].answer in "012"
    vote = MajorityVoteController(SearchController("Beam", budget=20), 3, allocation=None)
    result = searched(vote)
    assert len(events(result, "vote")[0]["answers"]) == 3
    assert len(events(result, "tree")) == 3
    with pytest.raises(ConfigError, match="the expander writes whole branches"):
        SearchController("Beam", expander=DynasorCoTController())


def test_a_verdict_counts_under_verify():
    worker = Stepper()
    result = searched(SearchController("Beam", {"type": "verdict", "args": {"is_about_steps": True}}), worker)
    read = sum(token_counts_of(task).prefilled for task in of_type(worker, VerifyTask))
    assert result.program.ledger.by_purpose[Purpose.VERIFY].prefilled == read > 0
    assert Characters.family.step_verdict in Characters().decode(of_type(worker, VerifyTask)[0].branches[0])
    judged = RewardController(worker_tag="generation")
    assert searched(SearchController("Beam", judged)).outputs[0].answer is not None


def test_every_search_takes_the_weights_of_branches(events):
    plain, weighed = (
        searched(SearchController("Beam", scorer))
        for scorer in ("verdict", {"type": "verdict", "args": {"weighs_confidence": True}})
    )
    values, others = (events(each, "select")[0]["values"] for each in (plain, weighed))
    first = events(plain, "verify")[0]["scores"]
    assert values[: len(first)] == [float(f"{score:.4g}") for score in first], "the last digits hang on the batch"
    assert all(value < score for value, score in zip(others, values, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_judge_that_gives_no_number_is_an_error_by_name(value):
    with pytest.raises((NoOutputError, TaskError), match=r"a score is a finite number|branch"):
        searched(SearchController("Beam", Judge(lambda text: value)))


class Failing(ScriptedWorker):
    """A reward model that fails at its third call, or holds it."""

    def __init__(self, gate=None):
        super().__init__("never scripted")
        self.gate, self.num = gate, 0

    async def _reward(self, task):
        self.num += 1
        if self.num > 20:
            if self.gate is None:
                raise RuntimeError("the judge is gone")
            await self.gate(task)
        task.custom_output_params = {REWARD: 0.5}
        note(task, counts=TokenCounts(0, 3))
        return TaskStatus.SUCCESS

    task_handlers = {RewardTask: _reward}  # noqa: RUF012


def test_a_judge_that_fails_ends_the_request_with_its_error_and_the_tree_is_told():
    controller = SearchController("Rebase", RewardController())
    controller.prompting = Characters()
    with ScaffoldingLlm(controller, {"generation": Stepper(), "reward": Failing()}, seed=0) as llm:
        result = llm.generate_async("What?", timeout=30)
        with pytest.raises(TaskError, match="the judge is gone"):
            result.result()
        assert tree_of(result)["num_nodes"] > 16
        assert tree_of(result)["reason"] == "unfinished"


def test_a_judge_that_stalls_runs_into_the_time_out_and_the_tree_so_far_is_in_the_trace():
    gate = Gate()
    controller = SearchController("Rebase", RewardController())
    controller.prompting = Characters()
    with ScaffoldingLlm(controller, {"generation": Stepper(), "reward": Failing(gate)}, seed=0) as llm:
        result = llm.generate_async("What?")
        gate.wait_for()
        llm.loop.call_soon_threadsafe(abort, result, RequestTimeoutError("its time is over"))
        with pytest.raises(RequestTimeoutError):
            result.result(30)
        tree = tree_of(result)
        assert tree["num_nodes"] > 16
        assert tree["best"] is not None
        gate.open()
        assert llm.generate("Why?", timeout=30).outputs


def test_a_search_that_is_cancelled_in_mid_expansion_leaves_nothing_and_says_how_far_it_came():
    gate = Gate()
    worker = Stepper(before=gate)
    controller = SearchController("Beam")
    controller.prompting = Characters()
    with ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm:
        result = llm.generate_async("What?", timeout=30)
        gate.wait_for()
        result.cancel()
        gate.wait_for_cancelled()
        assert result.exception(30) is not None
        assert tree_of(result)["num_nodes"] == 8
        gate.open()
        assert llm.generate("Again?", timeout=30).outputs[0].answer is not None


def exact(job):
    """A checker as a user writes one."""
    assert job["prompt"].endswith("?")
    return 1.0 if job["text"].endswith("{1}") else 0.25


def hangs(job):
    while not job["text"].startswith("c"):
        pass
    return 0.5


def test_a_checker_of_the_users_scores_in_a_process_that_is_killed_when_it_hangs(events):
    strategy = {"type": "BestOfN", "args": {"num_samples": 6}}
    module = "math:fsum"
    with pytest.raises(ConfigError, match="module:function"):
        CheckWorker("fsum")
    assert module.count(":") == 1
    with CheckWorker(f"{__name__}:exact") as checker:
        result = searched(SearchController(strategy, "checker"), workers={"reward": checker})
    assert result.outputs[0].answer == "1"
    assert result.program.ledger.by_purpose.get(Purpose.VERIFY, TokenCounts()).decoded == 0
    with CheckWorker(f"{__name__}:hangs", deadline_seconds=1.0) as checker:
        result = searched(SearchController(strategy, "checker"), workers={"reward": checker}, timeout=120)
        (check,) = events(result, "check")
        assert check["overran"]
        assert {check["scores"][number] for (number,) in check["overran"]} == {0.0}
        assert result.outputs[0].text.startswith("c")
        refused = SearchController(strategy, {"type": "checker", "args": {"overrun": None}})
        with pytest.raises(NoOutputError, match="overran its deadline"):
            searched(refused, workers={"reward": checker}, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "Beem"}, "unknown search strategy 'Beem'"),
        ({"strategy": {"type": "Beam", "args": {"width": 2, "keep": 3}}}, r"strategy.*keep"),
        (
            {"strategy": {"type": "Beam", "args": {"depth": 3}}},
            r"strategy.args.depth: Beam takes no such argument \(did you mean 'max_depth'",
        ),
        ({"strategy": 3}, "give a search strategy, the name of one"),
        ({"scorer": "verdicts"}, "did you mean 'verdict'"),
        ({"budget": {"nodes": None}}, "has no limit"),
        ({"budget": {"token": 3}}, "budget.*give a mapping of nodes"),
        ({"budget": 0}, "budget: is 0; it must be at least 1"),
        ({"stop": {"type": "certaindex", "args": {"thresholds": "gsm8k"}}}, "thresholds"),
        ({"scorer": {"type": "verdict", "args": {"layer_exit": 3}}}, r"^scorer\.args\.layer_exit: "),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SearchController(**arguments)


def near_deadline(monkeypatch, condition):
    """Let a request's deadline be far, and nearly over for steps that are asked for once a condition holds."""
    monkeypatch.setattr(Lifetime, "left", property(lambda _: 0.75 if condition() else 1000.0))


class Stalls:
    """Holds some tasks for ever, as the `before` of a worker; remembers which of them were cancelled."""

    def __init__(self, which):
        self.which, self.cancelled = which, []

    async def __call__(self, task):
        if self.which(task):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled.append(task)
                raise


def test_a_step_that_stalls_is_cancelled_at_the_deadline_and_the_best_of_the_levels_above_wins(monkeypatch, events):
    stalls = Stalls(lambda task: type(task) is BranchTask and task.depth > 1)
    worker = Stepper(before=stalls, letters=string.ascii_letters)
    near_deadline(monkeypatch, lambda: worker.tasks)
    result = searched(SearchController(Beam(4, 2)), worker)
    tree = tree_of(result)
    assert len(stalls.cancelled) == 2  # a task a parent
    assert (tree["reason"], tree["num_nodes"], tree["num_leaves"]) == ("budget", 8, 0)
    (late,) = events(result, "late")
    assert len(late["paths"]) == 4
    values = dict(zip(*(events(result, "select")[0][name] for name in ("paths", "values")), strict=True))
    assert tree["winner"] == max(values, key=values.get)  # one of those whose children were late
    assert (result.outputs[0].answer, result.exit_reason) == ("9", "deadline")
    assert result.program.ledger.num_unmetered_tasks == 2


def test_what_a_stalled_task_had_decoded_is_counted_as_discarded(monkeypatch):
    class Slow(Stepper):
        async def _branch(self, task):
            if task.depth > 1:
                note(task, counts=TokenCounts(7, 3))
            return await super()._branch(task)

        task_handlers = {**Stepper.task_handlers, BranchTask: _branch}  # noqa: RUF012

    stalls = Stalls(lambda task: type(task) is BranchTask and task.depth > 1)
    worker = Slow(before=stalls, letters=string.ascii_letters)
    near_deadline(monkeypatch, lambda: worker.tasks)
    result = searched(SearchController(Beam(4, 2)), worker)
    ledger = result.program.ledger
    assert ledger.by_purpose[Purpose.DISCARDED].decoded == 2 * 7
    assert ledger.num_unmetered_tasks == 0


def test_what_was_done_beside_a_stalled_branch_counts(monkeypatch, events):
    """A request a branch: one of four never ends."""
    arrived = itertools.count()
    stalls = Stalls(lambda task: next(arrived) == 2)
    worker = Plain(before=stalls)
    near_deadline(monkeypatch, lambda: True)
    strategy = {"type": "BestOfN", "args": {"num_samples": 4}}
    result = searched(SearchController(strategy, selector="vote"), worker)
    assert len(stalls.cancelled) == 1
    assert events(result, "late")[0]["paths"] == [(2,)]
    assert events(result, "answer")[0]["paths"] == [(0,), (1,), (3,)]
    assert all(answer is not None for answer in events(result, "answer")[0]["answers"])
    assert tree_of(result)["num_leaves"] == 3


def test_a_branch_that_its_writer_cut_at_the_deadline_answers_though_nothing_can_score_it(events):
    class Hurried(NativeGenerationController):
        def process(self, tasks, **kwargs):
            yield from super().process(tasks, **kwargs)
            tasks[0].customized_result_fields["exit_reason"] = "deadline"
            tasks[0].logprobs = None  # as a forced answer leaves it

    strategy = {"type": "BestOfN", "args": {"num_samples": 3}}
    result = searched(SearchController(strategy, expander=Hurried({"temperature": 0.7})), Plain())
    assert events(result, "branches")[0]["finish_reasons"] == ["deadline"] * 3
    assert (result.outputs[0].answer is not None, result.exit_reason) == (True, "deadline")
    assert tree_of(result)["reason"] == "budget"


@pytest.mark.parametrize(
    "controller",
    [SearchController("Beam"), KVShareBranchingController(4), KVShareBranchingController(4, scorer="verdict")],
)
def test_where_the_first_step_stalls_the_answer_is_forced_out_of_the_question(monkeypatch, controller):
    worker = Stepper(before=Stalls(lambda task: type(task) is BranchTask))
    near_deadline(monkeypatch, lambda: True)
    result = searched(controller, worker)
    assert (result.outputs[0].answer, result.exit_reason) == ("9", "deadline")


def test_where_everything_stalls_the_search_says_that_it_wrote_nothing(monkeypatch):
    stalls = Stalls(lambda task: True)
    worker = Stepper(before=stalls)
    near_deadline(monkeypatch, lambda: True)
    with pytest.raises(NoOutputError, match="the search wrote nothing before the request's deadline"):
        searched(SearchController("Beam"), worker)
    assert {type(task) for task in stalls.cancelled} == {BranchTask, GenerationTask}


class EachApart(RewardController):
    """Judges each solution in a branch of its own."""

    def process(self, tasks, **kwargs):
        judges = [copy.copy(self) for _ in tasks]
        processes = [RewardController.process(judge, [task]) for judge, task in zip(judges, tasks, strict=True)]
        yield side_by_side(processes)
        self.scores = [judge.scores[0] for judge in judges]


@pytest.mark.parametrize("scorer", [RewardController, EachApart])
def test_a_judge_that_stalls_ends_the_search_with_what_was_judged(monkeypatch, events, scorer):
    gate = Gate()
    judge = Failing(gate)
    controller = SearchController("Rebase", scorer())
    near_deadline(monkeypatch, lambda: judge.num >= 16)
    result = searched(controller, workers={"reward": judge})
    gate.wait_for_cancelled()
    tree = tree_of(result)
    assert tree["reason"] == "budget"
    assert tree["num_nodes"] > 16
    judged = {
        path: value
        for each in events(result, "select")
        for path, value in zip(each["paths"], each["values"], strict=True)
    }
    assert judged[tree["best"]] == max(judged.values())
    assert result.outputs[0].answer is not None


@pytest.mark.parametrize("selector", ["best", "vote"])
def test_a_leaf_that_nobody_judged_never_beats_a_judged_one(monkeypatch, selector, events):
    """The judge stalls in the second round of whole solutions; those of the first are worth less than 0."""

    class Grim(Failing):
        async def _reward(self, task):
            status = await super()._reward(task)
            task.custom_output_params = {REWARD: -2.0}
            return status

        task_handlers = {RewardTask: _reward}  # noqa: RUF012

    judge = Grim(Gate())
    strategy = {"type": "MCTS", "args": {"branching": 40, "max_depth": 1}}
    controller = SearchController(strategy, RewardController(), selector=selector)
    near_deadline(monkeypatch, lambda: judge.num >= 20)
    result = searched(controller, workers={"reward": judge})
    tree = tree_of(result)
    judged = {path for each in events(result, "select") for path in each["paths"]}
    assert tree["num_leaves"] > len(judged) > 0
    assert tree["winner"] in judged
    assert tree["best"] in judged


def test_votes_weigh_negative_rewards_as_logits_and_equal_weights_alike():
    def chosen(values, weight="score", visits=(1.0, 1.0, 1.0)):
        return Vote(weight).choose([Leaf(*each) for each in zip((0, 1, 1), values, visits, strict=True)])

    assert chosen([-0.1, -3.0, -3.0]) == 0  # exp(-0.1) is above 2 exp(-3)
    assert chosen([-0.1, -0.3, -0.2]) == 2
    assert chosen([3.0, -1.0, 3.0]) == 2
    assert chosen([0.0, 0.0, 0.0]) == 1
    assert chosen([0.5, 0.5, 0.5], "visits", (0.0, 0.0, 0.0)) == 1
    result = searched(SearchController("Beam", Judge(lambda text: -len(text)), selector="vote"))
    assert result.outputs[0].answer is not None


class Mute(Stepper):
    """Writes nothing at all."""

    def _serve(self, task):
        task.output_tokens, task.output_str, task.finish_reason = [], "", "stop"
        task.logprobs = []
        note(task, counts=TokenCounts(0, 0))


@pytest.mark.parametrize("strategy", ["AdaptiveBranching", "MCTS", "BestFirst"])
@pytest.mark.parametrize("budget", ["tokens", "computed_tokens"])
def test_texts_that_come_back_empty_end_a_search(strategy, budget):
    controller = SearchController(strategy, "random", budget={budget: 24}, insist_on_answer=False)
    result = searched(controller, Mute())
    assert 0 < tree_of(result)["num_nodes"] <= 24
    assert result.outputs[0].text == ""


def test_the_solutions_that_may_still_end_are_bounded_by_the_strategy_and_by_the_budget(events):
    wide = searched(SearchController({"type": "Rebase", "args": {"width": 4}}, stop="agreement", budget=500))
    looks = events(wide, "look")
    assert looks
    assert all(look["num_left"] <= 4 - len(look["classes"]) for look in looks)
    short = searched(SearchController("MCTS", stop="agreement", budget=8), Stepper(num_steps=0, num_answers=9))
    assert events(short, "look")[0]["num_left"] == 4  # of 8 nodes 4 are solutions


def test_a_certaindex_that_looks_at_every_fourth_leaf_looks_at_no_others():
    def looks(classes):
        return Look([Leaf(number, 0.5) for number in classes], [], 9)

    stop = Certaindex([{"measure": "entropy", "at_least": 0.75}], every=4)
    assert not stop.is_enough(looks([0, 0, 0]))
    assert stop.is_enough(looks([0, 0, 0, 0]))
    assert stop.is_enough(looks([0, 0, 0, 0, 1, 2, 3]))
    assert Certaindex().every == 1


@pytest.mark.parametrize(
    ("strategy", "every"), [("Rebase", 16), ({"type": "BestOfN", "args": {"num_samples": 4}}, 4), ("MCTS", 64)]
)
def test_a_certaindex_that_could_never_end_a_search_is_refused(strategy, every):
    def stack(every):
        return SearchController(strategy, stop={"type": "certaindex", "args": {"every": every}})

    with pytest.raises(ConfigError, match=rf"^stop\.every: is {every} leaves, and the search ends {every} at most"):
        stack(every)
    assert stack(every - 1).stops


SAME = {"num_steps": 2, "num_answers": 1}
RISING = [3, 6, 12]


def widths_of(result):
    return [event["width"] for event in result.program.trace if event["event"] == "width"]


@pytest.mark.parametrize("strategy", ["Rebase", "BestOfN", "ParticleFilter"])
def test_a_narrow_search_grows_only_where_it_is_unsettled(strategy, events):
    """The width is the number of solutions; nothing is written twice."""
    controller = SearchController(strategy, "random", stop="certaindex", widths=RISING, budget=500)
    settled = searched(controller, Stepper(**SAME))
    assert (tree_of(settled)["reason"], tree_of(settled)["num_leaves"]) == ("stopped", 3)
    narrow = controller.strategy.of_width(3)
    alone = searched(SearchController(narrow, "random", budget=500), Stepper(**SAME))
    first = [each["paths"] for each in events(settled, "branches")]
    assert first == [each["paths"] for each in events(alone, "branches")]
    split = searched(controller, Stepper(num_steps=2, num_answers=30))
    assert (tree_of(split)["reason"], tree_of(split)["num_leaves"]) == ("finished", 12)
    assert widths_of(split) == [3, 6]
    written = [path for each in events(split, "branches") for path in each["paths"]]
    assert len(set(written)) == len(written)
    assert [path for path in written if len(path) == 1] == [(number,) for number in range(12)]
    assert all(visits >= 1 for visits in events(split, "answer")[0]["visits"])


def test_a_widened_rebase_is_one_tree_whose_old_nodes_get_further_children(events):
    """A second tree would have new nodes only below new ones."""
    controller = SearchController("Rebase", "random", stop="certaindex", widths=[6, 12], budget=500)
    split = searched(controller, Stepper(num_steps=4, num_answers=30))
    rounds = [[tuple(path) for path in each["paths"]] for each in events(split, "branches")]
    (wider,) = (at for at, paths in enumerate(rounds) if (6,) in paths)
    assert rounds[wider] == [(number,) for number in range(6, 12)]
    later = [path for paths in rounds[wider + 1 :] for path in paths]
    assert any(path[0] < 6 for path in later)
    assert any(path[0] >= 6 for path in later)
    assert tree_of(split)["num_leaves"] == 12


@pytest.mark.parametrize("strategy", ["MCTS", "BestFirst", "AdaptiveBranching"])
def test_the_width_of_a_search_that_goes_on_is_its_number_of_nodes(strategy):
    controller = SearchController(strategy, "random", stop="certaindex", widths=[8, 14, 18], budget=500)
    split = searched(controller, Stepper(num_steps=3, num_answers=30))
    assert (tree_of(split)["reason"], tree_of(split)["num_nodes"]) == ("finished", 18)
    assert widths_of(split) == [8, 14]
    settled = searched(controller, Stepper(num_steps=1, num_answers=1))
    assert tree_of(settled)["reason"] == "stopped"
    assert tree_of(settled)["num_nodes"] <= 14


def test_best_of_n_over_searches_grows_by_whole_searches(events):
    inner = SearchController(Beam(2, 1), "random", budget=20)
    controller = SearchController(
        "BestOfN", "random", expander=inner, stop={"type": "agreement"}, widths=[2, 4, 16], selector="vote"
    )
    settled = searched(controller, Stepper(**SAME))
    assert tree_of_outer(settled)["num_nodes"] < 16
    assert tree_of_outer(settled)["reason"] == "stopped"
    split = searched(controller, Stepper(num_steps=2, num_answers=60))
    assert len(events(split, "tree")) == 16 + 1


def tree_of_outer(result):
    return [event for event in result.program.trace if event["event"] == "tree"][-1]


def test_the_paper_reads_rebase_at_16_solutions_and_its_preset_fires_there(events):
    stop = {"type": "certaindex", "args": {"thresholds": "rebase_math"}}
    controller = SearchController("Rebase", "random", stop=stop, widths=[16, 32, 64], budget=1000)
    assert tree_of(searched(controller, Stepper(**SAME)))["num_leaves"] == 16
    with pytest.raises(ConfigError, match=r"^stop\.every: is 16 leaves, and the search ends 16 at most"):
        SearchController("Rebase", stop=stop)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widths": [4, 8]}, "^widths: needs a stop"),
        ({"widths": [4, 4], "stop": "agreement"}, "^widths: .*increasing whole"),
        ({"widths": [], "stop": "agreement"}, "^widths: .*increasing whole"),
        ({"widths": [0, 4], "stop": "agreement"}, r"^widths\.0"),
        ({"widths": [4, 8], "stop": "agreement", "strategy": "Beam"}, "^widths: Beam does not grow"),
        ({"widths": [4, 5], "stop": "agreement", "strategy": "ParticleFilter"}, "num_particles"),
    ],
)
def test_widths_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SearchController(**{"strategy": "Rebase", **arguments})


@pytest.mark.parametrize("strategy", ["AdaptiveBranching", "MCTS", "Rebase"])
def test_a_search_tells_its_progress_while_it_runs_without_a_stop(strategy, events):
    result = searched(SearchController(strategy, "random", budget=40), Stepper(num_steps=1, num_answers=2))
    looks = events(result, "look")
    assert [look["certaindex"] for look in looks] == [entropy_certaindex(look["classes"]) for look in looks]
    assert tree_of(result)["reason"] in ("finished", "budget")
    last = looks[-1]
    told = last["controller"], last["done"], last["left"], last["certaindex"]
    assert result.program.place.progress.steps == told
    assert (told[0], told[1] + told[2]) == ("SearchController", 40)
    if strategy in ("MCTS", "AdaptiveBranching"):
        assert any(0 < look["certaindex"] < 1 for look in looks)


MEAN_REWARD = {"measure": "mean_reward", "at_least": 0.1}
MOST_REWARD = {"measure": "max_reward", "at_least": 0.1}


@pytest.mark.parametrize(
    "rule",
    [
        {"type": "StaticThreshold", "args": {"threshold": 0, "reward_thresholds": [MOST_REWARD], "knob": 4}},
        {"type": "ThresholdEvery", "args": {"threshold": 0, "reward_thresholds": [MEAN_REWARD], "step": 2}},
        {"type": "LengthThreshold", "args": {"max_mean_length": 500, "knob": 4}},
    ],
)
def test_allocation_rules_that_read_rewards_or_lengths_end_a_search(rule):
    stop = {"type": "agreement", "args": {"rule": rule}}
    strategy = {"type": "MCTS", "args": {"at_once": 2}}
    result = searched(SearchController(strategy, "random", stop=stop, budget=60), Stepper(num_steps=1, num_answers=9))
    assert tree_of(result)["reason"] == "stopped"
    assert tree_of(result)["num_nodes"] < 40


class Keeping(Stepper):
    """Serves `KeepKVTask`, and refuses to write behind what it was told that nobody uses."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.kept = []

    async def _keep(self, task):
        self.kept.append([Characters().decode(ids) for ids in task.sequences])
        return TaskStatus.SUCCESS

    async def _branch(self, task):
        read = Characters().decode(task.prefix_tokens)
        assert not self.kept or read in self.kept[-1], "the search writes behind KV that it gave up"
        return await super()._branch(task)

    task_handlers = {**Stepper.task_handlers, BranchTask: _branch, KeepKVTask: _keep}  # noqa: RUF012


@pytest.mark.parametrize(
    ("strategy", "widths"),
    [*((name, None) for name in STRATEGIES), *((name, [4, 8]) for name in STRATEGIES if name not in ("Beam", "DVTS"))],
)
def test_a_search_tells_its_worker_which_kv_it_can_still_use(strategy, widths, events):
    stop = {"type": "unchanged", "args": {"rounds": 99}}
    controller = SearchController(strategy, "mean_logprob", budget=40, widths=widths, stop=widths and stop)
    worker = Keeping(num_steps=3)
    plain = searched(controller, Stepper(num_steps=3))
    result = searched(controller, worker)
    assert result.outputs[0].text == plain.outputs[0].text
    assert [each["paths"] for each in events(result, "branches")] == [
        each["paths"] for each in events(plain, "branches")
    ]
    assert result.program.ledger.num_unmetered_tasks == 0
    assert len(worker.kept) == (0 if strategy == "BestOfN" else len(events(result, "branches")) - 1)
    for kept in worker.kept:
        assert kept[0] == "What?"
        assert not any("boxed" in text for text in kept), "an ended solution is still held"


def test_a_beam_keeps_the_kv_of_its_beams_alone():
    worker = Keeping(num_steps=3)
    searched(SearchController(Beam(6, 2), "mean_logprob"), worker)
    assert [len(kept) for kept in worker.kept] == [3, 3, 3]  # the prompt and two beams


def test_an_ended_solution_without_an_answer_is_kept_for_the_forced_one():
    def kept(**arguments):
        worker = Keeping(num_steps=1, answers=False)
        searched(SearchController("MCTS", "mean_logprob", budget=24, selector="vote", **arguments), worker)
        return any("so be it" in text for texts in worker.kept for text in texts)

    assert kept()
    assert not kept(insist_on_answer=False)


def test_a_stop_sees_the_answers_that_solutions_are_asked_for(events):
    """Solutions that their length ends have no answer of their own, and agree once they are asked."""
    worker = Stepper(num_steps=40)
    arguments = {"widths": [2, 4], "stop": "certaindex", "budget": 400, "max_tokens": 24}
    result = searched(SearchController({"type": "BestOfN"}, selector="vote", **arguments), worker)
    assert [each["enough"] for each in events(result, "width")] == [["Certaindex"]]
    assert events(result, "answer")[0]["answers"] == ["9", "9"]
    assert len(events(result, "force")) == 1  # nobody is asked twice
    result = searched(SearchController({"type": "BestOfN"}, selector="best", **arguments), worker)
    assert tree_of(result)["num_leaves"] == 4  # where one answer is enough, the leaves have none


def test_each_branch_of_a_votes_search_has_its_own_path():
    paths = []

    class Seen(Plain):
        async def run_task(self, task):
            paths.append(tuple(current_scope.get().branch_path))
            return await super().run_task(task)

    tree = {"type": "BestOfN", "args": {"num_samples": 3}}
    search = SearchController(tree, "mean_logprob", expander=NativeGenerationController())
    searched(MajorityVoteController(search, 2, allocation=None), Seen())
    assert sorted(paths) == [(sample, branch) for sample in range(2) for branch in range(3)]
