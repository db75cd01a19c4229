"""A trial of every rule on a handful of votes, and its picture."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from scaffolding_ext.controllers.vote.allocation.curtailment import Curtailment
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.skyline import InitialStepSkyline
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.calibrate.vote_trial import plot_trial, try_rules

EASY = LabelledVote("easy", [0] * 6, [True] * 6, [10] * 6)
HARD = LabelledVote("hard", [0, 1, 0, 1, 1, -1], [False, True, False, True, True, False], [20] * 6)


def test_a_trial_plays_every_rule_and_chooses_within_the_loss(tmp_path: Path) -> None:
    trial = try_rules([EASY, HARD], 3, np.random.default_rng(0))
    full = trial.figures(Curtailment(leap=1.0))
    assert full["full_tokens"] == pytest.approx((60 + 120) / 2)
    assert full["accuracy"] == full["full_accuracy"]
    chosen = trial.figures(trial.chosen(0.0))
    assert chosen["accuracy"] >= chosen["full_accuracy"]
    assert chosen["tokens"] <= full["tokens"]
    plot_trial(trial, trial.chosen(0.0), "a trial", tmp_path / "trial.png")
    assert (tmp_path / "trial.png").stat().st_size > 0


def questions(num_solved: int) -> list[LabelledVote]:
    """Ten questions of six samples: the first are settled at once, the others by their last samples."""
    lengths = [10] * 6
    solved = [LabelledVote(f"solved-{n}", [0] * 6, [True] * 6, lengths) for n in range(num_solved)]
    late = [False, False, True, True, True, True]
    return solved + [LabelledVote(f"late-{n}", [0, 1, 2, 2, 2, 2], late, lengths) for n in range(10 - num_solved)]


def test_a_curve_is_played_on_questions_that_it_was_not_fitted_to() -> None:
    """Nine questions teach that no sample is needed behind the knob; the tenth alone needs more, if it is seen."""
    trial = try_rules(questions(9), 4, np.random.default_rng(0))
    played = trial.families["curve at 2"]
    rules = [rule for rule in played if isinstance(rule, InitialStepSkyline)]
    assert any(rule.curve.num_samples[-1] > rule.knob for rule in rules)
    assert all(played[rule].num_samples.tolist() == [rule.knob] * 10 for rule in rules)


def test_a_curve_that_some_questions_cannot_teach_is_left_out() -> None:
    wrong = dataclasses.replace(EASY, correct=[False] * 6)
    trial = try_rules([EASY, wrong], 1, np.random.default_rng(0))
    assert InitialStepSkyline.settings_to_try([EASY, wrong])
    assert "curve at 2" not in trial.families
    assert "curtailment" in trial.families


def test_rewards_are_read_where_there_are_some_and_they_may_be() -> None:
    scored = [dataclasses.replace(vote, rewards=[0.9, 0.8, 0.7, 0.9, 0.8, 0.7]) for vote in questions(5)]
    reading = [
        any(
            "rewards" in rule.looks_at
            for rule in try_rules(votes, 1, np.random.default_rng(0), reads_rewards=may).outcomes
        )
        for votes, may in ((scored, True), (scored, False), (questions(5), True))
    ]
    assert reading == [True, False, False]


def test_samples_without_a_right_one_are_refused() -> None:
    unlabelled = dataclasses.replace(EASY, correct=[False] * 6)
    with pytest.raises(DatasetError, match="no sample of 1 questions is right, so that no rule could lose accuracy"):
        try_rules([unlabelled], 1, np.random.default_rng(0))
