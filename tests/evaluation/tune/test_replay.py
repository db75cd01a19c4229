"""A trial on a small recording: baselines, groups, the choice, and what it promises."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.tune.choose import (
    Cheapest,
    MostAccurate,
    chosen,
    cross_validated,
    promised,
)
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting, numbers_to_try
from scaffolding_ext.evaluation.tune.stack_file import setting_of
from scaffolding_ext.evaluation.tune.table import baselines, rows_of
from scaffolding_ext.evaluation.tune.tuned import remarks_on
from scaffolding_ext.stack.config import StackConfig
from tests.evaluation.tune.recorded import recording


@pytest.fixture(scope="module")
def trial() -> Replay:
    found = Replay(recording())
    found.try_all()
    return found


def share(trial: Replay, cost: np.ndarray) -> float:
    return float(cost.sum() / trial.full.costs["decoded"].sum())


def test_the_space_is_short_lists_from_careful_to_bold(trial: Replay) -> None:
    assert {"plain votes", "LeaderChange", "doubling", "votes by shortness"} <= trial.lists.keys()
    assert all(len(own) <= 12 for own in trial.lists.values())
    costs = [trial.played[setting].costs["decoded"].sum() for setting in trial.lists["plain votes"]]
    assert costs == sorted(costs, reverse=True)
    assert numbers_to_try(8) == [8, 7, 6, 5, 4, 3, 2, 1]
    assert numbers_to_try(40)[0] == 40
    assert numbers_to_try(40)[-1] == 1
    assert len(numbers_to_try(40)) == 8


def test_the_limits_bound_what_was_chosen(trial: Replay) -> None:
    goal = Cheapest(0.01)
    rows = {row.name: row for row in rows_of(trial, {**baselines(trial, goal), "chosen": cross_validated(trial, goal)})}
    assert rows["ask 8 times"].cost_share.value == pytest.approx(1)
    assert rows["ask once"].cost_share.value == pytest.approx(1 / 8, abs=0.02)
    assert rows["stop in hindsight (limit)"].points.value == 0
    assert rows["stop when decided"].points.value == 0
    assert rows["stop in hindsight (limit)"].cost_share.value <= rows["stop when decided"].cost_share.value
    assert rows["chosen"].cost_share.value < 0.9


def test_a_choice_keeps_its_loss_where_it_was_made(trial: Replay) -> None:
    setting = chosen(trial, Cheapest(0.01))
    assert setting is not None
    played = trial.played[setting]
    assert float((trial.full.right - played.right).mean()) <= 0.01 + 1e-9
    assert share(trial, played.costs["decoded"]) < 0.9


def test_a_budget_is_kept_where_the_choice_was_made(trial: Replay) -> None:
    setting = chosen(trial, MostAccurate(0.3))
    assert setting is not None
    assert share(trial, trial.played[setting].costs["decoded"]) <= 0.3 + 1e-9


def test_runs_are_resampled_where_there_are_five() -> None:
    by_question, by_run = Replay(recording(num_runs=4)), Replay(recording(num_runs=5))
    assert (by_question.by_run, by_run.by_run) == (False, True)
    assert (by_question.groups.max(), by_run.groups.max()) == (14, 4)  # runs of a question are one group


def test_where_runs_share_questions_intervals_hold_both() -> None:
    """Runs that are alike say nothing of other questions: of runs alone the interval would be a hundredth as wide."""
    logged = recording(num_questions=300, num_runs=5)
    first = {each.id: each for each in logged.questions if each.run == "run 0"}
    alike = [dataclasses.replace(first[each.id], run=each.run) for each in logged.questions]
    trial = Replay(dataclasses.replace(logged, questions=alike))
    assert trial.is_crossed
    (row,) = rows_of(trial, {"one sample": trial.play(Setting(Whole(), 1))})
    questions = Replay(dataclasses.replace(logged, questions=list(first.values())))
    (alone,) = rows_of(questions, {"one sample": questions.play(Setting(Whole(), 1))})
    width, expected = row.points.high - row.points.low, alone.points.high - alone.points.low
    assert 0.8 * expected < width < 1.25 * expected
    assert "intervals over runs and questions" in remarks_on(trial)[0]

    apart = [dataclasses.replace(each, id=f"{each.id} of {each.run}") for each in logged.questions]
    assert not Replay(dataclasses.replace(logged, questions=apart)).is_crossed


def test_seconds_that_a_question_lacks_are_those_of_its_tokens() -> None:
    whole = recording(20, 4)
    timed = [dataclasses.replace(each, seconds=1.0 + 0.5 * each.tokens) for each in whole.questions]
    some = [dataclasses.replace(each, seconds=None) if number % 2 else each for number, each in enumerate(timed)]
    expected, found = (
        Replay(dataclasses.replace(whole, questions=questions), "seconds").full.costs["seconds"]
        for questions in (timed, some)
    )
    np.testing.assert_allclose(found, expected)


def test_a_cost_that_was_not_recorded_is_refused() -> None:
    with pytest.raises(ConfigError, match="is 'seconds', but the recording has no seconds"):
        Replay(recording(), "seconds")
    with pytest.raises(ConfigError, match="has no dollars"):
        Replay(recording(), "dollars")


def test_a_weight_that_was_not_recorded_is_refused(trial: Replay) -> None:
    with pytest.raises(ConfigError, match="is 'reward', which was not recorded; the log allows shortness"):
        trial.play(Setting(Whole(), 8, weight="reward"))


def test_a_stack_of_more_samples_takes_those_that_there_are(trial: Replay) -> None:
    more, all_of_them = (trial.play(Setting(Whole(), number, LeaderChange())) for number in (64, 8))
    np.testing.assert_array_equal(more.samples, all_of_them.samples)


def test_a_small_recording_promises_nothing_and_says_what_would_do(trial: Replay) -> None:
    promise = promised(trial, 0.02, 0.9)
    assert promise.setting is None
    assert promise.num_questions == 60
    assert promise.num_needed > 100
    assert "the test needs at least" in str(promise)


@pytest.mark.slow
def test_what_is_promised_is_kept() -> None:
    """Of 200 promises of at most 5 points with .9, no more than 14 % are broken: 10 %, and the chance of 200 draws.

    Each promise is asked of 160 questions of 4,000.
    """
    truth = Replay(recording(4000, seed=999))
    truth.try_all()
    rng = np.random.default_rng(0)
    broken = given = 0
    for seed in range(200):
        truth.seed = seed
        promise = promised(truth, 0.05, 0.9, rng.choice(4000, 160, replace=False).tolist())
        if promise.setting is not None:
            given += 1
            broken += float(truth.played[promise.setting].lost.mean()) > 0.05
    assert given >= 100
    assert broken <= 0.14 * 200


@pytest.fixture(scope="module")
def many() -> Replay:
    """Questions enough for a promise."""
    found = Replay(recording(120, 6, ability=0.97))
    found.try_all()
    return found


def test_a_promise_of_many_questions_names_a_setting(many: Replay) -> None:
    promise = promised(many, 0.05, 0.9)
    assert promise.setting is not None
    assert float(many.played[promise.setting].lost.mean()) < 0.05


def test_nothing_is_promised_of_fitted_rules(many: Replay) -> None:
    """Their losses of one question depend on the others, so that no test of independent losses holds."""
    found = copy.copy(many)
    dependent = {name: own for name, own in found.lists.items() if own[0].is_fitted}
    assert dependent
    found.lists = {"all": [found.all_samples], **dependent}
    assert promised(found, 0.05, 0.9).setting is found.all_samples


def test_one_question_alone_chooses_nothing_and_is_judged_under_all_samples() -> None:
    found = Replay(recording(1))
    found.try_all()
    of_choice = cross_validated(found, Cheapest(0.01))
    assert of_choice.costs["decoded"].tolist() == found.full.costs["decoded"].tolist()


def test_which_samples_finish_first_is_not_told_without_their_tokens_or_of_more_samples(trial: Replay) -> None:
    questions = [
        dataclasses.replace(
            each, tokens=np.ones(8, int), seconds=np.linspace(1, 8, 8), missing=each.missing - {"seconds"} | {"tokens"}
        )
        for each in trial.recording.questions
    ]
    found = Replay(dataclasses.replace(trial.recording, questions=questions), "seconds")
    found.try_all()
    assert "first to finish" not in found.lists
    for each, number in ((found, 8), (trial, 32)):
        with pytest.raises(ConfigError, match="it is unknown which end first"):
            each.play(Setting(Whole(), number, Even(num_samples=2), in_flight=number, order="arrival"))


@pytest.mark.parametrize("name", ["rewards", "logprobs"])
def test_what_was_not_recorded_is_not_tried(name: str, trial: Replay) -> None:
    tried: Callable[[str], bool] = lambda word: any(word in own for own in trial.lists)  # noqa: E731
    assert not tried({"rewards": "reward", "logprobs": "logprob"}[name])


def test_the_first_to_finish_are_tried_and_their_stack_file_gives_the_setting_back(trial: Replay) -> None:
    settings = trial.lists["first to finish"]
    assert [setting.rule.num_samples for setting in settings] == [7, 6, 5, 4, 3, 2]
    critical = [trial.played[setting].costs["critical"].mean() for setting in settings]
    assert critical == sorted(critical, reverse=True)  # fewer to wait for, less time
    assert critical[0] <= trial.full.costs["critical"].mean()
    rule = settings[-1].rule_config()
    assert rule == {"type": "Even", "args": {"num_samples": 2}}
    native = {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 0.7}}}
    vote = {
        "default_sample_num": settings[-1].num_samples,
        "allocation": rule,
        "in_flight": settings[-1].num_samples,
        "order": "arrival",
        "generation_controller": native,
    }
    stack = StackConfig.model_validate(
        {
            "controller": {"type": "MajorityVoteController", "args": vote},
            "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": "tinylm/target"}}},
        }
    )
    again = setting_of(stack)
    assert (again.rule, again.num_samples, again.in_flight, again.order) == (Even(num_samples=2), 8, 8, "arrival")


@pytest.mark.parametrize("weight", ["shortness", {"type": "shortness"}])
def test_a_weight_of_a_stack_is_played_by_its_name(weight: str | dict[str, str], trial: Replay) -> None:
    native = {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 0.7}}}
    vote = {"default_sample_num": 4, "allocation": None, "weight": weight, "generation_controller": native}
    stack = StackConfig.model_validate(
        {
            "controller": {"type": "MajorityVoteController", "args": vote},
            "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": "tinylm/target"}}},
        }
    )
    played = trial.play(setting_of(stack))
    assert played.right.tolist() == trial.play(Setting(Whole(), 4, weight="shortness")).right.tolist()
