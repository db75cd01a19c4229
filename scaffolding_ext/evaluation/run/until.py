"""Ends a run when its result is known: an accuracy to within a margin, or the better of two runs.

The claim is about all questions of the run, under the seeds that it uses. Questions are asked in a random order and
counted in that order, not as they end: quick ones are often the easy ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.documents import plain
from scaffolding_ext.errors import ConfigError, DatasetError
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.evaluation.run.records import each_record, prompt_hash
from scaffolding_ext.evaluation.run.run_folder import answers_of
from scaffolding_ext.request.seeds import derive_seed
from scaffolding_ext.stats.finite_mean import FiniteMean
from scaffolding_ext.stats.intervals import Interval

_FORM = re.compile(r"(?:vs\s+(?P<run>.*?\S))?\s*(?:(?:±|\+/?-)\s*(?P<points>\d+(?:\.\d+)?))?")
_POINTS = 2.0  # the margin of a comparison that names none
_TINY = 1e-9


class UntilGoal(NamedTuple):
    """A parsed `--until`.

    Attributes:
        margin: As a share of the questions.
        baseline: The run to compare with; None estimates the accuracy.
    """

    margin: float
    baseline: str | None

    @classmethod
    def of(cls, text: str) -> UntilGoal:
        """Parse `±2`, `+-2`, `vs RUN` or `vs RUN ±1`, in points.

        Raises:
            ConfigError: The text has another form, or the margin is not above 0 and below 100.
        """
        found = _FORM.fullmatch(text.strip())
        points = _POINTS if found is None or found["points"] is None else float(found["points"])
        if found is None or not text.strip() or not 0 < points < 100:
            raise ConfigError(
                f"is {text!r}; give the points of accuracy to know, as '±2' or '+-2', or a run to compare with, as "
                "'vs runs/plain' or, with another margin than 2 points, 'vs runs/plain ±1'",
                "evaluation.until",
            )
        return cls(points / 100, found["run"])


class UntilKnown:
    """Decides after each question if the goal is reached.

    Args:
        ids: Questions in the random order in which they are asked.
        epochs: Runs of each question; it counts when all have ended.
        baseline: Share of right answers to each question in the other run, if the goal names one.

    Attributes:
        num_counted: Questions counted: those before the first one that has not ended, until the goal is reached.
    """

    def __init__(
        self, goal: UntilGoal, ids: Iterable[str], epochs: int = 1, baseline: Mapping[str, float] | None = None
    ) -> None:
        self.goal = goal
        self._ids = list(ids)
        self._epochs = epochs
        self._baseline = baseline
        self._values: dict[str, list[float]] = {}
        self.num_counted = 0
        if baseline is None:
            self._mean = FiniteMean(len(self._ids), goal.margin)
        else:
            self._mean = FiniteMean(len(self._ids), goal.margin, Interval(-1.0, 1.0), against=0.0)
        self.conclusion: str | None = None

    @property
    def is_settled(self) -> bool:
        return self.conclusion is not None

    @property
    def num_spared(self) -> int:
        """Questions that were not asked, because the goal was reached without them."""
        return len(self._ids) - len(self._values) if self.is_settled else 0

    def add(self, identity: str, value: float) -> list[str]:
        """Add the score of one run of a question, in [0, 1], and return the questions that count from now on."""
        self._values.setdefault(identity, []).append(value)
        num_before = self.num_counted
        while self.num_counted < len(self._ids) and not self.is_settled:
            asked = self._ids[self.num_counted]
            values = self._values.get(asked, ())
            if len(values) < self._epochs:
                break
            share = sum(values) / len(values)
            self._mean.add(share if self._baseline is None else share - self._baseline[asked])
            self.num_counted += 1
            self.conclusion = self._concluded()
        return self._ids[num_before : self.num_counted]

    def _concluded(self) -> str | None:
        value, low, high = self._mean.estimate
        margin = self.goal.margin + _TINY
        if self._baseline is None:
            return "known" if max(high - value, value - low) <= margin else None
        if -margin <= low and high <= margin:
            return "within"
        return "better" if low > 0 else "worse" if high < 0 else None

    def figures(self) -> dict[str, Any]:
        """Return the figures of the summary; `estimate` is the accuracy, or its difference from the baseline's."""
        return {
            "margin": self.goal.margin,
            "baseline": self.goal.baseline,
            "conclusion": self.conclusion,
            "estimate": plain(self._mean.estimate),
            "num_questions": len(self._ids),
            "num_counted": self.num_counted,
            "num_spared": self.num_spared,
        }


def answered_by(run: str, samples: Sequence[Example]) -> dict[str, float]:
    """Return the share of right answers to each sample in another run; samples that it lacks are left out.

    Raises:
        DatasetError: There is no such run, it asked other questions, or fewer than two of the samples.
    """
    folder = Path(run)
    if not folder.exists():
        raise DatasetError(f"there is no run in {folder}: give the folder that `eval --output_path` wrote")
    asked = {sample.id: sample for sample in samples}
    right: dict[str, list[bool]] = {}
    for record in each_record(answers_of(folder) if folder.is_dir() else folder):
        sample = asked.get(record.id)
        if sample is None:
            continue
        if record.prompt_hash != prompt_hash(sample.prompt) or record.target != sample.target:
            raise DatasetError(
                f"the question or answer of {record.id!r} is not the same in {folder}: compare like runs"
            )
        right.setdefault(record.id, []).append(record.correct)
    if len(right) < 2:
        raise DatasetError(f"{folder} has {len(right)} of the {len(asked)} questions; a comparison needs at least 2")
    return {name: sum(each) / len(each) for name, each in right.items()}


def stop_of(text: str, samples: Sequence[Example], epochs: int, seed: int | None) -> tuple[UntilKnown, list[Example]]:
    """Return the rule of `evaluation.until`, and the samples to ask, in their order."""
    goal = UntilGoal.of(text)
    order = sorted(samples, key=lambda sample: derive_seed("until", seed, sample.id))  # further ones keep the order
    if goal.baseline is None:
        return UntilKnown(goal, [sample.id for sample in order], epochs), order
    baseline = answered_by(goal.baseline, order)
    order = [sample for sample in order if sample.id in baseline]
    return UntilKnown(goal, [sample.id for sample in order], epochs, baseline), order
