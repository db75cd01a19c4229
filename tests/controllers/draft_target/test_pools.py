"""Streaming pools against the same pools sorted anew at every step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.draft_target.p_values import Ties, p_values
from scaffolding_ext.controllers.draft_target.scores import ScorePool

scores_lists = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=30)


@given(scores_lists, st.sampled_from(["conservative", "random"]))
def test_a_pool_gives_what_the_function_gives_at_every_step(scores: list[float], ties: Ties) -> None:
    pool = ScorePool()
    streamed, sorted_anew = np.random.default_rng(1), np.random.default_rng(1)
    for position, score in enumerate(scores):
        if position:
            expected = p_values(scores[:position], [score], ties, sorted_anew)[0]
            assert pool.p_value(score, ties, streamed) == expected
        pool.add(score)
    assert len(pool) == len(scores)
    assert list(pool) == sorted(scores)


@given(scores_lists, st.data())
def test_scores_can_be_taken_out_again(scores: list[float], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(scores))
    pool = ScorePool(scores)
    pool.remove(gone)
    left = list(scores)
    left.remove(gone)
    assert list(pool) == sorted(left)


def test_an_empty_pool_knows_nothing() -> None:
    assert ScorePool().p_value(3.0) == 1.0
    assert 0 < ScorePool().p_value(3.0, "random", np.random.default_rng(0)) <= 1


def test_what_is_no_score_is_refused() -> None:
    with pytest.raises(ValueError, match="score is nan"):
        ScorePool().add(math.nan)
    with pytest.raises(ValueError, match="score is inf"):
        ScorePool([1.0]).p_value(math.inf)
