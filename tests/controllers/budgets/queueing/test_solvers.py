"""The solvers of budgets: strictly concave, in agreement, at the optimum, and stable."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brute
from scipy.special import lambertw

from scaffolding_ext.controllers.budgets.files import TaskTypes
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.model import (
    Moments,
    curvature,
    gradient,
    kkt_residual,
    moments,
    objective,
    objective_of_steps,
    pollaczek_khinchine,
)
from scaffolding_ext.controllers.budgets.queueing.plan import solve
from scaffolding_ext.controllers.budgets.queueing.rounding import best, coordinate_search, lower_bound, nearest
from scaffolding_ext.controllers.budgets.queueing.solvers import (
    SOLVERS,
    best_responses,
)
from scaffolding_ext.controllers.budgets.queueing.tasks import Mix, TaskType, UnstableLoadError
from scaffolding_ext.errors import ConfigError


def mix_of(seed: int, num_types: int, load: float = 0.3, alpha: float = 30.0, max_tokens: float = 32768) -> Mix:
    """Types of random numbers; `load` is that of budgets of 0."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(num_types, 3.0))
    tasks = [
        TaskType(
            f"t{k}",
            float(shares[k]),
            A=rng.uniform(0.05, 0.6),
            b=10 ** rng.uniform(-4, -1.5),
            D=rng.uniform(0, 0.4),
            t0=rng.uniform(0.05, 2),
            c=10 ** rng.uniform(-3, -1.3),
        )
        for k in range(num_types)
    ]
    rate = load / sum(task.probability * task.t0 for task in tasks)
    return Mix.of(tasks, rate, alpha, max_tokens)


mixes = st.builds(
    mix_of, st.integers(0, 10**6), st.integers(1, 7), st.floats(0.02, 0.95), st.floats(1, 1000), st.floats(10, 30000)
)


def hessian(mix: Mix, budgets: np.ndarray) -> np.ndarray:
    diagonal, U, inner = curvature(mix, budgets)
    return -(np.diag(diagonal) + U @ inner @ U.T)


def stable_budgets(mix: Mix, seed: int, part: float = 0.9) -> np.ndarray:
    """Random budgets that take at most this part of the load that is left."""
    budgets = np.random.default_rng(seed).uniform(0, mix.max_tokens, len(mix.pi))
    left = 1 - mix.arrival_rate * float(mix.pi @ mix.t0)
    takes = mix.arrival_rate * float(mix.pi @ (mix.c * budgets))
    return budgets * min(1.0, part * left / takes)


@given(mixes, st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_objective_is_strictly_concave(mix: Mix, seed: int) -> None:
    budgets = stable_budgets(mix, seed)
    scale = 1 / np.sqrt(curvature(mix, budgets).diagonal)
    assert np.linalg.eigvalsh(scale[:, None] * hessian(mix, budgets) * scale).max() < 0
    other = stable_budgets(mix, seed + 1)
    ends = (objective(mix, budgets) + objective(mix, other)) / 2
    assert objective(mix, (budgets + other) / 2) >= ends - 1e-9 * abs(ends)


def test_derivatives_are_those_of_the_objective() -> None:
    mix = mix_of(3, 4)
    budgets = stable_budgets(mix, 1, 0.5)
    steps = 1e-4 * np.eye(4) / mix.b[:, None] * 1e-1
    slopes = [(objective(mix, budgets + s) - objective(mix, budgets - s)) / (2 * s.max()) for s in steps]
    assert gradient(mix, budgets) == pytest.approx(slopes, rel=1e-4, abs=1e-9)
    bends = [(gradient(mix, budgets + s) - gradient(mix, budgets - s)) / (2 * s.max()) for s in steps]
    assert hessian(mix, budgets) == pytest.approx(np.array(bends), rel=1e-4, abs=1e-12)
    free = np.array([True, False, True, True])
    solved = curvature(mix, budgets).solve(np.arange(1.0, 5.0), free)
    dense = -hessian(mix, budgets)[np.ix_(free, free)]
    assert solved[free] == pytest.approx(np.linalg.solve(dense, [1.0, 3.0, 4.0]))
    assert solved[1] == 0


@given(mixes)
@settings(max_examples=40, deadline=None)
def test_solvers_agree(mix: Mix) -> None:
    ends = [solver(mix, np.zeros(len(mix.pi))) for solver in SOLVERS.values()]
    for budgets in ends:
        assert kkt_residual(mix, budgets) <= 1e-8
        assert mix.b * budgets == pytest.approx(mix.b * ends[0], abs=1e-6)


@given(mixes)
@settings(max_examples=30, deadline=None)
def test_solve_is_at_the_optimum_and_whole_budgets_can_be_served(mix: Mix) -> None:
    plan = solve(mix.tasks, mix.arrival_rate, mix.alpha, mix.max_tokens)
    assert plan.kkt_residual <= 1e-8
    assert plan.load < 1
    assert np.isfinite(plan.integer_objective)
    assert plan.objective - plan.integer_objective >= -1e-9 * (1 + abs(plan.objective))
    for seed in range(5):
        assert objective(mix, stable_budgets(mix, seed)) <= plan.objective + 1e-9 * (1 + abs(plan.objective))


@pytest.mark.parametrize("num_types", [1, 2, 3])
def test_brute_force_finds_nothing_better(num_types: int) -> None:
    mix = mix_of(7, num_types, load=0.4, alpha=60, max_tokens=400)
    plan = solve(mix.tasks, mix.arrival_rate, mix.alpha, mix.max_tokens)

    def worse(budgets: np.ndarray) -> float:
        return -max(float(objective(mix, np.asarray(budgets))), -1e6)

    found = brute(worse, [(0, 400)] * num_types, Ns={1: 400, 2: 60, 3: 20}[num_types], finish=None)
    assert plan.objective >= -worse(found)
    whole = np.array(plan.integer_budgets, dtype=float)
    around = np.stack(np.meshgrid(*[[-1.0, 0.0, 1.0]] * num_types), axis=-1).reshape(-1, num_types)
    neighbours = np.clip(whole + around, 0, 400)
    assert plan.integer_objective == pytest.approx(float(objective(mix, neighbours).max()))


def test_best_responses_are_lambert_s_where_that_does_not_overflow() -> None:
    mix = mix_of(5, 5, alpha=300)
    base, slope = 1.7, 0.9
    at_zero = base + slope * mix.t0
    q = mix.b * at_zero / (slope * mix.c)
    inside = mix.alpha * mix.A * mix.b**2 / (slope * mix.c**2) * np.exp(q)
    closed = np.clip((lambertw(inside).real - q) / mix.b, 0, mix.max_tokens)
    assert best_responses(mix, base, slope) == pytest.approx(closed, rel=1e-9, abs=1e-6)


def test_best_responses_keep_their_digits_where_lambert_s_argument_overflows() -> None:
    task = TaskType("slow", 1.0, A=0.5, b=0.01, D=0.1, t0=1.0, c=0.001)
    mix = Mix.of([task], 1e-9, 30.0, 1e6)
    budget = best_responses(mix, 1.0, 1e-9)  # its exponent is 1e10
    assert budget[0] == pytest.approx(np.log(30 * 0.5 * 0.01 / 0.001) / 0.01, rel=1e-7)


def test_the_paper_s_constant_step_and_contraction_on_table_1() -> None:
    tasks = TaskTypes.load("configs:calibrations/queueing_table_1.yaml").tasks
    plan = solve(tasks, 0.1, 30, 32768)
    assert plan.contraction < 1  # where the paper's own constant is above 1
    assert plan.lipschitz == pytest.approx(0.0543, rel=0.01)
    larger = solve(tasks, 0.1, 30, 32768, solver="projected_gradient", step=4000.0)
    assert larger.budgets == pytest.approx(plan.budgets, abs=1e-4)
    with pytest.raises(ConfigError, match="set solver to 'projected_gradient'"):
        solve(tasks, 0.1, 30, 32768, step=4000.0)


@given(mixes, st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_no_rounding_falls_below_equation_41(mix: Mix, seed: int) -> None:
    rng = np.random.default_rng(seed)
    budgets = stable_budgets(mix, seed)
    rounded = np.floor(budgets) + rng.integers(0, 2, (100, len(budgets)))
    bound = lower_bound(mix, budgets)
    values = objective(mix, np.concatenate([rounded, np.ceil(budgets)[None], np.floor(budgets)[None]]))
    assert np.isnan(bound) or values.min() >= bound - 1e-9 * (1 + abs(bound))


def test_equation_41_holds_though_its_last_term_leaves_out_a_token_s_seconds() -> None:
    """Nothing but time counts here (alpha 0), and all is rounded up: the bound's slack is what its docstring says."""
    mix = Mix.of([TaskType("one", 1.0, 0.5, 0.1, 0.1, 1.0, 0.1)], 0.2, 0.0, 100)
    slack = 1 - 0.2 * (1.5 + 0.1)
    lost = objective(mix, np.array([6.0])) - lower_bound(mix, np.array([5.0]))
    assert lost == pytest.approx(0.2 * 0.1**2 / (2 * slack))


@pytest.mark.parametrize("solver", list(SOLVERS))
@pytest.mark.parametrize("rounding", ["best", "nearest"])
def test_solvers_and_roundings_by_name(solver: str, rounding: str) -> None:
    mix = mix_of(4, 5, load=0.5, alpha=100)
    load = (mix.arrival_rate, mix.alpha, mix.max_tokens)
    plan, default = solve(mix.tasks, *load, solver=solver, rounding=rounding), solve(mix.tasks, *load)
    assert plan.objective == pytest.approx(default.objective)
    assert plan.integer_objective <= default.integer_objective + 1e-9
    if rounding == "nearest":
        assert plan.integer_budgets == tuple(int(tokens) for tokens in np.rint(plan.budgets))
    assert plan.rounding_bound is not None
    assert plan.rounding_bound <= plan.integer_objective


def test_a_name_of_no_solver_or_rounding() -> None:
    mix = mix_of(4, 2)
    with pytest.raises(ConfigError, match="choose one of fixed_point, projected_gradient"):
        solve(mix.tasks, mix.arrival_rate, 30, 1000, solver="newton")
    with pytest.raises(ConfigError, match="choose one of best, nearest"):
        solve(mix.tasks, mix.arrival_rate, 30, 1000, rounding="up")


def test_a_solver_that_does_not_arrive_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    mix = mix_of(4, 2)
    monkeypatch.setitem(SOLVERS, "fixed_point", lambda mix, start: start)
    with pytest.raises(ConfigError, match="use projected_gradient"):
        solve(mix.tasks, mix.arrival_rate, 30, 1000, solver="fixed_point")


def test_rounding_up_past_stability_is_undone() -> None:
    task = TaskType("long", 1.0, A=0.9, b=0.1, D=0.0, t0=0.0, c=0.5)
    mix = Mix.of([task], 1.0, 1e7, 10.0)
    budgets = np.array([1.99])  # 2 tokens would be a load of 1
    for rounding in (nearest, best, coordinate_search):
        assert rounding(partial(objective, mix), budgets, mix.max_tokens) == [1.0]
    assert np.isnan(lower_bound(mix, budgets))


def test_mean_time_in_known_queues() -> None:
    exponential = Moments(np.asarray(0.5), np.asarray(0.5))
    assert pollaczek_khinchine(1.6, exponential) == pytest.approx(1 / (2 - 1.6))  # M/M/1
    assert np.isinf(pollaczek_khinchine(2.0, exponential))
    mix = Mix.of([TaskType("one", 1.0, 0.5, 0.1, 0.1, 0.0, 0.1)], 1.0, 1.0, 100)
    of = moments(mix, np.array([5.0]))
    assert pollaczek_khinchine(1.0, of) == pytest.approx(0.5 + 0.25 / (2 * 0.5))  # M/D/1


def test_what_cannot_be_served_says_what_can() -> None:
    tasks = [TaskType("a", 0.5, 0.5, 0.01, 0.1, 1.0, 0.01), TaskType("b", 0.5, 0.5, 0.01, 0.1, 3.0, 0.01)]
    with pytest.raises(UnstableLoadError, match=r"below 0\.5") as caught:
        solve(tasks, 0.5, 30, 1000)
    assert caught.value.largest_stable_rate == pytest.approx(0.5)
    assert pickle.loads(pickle.dumps(caught.value)).largest_stable_rate == pytest.approx(0.5)
    assert solve(tasks, 0.4999, 30, 1000).load < 1


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"b": 0.0}, "b: is 0"), ({"A": 1.2}, "A: is 1.2"), ({"A": 0.6, "D": 0.6}, "at most 1"), ({"c": 0.0}, "c: is 0")],
)
def test_a_type_that_cannot_be(changed: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TaskType("a", 1.0, **{"A": 0.5, "b": 0.1, "D": 0.2, "t0": 1.0, "c": 0.1, **changed})


def test_probabilities_that_were_rounded_are_scaled() -> None:
    tasks = [TaskType(name, 0.1667, 0.5, 0.01, 0.1, 1.0, 0.01) for name in "abcdef"]  # they sum to 1.0002
    exact = [replace(task, probability=1 / 6) for task in tasks]
    assert solve(tasks, 0.1, 30, 1000).budgets == pytest.approx(solve(exact, 0.1, 30, 1000).budgets)
    demand = Demand(tuple(tasks), 0.1, 30, 1000)
    assert sum(demand.shares.values()) == pytest.approx(1, abs=1e-12)


TABLE_1 = "configs:calibrations/queueing_table_1.yaml"
PRINTED = [0, 340.5, 0, 0, 345.0, 30.1]


def test_table_1_of_the_paper() -> None:
    """Its rounded parameters give its printed optimum within what rounding explains."""
    tasks = TaskTypes.load(TABLE_1).tasks
    plan = solve(tasks, 0.1, 30, 32768)
    assert plan.budgets == pytest.approx([0, 340.9, 0, 0, 346.2, 30.1], abs=0.05)
    assert plan.budgets == pytest.approx(PRINTED, abs=1.3)
    assert plan.objective == pytest.approx(9.7542, abs=1e-4)
    for number, c, expected in ((4, 0.01275, 344.3), (1, 0.01415, 339.8)):  # these are rounded to 0.0127 and 0.0141
        other = [replace(task, c=c) if k == number else task for k, task in enumerate(tasks)]
        assert solve(other, 0.1, 30, 32768).budgets[number] == pytest.approx(expected, abs=0.05)


def test_figure_3_of_the_paper() -> None:
    mix = Mix.of(TaskTypes.load(TABLE_1).tasks, 0.1, 30, 32768)
    found = [float(objective(mix, np.full(6, tokens))) for tokens in (0.0, 100.0, 500.0)]
    assert found == pytest.approx([5.832, 8.239, 1.794], abs=5e-4)


def test_types_that_do_not_fit_together() -> None:
    task = TaskType("a", 0.5, 0.5, 0.01, 0.1, 1.0, 0.01)
    with pytest.raises(ConfigError, match=r"sum to 0\.5"):
        solve([task], 0.1, 30, 1000)
    with pytest.raises(ConfigError, match="with distinct names"):
        solve([task, task], 0.1, 30, 1000)


@pytest.mark.parametrize("step", [1.0, -1.0, 7.0])
def test_the_worth_of_one_more_token_is_that_of_the_budgets_with_it(step: float) -> None:
    mix = mix_of(3, 4)
    budgets = np.floor(SOLVERS["fixed_point"](mix, np.zeros(4))) + 10
    singly = [float(objective(mix, budgets + change)) for change in step * np.eye(4)]
    assert objective_of_steps(mix, budgets, step) == pytest.approx(singly, rel=1e-9)
