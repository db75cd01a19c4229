"""The file that a calibration writes: a policy for votes, the data that it was chosen on, and its figures there."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaffolding_ext.controllers.calibration_file import (
    RecentRequests,
    check_model,
    read_calibration,
    write_calibration,
)
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import allocation_rules
from scaffolding_ext.stats.drift import Drift, drift_between

KIND, VERSION = "certaindex", 1


@dataclass(frozen=True)
class Calibration:
    """A policy with its origin.

    Attributes:
        model: Name of the model whose samples it was chosen on.
        date: Day of the calibration, ISO 8601.
        data: Fingerprint of the samples' file.
        max_loss: Largest loss of accuracy that was allowed, as a share.
        rule: The policy.
        figures: Accuracy, tokens and rounds on the data, of the policy and of the full vote.
        knob: Samples after which `certaindex` was taken.
        certaindex: Certaindex of each calibration question at the knob, for the test of drift.
    """

    model: str
    date: str
    data: str
    max_loss: float
    rule: AllocationRule
    figures: Mapping[str, float]
    knob: int
    certaindex: Sequence[float]

    @property
    def policy(self) -> dict[str, Any]:
        """The policy as a stack file names it."""
        return {"type": allocation_rules.name_of(type(self.rule)), "args": self.rule.settings()}

    def rule_for(self, model: str) -> AllocationRule:
        """The policy, for votes of a model; warns where that is not the model it was chosen on."""
        check_model("vote policy", self.model, model, "calibrate certaindex")
        return self.rule

    def drift(self, recent: Sequence[float], level: float = 0.01) -> Drift:
        """Test certaindex values of recent requests, taken at the same knob, against those of the calibration."""
        return drift_between(self.certaindex, recent, level)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the YAML file.

        Raises:
            OutputError: It cannot be written.
        """
        fields: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["figures"] = {name: float(value) for name, value in self.figures.items()}
        fields["certaindex"] = [round(float(value), 6) for value in self.certaindex]
        del fields["rule"]
        write_calibration(path, KIND, VERSION, policy=self.policy, **fields)


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Read what `Calibration.save` wrote.

    Raises:
        ConfigError: The file cannot be read, is of another kind or version, or lacks a field; it names the file.
    """
    document = read_calibration(path, {KIND: VERSION})
    names = [field.name for field in dataclasses.fields(Calibration) if field.name != "rule"]
    try:
        return Calibration(rule=allocation_rules.obtain(document["policy"]), **{name: document[name] for name in names})
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"lacks a field or holds a wrong one: {error!r}", os.fspath(path)) from error


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
        self.calibration = load_calibration(path)
        self.rule = self.calibration.rule_for(model)
        self.min_answers = self.rule.min_answers
        self._recent = RecentRequests(self.calibration.certaindex, window)

    @property
    def reads_rewards(self) -> bool:
        """Whether its policy needs the samples' rewards."""
        return self.rule.reads_rewards

    def refuses_weights(self, most_weight: float) -> str | None:
        """As its policy does."""
        return self.rule.refuses_weights(most_weight)

    def observe(self, classes: Sequence[int], max_samples: int) -> Mapping[str, float] | None:
        """The drift of the last votes: distance, p-value and whether to calibrate again; None while too few ended."""
        if len(classes) < self.calibration.knob:
            return None
        return self._recent.observe(entropy_certaindex(classes[: self.calibration.knob]))

    def _num_more(self, votes: Votes) -> int:
        return self.rule.num_more(votes)
