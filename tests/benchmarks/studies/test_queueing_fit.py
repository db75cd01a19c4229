"""Chains under budgets by hand, the fit of a known curve, and plans that are judged by what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._lib.interval_controllers import Chain
from benchmarks.studies.autotts import Asked
from benchmarks.studies.queueing_fit import AIME, BUDGETS, Budgeted, budgeted, fitted, plans, resampled, worths
from scaffolding_ext.controllers.budgets.queueing.model import objective
from scaffolding_ext.controllers.budgets.queueing.tasks import Mix, TaskType

TRUE = TaskType("aime24", 1.0, 0.7, 1.5e-4, 0.1, AIME.t0, AIME.c)
TOKENS = np.array(BUDGETS, float)


def known(num_questions: int = 4) -> Budgeted:
    """Chains that use their whole budget and are right as the paper's curve says."""
    own = TRUE.given(TOKENS)
    columns = (np.tile(column, (num_questions, 1)) for column in (own.accuracy, own.seconds, own.square))
    return Budgeted(*columns)


def test_a_chain_answers_by_its_last_look_within_the_budget_and_by_its_own_answer_once_it_has_ended() -> None:
    chains = [Chain(answer=7, num_tokens=1200, probes=(7, 3)), Chain(answer=3, num_tokens=700, probes=(7,))]
    (right,), (seconds,), (square,) = budgeted([Asked("8B", "aime24", "q", 7, chains)])
    assert BUDGETS[:3] == (500, 1000, 1500)
    assert right[:3].tolist() == [1.0, 0.0, 0.5]
    served = [AIME.t0 + AIME.c * np.array(tokens) for tokens in ((500, 500), (1000, 700), (1200, 700))]
    assert seconds[:3] == pytest.approx([each.mean() for each in served])
    assert square[:3] == pytest.approx([(each**2).mean() for each in served])


def test_the_curve_that_made_the_answers_is_found() -> None:
    fit = fitted(known(), 10_000, np.random.default_rng(0))
    assert (fit.A.value, fit.D.value) == (pytest.approx(TRUE.A, abs=0.02), pytest.approx(TRUE.D, abs=0.02))
    assert fit.b.value == pytest.approx(TRUE.b, rel=0.05)
    assert fit.largest_miss < 0.005


def test_both_plans_agree_where_the_papers_model_is_true_and_are_judged_by_its_objective() -> None:
    types, rate, alpha = {"aime24": known()}, 0.001, 1000.0
    curve, grid = plans(types, 10_000, rate, alpha, np.random.default_rng(0))
    assert abs(curve[0] - grid[0]) <= 1
    (worth, *rest) = worths(list(types.values()), grid, rate, alpha, [resampled(4, np.random.default_rng(0), 3)])
    assert worth == pytest.approx(float(objective(Mix.of([TRUE], rate, alpha, 1e5), TOKENS[grid])))
    assert rest == pytest.approx([worth] * 3)  # all questions are alike
