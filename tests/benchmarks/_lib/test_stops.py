"""Cuts of as many tokens, and rules that are judged on questions that did not choose their setting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks._lib.stops import Ended, fixed_cuts, judge, right_of_as_many, rules_of
from benchmarks.studies.real import GEMMA, right_of_plain_votes
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.tune.endings import Stopped, Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting
from tests.evaluation.tune.recorded import recording


def ended(tokens: float, num_right: int) -> Ended:
    return Ended((np.arange(40) < num_right).astype(float), np.full(40, tokens))


def test_a_cut_is_level_with_itself_and_with_draws_by_lot_between_two() -> None:
    cuts = [ended(100, 10), ended(200, 30)]
    assert right_of_as_many(cuts, 200.0) == pytest.approx(cuts[1].right)
    assert right_of_as_many(cuts, 150.0).mean() == pytest.approx(0.5)


@pytest.mark.parametrize(("tokens", "right"), [(150, 0.5), (250, 0.875), (300, 1.0)])
def test_neighbours_are_those_in_cost_where_a_later_cut_decodes_fewer_tokens(tokens: float, right: float) -> None:
    """A chain that ends by itself asks for no answer, so the whole one may decode less than a late cut."""
    cuts = [ended(100, 10), ended(300, 40), ended(200, 30)]
    assert right_of_as_many(cuts, tokens).mean() == pytest.approx(right)


def test_the_last_cut_is_the_whole_chains_and_an_early_one_decodes_less(recordings_folder: Path) -> None:
    chains = read_recording([recordings_folder / GEMMA], num_samples=1)
    cuts = fixed_cuts(chains)
    assert cuts[-1].right.tolist() == [float(each.correct[0]) for each in chains.questions]
    assert cuts[-1].decoded.tolist() == [float(each.tokens[0]) for each in chains.questions]
    assert cuts[5].decoded.mean() < cuts[-1].decoded.mean()


def test_a_rule_of_one_setting_is_that_setting(recordings_folder: Path) -> None:
    chains = read_recording([recordings_folder / GEMMA], num_samples=1)
    stop = Stopped(
        {"type": "consecutive", "args": {"threshold": 2}}, {"type": "ProbeSchedule", "args": {"chunk_size": 1}}
    )
    found = judge(chains, [stop], fixed_cuts(chains), np.random.default_rng(2)).ended
    for index, question in enumerate(chains.questions):
        answers = [probe.answer_class for probe in (question.probes or ())[0].probes]
        first = next((place for place in range(1, len(answers)) if answers[place] == answers[place - 1]), None)
        left_with = int(question.classes[0]) if first is None else answers[first]
        assert found.right[index] == float(left_with == question.target)
    assert rules_of(chains)


def test_a_plain_vote_takes_the_tokens_that_it_is_to_take() -> None:
    trial = Replay(recording(10, 6, seed=4))
    two, three = (trial.play(Setting(Whole(), number)) for number in (2, 3))
    tokens = (two.costs["decoded"].sum() + three.costs["decoded"].sum()) / 2
    assert right_of_plain_votes(trial, tokens) == pytest.approx((two.right + three.right) / 2)
