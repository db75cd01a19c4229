"""Ways to give budgets meet the same questions; dealing the types out by chance keeps how many get each budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks._lib.budget_arms import ARMS, BY_CHANCE, PLAN, SINGLE, Server, single
from benchmarks._lib.budget_gains import Arm, best_of_each_seed, blocks_of
from benchmarks._lib.budget_types import PLANNED
from benchmarks._lib.served_queue import Served
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.tinylm.grammar import KINDS


class Asked(Server):
    """Takes down what each arm was asked, instead of serving it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.met: list[tuple[Sequence[int], list[Example], list[float]]] = []

    def serve(self, demand: Demand, budgets: Sequence[int], samples: Sequence[Example], arrivals: Floats) -> Served:
        self.met.append((tuple(budgets), list(samples), arrivals.tolist()))
        return Served(np.ones(len(samples)), np.arange(len(samples), dtype=float))


@pytest.fixture
def demand() -> Demand:
    """Each type gains by thinking, and each at another budget."""
    seconds = tuple(0.1 + 0.01 * budget for budget in PLANNED)
    types = tuple(
        MeasuredType(kind, 0.2, PLANNED, tuple(float(budget >= PLANNED[k + 1]) for budget in PLANNED), seconds, seconds)
        for k, kind in enumerate(KINDS)
    )
    return Demand(types, 0.5, 60.0, max(SINGLE))


@pytest.mark.parametrize("seed", [3, 4])
def test_every_arm_meets_the_same_questions_at_the_same_times(seed: int, demand: Demand) -> None:
    server = Asked(seed)
    found = server.arms(demand, 80.0)
    assert set(found["arms"]) == set(ARMS)
    (first, *others) = [([sample.id for sample in samples], times) for _, samples, times in server.met]
    assert all(each == first for each in others)
    plan = tuple(found["plan"].values())
    assert sorted(budgets for budgets, _, _ in server.met) == sorted([plan, plan, *((n,) * 5 for n in SINGLE)])


def test_types_by_chance_are_as_many_of_each_but_of_other_questions(demand: Demand) -> None:
    server = Asked(3)
    server.arms(demand, 200.0)
    plan = tuple(demand.best())
    own = [sample.id.rpartition("-")[2] for sample in server.met[0][1]]
    asked = [[sample.kind for sample in samples] for budgets, samples, _ in server.met if budgets == plan]
    assert own in asked
    (by_chance,) = [kinds for kinds in asked if kinds != own]
    assert Counter(by_chance) == Counter(own)
    assert sum(dealt == kind for dealt, kind in zip(by_chance, own, strict=True)) < 0.5 * len(own)


def test_an_arm_of_two_seeds_takes_the_worth_and_the_forecast_of_each() -> None:
    runs = [
        {"alpha": 10.0, "arms": {PLAN: {"correct": [1.0, 0.0], "seconds": [1.0, 2.0], "forecast": [0.6, 3.0]}}},
        {"alpha": 20.0, "arms": {PLAN: {"correct": [1.0], "seconds": [2.0], "forecast": [0.9, 4.0]}}},
    ]
    arm = Arm.of(runs, PLAN)
    assert arm.objective.tolist() == pytest.approx([90, -20, 90])
    assert arm.beyond.tolist() == pytest.approx([-0.4, 0.6, -0.1])
    assert arm.forecast_seconds.tolist() == [3, 3, 4]


def test_each_seed_has_the_single_budget_that_did_best_there() -> None:
    def run(best: int) -> dict[str, object]:
        done = {"seconds": [1.0, 1.0], "forecast": [0.5, 1.0]}
        arms = {single(n): {"correct": [1.0, float(n == best)], **done} for n in SINGLE}
        return {"alpha": 10.0, "arms": {**arms, PLAN: {"correct": [1.0, 1.0], **done}}}

    assert best_of_each_seed([run(64), run(128)]).correct.tolist() == [1, 1, 1, 1]
    assert Arm.of([run(64), run(128)], single(64)).correct.tolist() == [1, 1, 1, 0]


def test_no_block_of_arrivals_lies_in_two_seeds() -> None:
    blocks = blocks_of([45, 5])
    assert blocks.tolist() == [0] * 20 + [1] * 20 + [2] * 5 + [3, 3, 4, 4, 5]


def test_arms_are_named_by_their_budgets() -> None:
    assert single(96) == "96 tokens for all"
    assert BY_CHANCE in ARMS
