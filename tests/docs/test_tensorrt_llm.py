"""docs/tensorrt_llm.md: its stack files are read and checked, and a dry run says what this machine lacks for them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.stack.build import missing_here, plan_stack
from scaffolding_ext.stack.load import load_config

pytest.importorskip("openai")

PAGE = (Path(__file__).parents[2] / "docs" / "tensorrt_llm.md").read_text(encoding="utf-8")
STACKS = [text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if text.startswith("controller:")]
PROBLEM = json.dumps({"id": "1", "prompt": "What is 2 + 2?", "answer": "4"})


@pytest.fixture(params=range(len(STACKS)))
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "stack.yaml"
    path.write_text(STACKS[request.param])
    return path


def test_each_stack_is_one_that_can_be_planned(stack: Path) -> None:
    plan = plan_stack(load_config(str(stack)))
    is_served = plan.workers[0].factory.__name__ == "OpenAIWorker"
    assert bool(missing_here(plan)) != is_served


def test_a_dry_run_says_what_this_machine_lacks(tmp_path: Path) -> None:
    stack, problems = tmp_path / "stack.yaml", tmp_path / "problems.jsonl"
    stack.write_text(STACKS[0])
    problems.write_text(PROBLEM + "\n")
    arguments = ["eval", "--config", str(stack), "--dataset", str(problems), "--dry_run"]
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 1
    assert "stack and dataset are fine" in told.stdout
    assert "workers.generation: tensorrt_llm is not installed" in told.stderr
    assert "workers.generation: the model is '/models/r1-distill-8b'" in told.stderr
    assert len(json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)["missing"]) == 2
