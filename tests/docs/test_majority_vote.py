"""The allocation rule that `docs/algorithms/majority_vote.md` shows runs as it stands, from Python and from YAML."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from scaffolding_ext import MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.registry import allocation_rules
from scaffolding_ext.stack.build import plan_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker
from tests.rounds import replay

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms" / "majority_vote.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}[^\n]*\n(.*?)```", PAGE, flags=re.DOTALL)
    return str(text)


@pytest.fixture
def lead_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[AllocationRule]:
    (tmp_path / "lead_rule.py").write_text(block("python"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    kind: type[AllocationRule] = importlib.import_module("lead_rule").Lead
    return kind


def test_a_rule_of_one_s_own_is_short_and_ends_a_vote(lead_rule: type[AllocationRule]) -> None:
    assert len([line for line in block("python").splitlines() if line]) <= 15
    rule = lead_rule(lead=2)  # type: ignore[call-arg]
    assert replay(rule, [0, 1, -1, 0, 0, 0, 1, 1]).num_samples == 6
    answers = iter(["7", "8", "7", "7", "9", "9"])
    worker = ScriptedWorker(lambda task: rf"\boxed{{{next(answers)}}}")
    vote = MajorityVoteController(NativeGenerationController(), 6, allocation=rule)
    with ScaffoldingLlm(vote, {"generation": worker}) as llm:
        result = llm.generate("Question")
    assert (result.answer, result.exit_reason, len(worker.tasks)) == ("7", "certain", 4)


def test_a_stack_file_names_it(lead_rule: type[AllocationRule]) -> None:
    pytest.importorskip("torch")
    (shown,) = re.findall(r"`allocation: (\{.*?\}\})`", PAGE)
    config = load_config("configs:majority_vote", [f"controller.args.allocation={shown}"])
    plan_stack(config)
    assert config.controller.args["allocation"] == {"type": "lead_rule:Lead", "args": {"lead": 2}}
    assert allocation_rules.build(config.controller.args["allocation"]) == lead_rule(lead=2)  # type: ignore[call-arg]
