"""A stack's needs of an engine are asked of its controllers and its worker."""

from __future__ import annotations

from typing import Any

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.protocol import Controller
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.stack.build import engine_needs
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.workers.trtllm.engine_config import EngineNeeds

NATIVE = {"type": "NativeGenerationController", "args": {"sampling_params": {"max_tokens": 2000}}}
CHAIN = {
    "type": "DynasorCoTController",
    "args": {"max_tokens": 3000, "probe": {"type": "AnswerProbe", "args": {"max_tokens": 30}}},
}


class Judge(BaseController):
    """A controller of a user's own: it branches on one worker, and scores on another."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.needs = Needs(
            tags=(WorkerTag.GENERATION, WorkerTag.REWARD),
            tasks=((WorkerTag.GENERATION, BranchTask), (WorkerTag.REWARD, ScoreTask)),
            max_tokens=100 * depth,
        )


class Silent(Controller):
    """Upstream's contract only: it does not say what it sends."""


def engine(**args: Any) -> dict[str, Any]:
    return {"type": "TRTLLMWorker", "args": {"model": "m", "kv_cache_fraction": 0.3, **args}}


def needs(controller: dict[str, Any], tag: str = "generation", **workers: dict[str, Any]) -> EngineNeeds:
    return engine_needs(load_config({"controller": controller, "workers": {"generation": engine(), **workers}}), tag)


@pytest.mark.parametrize(
    ("controller", "longest"),
    [
        (NATIVE, 2000),
        (CHAIN, 3030),
        ({"type": "BudgetForcingController", "args": {"thinking_tokens": 500, "max_answer_tokens": 60}}, 560),
        ({"type": "DeepConfController", "args": {"max_tokens": 4000, "answer_tokens": 10}}, 4010),
        ({"type": "MajorityVoteController", "args": {"generation_controller": CHAIN}}, 3030),
        ({"type": f"{__name__}:Judge", "args": {"depth": 4}}, 400),
        ({"type": "NativeGenerationController"}, None),
        ({"type": f"{__name__}:Silent"}, None),
    ],
    ids=lambda value: value["type"].rpartition(":")[2] if isinstance(value, dict) else None,
)
def test_a_request_is_as_long_as_the_controller_says(controller: dict[str, Any], longest: int | None) -> None:
    found = needs(controller, reward=engine())
    assert found.max_seq_len == (None if longest is None else longest + 1)
    assert not found.scores


def test_each_worker_is_asked_what_it_is_sent() -> None:
    own = {"type": f"{__name__}:Judge", "args": {"depth": 4}}
    assert needs(own, "reward", reward=engine()) == EngineNeeds(scores=True, prefix_sharing=True, max_seq_len=401)
    sub = {"type": "ConformalDraftTargetController", "args": {"coverage": "conditional", "max_tokens": 900}}
    args = {**sub["args"], "target_controller": NATIVE}  # type: ignore[dict-item]
    found = {tag: needs({**sub, "args": args}, tag, draft=engine(), target=engine()) for tag in ("draft", "target")}
    assert [found[tag].scores for tag in ("draft", "target")] == [False, True]
    assert [found[tag].max_seq_len for tag in ("draft", "target")] == [921, 2001]


def test_what_the_worker_says_goes_before_what_it_is_sent() -> None:
    found = needs(NATIVE, generation=engine(max_seq_len=1500, max_batch_size=16, serve_scores=True))
    assert (found.max_seq_len, found.max_batch_size, found.scores) == (1500, 16, True)
    chunked = engine(llm_args={"enable_chunked_prefill": True}, enable_block_reuse=False)
    assert needs(NATIVE, generation=chunked) == EngineNeeds(max_seq_len=2001, chunked_prefill=True)


def test_a_worker_inside_another_is_asked_through_it() -> None:
    budgeted = {"type": "BudgetedWorker", "args": {"worker": engine(max_batch_size=16), "max_tokens": 8000}}
    found = needs(NATIVE, generation=budgeted)
    assert (found.max_seq_len, found.max_batch_size) == (2001, 16)  # a budget is no length of a request


def test_a_worker_without_an_engine_needs_what_it_is_sent() -> None:
    assert needs(NATIVE, generation={"type": "ScriptedWorker", "args": {"respond": "x"}}).max_seq_len == 2001
