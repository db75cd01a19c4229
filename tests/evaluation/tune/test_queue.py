"""Settings by type for a queue: against brute force, against simulation, and what cannot be planned."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import UnstableLoadError
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.logs.samples import Ints, RecordedQuestion, Recording
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.plays import Plays
from scaffolding_ext.evaluation.tune.queue import (
    BUDGETS,
    SINGLE,
    TOGETHER,
    QueuedPlays,
    QueueGoal,
    ServiceLine,
    service_lines,
    shrunk,
    worth_of,
)
from scaffolding_ext.evaluation.tune.space import Setting, numbers_to_try

ABILITY = {"easy": 0.97, "hard": 0.55}
LINE = ServiceLine(0.2, 0.01)
BATCH = QueueGoal(0.5, Queue(8, 0.1), alpha=60)


def recording(num_questions: int = 40, num_samples: int = 8, seed: int = 0) -> Recording:
    """Easy questions, of which one sample is enough, and hard ones, of which a vote is right more often."""
    rng = np.random.default_rng(seed)
    questions = []
    for number, (task, ability) in itertools.product(range(num_questions), ABILITY.items()):
        classes = np.where(rng.random(num_samples) < ability, 0, rng.integers(1, 6, num_samples))
        tokens = rng.integers(50, 250, num_samples)
        questions.append(
            RecordedQuestion(
                *(f"{task} {number}", "run", task, classes, classes == 0, 0, tokens),
                seconds=LINE.at_once + LINE.a_token * tokens,
                missing=frozenset({"logprobs", "rewards", "looks"}),
            )
        )
    return Recording(questions, ["here"], "sha256:0")


@pytest.fixture(scope="module")
def trial() -> Plays:
    found = Plays(recording())
    for number in numbers_to_try(8):
        found._add("plain votes", Setting(Whole(), number))
    found._add("LeaderChange", Setting(Whole(), 8, LeaderChange(), plainness=10))
    found._add("first to finish", Setting(Whole(), 6, num_first=3, plainness=12))
    return found


def queued(trial: Plays, goal: QueueGoal = BATCH) -> QueuedPlays:
    return QueuedPlays(trial, goal, num_simulated=1500)


def test_hard_questions_get_votes_and_easy_ones_a_sample(trial: Plays) -> None:
    found = queued(trial)
    every = np.arange(len(trial.recording.questions))
    easy, hard = (found.settings[number] for number in found.chosen(TOGETHER, every, 60.0))
    assert easy.num_samples == 1
    assert hard.num_samples > 2
    rows = {family: found.judged(family, 60.0) for family in (SINGLE, BUDGETS, TOGETHER)}
    assert rows[TOGETHER].objective > rows[SINGLE].objective
    assert rows[TOGETHER].objective > rows[BUDGETS].objective + 1  # one chain cannot vote
    assert all(found.settings[number].num_samples == 1 for number in found.chosen(BUDGETS, every, 60.0))


class Watched(QueuedPlays):
    """Notes which questions chose."""

    def chosen(self, family: str, questions: Ints, alpha: float, arrival_rate: float | None = None) -> Ints:
        self.choosers = [*getattr(self, "choosers", []), set(questions.tolist())]
        return super().chosen(family, questions, alpha, arrival_rate)


def test_no_run_of_a_question_chooses_for_another_run_of_it(trial: Plays) -> None:
    twice = [dataclasses.replace(each, run=run) for run in ("a", "b") for each in trial.recording.questions]
    doubled = Plays(dataclasses.replace(trial.recording, questions=twice))
    doubled.try_numbers()
    found = Watched(doubled, BATCH, num_simulated=50)
    found.judged_settings(SINGLE, 60.0)
    half = len(twice) // 2
    assert len(found.choosers) == 5
    for choosers in found.choosers:
        assert 0 < len(choosers) < len(twice)
        assert {number % half for number in choosers}.isdisjoint(
            {number % half for number in range(len(twice)) if number not in choosers}
        )


@pytest.mark.parametrize("queue", [Queue(), Queue(8, 0.1)], ids=str)
@pytest.mark.parametrize("alpha", [3.0, 30.0, 300.0])
def test_the_choice_is_that_of_all_combinations(trial: Plays, queue: Queue, alpha: float) -> None:
    found = queued(trial, QueueGoal(0.15, queue, alpha=alpha))
    every = np.arange(len(trial.recording.questions))
    terms, worth = found._terms(every), worth_of(queue, alpha, 0.15)
    numbers = range(len(found.settings))
    values = {
        pair: float(worth(terms[0][:, pair[0]] + terms[1][:, pair[1]])) for pair in itertools.product(numbers, numbers)
    }
    assert values[tuple(found.chosen(TOGETHER, every, alpha).tolist())] == pytest.approx(max(values.values()))


@pytest.mark.parametrize(("queue", "rate"), [(Queue(), 0.12), (Queue(8, 0.1), 0.6)], ids=str)
def test_the_formula_is_about_what_is_simulated(trial: Plays, queue: Queue, rate: float) -> None:
    found = QueuedPlays(trial, QueueGoal(rate, queue, alpha=30), num_simulated=4000)
    settings = [index for index, each in enumerate(found.settings) if each.num_samples <= 3 or each.rule is not None]
    for number in settings:
        row = found._row("", np.full(len(trial.recording.questions), number))
        if row.load < 0.8:
            assert row.formula_seconds == pytest.approx(row.seconds, rel=0.15), found.settings[number]


def test_moments_are_those_of_the_drawn_samples(trial: Plays) -> None:
    found = queued(trial)
    number = next(index for index, each in enumerate(found.settings) if each.num_samples == 3)
    tokens = trial.votes.ordered(trial.votes.samples.tokens)[:, :3]
    seconds = LINE.at_once + LINE.a_token * tokens
    terms = np.sum(found._terms(np.arange(len(trial.recording.questions))), axis=0)[:, number]
    assert terms[1] == pytest.approx(seconds.sum(axis=1).mean())
    assert terms[2] == pytest.approx((seconds.sum(axis=1) ** 2).mean(), rel=0.01)  # t0 takes no part in the spread
    assert terms[3] == pytest.approx(seconds.max(axis=1).mean())


def test_what_one_type_gains_by_chance_is_shrunk() -> None:
    rng = np.random.default_rng(0)
    alike = [(rng.random((30, 40)) < 0.7).astype(float) for _ in range(3)]  # no setting is better for any type
    raw = np.stack([own.mean(axis=1) for own in alike])
    shares = np.full(3, 1 / 3)
    errors = [float(((found - 0.7) ** 2).mean()) for found in (raw, shrunk(alike, shares))]
    assert errors[1] < 0.6 * errors[0]
    differ = [(rng.random((30, 4000)) < rng.random((30, 1))).astype(float) for _ in range(3)]
    assert shrunk(differ, shares) == pytest.approx(np.stack([own.mean(axis=1) for own in differ]), abs=0.01)
    assert shrunk(alike[:1], np.ones(1)).tolist() == raw[:1].tolist()


def test_seconds_are_fitted_to_what_was_recorded(trial: Plays) -> None:
    lines = service_lines(trial.recording, ["easy", "hard"], None)
    assert lines["hard"] == pytest.approx(LINE)
    assert service_lines(trial.recording, ["easy"], ServiceLine(1, 2)) == {"easy": ServiceLine(1, 2)}
    bare = [dataclasses.replace(each, seconds=None) for each in trial.recording.questions]
    with pytest.raises(ConfigError, match="no seconds of 'easy'") as caught:
        service_lines(dataclasses.replace(trial.recording, questions=bare), ["easy"], None)
    assert caught.value.key == "service"


def test_an_objective_of_answers_in_time(trial: Plays) -> None:
    found = queued(trial, QueueGoal(0.5, Queue(8, 0.1), slo=4.0))
    row = found.judged(TOGETHER, found.leaning(TOGETHER))
    assert 0.5 < row.objective <= row.accuracy + 0.03  # right in time is at most right; simulated ones are drawn
    slower = queued(trial, QueueGoal(0.5, Queue(8, 0.1), slo=1.0))
    assert slower.judged(TOGETHER, slower.leaning(TOGETHER)).objective < row.objective


def test_a_plan_holds_its_settings(trial: Plays) -> None:
    found = queued(trial)
    plan, settings = found.plan(TOGETHER, 60.0, model="a/model")
    every = np.arange(len(trial.recording.questions))
    assert [settings[plan.budgets[name]] for name in ("easy", "hard")] == [
        found.settings[number] for number in found.chosen(TOGETHER, every, 60.0)
    ]
    assert settings[plan.mixture_budget] is found.single(60.0)
    alone = found.plan(BUDGETS, 60.0)
    assert all(setting.num_samples == 1 for setting in alone.settings)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"task": ""}, "questions of no type"),
        ({"missing": frozenset({"tokens"})}, "needs tokens, but the log has none"),
    ],
)
def test_what_cannot_be_planned(trial: Plays, change: dict[str, object], says: str) -> None:
    questions = [dataclasses.replace(each, **change) for each in trial.recording.questions]  # type: ignore[arg-type]
    other = Plays(dataclasses.replace(trial.recording, questions=questions))
    other.try_numbers()
    with pytest.raises(ConfigError, match=says):
        QueuedPlays(other, BATCH)


def test_a_load_that_cannot_be_served(trial: Plays) -> None:
    with pytest.raises(UnstableLoadError, match="even under the quickest settings"):
        QueuedPlays(trial, QueueGoal(5.0, Queue(), alpha=30))
    with pytest.raises(ConfigError, match="and not both"):
        QueueGoal(0.1, Queue(), alpha=1, slo=1)
