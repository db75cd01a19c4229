"""The file that a calibration of votes leaves, and the allocation rule that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from scaffolding_ext.controllers.calibration_file import CalibrationFile, RecentRequests
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.registry import allocation_rules
from scaffolding_ext.stats.drift import Drift, drift_between


class VoteProfile(CalibrationFile):
    """When a vote has enough samples.

    Attributes:
        max_loss: Largest loss of accuracy that was allowed, as a share.
        figures: Accuracy, tokens and rounds on the data, of the policy and of the full vote.
        knob: Samples after which `certaindex` was taken.
        certaindex: Certaindex of each calibration question at the knob, for the test of drift.
    """

    command: ClassVar = "calibrate certaindex"

    kind: Literal["vote_profile"] = "vote_profile"
    max_loss: float
    policy: dict[str, Any]
    figures: dict[str, float]
    knob: int
    certaindex: list[float]

    @classmethod
    def of(cls, rule: AllocationRule, **fields: Any) -> VoteProfile:
        """The profile that names a rule; its other fields are given by name."""
        return cls(policy={"type": allocation_rules.name_of(type(rule)), "args": rule.settings()}, **fields)

    @field_validator("policy")
    @classmethod
    def _can_be_built(cls, value: dict[str, Any]) -> dict[str, Any]:
        allocation_rules.obtain(value)
        return value

    @cached_property
    def rule(self) -> AllocationRule:
        """The policy as an object."""
        rule: AllocationRule = allocation_rules.obtain(self.policy)
        return rule

    def drift(self, recent: Sequence[float], level: float = 0.01) -> Drift:
        """Test certaindex values of recent requests, taken at the same knob, against those of the calibration."""
        return drift_between(self.certaindex, recent, level)


class CalibratedRule(AllocationRule):
    """The policy of a calibration file; it also says when the file should be made anew.

    The rule keeps the certaindex of the last votes of all requests of a stack, and tests them against the votes of the
    calibration. Both are taken after as many samples as every vote of the calibration drew.

    Args:
        path: The file.
        model: The model that is voted on; a warning says where the file was made for another.
        window: Votes that a test looks back on, at least 2; no test before that many have ended.

    Raises:
        ConfigError: The file cannot be used, or the window is below 2.
    """

    def __init__(self, path: str, model: str, window: int = 100) -> None:
        self.calibration = VoteProfile.load(path)
        self.calibration.check_model(model)
        self.rule = self.calibration.rule
        self.min_answers = self.rule.min_answers
        self._recent = RecentRequests(self.calibration.certaindex, window)

    @property
    def looks_at(self) -> frozenset[str]:
        return self.rule.looks_at

    def refuses_weights(self, most_weight: float) -> str | None:
        return self.rule.refuses_weights(most_weight)

    def observe(self, ended: Votes) -> Mapping[str, float] | None:
        """The drift of the last votes: distance, p-value and whether to calibrate again; None while too few ended."""
        if len(ended.classes) < self.calibration.knob:
            return None
        return self._recent.observe(entropy_certaindex(ended.classes[: self.calibration.knob]))

    def _num_more(self, votes: Votes) -> int:
        return self.rule.num_more(votes)
