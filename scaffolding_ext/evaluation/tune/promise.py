"""What a choice promises of further questions, by learn-then-test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaffolding_ext.evaluation.tune.plays import Trial
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.stats.learn_then_test import learn_then_test, questions_needed


class Promise(NamedTuple):
    """A bound on what a setting loses on further questions like these, to the same models.

    Attributes:
        setting: The cheapest setting that holds; None where none does.
        nearest: The setting whose p-value is the smallest.
        nearest_loss: Share of the right full votes that it lost.
        max_loss: The bound, as a share.
        confidence: That it holds, over draws of the questions.
        num_questions: Distinct questions that were tested.
        num_needed: With fewer, not even a setting that loses nothing passes.
    """

    setting: Setting | None
    nearest: Setting
    nearest_loss: float
    max_loss: float
    confidence: float
    num_questions: int
    num_needed: int

    def __str__(self) -> str:
        """The promise, or why there is none, in a sentence."""
        bound = f"at most {100 * self.max_loss:g} points lost, with a confidence of {self.confidence:g}"
        if self.setting is not None:
            return f"{bound}, on further questions like these {self.num_questions}"
        return (
            f"nothing promises {bound}: the nearest, {self.nearest}, lost {100 * self.nearest_loss:.1f} points of "
            f"{self.num_questions} questions; the test needs at least {self.num_needed} questions: record more, or "
            "allow more loss"
        )


def promised(trial: Trial, max_loss: float, confidence: float, questions: Sequence[int] | None = None) -> Promise:
    """Test every setting of a trial that decides on a question by itself.

    The loss of a question is how often a right full vote is lost. Runs of one question count as one: questions are
    exchangeable, and runs of a question are alike. Rules that were fitted to the questions, and one budget for all of
    them, make the losses of the questions depend on each other: they are not tested.

    Args:
        trial: The trial.
        max_loss: The bound, as a share, in (0, 1).
        confidence: At least 0.5 and below 1.
        questions: Indices of the recorded questions that are tested; None tests all.
    """
    index = np.arange(len(trial.recording.questions)) if questions is None else np.asarray(questions)
    ids = np.array([f"{each.task}\n{each.id}" for each in trial.recording.questions])[index]
    _, question = np.unique(ids, return_inverse=True)
    number = np.bincount(question)
    every = (setting for own in trial.lists.values() for setting in own)
    settings = [each for each in every if not each.is_fitted and each.total_tokens is None]

    def mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.bincount(question, weights=values[index]) / number

    losses = np.column_stack([mean(trial.played[setting].lost) for setting in settings])
    costs = np.column_stack([mean(trial.played[setting].costs[trial.cost]) for setting in settings])
    tested = learn_then_test(losses, costs, max_loss, 1 - confidence, np.random.default_rng([trial.seed, 5]))
    cheaper = np.flatnonzero(costs.mean(axis=0) < mean(trial.full.costs[trial.cost]).mean())
    nearest = _nearest(cheaper.tolist(), tested.p_values.tolist(), losses.mean(axis=0).tolist())
    return Promise(
        None if tested.chosen is None else settings[tested.chosen],
        settings[nearest],
        float(losses[:, nearest].mean()),
        max_loss,
        confidence,
        len(number),
        questions_needed(max_loss, 1 - confidence),
    )


def _nearest(cheaper: Sequence[int], p_values: Sequence[float], losses: Sequence[float]) -> int:
    return min(cheaper or range(len(losses)), key=lambda index: (p_values[index], losses[index]))
