"""The report of a benchmark: its setting, figures with intervals, and bars that they must meet."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.columns import NONE, Columns, Origin
from scaffolding_ext.stats.intervals import Estimate

SIGNS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge, ">": operator.gt}


class Bar(NamedTuple):
    """A figure and the bar that it must meet."""

    name: str
    value: float
    bar: float
    holds: bool
    sign: str


class Report:
    """Collects a benchmark's figures and bars, and shows them as lines or as JSON.

    Args:
        name: Of the benchmark.
        setting: What it ran with.
        seed: Of resamples, and of whatever else the benchmark draws.

    Attributes:
        columns: What the intervals are computed from.
    """

    def __init__(self, name: str, setting: dict[str, Any], seed: int = 0) -> None:
        self.name, self.setting, self.seed = name, setting, seed
        self.rng = np.random.default_rng(seed)
        self.figures: dict[str, dict[str, Any]] = {}
        self.columns = Columns()
        self.bars: list[Bar] = []

    def figure(self, name: str, value: float, low: float | None = None, high: float | None = None) -> None:
        """Add a figure with its interval; where values a question are at hand, take one of the methods below."""
        self.figures[name] = {"value": value, "low": low, "high": high}

    def share(self, name: str, num: int, total: int) -> float:
        """Add a share with its Wilson interval."""
        return self._estimate(name, f"share {int(num)} {int(total)}").value

    def difference(
        self,
        name: str,
        ours: npt.ArrayLike,
        theirs: npt.ArrayLike = 0.0,
        questions: npt.ArrayLike | None = None,
        *,
        scale: float = 1.0,
        crossing: npt.ArrayLike | None = None,
    ) -> Estimate:
        """Add a mean difference, paired by question; without `theirs`, a mean.

        Args:
            scale: 100 tells it in points.
            crossing: A second group of each value: `questions` names its run, and `crossing` its question.
        """
        values = np.asarray(ours, dtype=float)
        others = None if np.ndim(theirs) == 0 and not theirs else np.broadcast_to(theirs, values.shape)
        return self._paired(name, "difference", values, others, questions, scale=scale, crossing=crossing)

    def ratio(
        self,
        name: str,
        ours: npt.ArrayLike,
        theirs: npt.ArrayLike,
        questions: npt.ArrayLike | None = None,
        *,
        crossing: npt.ArrayLike | None = None,
    ) -> Estimate:
        """Add a ratio of sums, paired by question."""
        return self._paired(name, "ratio", ours, theirs, questions, crossing=crossing)

    def saved(
        self, name: str, ours: npt.ArrayLike, theirs: npt.ArrayLike, questions: npt.ArrayLike | None = None
    ) -> Estimate:
        """Add the share of theirs that ours saves."""
        return self._paired(name, "saved", ours, theirs, questions)

    def bar(self, name: str, value: float, sign: str, bar: float) -> None:
        """Add a bar: `value`, `<=`, `>=` or `>`, and what it is held against."""
        self.bars.append(Bar(name, float(value), bar, bool(SIGNS[sign](value, bar)), sign))

    def to_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        bars = [{"name": b.name, "value": b.value, "sign": b.sign, "bar": b.bar, "holds": b.holds} for b in self.bars]
        figures = {
            name: {key: float(f"{entry:.8g}") if isinstance(entry, float) else entry for key, entry in figure.items()}
            for name, figure in self.figures.items()
        }
        return {"setting": self.setting, "figures": figures, "bars": bars, "columns": self.columns.packed()}

    def show(self) -> None:
        """Print each figure with its interval, and each bar."""
        print(f"{self.name}  " + "  ".join(f"{key}={value}" for key, value in self.setting.items()))
        for name, figure in self.figures.items():
            ends = "" if figure["low"] is None else f" ({figure['low']:,.4g} to {figure['high']:,.4g})"
            print(f"{name}: {figure['value']:,.4g}{ends}")
        for bar in self.bars:
            print(f"bar {'holds' if bar.holds else 'FAILS'}: {bar.name}: {bar.value:.3f} {bar.sign} {bar.bar:g}")

    def _paired(
        self,
        name: str,
        estimator: str,
        ours: npt.ArrayLike,
        theirs: npt.ArrayLike | None,
        questions: npt.ArrayLike | None,
        scale: float = 1.0,
        crossing: npt.ArrayLike | None = None,
    ) -> Estimate:
        def origin(groups: npt.ArrayLike | None) -> str:
            def kept(values: npt.ArrayLike | None) -> str:
                return NONE if values is None else self.columns.keep_totals(values, groups)

            parts = [estimator, kept(ours), kept(theirs)]
            if estimator == "difference":
                parts += [kept(None if groups is None else np.ones(np.shape(ours))), f"{scale:g}"]
            return " ".join(parts)

        twice = [] if crossing is None else [origin(crossing)]
        return self._estimate(name, " x ".join([origin(questions), *twice]))

    def _estimate(self, name: str, origin: Origin) -> Estimate:
        estimate = self.columns.estimate(name, origin, self.seed)
        self.figure(name, *estimate)
        self.figures[name]["of"] = origin
        return estimate
