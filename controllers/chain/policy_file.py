"""The file that a calibration of chains leaves: when to stop, how that was chosen, and how it did on others."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaffolding_ext.controllers.calibration_file import (
    CalibrationWarning,
    check_model,
    read_calibration,
    write_calibration,
)
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stats.drift import Drift, drift_between

KIND, VERSION = "chain", 2
_ROUNDING = 1e-12  # of a mean of whole losses


@dataclass(frozen=True)
class ChainPolicy:
    """When to stop a chain of thought, with its origin.

    Attributes:
        model: Name of the model whose chains it was chosen on.
        date: Day of the calibration, ISO 8601.
        data: Fingerprint of the recording.
        recorded: Arguments of the controller whose chains and probes were recorded.
        loss: What counts as lost: `"differs"` or `"lost"`.
        max_loss: Largest mean loss that was allowed.
        confidence: Of keeping to that on exchangeable questions, at least 0.5; None where nothing is promised.
        testing: How settings were tested for that; None without confidence.
        cost: Which cost was to be small.
        policy: Rule and schedule, each `{type, args}`; None where no setting loses as little: nothing is stopped.
        chosen_on: Figures on the questions that it was chosen on.
        reported_on: Figures on the others.
        positions: Tokens after which each chain was left under it, for the test of drift.
        forced: Whether it was written although it lost more than `max_loss` on the others.
    """

    model: str
    date: str
    data: str
    recorded: Mapping[str, Any]
    loss: str
    max_loss: float
    confidence: float | None
    testing: str | None
    cost: str
    policy: Mapping[str, Any] | None
    chosen_on: Mapping[str, float]
    reported_on: Mapping[str, float]
    positions: Sequence[int]
    forced: bool = False

    @property
    def exceeds_limit(self) -> bool:
        """Whether it lost more than was allowed, on the questions that it was not chosen on."""
        return self.reported_on["loss"] > self.max_loss + _ROUNDING

    def check_model(self, model: str) -> None:
        """Warn where the policy is for the chains of another model."""
        check_model("chain policy", self.model, model, "calibrate chain", stacklevel=4)

    def drift(self, recent: Sequence[float], level: float = 0.01) -> Drift:
        """Test where chains were left of late (tokens) against where those of the calibration were."""
        return drift_between(list(self.positions), recent, level)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the YAML file.

        Raises:
            OutputError: It cannot be written.
        """
        write_calibration(path, KIND, VERSION, **dataclasses.asdict(self))


def load_chain_policy(path: str | os.PathLike[str]) -> ChainPolicy:
    """Read what `ChainPolicy.save` wrote; a warning says where the policy broke its limit and was written by force.

    Raises:
        ConfigError: The file cannot be read, is of another kind or version, or lacks a field; it names the file.
    """
    document = read_calibration(path, {KIND: VERSION})
    fields = {field.name: document[field.name] for field in dataclasses.fields(ChainPolicy) if field.name in document}
    try:
        policy = ChainPolicy(**fields)
    except TypeError as error:
        raise ConfigError(f"lacks a field: {error}", os.fspath(path)) from error
    if policy.forced:
        figures = policy.reported_on
        warnings.warn(
            f"{os.fspath(path)} was written with --force: the policy lost {figures['loss']:.1%} of "
            f"{figures['num_questions']:.0f} held-out questions, and its limit was {policy.max_loss:.1%}: calibrate a "
            "policy that keeps its limit",
            CalibrationWarning,
            stacklevel=2,
        )
    return policy
