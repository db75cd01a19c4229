"""`tune --cost queue`: the paper's table as a special case, and a stack by type from a log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.documents import located
from scaffolding_ext.evaluation.tune import queue as queued
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config

TABLE_1 = located("configs:calibrations/queueing_table_1.yaml")
LOAD = ("--cost", "queue", "--arrival_rate")


def tune(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["tune", *map(str, arguments)])


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations that take no time."""
    monkeypatch.setattr(queued, "NUM_SIMULATED", 300)


def write_log(path: Path, num_questions: int = 30) -> Path:
    """Questions of two types: one sample of an easy one is right, of a hard one a vote."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(num_questions):
        for task, ability in (("easy", 0.97), ("hard", 0.55)):
            answers = np.where(rng.random(6) < ability, 7, rng.integers(10, 15, 6)).tolist()
            samples = [{"answer": str(each), "output_tokens": int(rng.integers(50, 250))} for each in answers]
            lines.append(json.dumps({"question": f"{task} {number}", "target": "7", "task": task, "samples": samples}))
    path.write_text("\n".join(lines))
    return path


def test_table_1_is_the_special_case_of_one_chain(tmp_path: Path) -> None:
    stack = tmp_path / "stack.yaml"
    done = tune(TABLE_1, *LOAD, 0.1, "--alpha", 30, "--output_path", stack, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["objective"] == pytest.approx(9.7542, abs=0.001)
    assert list(found["budgets"].values()) == [0, 341, 0, 0, 346, 30]
    assert found["simulated_time"]["value"] == pytest.approx(found["system_time"], rel=0.02)
    live = check_stack(load_config(stack)).live
    assert live.plan.budgets == found["budgets"]
    assert live.plan.demand.best() == tuple(found["budgets"].values())  # as `budget plan` has it


def test_a_stack_by_type_from_a_log(tmp_path: Path) -> None:
    log, stack = write_log(tmp_path / "log.jsonl"), tmp_path / "stack.yaml"
    load = (*LOAD, 0.5, "--batch", 8, "--slowdown", 0.1, "--service", "0.2,0.01")
    done = tune(log, *load, "--alpha", 60, "--output_path", stack, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["all samples"]["seconds"] is None  # its load cannot be served
    assert rows[found["chosen"]]["objective"] == max(row["objective"] for row in found["rows"][1:])
    assert found["service"]["easy"] == {"at_once": 0.2, "a_token": 0.01}
    config = load_config(stack)
    assert config.resolved() == found["stack"]
    assert config.tuned is not None
    assert config.tuned.cost == "queue"
    assert found["settings"].keys() == set(check_stack(config).task_types() or ["all types"])


def test_the_share_in_time_is_the_objective_with_a_limit(tmp_path: Path) -> None:
    load = (*LOAD, 0.5, "--batch", 8, "--slowdown", 0.1, "--service", "0.2,0.01")
    shown = tune(write_log(tmp_path / "log.jsonl", 10), *load, "--slo", 5)
    assert shown.exit_code == 0, shown.output
    assert "in time %" in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines()[:5])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--cost", "queue", "--alpha", 3), "needs --arrival_rate"),
        ((*LOAD, 0.1), "--alpha or --slo"),
        ((*LOAD, 0.1, "--alpha", 3, "--slo", 3), "--alpha or --slo"),
        ((*LOAD, 0.1, "--alpha", 3, "--budget", "25%"), "takes no --confidence, --budget"),
        ((*LOAD, 0.1, "--alpha", 3, "--service", "fast"), "is no T0,C"),
        ((*LOAD, 0.1, "--alpha", 3), "service: is needed: the log has no seconds of 'easy'"),
        ((*LOAD, 100, "--alpha", 3, "--service", "0.2,0.01"), "even under the quickest settings"),
    ],
)
def test_what_is_refused(tmp_path: Path, arguments: tuple[object, ...], says: str) -> None:
    done = tune(write_log(tmp_path / "log.jsonl", 5), *arguments)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())
