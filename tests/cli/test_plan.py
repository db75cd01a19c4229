"""`scaffolding-ext plan`: budgets of types, and of runs at several budgets."""

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

from scaffolding_ext.cli.main import main
from scaffolding_ext.controllers.budgets.queueing.plan import solve
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType
from scaffolding_ext.documents import located
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config

TABLE_1 = located("configs:calibrations/queueing_table_1.yaml")


def plan(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)])


def test_table_1_is_the_special_case_of_one_chain(tmp_path: Path) -> None:
    stack = tmp_path / "stack.yaml"
    done = plan(TABLE_1, "--arrival_rate", 0.1, "--alpha", 30, "--output_path", stack, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["objective"] == pytest.approx(9.7542, abs=0.001)
    assert list(found["budgets"].values()) == [0, 341, 0, 0, 346, 30]
    assert found["system_time"] == pytest.approx(2.178, abs=0.001)
    assert found["objective"] > found["for_all"]["objective"]
    assert check_stack(load_config(stack)).plan.budgets == found["budgets"]
    shown = plan("configs:calibrations/queueing_table_1.yaml", "--arrival_rate", 0.1, "--alpha", 30).stdout
    assert "plan         objective 9.7542" in shown


TASKS = [
    {"name": "sums", "probability": 0.7, "A": 0.55, "b": 0.02, "D": 0.3, "t0": 0.2, "c": 0.01},
    {"name": "proofs", "probability": 0.3, "A": 0.6, "b": 0.004, "D": 0.1, "t0": 0.4, "c": 0.01},
]
PLAN = ("--arrival_rate", 0.3, "--alpha", 30)


@pytest.fixture
def types(tmp_path: Path) -> Path:
    path = tmp_path / "types.yaml"
    path.write_text(json.dumps({"tasks": TASKS, "data": "made up"}), encoding="utf-8")
    return path


def test_a_plan_is_written_for_a_stack_to_load(types: Path, tmp_path: Path) -> None:
    stack = tmp_path / "stack.yaml"
    done = plan(types, *PLAN, "--output_path", stack)
    assert done.exit_code == 0, done.output
    solved = solve([TaskType(**task) for task in TASKS], 0.3, 30, 32768)
    loaded = check_stack(load_config(stack)).plan
    assert tuple(loaded.budgets.values()) == solved.integer_budgets
    assert loaded.data == types.name
    assert loaded.fingerprint == "sha256:" + hashlib.sha256(types.read_bytes()).hexdigest()
    assert f"objective {solved.integer_objective:.4f}" in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines()[:2]] == [
        [name, str(tokens)] for name, tokens in loaded.budgets.items()
    ]
    assert check_stack(load_config(stack)).task_types() == ("sums", "proofs")


def test_an_unstable_load_says_what_can_be_served(types: Path) -> None:
    done = plan(types, "--arrival_rate", 9, "--alpha", 30)
    assert done.exit_code == 2
    assert "must be below 3.84615" in done.stderr  # 1 / (0.7 * 0.2 + 0.3 * 0.4)


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
    done = plan(path, *PLAN)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())


WORKERS = "workers: {generation: {type: HuggingFaceWorker, args: {model: tinylm/draft}}}\nmax_parallel_requests: 1\n"


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
        config = f"controller: {{type: BudgetForcingController, args: {{thinking_tokens: {tokens}}}}}\n{WORKERS}"
        folders.append(write_run(f"budget_{tokens}", rows, config))
    return folders


def test_types_are_fitted_to_runs_at_several_budgets_and_read_again(sweep: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "fitted.yaml"
    done = plan(*sweep, *PLAN, "--json")
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)["types"]
    path.write_text(json.dumps(content))
    fitted = {task["name"]: task for task in content["tasks"]}
    for task in TASKS:
        found = fitted[task["name"]]
        assert found["probability"] == 0.5
        assert found["c"] == pytest.approx(task["c"], rel=0.02)
        (notes,) = (each for each in content["fits"] if each["kind"] == task["name"])
        assert notes["A"]["low"] <= task["A"] <= notes["A"]["high"]
        assert list(notes["monotone"]) == sorted(notes["monotone"])
    again = json.loads(plan(path, *PLAN, "--json").stdout)
    assert again["budgets"] == json.loads(done.stdout)["budgets"]
    assert "misses at most" in plan(*sweep, *PLAN).stdout


def test_a_plan_among_measured_budgets(sweep: list[Path], tmp_path: Path, types: Path) -> None:
    stack = tmp_path / "stack.yaml"
    assert plan(*sweep, *PLAN, "--measured", "--batch", "16,0.2", "--output_path", stack).exit_code == 0
    loaded = check_stack(load_config(stack)).plan
    assert set(loaded.budgets.values()) <= {0, 50, 100, 200, 400}
    assert (loaded.demand.queue.places, loaded.demand.queue.slowdown) == (16, 0.2)
    found, free = (json.loads(plan(*sweep, *PLAN, *way, "--json").stdout) for way in (["--measured"], []))
    assert found["objective"] == pytest.approx(free["objective"], rel=0.1)
    assert "measured types are in the `types`" in plan(types, *PLAN, "--measured").stderr


def test_the_stack_keeps_the_worker_of_the_runs(sweep: list[Path], tmp_path: Path) -> None:
    stack = tmp_path / "stack.yaml"
    assert plan(*sweep, *PLAN, "--batch", 4, "--output_path", stack).exit_code == 0
    written, of_run = load_config(stack), load_config(sweep[0] / "config.yaml")
    assert written.workers == of_run.workers
    assert (of_run.max_parallel_requests, written.max_parallel_requests) == (1, 4)
    config = sweep[1] / "config.yaml"
    config.write_text(config.read_text().replace("tinylm/draft", "tinylm/target"), encoding="utf-8")
    assert plan(*sweep, *PLAN, "--output_path", stack).exit_code == 0
    assert load_config(stack).workers["generation"].type == "OpenAIWorker"


def test_a_budget_beyond_the_measured_ones_is_marked(sweep: list[Path]) -> None:
    told = plan(*sweep[:3], "--arrival_rate", 0.01, "--alpha", 3000).stdout
    assert "outside the measured 0 to 100 tokens" in told
    assert "outside" not in plan(*sweep[:3], "--arrival_rate", 0.01, "--alpha", 3000, "--measured").stdout


def crowd(*folders: Path) -> None:
    for folder in folders:
        config = folder / "config.yaml"
        config.write_text(config.read_text().replace("requests: 1", "requests: 8"), encoding="utf-8")


def fits_of(folders: list[Path]) -> Any:
    done = plan(*folders, *PLAN, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["types"]


def test_seconds_are_of_runs_that_served_one_at_a_time(sweep: list[Path], tmp_path: Path) -> None:
    crowd(sweep[1], sweep[3])
    (fit, _) = fits_of(sweep)["fits"]
    assert fit["num_answers"] == [120] * 5
    t0, c = fit["t0"]["value"], fit["c"]["value"]
    assert fit["mean_seconds"][1] == pytest.approx(t0 + 50 * c)  # by the line
    assert fit["mean_seconds"][2] != pytest.approx(t0 + 100 * c, abs=1e-6)  # as measured
    assert fit["spread_seconds"][1] > 0


def test_what_is_asked_again_for_its_seconds_counts_once(sweep: list[Path], tmp_path: Path) -> None:
    once = fits_of(sweep)
    again = [shutil.copytree(folder, tmp_path / f"again_{folder.name}") for folder in sweep[:2]]
    crowd(*sweep)
    twice = fits_of([*sweep, *again])
    for before, after in zip(once["fits"], twice["fits"], strict=True):
        assert (before["num_answers"], before["num_correct"]) == (after["num_answers"], after["num_correct"])
        assert before["mean_seconds"][:2] == pytest.approx(after["mean_seconds"][:2])
    assert [task["probability"] for task in twice["tasks"]] == [0.5, 0.5]


def test_a_fit_says_what_it_cannot_know(sweep: list[Path]) -> None:
    crowd(*sweep[:3])
    done = plan(*sweep[:3], *PLAN)
    assert "their seconds include waiting" in done.stderr
    assert "measure a fourth" in done.stderr


def test_all_that_is_lacking_is_named_at_once(sweep: list[Path], types: Path) -> None:
    runs, rate, alpha = "three or more budgets", "--arrival_rate", "--alpha"
    for given, lacking in (
        ([], {runs, rate, alpha}),
        ([*sweep[:2], "--alpha", 30], {runs, rate}),
        ([*sweep[:2], sweep[0].parent, *PLAN], {runs}),
        ([types], {rate, alpha}),
    ):
        done = plan(*given)
        assert done.exit_code == 2
        assert {name for name in (runs, rate, alpha) if name in " ".join(done.stderr.split())} == lacking


def test_questions_without_a_kind_are_one_type_and_the_user_is_told(sweep: list[Path]) -> None:
    assert "one type" not in plan(*sweep, *PLAN).stderr
    for folder in sweep:
        records = folder / "samples.jsonl"
        records.write_text(records.read_text().replace('"kind": "proofs"', '"kind": null'), encoding="utf-8")
    done = plan(*sweep, *PLAN, "--json")
    assert list(json.loads(done.stdout)["budgets"]) == ["all", "sums"]
    assert "some questions name no kind, so they are planned as one type, 'all'" in done.stderr
