"""Plans of budgets: their file, and plans in use that follow the arrivals."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType
from scaffolding_ext.errors import ConfigError

FITTED = (
    TaskType("sums", 0.7, A=0.55, b=0.02, D=0.30, t0=0.2, c=0.01),
    TaskType("proofs", 0.3, A=0.60, b=0.004, D=0.10, t0=0.4, c=0.01),
)
MEASURED = (
    MeasuredType("s", 0.6, (32, 64, 96), (0.1, 0.6, 0.9), (1.0, 1.6, 1.9), (0.1, 0.2, 0.2)),
    MeasuredType("flat", 0.4, (0, 100), (0.5, 0.55), (0.5, 1.5)),
)
DEMANDS = [Demand(FITTED, 0.3, 30, 4096), Demand(MEASURED, 0.3, 10, 200, Queue(16, 0.2))]
DEMAND = PlannedBudgets.of(DEMANDS[0]).model_dump(mode="json")["demand"]


@pytest.mark.parametrize("demand", DEMANDS, ids=["fitted", "measured"])
def test_a_file_holds_all_of_a_plan(tmp_path: Path, demand: Demand) -> None:
    plan = PlannedBudgets.of(demand, model="tinylm/target", fingerprint="sha256:00")
    plan.save(tmp_path / "plan.yaml")
    assert PlannedBudgets.load(tmp_path / "plan.yaml") == plan
    content = plain_yaml.read(tmp_path / "plan.yaml")
    assert (content["kind"], content["version"], content["fingerprint"]) == ("budget_plan", 1, "sha256:00")
    assert content["forecast"]["objective"] >= content["uniform_forecast"]["objective"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "version 1 .version"),
        ({"kind": "certaindex"}, "kind"),
        ({"budgets": {"sums": 3}}, r"budgets of \['sums'\]"),
        ({"demand": DEMAND | {"arrival_rate": -1}}, "arrival_rate"),
        ({"demand": DEMAND | {"types": []}}, "tasks"),
        ({"demand": DEMAND | {"queue": {"places": 0}}}, "places"),
        ({"more": 1}, "more"),
    ],
)
def test_what_is_no_plan_is_refused_with_what_to_do(tmp_path: Path, change: dict[str, object], says: str) -> None:
    path = tmp_path / "plan.yaml"
    PlannedBudgets.of(DEMANDS[0]).save(path)
    path.write_text(plain_yaml.dump(plain_yaml.read(path) | change), encoding="utf-8")
    with pytest.raises(ConfigError, match=says) as caught:
        PlannedBudgets.load(path)
    assert "scaffolding-ext plan RUN..." in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        PlannedBudgets.load(tmp_path / "none.yaml")
