"""The allocation rules by name, and a rule as plain settings and back: what stack files and calibrations hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from scaffolding_ext.maths.allocation.adaptive_consistency import BetaConsistency, DirichletConsistency
from scaffolding_ext.maths.allocation.base import AllocationRule
from scaffolding_ext.maths.allocation.baselines import Even, LengthThreshold
from scaffolding_ext.maths.allocation.curtailment import Curtailment
from scaffolding_ext.maths.allocation.doubling import AgreementDoubling
from scaffolding_ext.maths.allocation.early_stopping import EarlyStoppingWindow
from scaffolding_ext.maths.allocation.leader_change import LeaderChange
from scaffolding_ext.maths.allocation.skyline import Curve, DynamicSkyline, InitialStepSkyline
from scaffolding_ext.maths.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.maths.certaindex import Threshold

RULES: Mapping[str, type[AllocationRule]] = {
    rule.__name__: rule
    for rule in (
        AgreementDoubling,
        BetaConsistency,
        Curtailment,
        DirichletConsistency,
        DynamicSkyline,
        EarlyStoppingWindow,
        Even,
        InitialStepSkyline,
        LeaderChange,
        LengthThreshold,
        StaticThreshold,
        ThresholdEvery,
    )
}


def rule_from(name: str, settings: Mapping[str, Any] | None = None) -> AllocationRule:
    """Make a rule.

    Args:
        name: A key of `RULES`.
        settings: Its arguments, as `settings_of` gives them; what is left out keeps its default.

    Raises:
        ValueError: The name or a setting is unknown, one is missing, or one is out of range.
    """
    if name not in RULES:
        raise ValueError(f"unknown allocation rule {name!r}; known: {', '.join(RULES)}")
    known = [field.name for field in dataclasses.fields(RULES[name])]  # type: ignore[arg-type]
    unknown = sorted(set(settings or {}) - set(known))
    if unknown:
        raise ValueError(f"{name} has no setting {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    try:
        return RULES[name](**{key: _from_plain(key, value) for key, value in (settings or {}).items()})
    except TypeError as error:
        raise ValueError(f"{name} cannot be made from {dict(settings or {})}: {error}") from error


def settings_of(rule: AllocationRule) -> dict[str, Any]:
    """The rule's settings as JSON and YAML can hold them."""
    fields = dataclasses.fields(rule)  # type: ignore[arg-type]
    return {field.name: _to_plain(getattr(rule, field.name)) for field in fields}


def _to_plain(value: Any) -> Any:
    if isinstance(value, Curve):
        return {"certaindex": list(value.certaindex), "num_samples": list(value.num_samples)}
    if isinstance(value, Threshold):
        return value._asdict()
    return [_to_plain(each) for each in value] if isinstance(value, tuple) else value


def _from_plain(key: str, value: Any) -> Any:
    if key == "curve":
        return Curve(tuple(value["certaindex"]), tuple(value["num_samples"]))
    if key == "curves":
        return tuple(_from_plain("curve", each) for each in value)
    if key == "reward_thresholds":
        return tuple(Threshold(**each) for each in value)
    return tuple(value) if isinstance(value, list) else value
