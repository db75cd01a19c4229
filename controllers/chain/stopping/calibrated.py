"""The rule and schedule of a calibration file, which also tell when it should be made anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaffolding_ext import require
from scaffolding_ext.controllers.calibration_file import RecentRequests
from scaffolding_ext.controllers.chain.looking import Needs, ProbeSchedule
from scaffolding_ext.controllers.chain.policy_file import load_chain_policy
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.base import Rule, Stop, StoppingRule, certaindex_of, decide, needs_of
from scaffolding_ext.registry import probe_schedules, stopping_rules


class Calibrated(StoppingRule):
    """The policy of `scaffolding-ext calibrate chain`, on its own schedule; it stops nothing where none was found.

    It notes where the last chains of a stack were left, and tests these positions against those of the calibration.

    Args:
        path: The file.
        model: The model whose chains are stopped; a warning says where the file was made for another. None does not
            check.
        window: Chains that a test looks back on, at least 2; no test before that many have ended.

    Attributes:
        policy: The file.
        schedule: Where it looks.

    Raises:
        ConfigError: The file cannot be used, or the window is below 2.
    """

    def __init__(self, path: str, model: str | None = None, window: int = 100) -> None:
        window = require.whole("window", window, least=2)
        self.policy = load_chain_policy(path)
        self._recent = RecentRequests(self.policy.positions, window)
        if model is not None:
            self.policy.check_model(model)
        self._rule: Rule | None = None
        self.schedule = ProbeSchedule()
        self.needs = Needs(answer=False)
        if self.policy.policy is not None:
            with require.under(path):
                self._rule = stopping_rules.obtain(self.policy.policy["rule"])
                self.schedule = probe_schedules.obtain(self.policy.policy["schedule"])
            self.needs = needs_of(self._rule)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        return self.stop(probes) is not None

    def stop(self, probes: Sequence[Probe]) -> Stop | None:
        """As its rule."""
        return None if self._rule is None else decide(self._rule, probes)

    def certaindex(self, probes: Sequence[Probe]) -> float:
        """As its rule."""
        return 0.0 if self._rule is None else certaindex_of(self._rule, probes)

    def observe(self, num_tokens: int) -> Mapping[str, float] | None:
        """The drift of the last chains: distance, p-value and whether to calibrate again; None while too few ended."""
        return self._recent.observe(num_tokens)
