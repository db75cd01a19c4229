"""A trial of every rule on a handful of votes, and its picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.curtailment import Curtailment
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.evaluation.calibrate.vote_trial import plot_trial, try_rules

EASY = LabelledVote("easy", [0] * 6, [True] * 6, [10] * 6)
HARD = LabelledVote("hard", [0, 1, 0, 1, 1, -1], [False, True, False, True, True, False], [20] * 6)


def test_a_trial_plays_every_rule_and_chooses_within_the_loss(tmp_path: Path) -> None:
    played: list[AllocationRule] = []
    trial = try_rules([EASY, HARD], 3, np.random.default_rng(0), played.append)
    assert played == list(trial.outcomes)
    full = trial.figures(Curtailment(leap=1.0))
    assert full["full_tokens"] == pytest.approx((60 + 120) / 2)
    assert full["accuracy"] == full["full_accuracy"]
    chosen = trial.figures(trial.chosen(0.0))
    assert chosen["accuracy"] >= chosen["full_accuracy"]
    assert chosen["tokens"] <= full["tokens"]
    plot_trial(trial, trial.chosen(0.0), "a trial", tmp_path / "trial.png")
    assert (tmp_path / "trial.png").stat().st_size > 0
