"""Durations of samples, for votes with a deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

_NUM_KEPT = 256


class SampleTimes:
    """Durations of a stack's finished samples; `expected` seconds stand in until one has ended."""

    def __init__(self, expected: float | None = None) -> None:
        self._seconds: deque[float] = deque([] if expected is None else [expected], _NUM_KEPT)

    def add(self, seconds: Iterable[float]) -> None:
        self._seconds.extend(seconds)

    def until_last(self, num_samples: int, own: Sequence[float]) -> float | None:
        """Expected seconds until the last of some samples started together ends; None if unknown.

        Args:
            num_samples: At least 1.
            own: Seconds of the question's finished samples; they scale those of all questions.
        """
        if not self._seconds:
            return None
        seconds = np.sort(np.array(self._seconds))
        ranks = np.arange(len(seconds) + 1) / len(seconds)
        expected = float(seconds @ np.diff(ranks**num_samples))
        mean = float(seconds.mean())
        return expected * (sum(own) + mean) / (len(own) + 1) / mean if mean else 0.0
