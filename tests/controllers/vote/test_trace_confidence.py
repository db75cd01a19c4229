"""DeepConf's online form: the threshold of a warm-up, and the running group."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.vote.trace_confidence import (
    RunningGroupConfidence,
    warm_up_threshold,
)


@given(st.lists(st.lists(st.floats(-20, 0), min_size=3, max_size=3), min_size=1, max_size=60), st.integers(1, 40))
def test_the_running_group_is_the_lowest_group_of_the_whole_trace(top_logprobs, group_size):
    running = RunningGroupConfidence(group_size)
    newest = [running.add(-sum(position) / 3) for position in top_logprobs]
    tokens = [-sum(position) / 3 for position in top_logprobs]
    size = min(group_size, len(tokens))
    expected = min(sum(tokens[at : at + size]) / size for at in range(len(tokens) - size + 1))
    assert running.lowest == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert [math.isinf(value) for value in newest] == [count < group_size for count in range(1, len(newest) + 1)]


def test_an_empty_trace_is_infinitely_sure():
    assert RunningGroupConfidence(3).lowest == math.inf


@pytest.mark.parametrize(("keep_share", "threshold"), [(1.0, 1.0), (0.5, 3.0), (0.1, 4.6), (0.75, 2.0)])
def test_the_threshold_keeps_its_share(keep_share, threshold):
    assert warm_up_threshold([5.0, 1.0, 4.0, 2.0, 3.0], keep_share) == pytest.approx(threshold)


@given(st.lists(st.floats(0, 30), min_size=1, max_size=40), st.floats(0.01, 1))
def test_at_least_that_share_of_the_warm_up_lies_at_or_above_it(lowest, keep_share):
    threshold = warm_up_threshold(lowest, keep_share)
    at_or_above = np.mean(np.asarray(lowest) >= threshold - 1e-9)
    assert at_or_above >= keep_share - 1 / len(lowest)


@pytest.mark.parametrize(("lowest", "keep_share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.5), ([1.0], math.nan)])
def test_wrong_arguments_are_refused(lowest, keep_share):
    with pytest.raises(ValueError, match=r"no traces|keep_share"):
        warm_up_threshold(lowest, keep_share)


def test_a_group_has_at_least_one_token():
    with pytest.raises(ValueError, match="group_size: is 0"):
        RunningGroupConfidence(0)
