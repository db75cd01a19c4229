"""Costs of two sides that take turns on the same prompts, and the geometric means of their ratios."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from scipy.stats import t as student

from benchmarks._lib.report import Report

Prompts = list[list[int]]


class Cost(NamedTuple):
    """What a run took, per token that it gave."""

    wall_s: float
    cpu_s: float


def cost_of(action: Callable[[], int]) -> Cost:
    """Run what returns a number of tokens; its seconds for each of them."""
    wall, cpu = time.perf_counter(), time.process_time()
    num_tokens = action()
    return Cost((time.perf_counter() - wall) / num_tokens, (time.process_time() - cpu) / num_tokens)


class Samples:
    """Samples of positive figures, by name."""

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = {}

    def add(self, **figures: float) -> None:
        for name, value in figures.items():
            self._samples.setdefault(name, []).append(value)

    def mean(self, name: str) -> float:
        """The geometric mean."""
        values = self._samples[name]
        return math.exp(math.fsum(map(math.log, values)) / len(values))

    def interval(self, name: str) -> tuple[float | None, float | None]:
        """The 95 % confidence interval of the mean; of one sample there is none."""
        logs = [math.log(value) for value in self._samples[name]]
        n, middle = len(logs), math.log(self.mean(name))
        if n < 2:
            return None, None
        spread = math.sqrt(math.fsum((x - middle) ** 2 for x in logs) / (n - 1) / n)
        margin = float(student.ppf(0.975, n - 1)) * spread
        return math.exp(middle - margin), math.exp(middle + margin)

    def report(self, report: Report) -> None:
        for name in self._samples:
            report.figure(name, self.mean(name), *self.interval(name))
