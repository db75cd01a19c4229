"""Problems of reasoning-gym: drawn by task and seed, scored by the task's verifier."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from scaffolding_ext.answers.pool import KillablePool, OverrunError
from scaffolding_ext.errors import DatasetError, MissingDependencyError
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.evaluation.run.scoring import Score

_DEADLINE_SECONDS = 5.0  # of a verifier
_FULL_SCORE = 1.0  # lower scores are for partial answers, or for their form


def verified(
    problem: tuple[str, int, int, str, int], answer: str | None, deadline_seconds: float = _DEADLINE_SECONDS
) -> Score:
    """Score an answer: only the full score is right; if the verifier fails or takes too long, it is undetermined.

    It runs in a process that is killed at the deadline.

    Args:
        problem: Arguments of `is_right` before the answer.

    Raises:
        EngineError: No process could be started.
    """
    if answer is None:
        return Score(False, None)
    try:
        correct = _pool().submit(deadline_seconds, *problem, answer).result()
    except OverrunError:
        correct = None
    verdict = "undetermined" if correct is None else "equal" if correct else "different"
    return Score(correct is True, verdict)


@functools.cache
def _pool() -> KillablePool:
    return KillablePool(f"{__name__}:is_right")


def is_right(task: str, num_samples: int, seed: int, args: str, number: int, answer: str) -> bool | None:
    """Return True if an answer gets the full score, None if the verifier fails. Runs in the pool's processes."""
    drawn = _drawn(task, num_samples, seed, args)
    try:
        return bool(drawn.score_answer(answer, drawn[number]) >= _FULL_SCORE)
    except Exception:  # some verifiers parse the answer, and raise any parser's error
        return None


@functools.lru_cache(maxsize=8)
def _drawn(task: str, num_samples: int, seed: int, args: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(task, size=num_samples, seed=seed, **json.loads(args))


def gym_problems(task: str, num_samples: int, seed: int, args: Mapping[str, Any]) -> list[Example]:
    """Draw the problems of a task.

    Args:
        task: Its name, such as `chain_sum`.

    Raises:
        DatasetError: The task or its configuration is unknown.
        MissingDependencyError: `reasoning-gym` is not installed.
    """
    try:
        import reasoning_gym  # noqa: F401 - fails here if it is missing
    except ImportError as error:
        raise MissingDependencyError("reasoning-gym", "problems") from error
    try:
        given = json.dumps(dict(args))
        drawn = _drawn(task, num_samples, seed, given)
        entries = [drawn[number] for number in range(num_samples)]
    except Exception as error:  # a task's configuration may raise anything
        raise DatasetError(f"cannot draw problems of reasoning_gym:{task}: {type(error).__name__}: {error}") from error
    return [
        Example(
            f"{task}-{seed}-{number}",
            entry["question"],
            str(entry["answer"]),
            task,
            functools.partial(verified, (task, num_samples, seed, given, number)),
        )
        for number, entry in enumerate(entries)
    ]
