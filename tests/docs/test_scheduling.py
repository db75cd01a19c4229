"""What `docs/scheduling.md` shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.registry import policies
from scaffolding_ext.request.program import Progress, StepCounts
from scaffolding_ext.scheduling import ShortestRemaining
from scaffolding_ext.stack.build import plan_stack
from scaffolding_ext.stack.load import load_config

PAGE = (
    (Path(__file__).parents[2] / "docs" / "scheduling.md")
    .read_text(encoding="utf-8")
    .partition("\n## Budgets by type")[0]
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_stack_file_is_valid(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (example,) = blocks("yaml")
    (tmp_path / "stack.yaml").write_text(example, encoding="utf-8")
    config = load_config(tmp_path / "stack.yaml")
    plan_stack(config)
    assert config.scheduling is not None
    assert policies.resolve(config.scheduling.type) is ShortestRemaining


def test_every_policy_is_on_the_page() -> None:
    assert all(f"| `{name}` |" in PAGE for name in policies.names())


def test_the_policy_of_one_s_own_orders() -> None:
    (own,) = blocks("python")
    names: dict[str, Any] = {}
    exec(own, names)
    assert names["FewestSteps"]().priority(Progress(0, 0.0, steps=StepCounts("vote", 3, 5))) == 5
