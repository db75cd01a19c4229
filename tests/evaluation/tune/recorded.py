"""A small recording."""

from __future__ import annotations

import numpy as np

from scaffolding_ext.evaluation.logs.samples import RecordedQuestion, Recording


def recording(
    num_questions: int = 60, num_samples: int = 8, *, num_runs: int = 1, seed: int = 0, ability: float = 0.8
) -> Recording:
    """Questions that a model mostly knows; wrong answers scatter over three others."""
    rng = np.random.default_rng(seed)
    questions = []
    for number in range(num_questions):
        right = rng.random(num_samples) < np.clip(rng.normal(ability, 0.2), 0.1, 1.0)
        classes = np.where(right, 0, rng.integers(1, 4, num_samples))
        tokens = rng.integers(50, 150, num_samples)
        questions.append(
            RecordedQuestion(
                id=f"question {number // num_runs}",
                run=f"run {number % num_runs}",
                task="arithmetic",
                classes=classes,
                correct=classes == 0,
                target=0,
                tokens=tokens,
                missing=frozenset({"seconds", "logprobs", "rewards", "probes"}),
            )
        )
    return Recording(questions, ["here"], "sha256:0")
