"""`scaffolding-ext budget`: solve, plan, simulate, fit."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from scaffolding_ext import plain_yaml
from scaffolding_ext.cli.main import main
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queueing.plan import solve
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType

TASKS = [
    {"name": "sums", "probability": 0.7, "A": 0.55, "b": 0.02, "D": 0.3, "t0": 0.2, "c": 0.01},
    {"name": "proofs", "probability": 0.3, "A": 0.6, "b": 0.004, "D": 0.1, "t0": 0.4, "c": 0.01},
]
SOLVE = ("--arrival_rate", 0.3, "--alpha", 30, "--max_tokens", 4096)


def budget(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["budget", *map(str, arguments)])


@pytest.fixture
def types(tmp_path: Path) -> Path:
    path = tmp_path / "types.yaml"
    path.write_text(json.dumps({"tasks": TASKS, "data": "made up"}), encoding="utf-8")
    return path


def test_solve_prints_the_plan(types: Path, tmp_path: Path) -> None:
    plan = solve([TaskType(**task) for task in TASKS], 0.3, 30, 4096)
    result = budget("solve", types, *SOLVE)
    assert result.exit_code == 0, result.output
    rows = {words[0]: words for line in result.stdout.splitlines() if (words := line.split())}
    assert [int(rows[name][2]) for name in ("sums", "proofs")] == list(plan.integer_budgets)
    assert float(rows["objective"][1].rstrip(";")) == pytest.approx(plan.objective, abs=1e-4)
    found = json.loads(budget("solve", types, *SOLVE, "--json").stdout)
    assert found["budgets"] == pytest.approx(plan.budgets)
    assert found["kkt_residual"] <= 1e-8


def test_solve_by_the_paper_s_methods_on_the_paper_s_table() -> None:
    arguments = (
        "solve",
        "configs:calibrations/queueing_table_1.yaml",
        "--arrival_rate",
        0.1,
        "--alpha",
        30,
        "--max_tokens",
        32768,
    )
    for solver in ("fixed_point", "projected_gradient"):
        found = json.loads(budget(*arguments, "--solver", solver, "--rounding", "nearest", "--json").stdout)
        assert found["integer_budgets"] == [0, 341, 0, 0, 346, 30]
        assert found["objective"] - found["rounding_bound"] == pytest.approx(9.7542 - 9.7241, abs=2e-4)
    assert "at most 0.03 by eq. 41" in budget(*arguments).stdout
    assert "lbfgs" in budget(*arguments, "--solver", "newton").stderr


def test_a_file_of_types_that_is_not_there() -> None:
    for name in ("none.yaml", "configs:none.yaml"):
        result = budget("solve", name, *SOLVE)
        assert result.exit_code == 2
        assert f"cannot read {name}: No such file" in " ".join(result.stderr.split())


def test_solve_draws(types: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert budget("solve", types, *SOLVE, "--plot_path", tmp_path / "plan.png").exit_code == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_an_unstable_load_says_what_can_be_served(types: Path) -> None:
    result = budget("solve", types, "--arrival_rate", 9, "--alpha", 30, "--max_tokens", 100)
    assert result.exit_code == 2
    assert "must be below 3.84615" in result.stderr  # 1 / (0.7 * 0.2 + 0.3 * 0.4)
    result = budget("simulate", types, "--arrival_rate", 2, "--budgets", 100, "--servers", 2)
    assert "must be below 1.5873" in result.stderr  # 2 / 1.26


def test_simulate_beside_the_formula(types: Path) -> None:
    arguments = ("simulate", types, "--arrival_rate", 0.5, "--budgets", "50,200", "--num_queries", 100_000)
    found = json.loads(budget(*arguments, "--json").stdout)
    seconds, shares = np.array([0.7, 2.4]), np.array([0.7, 0.3])
    mean, square = seconds @ shares, seconds**2 @ shares
    assert found["formula"] == pytest.approx(mean + 0.5 * square / (2 * (1 - 0.5 * mean)))
    assert found["system_time"]["value"] == pytest.approx(found["formula"], rel=0.05)
    assert "Pollaczek-Khinchine" in budget(*arguments).stdout


def test_simulated_engines(types: Path) -> None:
    arguments = ("simulate", types, "--arrival_rate", 1, "--budgets", 100, "--num_queries", 20_000, "--json")
    servers = json.loads(budget(*arguments, "--servers", 4).stdout)
    free, shared = (json.loads(budget(*arguments, "--batch", 4, "--slowdown", s).stdout) for s in (0, 0.1))
    assert servers["formula"] is None
    assert free["system_time"]["value"] == pytest.approx(servers["system_time"]["value"])
    assert shared["system_time"]["value"] > free["system_time"]["value"]


@pytest.mark.parametrize(
    ("budgets", "says"), [("1,2,3", "has 3 numbers"), ("a", "no list"), ("-1", "each at least 0"), ("", "no list")]
)
def test_budgets_that_do_not_fit(types: Path, budgets: str, says: str) -> None:
    result = budget("simulate", types, "--arrival_rate", 1, f"--budgets={budgets}")
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "is no task types file of version 1"),
        ('{"tasks": []}', "tasks: List should have at least 1 item"),
        ("{", "not valid YAML"),
        (json.dumps({"tasks": [{"name": "a"}]}), "tasks.0.probability: Field required"),
        (json.dumps({"tasks": [TASKS[0] | {"b": 0}]}), "b: is 0"),
        (json.dumps({"tasks": [TASKS[0] | {"b": "x"}]}), "tasks.0.b: Input should be a valid number"),
        (json.dumps({"tasks": [TASKS[0]]}), "sum to 0.7"),
    ],
)
def test_files_that_hold_no_types(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "types.yaml"
    path.write_text(content, encoding="utf-8")
    result = budget("solve", path, *SOLVE)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


@pytest.fixture
def sweep(write_run: Callable[..., Path]) -> list[Path]:
    rng = np.random.default_rng(0)
    folders = []
    for tokens in (0, 50, 100, 200, 400):
        rows = []
        for number in range(240):
            kind = ("sums", "proofs")[number % 2]
            task = TASKS[number % 2]
            right = rng.random() < task["D"] + task["A"] * (1 - np.exp(-task["b"] * tokens))
            seconds = {"total": task["t0"] + task["c"] * tokens + rng.normal(0, 0.01)}
            rows.append((f"q{number}", right, tokens, {"kind": kind, "seconds": seconds}))
        config = f"controller: {{args: {{thinking_tokens: {tokens}}}}}\nmax_parallel_requests: 1\n"
        folders.append(write_run(f"budget_{tokens}", rows, config))
    return folders


def test_fit_writes_types_that_solve_reads(sweep: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, picture = tmp_path / "fitted.yaml", tmp_path / "fit.png"
    result = budget("fit", *sweep, "--output_path", path, "--plot_path", picture)
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    content = plain_yaml.read(path)
    fitted = {task["name"]: task for task in content["tasks"]}
    for task in TASKS:
        found = fitted[task["name"]]
        assert found["probability"] == 0.5
        assert found["c"] == pytest.approx(task["c"], rel=0.02)
        (notes,) = (each for each in content["fits"] if each["kind"] == task["name"])
        assert notes["A"]["low"] <= task["A"] <= notes["A"]["high"]
        assert list(notes["monotone"]) == sorted(notes["monotone"])
    assert budget("solve", path, *SOLVE).exit_code == 0


def test_solve_among_what_was_measured(sweep: list[Path], tmp_path: Path, types: Path) -> None:
    path = tmp_path / "fitted.yaml"
    budget("fit", *sweep, "--output_path", path)
    found = json.loads(budget("solve", path, *SOLVE, "--measured", "--json").stdout)
    assert found["is_global"]
    assert found["budgets"].keys() == {"sums", "proofs"}
    assert set(found["budgets"].values()) <= {0, 50, 100, 200, 400}
    free = json.loads(budget("solve", path, *SOLVE, "--json").stdout)
    assert found["objective"] == pytest.approx(free["objective"], rel=0.1)
    bounded = ("solve", path, "--arrival_rate", 0.3, "--alpha", 300, "--max_tokens", 60, "--measured")
    assert "sums  50 tokens" in budget(*bounded).stdout
    assert "files that `budget fit` writes" in budget("solve", types, *SOLVE, "--measured").stderr


def crowd(*folders: Path) -> None:
    for folder in folders:
        config = folder / "config.yaml"
        config.write_text(config.read_text().replace("requests: 1", "requests: 8"), encoding="utf-8")


def test_seconds_are_of_runs_that_served_one_at_a_time(sweep: list[Path], tmp_path: Path) -> None:
    crowd(sweep[1], sweep[3])
    path = tmp_path / "fitted.yaml"
    result = budget("fit", *sweep, "--output_path", path)
    assert "no service times" not in result.stderr
    (fit, _) = plain_yaml.read(path)["fits"]
    assert fit["num_answers"] == [120] * 5
    t0, c = fit["t0"]["value"], fit["c"]["value"]
    assert fit["mean_seconds"][1] == pytest.approx(t0 + 50 * c)  # by the line
    assert fit["mean_seconds"][2] != pytest.approx(t0 + 100 * c, abs=1e-6)  # as measured
    assert fit["spread_seconds"][1] > 0


def test_what_is_asked_again_for_its_seconds_counts_once(sweep: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "fitted.yaml"
    budget("fit", *sweep, "--output_path", path)
    once = plain_yaml.read(path)
    again = [shutil.copytree(folder, tmp_path / f"again_{folder.name}") for folder in sweep[:2]]
    crowd(*sweep)
    budget("fit", *sweep, *again, "--output_path", path)
    twice = plain_yaml.read(path)
    for before, after in zip(once["fits"], twice["fits"], strict=True):
        assert (before["num_answers"], before["num_correct"]) == (after["num_answers"], after["num_correct"])
        assert before["mean_seconds"][:2] == pytest.approx(after["mean_seconds"][:2])
    assert [task["probability"] for task in twice["tasks"]] == [0.5, 0.5]


PLAN = (*SOLVE, "--output_path")


def test_plan_writes_what_a_stack_loads(types: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    result = budget("plan", types, *PLAN, path)
    assert result.exit_code == 0, result.output
    plan = solve([TaskType(**task) for task in TASKS], 0.3, 30, 4096)
    loaded = PlannedBudgets.load(path)
    assert tuple(loaded.budgets.values()) == plan.integer_budgets
    assert loaded.data == types.name
    assert loaded.fingerprint == "sha256:" + hashlib.sha256(types.read_bytes()).hexdigest()
    assert f"objective {plan.integer_objective:.4f}" in result.stdout
    rows = [words for line in result.stdout.splitlines() if len(words := line.split()) == 8 and words[0].isdigit()]
    assert [float(row[0]) for row in rows] == [3, 9, 30, 90, 300]  # the frontier
    assert [float(row[4]) for row in rows] == sorted(float(row[4]) for row in rows)
    found = json.loads(budget("plan", types, *PLAN, path, "--json").stdout)
    assert found["forecast"]["objective"] >= found["uniform_forecast"]["objective"]


def test_plan_for_an_engine_that_batches_among_what_was_measured(sweep: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fitted, path, picture = tmp_path / "fitted.yaml", tmp_path / "plan.yaml", tmp_path / "plan.png"
    budget("fit", *sweep, "--output_path", fitted)
    arguments = ("plan", fitted, *PLAN, path, "--measured", "--batch", 16, "--slowdown", 0.2, "--plot_path", picture)
    assert budget(*arguments).exit_code == 0
    loaded = PlannedBudgets.load(path)
    assert set(loaded.budgets.values()) <= {0, 50, 100, 200, 400}
    assert (loaded.demand.queue.places, loaded.demand.queue.slowdown) == (16, 0.2)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_fit_says_what_it_cannot_know(sweep: list[Path], tmp_path: Path) -> None:
    crowd(*sweep[:3])
    result = budget("fit", *sweep[:3], "--output_path", tmp_path / "types.yaml", "--json")
    assert "no service times" in result.stderr
    assert any("measure a fourth" in warning for warning in json.loads(result.stdout)["warnings"])
    result = budget("fit", *sweep[:2], "--output_path", tmp_path / "types.yaml")
    assert result.exit_code == 2
    assert "at least three budgets" in result.stderr
    result = budget("fit", *sweep, "--output_path", tmp_path / "types.yaml", "--budget_key", "controller.args.other")
    assert "says None at controller.args.other" in result.stderr


@pytest.mark.parametrize("command", ["solve", "simulate", "fit", "plan"])
def test_help_has_an_example(command: str) -> None:
    assert f"scaffolding-ext budget {command}" in budget(command, "--help").stdout
