"""Shares of a GPU's memory in a stack file."""

from __future__ import annotations

from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stack.build import PlannedWorker, check_placement, check_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker


def check(**workers: dict[str, Any]) -> None:
    check_placement(PlannedWorker(f"workers.{tag}", TRTLLMWorker, args) for tag, args in workers.items())


def test_shares_up_to_the_whole_are_taken() -> None:
    check(draft={"kv_cache_fraction": 0.4}, target={"kv_cache_fraction": 0.6})
    check(generation={})
    check_placement(PlannedWorker(f"workers.{tag}", HuggingFaceWorker, {}) for tag in ("draft", "target"))


def test_shares_that_do_not_fit_on_a_gpu_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^workers\.target\.args\.kv_cache_fraction: .*draft 0\.4, target 0\.7.*1\.1"
    ):
        check(draft={"kv_cache_fraction": 0.4}, target={"kv_cache_fraction": 0.7})
    with pytest.raises(ConfigError, match=r"on the same GPU .*draft 0.8, target 0.8"):
        check(draft={}, target={})


class Wrapper(ScriptedWorker):
    """A worker of a user's own around another."""

    def __init__(self, inner: ScriptedWorker) -> None:
        super().__init__("")


def on_gpu(fraction: float, wrapper: dict[str, Any] | None = None) -> dict[str, Any]:
    worker = {"type": "TRTLLMWorker", "args": {"model": "m", "kv_cache_fraction": fraction}}
    return worker if wrapper is None else {"type": wrapper["type"], "args": {wrapper["key"]: worker}}


@pytest.mark.parametrize(
    "wrapper",
    [{"type": "BudgetedWorker", "key": "worker"}, {"type": f"{__name__}:Wrapper", "key": "inner"}],
    ids=lambda wrapper: wrapper["key"],
)
def test_a_worker_inside_another_takes_its_share(wrapper: dict[str, Any]) -> None:
    controller = {"type": "ConformalDraftTargetController", "args": {"coverage": "conditional"}}
    stack = {"controller": controller, "workers": {"draft": on_gpu(0.9), "target": on_gpu(0.9, wrapper)}}
    at = rf"workers\.target\.args\.{wrapper['key']}\.args\.kv_cache_fraction"
    with pytest.raises(ConfigError, match=rf"^{at}: .* on the same GPU .*draft 0\.9, target 0\.9, in all 1\.8"):
        check_stack(load_config(stack))
    stack["workers"]["draft"] = on_gpu(0.1)
    check_stack(load_config(stack))


def test_an_engine_that_is_there_already_takes_nothing_more() -> None:
    reference = {"type": "TRTLLMWorker", "args": {"model": {"$ref": "llm"}}}
    controller = {"type": "ConformalDraftTargetController", "args": {"coverage": "conditional"}}
    stack = {"controller": controller, "workers": {"draft": reference, "target": on_gpu(0.9)}}
    check_stack(load_config(stack), {"llm": object()})
