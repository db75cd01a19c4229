"""The type of a question on the command line, and plans that are made anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.tinylm.grammar import KINDS

ASK = ["run", "Start with 5. Apply a+3,b-2. Find the total.", "--config"]


def test_run_names_the_type() -> None:
    given = ["configs:queue_aware_budget", "--task_type", KINDS[0], "--json"]
    done = CliRunner().invoke(main, [*ASK, *given], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["ledger"]["task_type"] == KINDS[0]
    budgets = check_stack(load_config("configs:queue_aware_budget")).plan.budgets
    assert next(each["planned"] for each in found["trace"] if each["event"] == "queue_budget") == budgets[KINDS[0]]


@pytest.mark.parametrize("column", ["kind", "task_type"])
def test_a_column_of_a_data_set_names_the_type(tmp_path: Path, column: str) -> None:
    row = {"question": "2+2?", "answer": "4", column: "sum"}
    (tmp_path / "data.jsonl").write_text(json.dumps(row))
    assert [sample.kind for sample in load_dataset(str(tmp_path / "data.jsonl"))] == ["sum"]


@pytest.mark.parametrize(
    ("stack", "says"),
    [
        ("configs:queue_aware_budget", f"the plan has the types {', '.join(sorted(KINDS))}: give one"),
        ("configs:native", "NativeGenerationController has no plan for types: leave it out"),
    ],
)
def test_an_unknown_type_is_refused(stack: str, says: str) -> None:
    done = CliRunner().invoke(main, [*ASK, stack, "--task_type", "riddles"])
    assert done.exit_code == 2
    assert says in done.stderr
    assert "task_type" in done.stderr
