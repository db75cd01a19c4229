"""The choice of a setting, and the questions on which it is judged."""

from __future__ import annotations

import numpy as np
import pytest

from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.tune.choose import (
    LEAST_QUESTIONS,
    Candidates,
    Cheapest,
    MostAccurate,
    cross_fitted,
    is_too_small,
)
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.tuned import tuned
from tests.evaluation.tune.recorded import recording


def candidates(lists: list[list[tuple[np.ndarray, float]]], complexity_rank: list[int]) -> Candidates:
    """Lists of settings, each with its loss of every group and its cost."""
    settings = [setting for own in lists for setting in own]
    places = iter(range(len(settings)))
    loss = np.stack([np.asarray(own, dtype=float) for own, _ in settings])
    num_groups = loss.shape[1]
    return Candidates(
        [[next(places) for _ in own] for own in lists],
        complexity_rank,
        loss,
        np.stack([np.full(num_groups, cost) for _, cost in settings]),
        np.ones(num_groups),
        np.ones(num_groups),
    )


def chosen(found: Candidates, goal: Cheapest | MostAccurate) -> int | None:
    return goal.chosen(found, np.ones(len(found.sizes)), np.random.default_rng(0))


NOTHING = np.zeros(100)
TWO = np.repeat([0.0, 1.0], [98, 2])
FIVE = np.repeat([0.0, 1.0], [95, 5])


def test_the_cheapest_that_loses_no_more_than_allowed() -> None:
    found = candidates([[(NOTHING, 0.8), (TWO, 0.5), (FIVE, 0.2)]], [0])
    assert [chosen(found, Cheapest(loss)) for loss in (0.0, 0.02, 0.05)] == [0, 1, 2]
    assert chosen(candidates([[(FIVE, 0.2)]], [0]), Cheapest(0.01)) is None


def test_nothing_is_allowed_behind_a_setting_that_loses_too_much() -> None:
    """A bolder setting that seems to lose less has had luck."""
    found = candidates([[(NOTHING, 0.8), (FIVE, 0.5), (NOTHING, 0.2)]], [0])
    assert chosen(found, Cheapest(0.02)) == 0


def test_the_most_accurate_that_the_budget_pays_for() -> None:
    found = candidates([[(NOTHING, 0.8), (TWO, 0.5), (FIVE, 0.2)]], [0])
    assert [chosen(found, MostAccurate(share)) for share in (1.0, 0.5, 0.3)] == [0, 1, 2]
    assert chosen(found, MostAccurate(0.1)) is None


def test_the_plainer_list_wins_within_one_standard_error() -> None:
    rng = np.random.default_rng(0)
    noisy = (rng.random(100) < 0.2).astype(float)
    slightly_better = noisy.copy()
    slightly_better[np.flatnonzero(noisy)[0]] = 0.0  # a single question
    far_better = np.zeros(100)
    plain = [(noisy, 0.5)]
    assert chosen(candidates([plain, [(slightly_better, 0.5)]], [0, 5]), MostAccurate(0.5)) == 0
    assert chosen(candidates([plain, [(far_better, 0.5)]], [0, 5]), MostAccurate(0.5)) == 1
    assert chosen(candidates([[(slightly_better, 0.5)], plain], [5, 5]), MostAccurate(0.5)) == 0


@pytest.mark.parametrize("num_groups", [3, 5, 23])
def test_no_group_is_judged_under_a_choice_that_it_took_part_in(num_groups: int) -> None:
    """One group in turn loses everything under the cheap setting: only the folds without it choose that setting."""
    for guilty in range(num_groups):
        loss = np.zeros(num_groups)
        loss[guilty] = 1.0
        found = candidates([[(np.zeros(num_groups), 1.0), (loss, 0.1)]], [0])
        folds, choices = cross_fitted(found, Cheapest(0.001), np.random.default_rng(guilty))
        for own, by_fold in zip(folds, choices, strict=True):
            assert sorted(set(own.tolist())) == list(range(min(5, num_groups)))
            assert by_fold[own[guilty]] == 1  # judged by those who never saw it
            assert all(by_fold[fold] == 0 for fold in set(own.tolist()) - {own[guilty]})


def test_a_saving_near_the_allowed_loss_is_not_given_up_for_all_samples() -> None:
    """In half of the resamples the cheap list loses too much; that must not make all samples look as good as it."""
    near = np.zeros(100)
    near[:2] = 1.0
    found = candidates([[(NOTHING, 1.0)], [(near, 0.4)]], [0, 5])
    assert chosen(found, Cheapest(0.02)) == 1


@pytest.mark.parametrize(("num_questions", "is_small"), [(LEAST_QUESTIONS - 1, True), (LEAST_QUESTIONS, False)])
def test_few_questions_recommend_the_default_and_say_why(num_questions: int, is_small: bool) -> None:
    plays = Replay(recording(num_questions))
    plays.try_all()
    found = tuned(plays, Cheapest(0.003))
    assert found is not None
    said = " ".join(found.lines())
    assert ((found.setting is plays.default), ("This is the default: a choice on fewer than" in said)) == (
        is_small,
        is_small,
    )
    assert found.rows[-1].name == ("advice: the default" if is_small else "advice")
    assert (found.not_taken is None) is not is_small
    if is_small:
        assert found.not_taken is not None
        assert f"These would choose: {found.not_taken}." in said
        vote = found.stack().controller.args
        assert vote["allocation"] == {"type": "LeaderChange", "args": LeaderChange().settings()}
    assert found.page().count("advice: the default") > 0 or not is_small


def test_a_budget_a_promise_or_another_goal_is_not_overruled() -> None:
    plays = Replay(recording(20))
    plays.try_all()
    within = tuned(plays, MostAccurate(0.5))
    assert within is not None
    assert within.not_taken is None
    promise = tuned(plays, Cheapest(0.2), max_loss=0.2, confidence=0.5)
    assert promise is not None
    assert promise.setting is not plays.default
    assert not is_too_small(Replay(recording(20), "critical"), Cheapest(0.003)), "a default that waits is no default"
