"""Whether values seen now still come from the distribution that a policy was calibrated on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scipy.stats import ks_2samp

from scaffolding_ext import require


class Drift(NamedTuple):
    """A two-sample test; JSON-serialisable by `_asdict`, for a trace.

    Attributes:
        distance: The largest difference of the two distribution functions, in [0, 1].
        p_value: Chance of a distance at least as large where nothing has changed.
        drifted: Whether to calibrate again: the p-value is at most the level.
    """

    distance: float
    p_value: float
    drifted: bool


def drift_between(calibrated: Sequence[float], recent: Sequence[float], level: float = 0.01) -> Drift:
    """Kolmogorov-Smirnov test of the calibration's values against recent ones.

    Small votes have many ties. With ties the test is conservative: it reports a drift less often than `level`.

    Args:
        calibrated: One value of each calibration question, such as its certaindex at a knob.
        recent: The same value of each recent request. Several values of one request are not independent.
        level: Largest p-value that counts as a drift, in (0, 1). Who tests after every request gets false alarms.

    Raises:
        ValueError: A list is empty, or the level is out of range.

    Reference:
        Smirnov, "On the estimation of the discrepancy between empirical curves of distribution for two independent
        samples", 1939.
    """
    if not calibrated or not recent:
        raise ValueError(f"there are {len(calibrated)} and {len(recent)} values; each side needs at least one")
    require.number("level", level, above=0, below=1)
    result = ks_2samp(calibrated, recent)
    return Drift(float(result.statistic), float(result.pvalue), bool(result.pvalue <= level))
