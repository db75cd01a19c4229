"""Rules by name, through JSON and back."""

from __future__ import annotations

import json

import pytest

from scaffolding_ext.maths.allocation.base import AllocationRule
from scaffolding_ext.maths.allocation.leader_change import LeaderChange
from scaffolding_ext.maths.allocation.policies import RULES, rule_from, settings_of
from scaffolding_ext.maths.allocation.skyline import Curve, DynamicSkyline, InitialStepSkyline
from scaffolding_ext.maths.allocation.threshold import ThresholdEvery
from scaffolding_ext.maths.certaindex import Threshold

CURVE = Curve((1.0, 0.5), (3, 6))
NEEDED = {
    "LengthThreshold": {"max_mean_length": 100.0},
    "InitialStepSkyline": {"knob": 3, "curve": {"certaindex": [1.0], "num_samples": [3]}},
    "DynamicSkyline": {"knobs": [3], "curves": [{"certaindex": [1.0], "num_samples": [3]}]},
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_survives_json(name: str) -> None:
    rule = rule_from(name, NEEDED.get(name))
    assert type(rule).__name__ == name
    assert rule_from(name, json.loads(json.dumps(settings_of(rule)))) == rule


@pytest.mark.parametrize(
    "rule",
    [
        LeaderChange(miss=0.03, concentration=2.5, give_up=True, leap=1.5),
        ThresholdEvery(threshold=0.85, reward_thresholds=(Threshold("max_reward", 0.99),)),
        InitialStepSkyline(knob=3, curve=CURVE),
        DynamicSkyline(knobs=(3, 5), curves=(CURVE, CURVE)),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_settings_are_kept(rule: AllocationRule) -> None:
    assert rule_from(type(rule).__name__, json.loads(json.dumps(settings_of(rule)))) == rule


def test_what_is_unknown_is_named() -> None:
    with pytest.raises(ValueError, match="unknown allocation rule 'Luck'; known: AgreementDoubling"):
        rule_from("Luck")
    with pytest.raises(ValueError, match="Curtailment has no setting luck; it has leap"):
        rule_from("Curtailment", {"luck": 1})
    with pytest.raises(ValueError, match="cannot be made from"):
        rule_from("LengthThreshold")
