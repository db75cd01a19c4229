"""Policies of certaindex on recorded votes: what judges a question had no part in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.studies.certaindex import CAP, KNOB, THRESHOLD, Orders, correlation, fitted_on_others
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold
from tests.evaluation.tune.recorded import recording

RECORDING = recording(12, 24, ability=0.6)
ORDERS = Orders(RECORDING, np.argsort(np.random.default_rng(1).random((2, 12, 24)), axis=-1)[..., :CAP])


def test_each_half_of_the_questions_has_the_curve_of_the_other() -> None:
    fitted: list[set[str]] = []

    def fit(votes: Sequence[LabelledVote]) -> Even:
        fitted.append({vote.id for vote in votes})
        return Even(num_samples=len(fitted))

    played = fitted_on_others(ORDERS, fit)
    for question, num_drawn in zip(RECORDING.questions, played.samples.tolist(), strict=True):
        assert question.id not in fitted[int(num_drawn) - 1]
    assert fitted[0] | fitted[1] == {each.id for each in RECORDING.questions}


def test_the_length_threshold_stops_as_many_votes_as_certaindex() -> None:
    static = ORDERS.played(StaticThreshold(knob=KNOB, threshold=THRESHOLD))
    by_length = ORDERS.played(ORDERS.as_long_as_many())
    assert by_length.samples.mean() == pytest.approx(static.samples.mean(), abs=(CAP - KNOB) / 24)  # one of 24 votes
    assert static.samples.mean() < CAP


def test_a_constant_signal_has_no_correlation() -> None:
    assert np.isnan(correlation(np.arange(3.0), np.ones(3)))
    assert correlation(np.arange(3.0), -np.arange(3.0)) == pytest.approx(-1)
