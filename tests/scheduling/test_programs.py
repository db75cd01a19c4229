"""Real requests under a policy: in the host's line, behind a budget, and as their controllers say how far they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.basic.best_of_n import BestOfNController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError, RequestError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.meta import note
from scaffolding_ext.request.program import (
    Program,
    Progress,
    StepCounts,
    current_program,
    enter_program,
    priority_of,
)
from scaffolding_ext.scheduling import (
    EarliestDeadline,
    Fifo,
    Gang,
    LeastAttained,
    LongestPrefix,
    Policy,
    ShortestRemaining,
)
from scaffolding_ext.stack.build import check_stack, load_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import Gate, ScriptedWorker
from scaffolding_ext.workers.budgeted import BudgetedWorker


class InRounds(BaseController):
    """Asks the prompt so many times, one after the other."""

    def run(self, task: GenerationTask, rounds: int = 2, **kwargs: Any) -> ControllerGenerator:
        for number in range(rounds):
            asked = GenerationTask(input_str=f"{task.input_str}{number}", max_tokens=8, worker_tag="generation")
            yield [asked]
        finish(task, "done", None)


class Recorder(Policy):
    """Keeps what it was asked about, and what it learned."""

    def __init__(self) -> None:
        self.asked: list[Progress] = []
        self.learned: list[Progress] = []

    def priority(self, progress: Progress) -> float:
        self.asked.append(progress)
        return 0.0

    def learn(self, progress: Progress) -> None:
        self.learned.append(progress)


def order_behind_a_budget(own: Policy | None, scheduling: Policy | None) -> list[str]:
    """The order in which the requests of three programs reach a worker: those of two rounds each, then one of one."""
    num_waiting = iter([3, 2, 2, 2, 1, 0])  # while each is served, once all have come that can

    async def until_others_wait(task: GenerationTask) -> None:
        others = next(num_waiting)
        while budgeted.num_waiting < others:  # noqa: ASYNC110 - no event tells that a task has begun to wait
            await asyncio.sleep(0)

    inner = ScriptedWorker("reply", before=until_others_wait)
    budgeted = BudgetedWorker(inner, 1, scheduling=own)
    with ScaffoldingLlm(InRounds(), {"generation": budgeted}, scheduling=scheduling) as llm:
        rounds = {"first": 1, "a": 2, "b": 2, "c": 1}
        for result in [llm.generate_async(name, rounds=number) for name, number in rounds.items()]:
            result.result(30)
    return [str(task.input_str) for task in inner.tasks[1:]]  # type: ignore[attr-defined]


AS_THEY_COME = ["a0", "b0", "c0", "a1", "b1"]
TOGETHER = ["a0", "b0", "a1", "b1", "c0"]  # when a0 ended a1 was not there yet


@pytest.mark.parametrize(("policy", "order"), [(None, AS_THEY_COME), (Fifo(), AS_THEY_COME), (Gang(), TOGETHER)])
def test_requests_that_wait_behind_a_budget_are_taken_in_the_policy_s_order(
    policy: Policy | None, order: list[str]
) -> None:
    assert order_behind_a_budget(None, policy) == order
    assert order_behind_a_budget(policy, None) == order


def test_programs_stay_with_the_first_policy_that_took_them_in() -> None:
    assert order_behind_a_budget(Gang(), Fifo()) == AS_THEY_COME


def test_the_host_starts_the_request_first_that_is_wanted_soonest() -> None:
    gate = Gate()
    worker = ScriptedWorker("reply", before=gate)
    policy = EarliestDeadline(within=1000)
    controller = NativeGenerationController()
    with ScaffoldingLlm(controller, {"generation": worker}, 1, scheduling=policy) as llm:
        running = llm.generate_async("running")
        gate.wait_for(1)
        waits: list[tuple[str, dict[str, float]]] = [
            ("whenever", {}),
            ("soon", {"deadline": 10}),
            ("in time", {"timeout": 100}),
            ("at once", {"deadline": 1}),
        ]
        waiting = [llm.generate_async(name, **wanted) for name, wanted in waits]
        gate.open()
        for result in (running, *waiting):
            result.result(30)
    assert [task.input_str for task in worker.tasks] == ["running", "at once", "soon", "in time", "whenever"]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="deadline: is 0; it must be above 0"):
        llm.generate_async("x", deadline=0)


def test_policies_order_programs_by_what_they_have_and_what_they_still_need() -> None:
    def vote(num_tokens: int, num_done: int, num_left: int, certaindex: float = 0.0, arrived: float = 0.0) -> Progress:
        steps = StepCounts("vote", num_done, num_left, certaindex)
        return Progress(1, arrived, num_tokens=num_tokens, steps=steps, num_cached=num_tokens)

    policy = ShortestRemaining(phi=0.5)
    assert policy.priority(vote(0, 0, 3)) == 3  # a token a step, as long as nothing is known
    assert policy.priority(vote(40, 4, 6)) == 60
    assert policy.priority(vote(40, 4, 6, certaindex=0.75, arrived=1.0)) == 15 + 2
    policy.learn(vote(50, 0, 1))  # it ended within its first step
    assert policy.priority(vote(0, 0, 3)) == 150
    assert policy.priority(vote(40, 4, 5)) == 5 * (40 + 50) / 5
    assert LeastAttained(phi=0.5).priority(vote(40, 4, 6, arrived=1.0)) == 40 + 2
    assert LongestPrefix().priority(vote(40, 4, 6)) == -40


def test_a_task_of_its_own_priority_keeps_it() -> None:
    program, task = Program(), GenerationTask()
    program.place.order = lambda progress: 7.0

    async def scenario() -> None:
        assert priority_of(task) == 0
        enter_program(program)
        assert priority_of(task) == 7
        note(task, priority=0.25)
        assert priority_of(task) == 0.25

    asyncio.run(scenario())


def test_a_vote_says_how_far_it_is_and_the_policy_learns_what_it_took() -> None:
    policy = Recorder()
    replies = iter(["7", "8", *"7777777777"])
    worker = ScriptedWorker(lambda task: rf"\boxed{{{next(replies)}}}")
    vote = MajorityVoteController(NativeGenerationController(), 8, allocation=LeaderChange(leap=2.0, miss=0.1))
    with ScaffoldingLlm(vote, {"generation": BudgetedWorker(worker)}, scheduling=policy) as llm:
        result = llm.generate("question")
    ended = policy.learned[0]
    num_samples = [event["done"] for event in result.program.trace if event["event"] == "allocate"]
    assert ended.steps[:3] == ("MajorityVoteController", num_samples[-1], 0)
    assert ended.num_tokens == result.program.ledger.total.decoded == 9 * num_samples[-1]
    steps = list(dict.fromkeys(progress.steps for progress in policy.asked))[1:]  # before it began nobody had said
    assert [step[1:3] for step in steps] == [(done, 8 - done) for done in (0, *num_samples[:-1])]
    assert steps[0].certaindex == 0 < steps[-1].certaindex < 1


def test_best_of_n_and_a_chain_that_is_probed_say_how_far_they_are() -> None:
    policy = Recorder()
    best = BestOfNController(NativeGenerationController(), default_sample_num=3, reward=lambda sample: 1.0)
    with ScaffoldingLlm(best, {"generation": BudgetedWorker(ScriptedWorker("reply"))}, scheduling=policy) as llm:
        llm.generate("question")
    assert [progress.steps.num_left for progress in policy.asked] == [1, 3, 3, 3]
    assert policy.learned[0].steps[:3] == ("BestOfNController", 3, 0)

    policy = Recorder()
    probed = DynasorCoTController(64, 3, 16, mode="chunk", overlap=False)
    worker = ScriptedWorker(lambda task: "5}" if (task.input_str or "").endswith("{") else "z" * 200)
    with ScaffoldingLlm(probed, {"generation": BudgetedWorker(worker)}, scheduling=policy) as llm:
        result = llm.generate("question", raw=True)
    assert result.exit_reason == "certain"
    ended = policy.learned[0].steps
    assert (ended.kind, ended.num_done, ended.num_left, ended.certaindex) == ("DynasorCoTController", 3, 1, 1.0)
    shares = list(dict.fromkeys(progress.steps.certaindex for progress in policy.asked))
    assert shares == pytest.approx([0, 1 / 3, 2 / 3])


def stack(**changes: Any) -> dict[str, Any]:
    worker = {"type": "ScriptedWorker", "args": {"respond": "reply"}}
    return {
        "controller": {"type": "NativeGenerationController"},
        "workers": {"generation": {"type": "BudgetedWorker", "args": {"worker": worker}}},
        "prompt": None,
        **changes,
    }


def test_a_stack_file_names_the_policy() -> None:
    args = {"worker": {"type": "ScriptedWorker", "args": {"respond": "reply"}}, "scheduling": {"type": "Gang"}}
    workers = {"generation": {"type": "BudgetedWorker", "args": args}}
    with load_stack(stack(scheduling={"type": "ShortestRemaining", "args": {"phi": 0.2}}, workers=workers)) as llm:
        assert isinstance(llm.scheduling, ShortestRemaining)
        assert llm.scheduling.phi == 0.2
        assert isinstance(llm.workers["generation"].scheduling, Gang)  # type: ignore[attr-defined]
        assert llm.generate("question").outputs[0].text == "reply"


@pytest.mark.parametrize(
    ("scheduling", "kind", "message"),
    [
        ({"type": "Gangs"}, ConfigError, r"scheduling\.type: unknown scheduling policy 'Gangs' \(did you mean"),
        (
            {"type": "LeastAttained", "args": {"phi": 0}},
            ConfigError,
            r"scheduling\.args\.phi: is 0; it must be above 0",
        ),
        ({"type": "Gang", "args": {"phi": 1}}, ConfigError, "phi"),
    ],
)
def test_a_wrong_policy_is_refused_before_anything_is_built(
    scheduling: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        check_stack(load_config(stack(scheduling=scheduling)))


def test_what_is_no_policy_is_refused() -> None:
    worker = ScriptedWorker("reply")
    with pytest.raises(ConfigError, match=r"scheduling: is the class Gang; pass an instance of it: Gang\(...\)"):
        ScaffoldingLlm(NativeGenerationController(), {"generation": worker}, scheduling=Gang)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scheduling: is a str; give a policy"):
        BudgetedWorker(worker, scheduling="Gang")  # type: ignore[arg-type]


def test_a_worker_that_the_policy_does_not_reach_is_named() -> None:
    worker = ScriptedWorker("reply")
    worker.unordered = "it takes no priority"
    controller = NativeGenerationController()
    with pytest.warns(
        UserWarning, match=r"LeastAttained does not reach the worker 'generation' \(ScriptedWorker\): it"
    ):
        ScaffoldingLlm(controller, {"generation": worker}, scheduling=LeastAttained()).shutdown()
    ScaffoldingLlm(controller, {"generation": BudgetedWorker(worker)}, scheduling=LeastAttained()).shutdown()


class Faulty(Fifo):
    """Fails for the first program that it orders, and when it learns from the second."""

    def __init__(self) -> None:
        self.num_ordered = self.num_learnt = 0

    def priority(self, progress: Progress) -> float:
        self.num_ordered += 1
        if self.num_ordered == 1:
            raise ZeroDivisionError("no tokens yet")
        return super().priority(progress)

    def learn(self, progress: Progress) -> None:
        self.num_learnt += 1
        raise ZeroDivisionError("no steps yet")


def test_a_policy_that_fails_for_one_request_fails_that_request_alone() -> None:
    reported: list[str] = []
    llm = ScaffoldingLlm(NativeGenerationController(), {"generation": ScriptedWorker("7")}, scheduling=Faulty())
    llm.loop.set_exception_handler(lambda loop, context: reported.append(context["message"]))
    with llm:
        first, *others = [llm.generate_async(f"question {number}") for number in range(4)]
        error = first.exception(30)
        assert isinstance(error, RequestError)
        assert str(error) == f"the policy could not order {first.id}: ZeroDivisionError: no tokens yet"
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert [result.result(30).outputs[0].text for result in others] == ["7"] * 3
    assert len(reported) == 4
    assert all("end-of-request callback" in message for message in reported)


# ---- deadlines


def seconds_given(task: Any) -> str:
    """The worker's answer: how long after its arrival the request is wanted, in whole seconds."""
    program = current_program()
    assert program is not None
    return "none" if program.lifetime.deadline is None else f"{program.lifetime.deadline - program.lifetime.began:.0f}"


def host(**options: Any) -> ScaffoldingLlm:
    return ScaffoldingLlm(NativeGenerationController(), {"generation": ScriptedWorker(seconds_given)}, **options)


def test_a_request_has_its_own_deadline_or_the_hosts_or_its_time_out() -> None:
    with host(deadline=10, scheduling=EarliestDeadline()) as llm:
        given = [{}, {"deadline": 3}, {"timeout": 20}]
        assert [llm.generate("2+2?", **each).outputs[0].text for each in given] == ["10", "3", "10"]
    with host() as llm:
        assert [llm.generate("2+2?", **each).outputs[0].text for each in ({}, {"timeout": 20})] == ["none", "20"]


def test_a_stack_file_sets_the_hosts_deadline() -> None:
    with load_stack(stack(deadline=12.5, scheduling={"type": "EarliestDeadline"})) as llm:
        assert llm.deadline == 12.5
    with pytest.raises(ConfigError, match="deadline"):
        load_config(stack(deadline=0))


def test_a_finished_program_teaches_its_tokens_per_step() -> None:
    policy = ShortestRemaining()
    policy.learn(Progress(1, 0.0, num_tokens=50, steps=StepCounts("vote", 5, 0)))
    assert policy.num_tokens(Progress(2, 0.0, num_tokens=0, steps=StepCounts("vote", 0, 3))) == 3 * 10
