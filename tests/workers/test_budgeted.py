"""A worker under a budget: who is served when, what the trace says, and what becomes of a place that is not used."""

import asyncio

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.meta import note
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import Program, enter_program
from scaffolding_ext.testing import FakeClock, ScriptedWorker
from scaffolding_ext.workers.budgeted import BudgetedWorker, tokens_held


class Held:
    """A worker each of whose tasks ends when it is told to."""

    def __init__(self):
        self.events = {}
        self.arrivals = asyncio.Queue()
        self.worker = ScriptedWorker("four", before=self.hold)

    async def hold(self, task):
        self.events[task.input_str] = asyncio.Event()
        self.arrivals.put_nowait(task.input_str)
        await self.events[task.input_str].wait()

    async def next(self):
        return await asyncio.wait_for(self.arrivals.get(), 30)


def task(name, priority=0.0, max_tokens=4):
    made = GenerationTask(input_str=name, max_tokens=max_tokens)
    note(made, priority=priority)
    return made


def start(worker, *tasks):
    return [asyncio.ensure_future(worker.run_task(made)) for made in tasks]


def test_what_waits_is_served_by_priority_and_then_by_arrival():
    async def scenario():
        held = Held()
        worker = BudgetedWorker(held.worker, max_calls=1)
        calls = start(worker, task("a", 9), task("b", 0.5), task("c", 0.1), task("d", 0.5), task("e", 0.3))
        order = []
        for _ in calls:
            order.append(await held.next())
            assert held.arrivals.empty()
            held.events[order[-1]].set()
        await asyncio.gather(*calls)
        assert order == ["a", "c", "e", "b", "d"]  # the first found the worker free
        assert (worker.most_calls, worker.num_calls, worker.num_waiting) == (1, 0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(("patience", "served_before"), [(0, 0), (3, 3)])
def test_in_a_stream_that_does_not_end_every_task_is_served_after_finitely_many_others(patience, served_before):
    """Whenever a task ends another of the best priority is there; two with the worst still have their turns."""

    async def scenario():
        held = Held()
        worker = BudgetedWorker(held.worker, max_calls=1, patience=patience)
        calls = start(worker, task("first"), task("patient", 0.9), task("more patient", 0.99), task("stream 0"))
        order = []
        for number in range(1, 9):
            order.append(await held.next())
            calls += start(worker, task(f"stream {number}"))
            await asyncio.sleep(0)  # now it waits
            held.events[order[-1]].set()
        stream = [f"stream {number}" for number in range(8)]
        assert order == (["first", *stream[:served_before], "patient", "more patient", *stream[served_before:]])[:8]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert (worker.num_calls, worker.num_waiting) == (0, 0)

    asyncio.run(scenario())


def test_tokens_are_limited_and_a_task_beyond_the_limit_is_served_alone():
    async def scenario():
        held = Held()
        worker = BudgetedWorker(held.worker, max_calls=9, max_tokens=10)
        calls = start(worker, task("a"), task("b"), task("c", max_tokens=50), task("d"))
        assert [await held.next(), await held.next()] == ["a", "b"]  # five tokens each
        held.events["a"].set()
        await calls[0]
        assert worker.num_waiting == 2  # the large one goes before those that came later
        held.events["b"].set()
        assert await held.next() == "c"
        assert worker.num_calls == 1
        held.events["c"].set()
        assert await held.next() == "d"
        held.events["d"].set()
        await asyncio.gather(*calls)
        assert worker.most_tokens == 51

    asyncio.run(scenario())


def test_a_cancelled_wait_and_a_failed_task_give_their_places_back():
    async def scenario():
        held = Held()
        worker = BudgetedWorker(held.worker, max_calls=1)
        calls = start(worker, task("a"), task("b"), task("c"))
        assert await held.next() == "a"
        calls[1].cancel()
        await asyncio.wait([calls[1]])
        calls[0].cancel()
        assert await held.next() == "c"
        held.events["c"].set()
        await calls[2]
        assert (worker.num_calls, worker.num_waiting) == (0, 0)
        broken = BudgetedWorker(ScriptedWorker(lambda task: ValueError("broken")), 1)
        for _ in range(2):
            with pytest.raises(ValueError, match="broken"):
                await broken.run_task(task("a"))

    asyncio.run(scenario())


def test_the_trace_says_how_long_a_task_waited():
    async def scenario():
        program, clock, held = Program(), FakeClock(), Held()
        enter_program(program)
        worker = BudgetedWorker(held.worker, max_calls=1, clock=clock)
        calls = start(worker, task("a", 0.2), task("b", 0.4))
        await held.next()
        clock.advance(3.0)
        held.events["a"].set()
        await held.next()
        held.events["b"].set()
        await asyncio.gather(*calls)
        waited = [(e["event"], e["priority"], e["seconds_waited"]) for e in program.trace]
        assert waited == [("waited", 0.2, 0.0), ("waited", 0.4, 3.0)]

    asyncio.run(scenario())


def test_it_says_what_its_worker_says_and_serves_no_streams():
    inner = ScriptedWorker("four")
    inner.tokenizer_fingerprint, inner.max_seq_len = "fingerprint", 100
    worker = BudgetedWorker(inner)
    assert (worker.model, worker.max_seq_len, worker.tokenizer_fingerprint) == (None, 100, "fingerprint")
    assert set(inner.task_handlers) - set(worker.task_handlers) == {StreamGenerationTask}
    with pytest.raises(ConfigError, match="max_calls: is 0; it must be at least 1"):
        BudgetedWorker(inner, 0)
    with pytest.raises(ConfigError, match="patience: is -1; it must be at least 0"):
        BudgetedWorker(inner, patience=-1)


def test_tokens_held():
    assert tokens_held(GenerationTask(input_tokens=[1, 2], input_str="long text", max_tokens=3)) == 5
    assert tokens_held(ScoreTask(input_str="ab", continuation_str="cde")) == 5
