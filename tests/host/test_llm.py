"""The host: requests, their limits, and failures that stay with their request; ordered by events."""

import asyncio
import threading

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError, NoOutputError, RequestError, TaskError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller, GenerationTask, TaskStatus, Worker
from scaffolding_ext.protocol.meta import TokenCounts, note
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.testing import Gate, ScriptedWorker

WAIT = 30.0  # seconds until a hanging test fails; nothing waits that long when all is well


class Boom(Exception):
    pass


def test_generate_returns_upstreams_surface(host):
    with host() as llm:
        result = llm.generate("hello")
        assert result.outputs[0].text == "HELLO"
        assert result.finished
        assert result.result(timeout=0) is result
        assert [r.outputs[0].text for r in llm.generate(["a", "b"])] == ["A", "B"]


def test_usable_from_a_running_loop_and_from_other_threads(host):
    async def inside():
        result = llm.generate_async("loop")
        assert (await result).outputs[0].text == "LOOP"
        assert (await result.aresult()) is result

    with host() as llm:
        asyncio.run(inside())
        texts = []
        threads = [
            threading.Thread(target=lambda i=i: texts.append(llm.generate(f"t{i}").outputs[0].text)) for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert sorted(texts) == ["T0", "T1", "T2", "T3"]


def test_per_request_kwargs_reach_process(host):
    class Suffixed(BaseController):
        def run(self, task, suffix="?", **kwargs):
            task.input_str += suffix
            task.worker_tag = WorkerTag.GENERATION
            yield [task]

    with host(Suffixed()) as llm:
        assert llm.generate("a").outputs[0].text == "A?"
        assert llm.generate("a", suffix="!").outputs[0].text == "A!"


def test_limit_of_parallel_requests_and_order_of_arrival(host, echo):
    gate = Gate()
    worker = echo(gate)
    with host(worker=worker, max_parallel_requests=2) as llm:
        results = [llm.generate_async(str(i)) for i in range(5)]
        gate.wait_for(2)
        assert [task.input_str for task in worker.tasks] == ["0", "1"]
        gate.open()
        assert [r.result(WAIT).outputs[0].text for r in results] == list("01234")
        assert [task.input_str for task in worker.tasks] == list("01234")


def test_two_thousand_requests(host):
    with host(max_parallel_requests=256) as llm:
        results = llm.generate([str(i) for i in range(2000)])
        assert [r.outputs[0].text for r in results] == [str(i) for i in range(2000)]


def test_a_worker_error_raises_with_the_tasks_context_and_others_go_on(host, failing_on):
    with host(worker=failing_on("bad", Boom)) as llm:
        bad, good = llm.generate_async("bad"), llm.generate_async("good")
        with pytest.raises(TaskError, match=r"GenerationTask for worker 'generation'.*Boom: out of luck") as caught:
            bad.result(WAIT)
        assert isinstance(caught.value.__cause__, Boom)
        assert caught.value.task.input_str == "bad"
        assert good.result(WAIT).outputs[0].text == "GOOD"
        with pytest.raises(TaskError):
            llm.generate(["good", "bad"])


@pytest.mark.parametrize("status", [TaskStatus.WORKER_NOT_SUPPORTED, TaskStatus.WORKER_EXECEPTION])
def test_a_bad_status_is_an_error_never_empty_text(status, host):
    class Declining(Worker):
        async def run_task(self, task):
            return status

    with host(worker=Declining()) as llm, pytest.raises(TaskError):
        llm.generate("x")


def test_a_failing_clone(host):
    class Unclonable(Controller):
        def clone(self):
            raise Boom("no copies")

    with host(Unclonable()) as llm, pytest.raises(RequestError, match="Boom: no copies"):
        llm.generate("x")


def test_no_output_is_an_error(host):
    class Silent(BaseController):
        def run(self, task, **kwargs):
            yield []

    class NoReturn(Controller):
        def generate(self, prompt, **kwargs):
            yield []

    with host(Silent()) as llm, pytest.raises(NoOutputError, match="Silent"):
        llm.generate("x")
    with host(NoReturn()) as llm, pytest.raises(NoOutputError, match="must return a ScaffoldingOutput"):
        llm.generate("x")


@pytest.mark.parametrize("failing_yield", range(5))
def test_a_fault_at_every_yield_runs_finally_and_frees_the_host(failing_yield, host, failing_on):
    cleaned = threading.Event()

    class Chained(BaseController):
        def run(self, task, **kwargs):
            try:
                for step in range(5):
                    piece = GenerationTask(worker_tag="generation", input_str=f"{task.input_str}{step}")
                    yield [piece] if step % 2 else [piece, GenerationTask(worker_tag="generation", input_str="beside")]
                task.output_str = "done"
            finally:
                cleaned.set()

    with host(Chained(), failing_on(f"bad{failing_yield}", Boom), max_parallel_requests=1) as llm:
        with pytest.raises(TaskError):
            llm.generate("bad")
        assert cleaned.is_set()
        assert llm.generate("ok").outputs[0].text == "done"


def test_workers_are_checked_when_the_stack_is_built(echo):
    with pytest.raises(ConfigError, match="needs a worker 'generation'; the stack has: reward"):
        ScaffoldingLlm(NativeGenerationController(), {"reward": echo()})


def test_a_list_with_something_else_than_text_in_it_starts_nothing(host, echo):
    worker = echo()
    with host(worker=worker) as llm:
        with pytest.raises(ConfigError, match="prompt: is 5; pass a str"):
            llm.generate(["a", 5])
        assert llm.generate([]) == []
    assert worker.tasks == []


def test_a_failed_task_is_counted_for_what_it_has_cost(host):
    class Failing(Worker):
        async def run_task(self, task):
            note(task, counts=TokenCounts(5, 3, 2))
            raise Boom

    with host(worker=Failing()) as llm:
        result = llm.generate_async("x")
        assert isinstance(result.exception(WAIT), TaskError)
    assert result.program.ledger.total == TokenCounts(5, 3, 2)


# ---- seeds of requests without a name


def seeds(prompts, seed=7, **options):
    """The seed of each prompt's task, asked one after another, on a host of its own."""
    worker = ScriptedWorker("fine")
    with ScaffoldingLlm(NativeGenerationController(), {"generation": worker}, seed=seed) as llm:
        for prompt in prompts:
            llm.generate(prompt, **options)
    return [task.seed for task in worker.tasks]


def test_asking_the_same_again_samples_again_and_the_next_run_repeats():
    asked = ["a", "a", "b", "a"]
    assert len(set(seeds(asked))) == 4
    assert seeds(asked) == seeds(asked)
    assert sorted(seeds(asked)) == sorted(seeds(reversed(asked)))  # whatever other prompts came between
    assert not set(seeds(asked)) & set(seeds(asked, seed=8))
    assert not set(seeds(asked)) & set(seeds(asked, epoch=1))


def test_a_request_with_a_seed_of_its_own_repeats():
    first, again, other = (request_seed(prompt) for prompt in ("a", "a", "b"))
    assert first == again != other


def request_seed(prompt):
    worker = ScriptedWorker("fine")
    with ScaffoldingLlm(NativeGenerationController(), {"generation": worker}, seed=7) as llm:
        llm.generate("a")
        llm.generate(prompt, seed=3)
    return worker.tasks[1].seed


def test_without_a_seed_tasks_have_none():
    assert seeds(["a", "a"], seed=None) == [None, None]
