"""The most that a run can ask for is never less than what a run does ask for."""

from __future__ import annotations

from typing import Any

import pytest

from scaffolding_ext.evaluation.run.most_work import MostWork, most_work
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.stack.build import build_stack, check_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config

SMALL = {
    "native": ("sampling_params={temperature: 0.7, max_tokens: 90}",),
    "dynasor_cot": ("max_tokens=150", "chunk_size=16"),
    "majority_vote": ("default_sample_num=4", "allocation=null"),
    "budget_forcing": ("thinking_tokens=40",),
    "conformal_draft_target": ("num_chains=2", "max_turns=3"),
    "kv_share_branching": ("branching_factor=3", "max_tokens=120"),
}


def config_of(name: str) -> StackConfig:
    args = [f"controller.args.{each}" for each in SMALL[name]]
    return load_config(f"configs:{name}", [*args, "seed=1", *(["loops=true"] if name == "native" else [])])


@pytest.mark.parametrize("name", SMALL)
def test_no_request_exceeds_its_bound(name: str) -> None:
    """Requests of the embedded models, which often run into their limits here."""
    pytest.importorskip("torch")
    config = config_of(name)
    most = most_work(check_stack(config))
    calls: dict[int, Any] = {}
    with build_stack(config) as llm:
        for worker in llm.workers.values():
            count(worker, calls)
        for number in range(3):
            calls.clear()
            prompt = f"Start with {number}. Apply a+3,b-2,c*4,d+7,e-1,f*2. Find the total."
            total = llm.generate(prompt).program.ledger.total
            assert most.tokens is not None
            assert 0 < total.decoded <= most.tokens
            assert most.calls is None or 0 < len(calls) <= most.calls


def count(worker: Any, calls: dict[int, Any]) -> None:
    """Keep the tasks that ask a worker's model for anything; a stream that goes on is the same task."""
    handlers = dict(worker.task_handlers)

    async def counted(served_by: Any, task: Any) -> Any:
        if isinstance(task, GenerationTask | ScoreTask | BranchTask | VerifyTask):
            calls[id(task)] = task
        return await handlers[type(task)](served_by, task)

    worker.task_handlers = dict.fromkeys(handlers, counted)


def bound(controller: dict[str, Any]) -> MostWork:
    workers = {"generation": {"type": "ScriptedWorker", "args": {"respond": "7"}}}
    return most_work(check_stack(StackConfig.model_validate({"controller": controller, "workers": workers})))


NATIVE = {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 0.7, "max_tokens": 100}}}


def test_bounds_multiply_by_the_samples_of_a_vote() -> None:
    vote = {"type": "MajorityVoteController", "args": {"default_sample_num": 5, "generation_controller": NATIVE}}
    assert bound(NATIVE) == (1, 100)
    assert bound(vote) == (5, 500)
    vote["args"]["weight"] = "answer_probability"  # type: ignore[index]
    vote["args"]["allocation"] = None  # type: ignore[index]
    assert bound(vote) == (10, 600)


def test_a_chain_is_probed_at_most_at_each_position_and_asked_once_more() -> None:
    args = {"max_tokens": 256, "chunk_size": 64}
    assert bound({"type": "DynasorCoTController", "args": args}) == (4 + 3 + 1, 256 + 3 * 20 + 20)


def test_where_nothing_bounds_it_that_is_said() -> None:
    assert bound({"type": "NativeGenerationController"}) == (1, None)
    exact = {"type": "BudgetForcingController", "args": {"thinking_tokens": 10, "exact": True}}
    assert bound(exact) == (None, 10 + 2 * 64)
