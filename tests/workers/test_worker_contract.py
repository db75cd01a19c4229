"""Every worker of the package keeps the workers' contract, and the contract catches those that break it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scaffolding_ext import registry
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus, Worker
from scaffolding_ext.protocol.meta import TokenCounts, note
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.testing.controller_contract import contract_reply
from scaffolding_ext.testing.worker_contract import check_stops, check_worker_contract
from tests.servers.openai_server import OpenAIServer


def huggingface() -> Worker:
    pytest.importorskip("torch")
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    return HuggingFaceWorker("tinylm/draft", max_batch_size=4)


def openai() -> Worker:
    pytest.importorskip("openai")
    from scaffolding_ext.workers.openai.worker import OpenAIWorker

    return OpenAIWorker(SERVERS["vllm"].url, "tinylm/draft")


def openai_trtllm() -> Worker:
    pytest.importorskip("openai")
    from scaffolding_ext.workers.openai.worker import OpenAIWorker

    return OpenAIWorker(SERVERS["trtllm"].url, "tinylm/draft")


def openai_llama_cpp() -> Worker:
    pytest.importorskip("openai")
    from scaffolding_ext.workers.openai.worker import OpenAIWorker

    return OpenAIWorker(SERVERS["llama_cpp"].url, "tinylm/draft")


def scripted() -> Worker:
    return ScriptedWorker(contract_reply)


def compare() -> Worker:
    from scaffolding_ext.workers.compare import CompareWorker

    return CompareWorker()


def check() -> Worker:
    from scaffolding_ext.workers.checker import CheckWorker

    return CheckWorker("math:sqrt")


def trtllm() -> Worker:
    from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker

    return TRTLLMWorker("tinylm/draft")


def budgeted() -> Worker:
    from scaffolding_ext.workers.budgeted import BudgetedWorker

    return BudgetedWorker(ScriptedWorker(contract_reply), 1)


WORKERS = {
    "budgeted": budgeted,
    "huggingface": huggingface,
    "openai": openai,
    "openai_trtllm": openai_trtllm,
    "openai_llama_cpp": openai_llama_cpp,
    "scripted": scripted,
    "compare": compare,
    "trtllm": trtllm,
    "check": check,
}
SERVERS: dict[str, OpenAIServer] = {}
QUESTION = "Start with 5. Apply a+3,b-2. Find the total."  # its answer has tokens of several characters


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """A server of each flavour that differs, over one embedded model."""
    pytest.importorskip("torch")
    with contextlib.ExitStack() as running:
        worker = running.enter_context(huggingface())
        for flavor in ("vllm", "trtllm", "llama_cpp"):
            server = OpenAIServer(worker, "tinylm/draft", flavor=flavor, max_model_len=2048)
            SERVERS[flavor] = running.enter_context(server)
        yield


@pytest.mark.parametrize("name", WORKERS)
@pytest.mark.usefixtures("tensorrt_llm")
def test_contract(name: str) -> None:
    check_worker_contract(WORKERS[name])


@pytest.mark.parametrize("name", ["huggingface", "openai", "openai_trtllm", "openai_llama_cpp"])
def test_a_stop_string_inside_a_token_ends_decoding(name: str) -> None:
    check_stops(WORKERS[name], QUESTION)


@pytest.mark.parametrize("tensorrt_llm", ["1.2", "1.2.1", "1.3.0rc", "newest"], indirect=True)
@pytest.mark.usefixtures("tensorrt_llm")
def test_a_stop_string_inside_a_token_ends_decoding_on_every_release() -> None:
    check_stops(trtllm, QUESTION)


@pytest.mark.usefixtures("tensorrt_llm")
def test_no_worker_is_left_out() -> None:
    checked = set()
    for make in WORKERS.values():
        with make() as worker:
            checked.add(type(worker))
    known = {registry.workers.resolve(name) for name in registry.workers.names()}
    assert {factory for factory in known if factory.__module__.startswith("scaffolding_ext.")} <= checked


class Bare(ScriptedWorker):
    """A worker that breaks the contract in one way, by its subclass."""

    def __init__(self) -> None:
        super().__init__(contract_reply)


class Uncounted(Bare):
    async def run_task(self, task: Any) -> Any:
        status = await super().run_task(task)
        if isinstance(task, GenerationTask):
            note(task, counts=TokenCounts(1, 1))
        return status


class Forgetful(Bare):
    async def run_task(self, task: Any) -> Any:
        status = await super().run_task(task)
        if isinstance(task, StreamGenerationTask):
            task.output_str, task.output_tokens = (task.output_str or "")[-2:], (task.output_tokens or [])[-2:]
        return status


class Wandering(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.num_tasks = 0

    async def run_task(self, task: Any) -> Any:
        self.num_tasks += 1
        task.input_str = f"Question {self.num_tasks}"
        return await super().run_task(task)


class Swallowing(Bare):
    """Turns every exception into an answer of no text."""

    async def run_task(self, task: Any) -> Any:
        if isinstance(task, GenerationTask) and (task.input_str is None or (task.max_tokens or 0) < 0):
            task.output_str = ""
            return TaskStatus.SUCCESS
        return await super().run_task(task)


class Shielding(Bare):
    """Its work goes on when its call is cancelled."""

    async def run_task(self, task: Any) -> Any:
        return await asyncio.shield(asyncio.ensure_future(self._run_late(task)))

    async def _run_late(self, task: Any) -> Any:
        for _ in range(20):
            await asyncio.sleep(0)
        return await super().run_task(task)


class Unstoppable(Bare):
    async def run_task(self, task: Any) -> Any:
        if isinstance(task, GenerationTask):
            task.stop = []
        return await super().run_task(task)


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        (Uncounted, "tokens were decoded, 1 are counted"),
        (Forgetful, "a stream took tokens back"),
        (Wandering, "one seed gave two texts"),
        (Swallowing, "a task with no prompt was served with the text ''"),
        (Shielding, "a cancelled call left work running"),
        (Unstoppable, "stopped at .* the text is"),
    ],
)
def test_a_worker_that_breaks_it_is_caught(worker: Callable[[], Worker], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_worker_contract(worker)
