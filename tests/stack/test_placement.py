"""Shares of a GPU's memory in a stack file."""

from __future__ import annotations

from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stack.config import ComponentConfig
from scaffolding_ext.stack.placement import check_placement


def check(**workers: dict[str, Any]) -> None:
    check_placement({tag: ComponentConfig(type="TRTLLMWorker", args=args) for tag, args in workers.items()})


def test_shares_up_to_the_whole_are_taken() -> None:
    check(draft={"kv_cache_fraction": 0.4}, target={"kv_cache_fraction": 0.6})
    check(generation={})
    check(draft={"devices": [0]}, target={"devices": [1]})
    check_placement({tag: ComponentConfig(type="HuggingFaceWorker") for tag in ("draft", "target")})


def test_shares_that_do_not_fit_on_a_gpu_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^workers\.target\.args\.kv_cache_fraction: .*draft 0\.4, target 0\.7.*1\.1"
    ):
        check(draft={"kv_cache_fraction": 0.4}, target={"kv_cache_fraction": 0.7})
    with pytest.raises(ConfigError, match=r"on GPU 1 .*draft 0\.3, target 0\.9"):
        check(draft={"kv_cache_fraction": 0.3, "devices": [0, 1]}, target={"devices": [1]})


def test_a_worker_that_names_no_gpu_counts_on_all() -> None:
    with pytest.raises(ConfigError, match=r"on the same GPU .*draft 0.9, target 0.9"):
        check(draft={}, target={})
    with pytest.raises(ConfigError, match=r"on GPU 0 .*draft 0.5, target 0.6"):
        check(draft={"kv_cache_fraction": 0.5}, target={"kv_cache_fraction": 0.6, "devices": [0]})
