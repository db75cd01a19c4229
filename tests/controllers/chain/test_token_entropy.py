"""Entropies of a token against closed forms, and their bound against all completions of what was not told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.chain.probe import Entropy, token_entropy

weights = st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=12)


def exact(probabilities: list[float]) -> float:
    return -math.fsum(p * math.log(p) for p in probabilities if p)


def test_by_hand() -> None:
    assert token_entropy([math.log(0.5), math.log(0.25), math.log(0.25)]).nats == pytest.approx(1.5 * math.log(2))
    assert token_entropy([0.0]) == Entropy(0.0)
    assert token_entropy([0.0, -math.inf]) == Entropy(0.0)
    bound = token_entropy([math.log(0.5), math.log(0.25)])  # the missing quarter is at least one token of a quarter
    assert bound == (pytest.approx(1.5 * math.log(2)), pytest.approx(0.25))
    assert bound.is_bound
    assert not token_entropy([math.log(0.5), math.log(0.5)]).is_bound


@given(weights=weights, data=st.data())
def test_what_the_highest_tell_is_never_more_than_the_whole(weights: list[float], data: st.DataObject) -> None:
    total = math.fsum(weights)
    probabilities = sorted((weight / total for weight in weights), reverse=True)
    told = data.draw(st.integers(1, len(weights)))
    found = token_entropy([math.log(p) for p in probabilities[:told]])
    assert found.nats <= exact(probabilities) + 1e-4
    assert found.is_bound == (math.fsum(probabilities[:told]) < 1 - 1e-5)
    if not found.is_bound:
        assert found.nats == pytest.approx(exact(probabilities), abs=1e-4)


@given(weights=weights, data=st.data())
def test_the_more_is_told_the_higher_the_bound(weights: list[float], data: st.DataObject) -> None:
    total = math.fsum(weights)
    logs = sorted((math.log(weight / total) for weight in weights), reverse=True)
    told = data.draw(st.integers(1, len(weights)))
    assert token_entropy(logs[:told]).nats <= token_entropy(logs).nats + 1e-4


def test_what_is_no_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one is needed"):
        token_entropy([])
    with pytest.raises(ValueError, match="must be at most 0"):
        token_entropy([0.5])
