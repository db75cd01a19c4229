"""Generation confidence and the gate on it: by hand, on the borders, and where there is nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate, fit_gate, relative_gap
from scaffolding_ext.protocol.branching import generation_confidence


def test_confidence_is_the_mean_of_the_steps():
    assert generation_confidence([0.5, 0.9, 1.0]) == pytest.approx(0.8)
    assert generation_confidence([]) == 0.0


@pytest.mark.parametrize(
    ("confidences", "leader"),
    [
        ([0.60, 0.90, 0.80], 1),
        ([0.69, 0.30], None),  # ahead, and not sure
        ([0.90, 0.86], None),  # sure, and with a close rival: (0.90 - 0.86) / 0.90 is 0.044
        ([0.50, 1.00, 0.94], 1),  # at the border of the gap
        ([0.7], 0),  # at the border of the level, without a rival
        ([], None),
        ([0.9, 0.9], None),
    ],
)
def test_the_gate_asks_for_a_level_and_a_lead(confidences, leader):
    assert ConfidenceGate(0.70, 0.06).leader(confidences) == leader


def test_the_lead_is_relative():
    assert relative_gap([0.4, 0.5]) == pytest.approx(0.2)
    assert relative_gap([0.0, 0.0]) == 0.0
    with pytest.raises(ValueError, match="no confidences"):
        relative_gap([])


def test_a_gate_is_fitted_to_percentiles():
    problems = [[0.5, 0.4], [0.6, 0.3], [0.7, 0.63], [0.8, 0.8], [0.9, 0.45]]  # gaps 0.2, 0.5, 0.1, 0, 0.5
    gate = fit_gate(problems)
    assert (gate.least, gate.gap) == (pytest.approx(0.8), pytest.approx(0.1))
    with pytest.raises(ValueError, match="no problems"):
        fit_gate([])


@given(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=5), min_size=1, max_size=9))
def test_no_more_than_a_gate_says_passes(problems):
    gate = fit_gate(problems)
    passed = [each for each in problems if gate.leader(each) is not None]
    assert all(max(each) >= gate.least and relative_gap(each) >= gate.gap for each in passed)


def test_a_gate_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"least: is 1\.2"):
        ConfidenceGate(least=1.2)
    with pytest.raises(ValueError, match=r"gap: is -0\.1"):
        ConfidenceGate(gap=-0.1)
