"""The package on the real TensorRT-LLM Scaffolding: its classes, its host; no engine and no model are needed.

Run it where tensorrt_llm is installed: `pytest -m integration tests/integration/test_tensorrt_llm.py`.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scaffolding_ext import protocol
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import standins
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import Program, current_program
from scaffolding_ext.request.results import completion_of
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.testing.controller_contract import contract_reply

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("default"),  # a foreign package's warnings are not this package's errors
]
if "is not installed: pip install" in protocol.WHY_STANDINS:  # on a machine that is meant to run these
    pytest.fail(f"tensorrt_llm is there, but {protocol.WHY_STANDINS}", pytrace=False)
if not protocol.UPSTREAM:
    pytest.skip(protocol.WHY_STANDINS or "tensorrt_llm is not installed", allow_module_level=True)
upstream = pytest.importorskip("tensorrt_llm.scaffolding")

# Fields that releases after 1.2 added: the stand-ins have them, an older host may not.
NEWEST = {
    *("finish_reason", "reasoning_effort", "min_tokens", "ignore_eos", "ttft_s", "latency_s"),
    *("usage_prompt_tokens", "usage_completion_tokens", "request_id", "llm_request_params"),
}
CONTROLLERS: dict[str, Callable[[], BaseController]] = {
    "native": lambda: NativeGenerationController({"max_tokens": 90}),
    "dynasor_stream": lambda: DynasorCoTController(chunk_size=24, rule="consecutive"),
    "dynasor_chunk": lambda: DynasorCoTController(chunk_size=24, rule="consecutive", mode="chunk"),
    "budget_short": lambda: BudgetForcingController(40),
    "budget_long": lambda: BudgetForcingController(4000),
    "vote": lambda: MajorityVoteController(NativeGenerationController(), 5),
}


class RememberingWorker(ScriptedWorker):
    """Answers the contract's script and keeps the program that it answered for."""

    def __init__(self) -> None:
        self.programs: list[Program | None] = []
        super().__init__(self._remembering)

    def _remembering(self, task: Any) -> Any:
        self.programs.append(current_program())
        return contract_reply(task)


class SilentWorker(protocol.Worker):
    """Fails as upstream's workers do: a status that the host drops, and no output."""

    async def fail(self, task: Any) -> Any:
        return protocol.TaskStatus.WORKER_EXECEPTION

    task_handlers = {protocol.GenerationTask: fail, protocol.StreamGenerationTask: fail}  # noqa: RUF012


@pytest.fixture
def upstream_host() -> Iterator[Callable[[Any, Any], Any]]:
    hosts = []

    def make(controller: Any, worker: Any) -> Any:
        workers = {WorkerTag.GENERATION: worker}
        controller.bind(workers)
        hosts.append(upstream.ScaffoldingLlm(controller, workers))
        return hosts[-1]

    yield make
    for host in hosts:
        host.shutdown()
        if not host.loop.is_running():  # the host stops its loop and leaves it open
            host.loop.close()
    hosts.clear()
    # What the host leaves behind (suspended generators, calls nobody awaited) warns when it is freed: here and now,
    # where a foreign package's warnings are no errors, not all of it in one group when the session ends.
    gc.collect()


def figures(output: Any, program: Program | None) -> dict[str, Any]:
    assert program is not None
    return {
        "text": output.text,
        "answer": output.answer,
        "exit_reason": output.exit_reason,
        "ledger": program.ledger.to_json(),
    }


def test_the_real_classes_are_the_protocol() -> None:
    assert protocol.UPSTREAM
    assert protocol.Controller is upstream.Controller
    assert issubclass(NativeGenerationController, upstream.Controller)
    assert issubclass(ScriptedWorker, upstream.Worker)


@pytest.mark.parametrize("name", ["Task", "GenerationTask", "StreamGenerationTask", "RewardTask"])
def test_the_stand_ins_have_the_real_fields(name: str) -> None:
    real = {field.name for field in dataclasses.fields(getattr(upstream, name))}
    ours = {field.name for field in dataclasses.fields(getattr(standins, name))}
    assert ours - NEWEST <= real, "the stand-in has fields that no release has"
    assert real & NEWEST <= ours
    assert not real - ours, "this release added fields: add them to scaffolding_ext/protocol/standins.py"


@pytest.mark.parametrize("name", ["GenerationTask", "StreamGenerationTask"])
def test_the_stand_ins_have_the_real_defaults(name: str) -> None:
    real, ours = getattr(upstream, name)(), getattr(standins, name)()
    shared = {field.name for field in dataclasses.fields(real)} & {field.name for field in dataclasses.fields(ours)}
    assert {key: getattr(real, key) for key in shared} == {key: getattr(ours, key) for key in shared}


def test_the_stand_ins_have_the_real_statuses() -> None:
    assert {s.name: s.value for s in standins.TaskStatus} == {s.name: s.value for s in upstream.TaskStatus}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_controller_gives_the_same_under_the_real_host_and_ours(name: str, upstream_host: Any) -> None:
    theirs, ours = RememberingWorker(), RememberingWorker()
    output = upstream_host(CONTROLLERS[name](), theirs).generate("Question 17").outputs[0]
    with ScaffoldingLlm(CONTROLLERS[name](), {"generation": ours}) as llm:
        expected = llm.generate("Question 17").outputs[0]
    assert figures(output, theirs.programs[0]) == figures(expected, ours.programs[0])


def test_a_vote_over_streams_gives_the_same_answer(upstream_host: Any) -> None:
    def make() -> BaseController:
        return MajorityVoteController(DynasorCoTController(chunk_size=24, rule="consecutive"), 5)

    output = completion_of(upstream_host(make(), RememberingWorker()).generate("Question 17"))
    with ScaffoldingLlm(make(), {"generation": RememberingWorker()}) as llm:
        expected = completion_of(llm.generate("Question 17"))  # what the streams had decoded in vain depends on time
    assert (output.text, output.answer, output.exit_reason) == (expected.text, expected.answer, expected.exit_reason)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_silent_failure_gives_no_empty_text(name: str, upstream_host: Any) -> None:
    result = upstream_host(CONTROLLERS[name](), SilentWorker()).generate("Question 17")
    with pytest.raises(NoOutputError):
        completion_of(result)


def test_our_host_runs_the_real_majority_vote() -> None:
    controller = upstream.MajorityVoteController(NativeGenerationController(), default_sample_num=3)
    with ScaffoldingLlm(controller, {"generation": ScriptedWorker("The answer is \\boxed{7}.")}) as llm:
        result = llm.generate("Question 17")
    assert "\\boxed{7}" in str(result.outputs[0].text)
    assert result.program.ledger.total.decoded == 3 * len("The answer is \\boxed{7}.")
