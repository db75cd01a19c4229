"""Demand on a server: forecasts by formula, and the budgets that are best under it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from benchmarks._lib.simulator import RequestRound, arrival_times, fixed_program, serve_programs
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType
from scaffolding_ext.controllers.budgets.queueing.model import Moments, objective, pollaczek_khinchine
from scaffolding_ext.controllers.budgets.queueing.plan import solve
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import Mix, TaskType, UnstableLoadError
from scaffolding_ext.errors import ConfigError

FITTED = (
    TaskType("sums", 0.7, A=0.55, b=0.02, D=0.30, t0=0.2, c=0.01),
    TaskType("proofs", 0.3, A=0.60, b=0.004, D=0.10, t0=0.4, c=0.01),
)
MEASURED = (
    MeasuredType("s", 0.6, (0, 64, 96, 160), (0.02, 0.16, 0.53, 0.91), (1.0, 1.6, 1.9, 2.5), (0.1, 0.2, 0.2, 0.3)),
    MeasuredType("flat", 0.4, (0, 100, 200), (0.5, 0.55, 0.56), (0.5, 1.5, 2.5)),
)


def test_one_place_is_pollaczek_and_khinchine_s() -> None:
    of = Moments(np.array([0.2, 0.9, 1.9]), np.array([0.1, 2.0, 9.0]))
    assert Queue().mean_time(0.5, of) == pytest.approx(pollaczek_khinchine(0.5, of))
    assert np.isinf(Queue().mean_time(0.5, Moments(np.asarray(2.0), np.asarray(5.0))))
    assert Queue().mean_time(0.5, Moments(np.zeros(2), np.zeros(2))).tolist() == [0, 0]


def test_servers_that_do_not_hinder_each_other_are_erlang_s() -> None:
    exponential = Moments(np.asarray(1.0), np.asarray(2.0))
    # Erlang's C for 3 servers at 2.1: 0.4923 wait, for 1 / (3 - 2.1) s on average
    terms = [1, 2.1, 2.1**2 / 2]
    last = 2.1**3 / 6 / (1 - 0.7)
    expected = 1 + last / (sum(terms) + last) / 0.9
    assert Queue(3).mean_time(2.1, exponential) == pytest.approx(expected)
    assert Queue(3, 0.0).mean_time(2.1, exponential) == pytest.approx(expected)


@pytest.mark.parametrize(("queue", "load"), [(Queue(4, 0.3), 0.4), (Queue(16, 0.1), 0.85), (Queue(3), 0.85)], ids=str)
def test_an_engine_that_batches_takes_as_long_as_simulated(queue: Queue, load: float) -> None:
    seconds, shares, rng = np.array([0.3, 1.0, 4.0]), np.array([0.5, 0.3, 0.2]), np.random.default_rng(0)
    rate = load * queue.capacity / float(seconds @ shares)
    arrivals = arrival_times(rate, 30_000, rng)
    programs = [fixed_program(RequestRound((each,))) for each in rng.choice(seconds, len(arrivals), p=shares).tolist()]
    times = (serve_programs(programs, arrivals, queue, 1.0).departures - arrivals)[600:].reshape(40, -1).mean(axis=1)
    formula = float(queue.mean_time(rate, Moments(seconds @ shares, seconds**2 @ shares)))
    half = 1.96 * float(times.std(ddof=1)) / np.sqrt(len(times))
    assert half < 0.15 * formula
    assert abs(float(times.mean()) - formula) < 2 * half + 0.02 * formula


@pytest.mark.parametrize(("queue", "load"), [(Queue(16, 0.1), 0.8), (Queue(8, 0.0), 0.4)], ids=str)
def test_questions_of_several_requests_take_about_as_long_as_simulated(queue: Queue, load: float) -> None:
    rng = np.random.default_rng(0)
    seconds = rng.lognormal(0, 0.5, (6000, 6)) * (np.arange(6) < rng.integers(1, 7, (6000, 1)))  # votes of 1 to 6
    work, path = seconds.sum(axis=1), seconds.max(axis=1)
    rate = load * queue.capacity / float(work.mean())
    arrivals = arrival_times(rate, len(work), rng)
    programs = [fixed_program(RequestRound(tuple(own[own > 0].tolist()))) for own in seconds]
    found = float((serve_programs(programs, arrivals, queue, 1.0).departures - arrivals)[200:].mean())
    of = Moments(*(np.asarray(each.mean()) for each in (work, work**2, path)))
    assert float(queue.mean_time(rate, of)) == pytest.approx(found, rel=0.12)
    assert float(queue.mean_time(rate, of._replace(path=None))) > 1.2 * found  # as one request, one after the other


def test_a_queue_without_places_is_refused() -> None:
    with pytest.raises(ConfigError, match="places"):
        Queue(0)


def test_a_forecast_of_fitted_types_is_the_model_s() -> None:
    demand = Demand(FITTED, 0.3, 30, 4096)
    mix = Mix.of(FITTED, 0.3, 30, 4096)
    budgets = np.array([[0.0, 0.0], [100, 300], [127, 203]])
    assert demand.forecast(budgets).objective == pytest.approx(objective(mix, budgets))
    plan = solve(FITTED, 0.3, 30, 4096)
    assert demand.best() == plan.integer_budgets
    assert demand.forecast(demand.best()).load == pytest.approx(plan.load)


def test_the_best_single_budget_is_the_best_of_all() -> None:
    demand = Demand(FITTED, 0.3, 30, 400)
    found = demand.best_uniform()
    values = demand.forecast(np.repeat(np.arange(401)[:, None], 2, axis=1)).objective
    assert values[found] == values.max()
    assert demand.forecast(demand.best()).objective >= values.max()
    assert Demand(MEASURED, 0.2, 10, 160).best_uniform() in (0, 64, 96, 100, 160)


@pytest.mark.parametrize("queue", [Queue(), Queue(16, 0.2)], ids=str)
def test_measured_budgets_are_all_compared(queue: Queue) -> None:
    demand = Demand(MEASURED, 0.3, 10, 200, queue)
    places = list(itertools.product(*(each.budgets for each in MEASURED)))
    values = demand.forecast(np.array(places)).objective
    assert demand.best() == places[int(np.argmax(values))]


def test_fitted_curves_before_an_engine_that_batches() -> None:
    demand = Demand(FITTED, 2.0, 30, 4096, Queue(16, 0.1))
    best = np.array(demand.best(), dtype=float)
    value = float(demand.forecast(best).objective)
    for far in ((60, 150), (8, 20), (2, 5)):
        around = best + np.array([[d, e] for d in (-far[0], 0, far[0]) for e in (-far[1], 0, far[1])])
        assert value >= demand.forecast(np.maximum(around, 0)).objective.max() - 1e-3
    alone = np.array(Demand(FITTED, 2.0 / 6.4, 30, 4096).best(), dtype=float)  # as a sixth of the engine would serve
    assert value > float(demand.forecast(alone).objective)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="mix fitted and measured types"):
        Demand((replace(FITTED[0]), replace(MEASURED[1], probability=0.3)), 0.1, 1, 10)  # type: ignore[arg-type]
    with pytest.raises(UnstableLoadError) as caught:
        Demand(MEASURED, 8.0, 10, 200, Queue(4)).best()
    assert caught.value.largest_stable_rate == pytest.approx(4 / 0.8)
