"""Retention priorities on the double: the GPU check sees their effect, and its absence."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
from benchmarks.gpu import check
from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker

pytestmark = [
    pytest.mark.parametrize("tensorrt_llm", ["newest"], indirect=True),
    pytest.mark.usefixtures("tensorrt_llm"),
]


class Loading(check.Bench):
    """Loads with further settings of the KV cache, or an engine that follows no priorities."""

    def __init__(self, follows: bool = True, **settings: Any) -> None:
        super().__init__("tinylm/draft", 0.3)
        self._follows, self._settings = follows, settings

    def load(self, **arguments: Any) -> TRTLLMWorker:
        own = arguments.pop("llm_args", {}).get("kv_cache_config", {})
        worker = super().load(**arguments, llm_args={"kv_cache_config": {**own, **self._settings}})
        worker._loaded.llm.executor._retains &= self._follows
        return worker


def test_the_effect_of_priorities_is_seen() -> None:
    check.retention(Loading())


def test_an_engine_that_ignores_them_unsaid_fails() -> None:
    with pytest.raises(AssertionError, match="retention priorities have no effect"):
        check.retention(Loading(follows=False, use_kv_cache_manager_v2=False))


def test_a_manager_without_them_is_named() -> None:
    with pytest.raises(check.NotServedError, match=r"KV cache manager V2 has no retention priorities \(#16251\)"):
        check.retention(Loading(use_kv_cache_manager_v2=True))
