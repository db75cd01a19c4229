"""What a benchmark reports: its setting, figures with intervals, and bars that they must meet."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.evaluation.tables import Table, console
from scaffolding_ext.stats.intervals import Estimate, paired_bootstrap, paired_bootstrap_ratio, wilson_interval

SIGNS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge, ">": operator.gt}


class Bar(NamedTuple):
    """A figure and the bar that it must meet."""

    name: str
    value: float
    bar: float
    holds: bool
    sign: str


class Report:
    """Collects a benchmark's figures and bars, and shows them as tables or as JSON.

    Args:
        name: Of the benchmark.
        setting: What it ran with.
        seed: Of resamples, and of whatever else the benchmark draws.

    Attributes:
        closing: Lines for the end of what is printed.
    """

    def __init__(self, name: str, setting: dict[str, Any], seed: int = 0) -> None:
        self.name, self.setting, self.seed = name, setting, seed
        self.rng = np.random.default_rng(seed)
        self.figures: dict[str, dict[str, float | None]] = {}
        self.bars: list[Bar] = []
        self.closing: list[str] = []

    def figure(self, name: str, value: float, low: float | None = None, high: float | None = None) -> None:
        """Add a figure with its interval."""
        self.figures[name] = {"value": value, "low": low, "high": high}

    def share(self, name: str, num: int, total: int) -> float:
        """Add a share with its Wilson interval."""
        self.figure(name, num / total, *wilson_interval(num, total))
        return num / total

    def difference(
        self,
        name: str,
        ours: npt.ArrayLike,
        theirs: npt.ArrayLike = 0.0,
        questions: npt.ArrayLike | None = None,
        *,
        scale: float = 1.0,
    ) -> Estimate:
        """Add a mean difference, paired by question; without `theirs`, a mean. `scale` 100 tells it in points."""
        values = np.asarray(ours, dtype=float)
        estimate = paired_bootstrap(values, np.broadcast_to(theirs, values.shape), questions, rng=self.rng)
        return self._estimate(name, Estimate(*(scale * value for value in estimate)))

    def ratio(
        self, name: str, ours: npt.ArrayLike, theirs: npt.ArrayLike, questions: npt.ArrayLike | None = None
    ) -> Estimate:
        """Add a ratio of sums, paired by question."""
        return self._estimate(name, paired_bootstrap_ratio(ours, theirs, questions, rng=self.rng))

    def saved(self, name: str, ours: npt.ArrayLike, theirs: npt.ArrayLike) -> Estimate:
        """Add the share of theirs that ours saves."""
        ratio = paired_bootstrap_ratio(ours, theirs, rng=self.rng)
        return self._estimate(name, Estimate(1 - ratio.value, 1 - ratio.high, 1 - ratio.low))

    def bar(self, name: str, value: float, sign: str, bar: float) -> None:
        """Add a bar: `value`, `<=`, `>=` or `>`, and what it is held against."""
        self.bars.append(Bar(name, float(value), bar, bool(SIGNS[sign](value, bar)), sign))

    def to_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        bars = [{"name": b.name, "value": b.value, "bar": b.bar, "holds": b.holds} for b in self.bars]
        return {"setting": self.setting, "figures": self.figures, "bars": bars}

    def show(self) -> None:
        """Print tables."""
        terminal = console()
        terminal.print(f"{self.name}  " + "  ".join(f"{key}={value}" for key, value in self.setting.items()))
        table = Table("figure", "value", "low", "high")
        for name, figure in self.figures.items():
            table.add_row(name, *("" if number is None else f"{number:,.4g}" for number in figure.values()))
        terminal.print(table)
        if self.bars:
            table = Table("bar", "value", "must be", "holds")
            for bar in self.bars:
                table.add_row(bar.name, f"{bar.value:.3f}", f"{bar.sign} {bar.bar:g}", "yes" if bar.holds else "NO")
            terminal.print(table)

    def _estimate(self, name: str, estimate: Estimate) -> Estimate:
        self.figure(name, *estimate)
        return estimate
