"""Plans of budgets: their file, and plans in use that follow the arrivals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queue_aware_budget import LivePlan
from scaffolding_ext.controllers.budgets.queueing.arrivals import DriftBounds
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
    assert "scaffolding-ext tune LOG --plan" in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        PlannedBudgets.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("demand", "quickest"), [(DEMANDS[0], {"sums": 0, "proofs": 0}), (DEMANDS[1], {"s": 32, "flat": 0})]
)
def test_a_load_that_cannot_be_served_gets_the_quickest_budgets(demand: Demand, quickest: dict[str, int]) -> None:
    plan = PlannedBudgets.of(demand).replanned(1e3, demand.shares)
    assert plan.budgets == quickest
    assert plan.mixture_budget == 0
    assert plan.model_dump(mode="json")["budgets"] == quickest


def test_the_quickest_setting_of_a_menu_need_not_be_its_first() -> None:
    types = (
        MeasuredType("sums", 0.5, (0, 1, 2), (0.9, 0.8, 0.7), (3.0, 1.0, 2.0)),
        MeasuredType("proofs", 0.5, (0, 1, 2), (0.9, 0.8, 0.7), (3.0, 2.5, 1.0)),
    )
    demand = Demand(types, 0.1, 30, 2)
    plan = PlannedBudgets.of(demand).replanned(1e3, demand.shares)
    assert plan.budgets == {"sums": 1, "proofs": 2}
    assert plan.mixture_budget == 2  # 3.0 s for both, against 3.5


def arrive(live: LivePlan, rate: float, shares: list[float], number: int) -> list[dict[str, object]]:
    rng, now, found = np.random.default_rng(3), 0.0, []
    for _ in range(number):
        now += rng.exponential(1 / rate)
        figures = live.arrived(now, ("sums", "proofs")[rng.choice(2, p=shares)])
        found += [] if figures is None else [figures]
    return found


def test_a_plan_in_use_follows_the_rate() -> None:
    live = LivePlan(PlannedBudgets.of(DEMANDS[0]), DriftBounds(window=100, in_a_row=1))
    before = dict(live.plan.budgets)
    (first, *_) = arrive(live, 0.6, [0.7, 0.3], 101)
    assert first["rate_drifted"]
    assert not first["mix_drifted"]
    assert live.plan.demand.arrival_rate == pytest.approx(0.6, rel=0.3)
    assert live.plan.demand.shares == DEMANDS[0].shares
    assert all(live.plan.budgets[name] < before[name] for name in before)
    assert json.loads(json.dumps(first))["budgets"] == live.plan.budgets
    assert (
        arrive(LivePlan(live.plan, DriftBounds(window=100, in_a_row=1)), live.plan.demand.arrival_rate, [0.7, 0.3], 301)
        == []
    )


def test_a_plan_in_use_follows_the_mix() -> None:
    live = LivePlan(PlannedBudgets.of(DEMANDS[0]), DriftBounds(window=200, in_a_row=1))
    (figures,) = arrive(live, 0.3, [0.2, 0.8], 201)
    assert figures["mix_drifted"]
    assert live.plan.demand.arrival_rate == 0.3
    assert live.plan.demand.shares["proofs"] == pytest.approx(0.8, abs=0.08)


def test_a_plan_may_be_kept_for_ever() -> None:
    live = LivePlan(PlannedBudgets.of(DEMANDS[0]), None)
    assert arrive(live, 100.0, [0.1, 0.9], 500) == []
