"""A program's seeds, ledger, trace and meter."""

import asyncio
import contextvars
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import (
    ExecutionScope,
    GenerationTask,
    ParallelProcess,
    RewardTask,
    StreamGenerationTask,
    TaskCollection,
    current_scope,
    with_task_collection,
)
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.meta import CHAIN, PROBE, Purpose, TokenCounts, note
from scaffolding_ext.protocol.tasks import CompareTask, ScoreTask
from scaffolding_ext.request.program import (
    Ledger,
    Lifetime,
    Program,
    StepCounts,
    current_program,
    enter_program,
    in_program,
    next_seed,
    record,
)
from scaffolding_ext.testing import FakeClock, ScriptedWorker


def in_branch(path, function, *args):
    """Call the function as a branch of a request would."""

    def call():
        current_scope.set(ExecutionScope("request", tuple(path)))
        return function(*args)

    return contextvars.copy_context().run(call)


# ---- seeds


@settings(deadline=None)
@given(st.integers(0, 3), st.sampled_from([None, "s", "t"]), st.integers(0, 2))
def test_a_program_seed_depends_on_run_sample_and_epoch(seed, sample_id, epoch):
    drawn = Program(seed, sample_id, epoch).seeds.next()
    assert drawn == Program(seed, sample_id, epoch).seeds.next()
    for other in (
        Program(seed + 1, sample_id, epoch),
        Program(seed, f"{sample_id}x", epoch),
        Program(seed, sample_id, epoch + 1),
    ):
        assert drawn != other.seeds.next()


_PATHS = st.lists(st.integers(0, 2), max_size=3).map(tuple)


@settings(deadline=None)
@given(st.lists(_PATHS, max_size=30))
def test_a_branch_draws_the_same_seeds_whatever_the_others_draw_and_in_any_order(order):
    program = Program(seed=5, sample_id="s")
    drawn = {path: [] for path in order}
    for path in order:
        drawn[path].append(in_branch(path, program.seeds.next))
    for path, seeds in drawn.items():
        alone = Program(seed=5, sample_id="s")
        assert seeds == [in_branch(path, alone.seeds.next) for _ in seeds]
    assert len({seed for seeds in drawn.values() for seed in seeds}) == len(order)


def test_without_a_seed_nothing_is_drawn():
    program = Program()
    assert program.seeds.next() is None
    assert program.seeds.generator().random() != program.seeds.generator().random()  # fresh entropy
    assert next_seed() is None  # outside any program


def test_the_generator_derives_from_the_next_seed():
    expected = np.random.default_rng(Program(3).seeds.next()).random()
    program = Program(3)
    assert program.seeds.generator().random() == expected
    assert program.seeds.generator().random() != expected


def test_of_the_time_until_a_deadline_a_twentieth_is_left_for_the_end() -> None:
    clock = FakeClock(10.0)
    lifetime = Lifetime(clock)
    assert lifetime.left is None
    lifetime.answer_by = 110.0
    clock.advance(50.0)
    assert lifetime.left == pytest.approx(45.0)


# ---- ledger


def test_the_ledger_adds_by_purpose_and_in_total():
    ledger = Ledger()
    assert ledger.total == TokenCounts()
    ledger.add(Purpose.CHAIN, 3)
    ledger.add(Purpose.CHAIN, 4, 2)
    ledger.add(Purpose.PROBE, 1, 5, 7)
    assert ledger.by_purpose == {Purpose.CHAIN: TokenCounts(7, 2, 0), Purpose.PROBE: TokenCounts(1, 5, 7)}
    assert ledger.total == TokenCounts(8, 7, 7)
    assert ledger.total.computed == 15


def test_discarding_moves_decoded_tokens():
    ledger = Ledger()
    ledger.add(Purpose.CHAIN, 10, 4)
    ledger.discard(Purpose.CHAIN, 0)
    assert Purpose.DISCARDED not in ledger.by_purpose
    ledger.discard(Purpose.CHAIN, 3)
    ledger.discard(Purpose.CHAIN, 7)
    assert ledger.by_purpose == {Purpose.CHAIN: TokenCounts(0, 4, 0), Purpose.DISCARDED: TokenCounts(10)}
    assert ledger.total == TokenCounts(10, 4)


def test_decoded_tokens_are_discarded_before_those_that_were_had_from_a_store():
    ledger = Ledger()
    ledger.add(Purpose.CHAIN, 10, 4, 6)
    ledger.discard(Purpose.CHAIN, 3)
    assert ledger.by_purpose[Purpose.CHAIN] == TokenCounts(7, 4, 6)
    ledger.discard(Purpose.CHAIN, 9)
    assert ledger.by_purpose == {Purpose.CHAIN: TokenCounts(0, 4, 4), Purpose.DISCARDED: TokenCounts(10, 0, 2)}


@pytest.mark.parametrize(("purpose", "num_tokens"), [(Purpose.CHAIN, 6), (Purpose.CHAIN, -1), (Purpose.PROBE, 1)])
def test_what_was_not_decoded_cannot_be_discarded(purpose, num_tokens):
    ledger = Ledger()
    ledger.add(Purpose.CHAIN, 5)
    with pytest.raises(ValueError, match=f"cannot discard {num_tokens} tokens"):
        ledger.discard(purpose, num_tokens)
    assert ledger.by_purpose == {Purpose.CHAIN: TokenCounts(5)}
    Ledger().discard(Purpose.PROBE, 0)  # nothing of nothing


def test_the_ledger_as_json():
    ledger = Ledger()
    ledger.add(Purpose.PROMPT, 0, 9, 1)
    ledger.add(Purpose.CHAIN, 5)
    assert json.loads(json.dumps(ledger.to_json())) == {
        "total": {"decoded": 5, "prefilled": 9, "reused": 1},
        "by_purpose": {
            "prompt": {"decoded": 0, "prefilled": 9, "reused": 1},
            "chain": {"decoded": 5, "prefilled": 0, "reused": 0},
        },
        "num_unmetered_tasks": 0,
    }


# ---- trace


def test_the_trace_holds_decisions_with_branch_and_seconds():
    clock = FakeClock(100.0)
    program = Program(clock=clock)
    assert program.trace == []
    clock.advance(0.25)
    program.trace.record("probe", position=64, answer=None)
    clock.advance(1.5)
    in_branch((1, 0), program.trace.record, "stop")
    assert json.loads(json.dumps(program.trace)) == [
        {"event": "probe", "branch": [], "seconds": 0.25, "position": 64, "answer": None},
        {"event": "stop", "branch": [1, 0], "seconds": 1.75},
    ]


def test_record_goes_to_the_current_program_and_nowhere_outside():
    program = Program()

    def inside():
        enter_program(program)
        record("skip", reason="early")
        return current_program()

    assert contextvars.copy_context().run(inside) is program
    assert [event["event"] for event in program.trace] == ["skip"]
    record("dropped")
    assert current_program() is None
    assert len(program.trace) == 1


# ---- meter


def generation(counts=None, purpose=None, task_type=GenerationTask, **fields):
    task = task_type(**fields)
    if counts is not None:
        note(task, counts=counts)
    if purpose is not None:
        note(task, purpose=purpose)
    return task


def metered(generator):
    program = Program()
    for _ in program.meter.watch(generator):
        pass
    return program.ledger


def test_plain_tasks_are_counted_when_they_come_back():
    program = Program()
    task = GenerationTask()
    work = program.meter.watch(iter([[task, generation(TokenCounts(1, 2, 3), PROBE)]]))
    assert len(next(work)) == 2
    assert program.ledger.by_purpose == {}
    note(task, counts=TokenCounts(5, 4))
    assert list(work) == []
    assert program.ledger.by_purpose == {
        Purpose.PROMPT: TokenCounts(0, 4, 0),
        Purpose.CHAIN: TokenCounts(5),
        Purpose.PROBE: TokenCounts(1, 2, 3),
    }


def test_a_streaming_task_is_counted_once():
    task = generation(purpose=CHAIN, task_type=StreamGenerationTask)

    def steps():
        for decoded in (4, 4, 9):
            note(task, counts=TokenCounts(decoded, 7, 2))
            yield [task]

    assert metered(steps()).by_purpose == {Purpose.CHAIN: TokenCounts(9, 7, 2)}


def test_every_kind_of_task_is_counted():
    score = ScoreTask(input_tokens=[1], continuation_tokens=[2])
    note(score, counts=TokenCounts(0, 2))
    verify = VerifyTask(branches=[[1], [2]])
    note(verify, counts=TokenCounts(0, 5, 1))
    ledger = metered(iter([[score], (verify,)]))
    assert ledger.by_purpose[Purpose.SCORE] == TokenCounts(0, 2)
    assert ledger.by_purpose[Purpose.VERIFY] == TokenCounts(0, 5, 1)
    assert ledger.num_unmetered_tasks == 0


def test_tasks_without_figures_are_unmetered_where_they_should_cost_tokens():
    ledger = metered(iter([[GenerationTask(), BranchTask(), VerifyTask()], [CompareTask(), RewardTask()], ["odd"], 7]))
    assert ledger.num_unmetered_tasks == 4  # a reward model reads tokens, too; a comparison costs none
    assert ledger.total == TokenCounts()


def test_branches_are_metered_however_deep():
    class Leaf(BaseController):
        def run(self, task, **kwargs):
            yield [task]

    def branches(depth):
        if depth == 0:
            yield [generation(TokenCounts(1, 1))]
            return
        process = ParallelProcess([Leaf()], [[generation(TokenCounts(10))]], [{}])
        process.sub_gens.append(branches(depth - 1))
        yield process

    program = Program()

    def drain(generator):
        for work in generator:
            for branch in work.sub_gens if isinstance(work, ParallelProcess) else ():
                drain(branch)

    drain(program.meter.watch(branches(3)))
    assert program.ledger.total == TokenCounts(31, 1)


def test_a_failing_task_is_counted_for_what_it_cost():
    program = Program()
    work = program.meter.watch(iter([[generation(TokenCounts(3, 1))]]))
    next(work)
    work.close()  # what a host does when a task of the yield fails
    assert program.ledger.total == TokenCounts(3, 1)


def test_waiting_is_timed_by_purpose():
    clock = FakeClock()
    program = Program(clock=clock)
    chain, probe = generation(TokenCounts(3, 1)), generation(TokenCounts(1), PROBE)
    work = program.meter.watch(iter([[chain, probe], [probe], "odd"]))
    next(work)
    clock.advance(2.0)
    next(work)
    assert program.meter.seconds == {"chain": 2.0, "probe": 2.0}
    clock.advance(1.0)
    list(work)
    assert program.meter.seconds == {"chain": 2.0, "probe": 3.0}


def test_return_value_error_and_close_pass_through():
    closed = []

    def returning():
        yield []
        return "value"

    def holding():
        try:
            yield []
        finally:
            closed.append(True)

    def outer():
        assert (yield from Program().meter.watch(returning())) == "value"
        yield ["end"]

    assert list(outer()) == [[], ["end"]]

    inner = holding()  # held here, so that not its loss but close() closes it
    work = Program().meter.watch(inner)
    next(work)
    work.close()
    assert closed == [True]

    def failing():
        yield []
        raise KeyError("lost")

    work = Program().meter.watch(failing())
    next(work)
    with pytest.raises(KeyError, match="lost"):
        next(work)


def test_wrappers_that_are_plain_iterables_are_metered_too():
    observed = with_task_collection("seen", TaskCollection)(type("Observed", (NativeGenerationController,), {}))
    assert metered(observed().process([generation(TokenCounts(2), output_str="")])).total == TokenCounts(2)


def test_workers_find_the_program_they_work_for():
    seen = {}

    def respond(task):
        seen.setdefault(task.input_str, []).append(current_program())
        return "x"

    class Both(BaseController):
        def run(self, task, **kwargs):
            native = NativeGenerationController()
            tasks = [GenerationTask(input_str=task.input_str) for _ in range(2)]
            yield ParallelProcess([native.clone() for _ in tasks], [[branch] for branch in tasks], [{}, {}])
            yield [GenerationTask(worker_tag="generation", input_str=task.input_str)]
            task.output_str = "done"

    with ScaffoldingLlm(Both(), {"generation": ScriptedWorker(respond)}) as llm:
        results = llm.generate(["a", "b"])
    for prompt, result in zip("ab", results, strict=True):
        assert seen[prompt] == [result.program] * 3
    assert current_program() is None


def test_a_plain_loop_leaves_no_program_behind():
    """A host that opens none drives a generator in its own context; when the request has ended, nothing is running."""

    def request(program):
        assert current_program() is program
        yield []
        return "done"

    for _ in range(2):
        for _work in in_program(request):
            assert current_program() is not None
        assert current_program() is None
    stopped = in_program(request)
    next(stopped)
    stopped.close()
    assert current_program() is None


def test_what_is_to_happen_at_the_end_happens_once_in_order_whatever_fails() -> None:
    lifetime, called = Lifetime(lambda: 0.0), []

    def fail() -> None:
        called.append("second")
        raise OSError("out of order")

    lifetime.at_end(lambda: called.append("first"))
    lifetime.at_end(fail)
    lifetime.at_end(lambda: called.append("third"))
    with pytest.raises(OSError, match="out of order"):
        lifetime.end()
    lifetime.end()
    assert called == ["first", "second", "third"]


def test_of_nested_controllers_the_outermost_is_heard() -> None:
    program = Program()

    def told(path: tuple[int, ...], steps: StepCounts) -> StepCounts:
        current_scope.set(ExecutionScope("request", path))
        record("step", controller=steps.kind, done=steps.num_done, left=steps.num_left, certaindex=steps.certaindex)
        return program.place.progress.steps

    async def scenario() -> None:
        enter_program(program)
        assert program.place.progress.steps == StepCounts("", 0, 1, 0.0)
        inner, other, outer = StepCounts("inner", 1), StepCounts("other", 2), StepCounts("outer", 3)
        assert told((0, 1), inner) == inner
        assert told((0, 2), other) == inner  # a sibling
        assert told((0,), outer) == outer
        assert told((0, 1), inner) == outer
        assert told((0,), other) == other

    asyncio.run(scenario())


def test_output_that_a_stream_reuses_is_counted_once() -> None:
    program, task = Program(), StreamGenerationTask()
    for _ in program.meter.watch([task] for _ in range(3)):
        task.output_tokens = [1] * (len(task.output_tokens or ()) + 4)
        note(task, counts=TokenCounts(0, 7, len(task.output_tokens)))
    assert program.ledger.by_purpose[Purpose.CHAIN] == TokenCounts(0, 0, 12)
