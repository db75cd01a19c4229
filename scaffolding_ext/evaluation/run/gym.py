"""Problems of reasoning-gym: drawn by task and seed, and scored by the task's own verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scaffolding_ext.errors import DatasetError, MissingDependencyError
from scaffolding_ext.evaluation.run.rows import Sample
from scaffolding_ext.evaluation.run.scoring import Score

_FULL_SCORE = 1.0  # less is for a part of the answer, or for its form


@dataclass(frozen=True)
class Verifier:
    """Scores answers to one problem.

    Attributes:
        task: The reasoning-gym task.
        entry: The problem.
    """

    task: Any
    entry: dict[str, Any]

    def __call__(self, answer: str | None) -> Score:
        """Right is what gets the full score; an answer on which the verifier fails is undetermined."""
        if answer is None:
            return Score(False, None)
        try:
            correct = self.task.score_answer(answer, self.entry) >= _FULL_SCORE
        except Exception:  # of any type: some verifiers parse the answer, and raise what their parsers raise
            return Score(False, "undetermined")
        return Score(correct, "equal" if correct else "different")


def gym_problems(task: str, num_samples: int, seed: int, args: Mapping[str, Any]) -> list[Sample]:
    """Draw the problems of a task.

    Args:
        task: Its name, such as `chain_sum`.
        num_samples: How many.
        seed: Which.
        args: The task's own configuration.

    Raises:
        DatasetError: The task or its configuration is unknown.
        MissingDependencyError: `reasoning-gym` is not installed.
    """
    try:
        import reasoning_gym
    except ImportError as error:
        raise MissingDependencyError("reasoning-gym", "problems") from error
    try:
        drawn = reasoning_gym.create_dataset(task, size=num_samples, seed=seed, **args)
        entries = [drawn[number] for number in range(num_samples)]
    except Exception as error:  # of any type: what a task's configuration raises
        raise DatasetError(f"cannot draw problems of reasoning_gym:{task}: {type(error).__name__}: {error}") from error
    return [
        Sample(f"{task}-{seed}-{number}", entry["question"], str(entry["answer"]), task, Verifier(drawn, entry))
        for number, entry in enumerate(entries)
    ]
