"""The file that a calibration of chains leaves, and the stopping rule that reads it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from scaffolding_ext import require
from scaffolding_ext.controllers.calibration_file import CalibrationFile, CalibrationWarning, RecentRequests
from scaffolding_ext.controllers.chain.looking import Needs, ProbeSchedule
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.base import Stop, StoppingRule
from scaffolding_ext.registry import probe_schedules, stopping_rules
from scaffolding_ext.stats.drift import Drift, drift_between

_ROUNDING = 1e-12  # of a mean of whole losses


class ChainPolicy(CalibrationFile):
    """When to stop a chain of thought.

    Attributes:
        recorded: Arguments of the controller whose chains and probes were recorded.
        loss: What counts as lost: `"differs"` or `"lost"`.
        confidence: Of keeping to that on exchangeable questions, at least 0.5; None where nothing is promised.
        testing: How settings were tested for that; None without confidence.
        policy: Rule and schedule, each `{type, args}`; None where no setting loses as little: nothing is stopped.
        positions: Tokens after which each chain was left under it, for the test of drift.
    """

    command: ClassVar = "calibrate chain"

    kind: Literal["chain_policy"] = "chain_policy"
    recorded: dict[str, Any]
    loss: str
    max_loss: float
    confidence: float | None
    testing: str | None
    cost: str
    policy: dict[str, Any] | None
    chosen_on: dict[str, float]
    reported_on: dict[str, float]
    positions: list[int]
    forced: bool = False

    @property
    def exceeds_limit(self) -> bool:
        """Whether it lost more than was allowed, on the questions that it was not chosen on."""
        return self.reported_on["loss"] > self.max_loss + _ROUNDING

    def drift(self, recent: Sequence[float], level: float = 0.01) -> Drift:
        """Test where chains were left of late (tokens) against where those of the calibration were."""
        return drift_between(self.positions, recent, level)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ChainPolicy:
        """Read a file; a warning says where the policy broke its limit and was written by force."""
        policy = super().load(path)
        if policy.forced:
            figures = policy.reported_on
            warnings.warn(
                f"{os.fspath(path)} was written with --force: the policy lost {figures['loss']:.1%} of "
                f"{figures['num_questions']:.0f} held-out questions, and its limit was {policy.max_loss:.1%}: "
                "calibrate a policy that keeps its limit",
                CalibrationWarning,
                stacklevel=2,
            )
        return policy


class Calibrated(StoppingRule):
    """The policy of `scaffolding-ext calibrate chain`, on its own schedule; it stops nothing where none was found.

    It notes where the last chains of a stack were left, and tests these positions against those of the calibration.

    Args:
        path: The file.
        model: The model whose chains are stopped; a warning says where the file was made for another. None does not
            check.
        window: Chains that a test looks back on, at least 2; no test before that many have ended.

    Attributes:
        schedule: Where it looks.

    Raises:
        ConfigError: The file cannot be used, or the window is below 2.
    """

    def __init__(self, path: str, model: str | None = None, window: int = 100) -> None:
        window = require.whole("window", window, least=2)
        self.policy = ChainPolicy.load(path)
        self._recent = RecentRequests(self.policy.positions, window)
        if model is not None:
            self.policy.check_model(model)
        self._rule: StoppingRule | None = None
        self.schedule = ProbeSchedule()
        self.needs = Needs(answer=False)
        if self.policy.policy is not None:
            with require.under(path):
                self._rule = stopping_rules.obtain(self.policy.policy["rule"])
                self.schedule = probe_schedules.obtain(self.policy.policy["schedule"])
            self.needs = self._rule.needs

    def __call__(self, probes: Sequence[Probe]) -> bool:
        return self.stop(probes) is not None

    def stop(self, probes: Sequence[Probe]) -> Stop | None:
        return None if self._rule is None else self._rule.stop(probes)

    def certaindex(self, probes: Sequence[Probe]) -> float:
        return 0.0 if self._rule is None else self._rule.certaindex(probes)

    def observe(self, num_tokens: int) -> Mapping[str, float] | None:
        """The drift of the last chains: distance, p-value and whether to calibrate again; None while too few ended."""
        return self._recent.observe(num_tokens)
