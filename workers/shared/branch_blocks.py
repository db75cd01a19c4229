"""The worth of branches' KV blocks, for a worker that must give some of them up (RKSC, algorithm 4)."""

from __future__ import annotations

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol.branching import BranchTask, block_score


def block_scores(task: BranchTask) -> list[float]:
    """The worth of each branch's blocks, by its score and its depth. The prefix's blocks are worth 1.

    Raises:
        InvalidTaskError: There is no branch, scores or seeds are not one a branch, a score is outside [0, 1], or the
            depth is below 1.
    """
    if not task.suffixes:
        raise InvalidTaskError(
            "suffixes is empty: give a suffix for each branch; a suffix may be an empty list of tokens"
        )
    if task.seeds and len(task.seeds) != len(task.suffixes):
        raise InvalidTaskError(
            f"seeds has {len(task.seeds)} numbers, and there are {len(task.suffixes)} branches: give a seed for each "
            "branch, or none"
        )
    scores = [1.0] * len(task.suffixes) if task.branch_scores is None else task.branch_scores
    if len(scores) != len(task.suffixes) or not all(0 <= score <= 1 for score in scores):
        raise InvalidTaskError(
            f"branch_scores is {scores!r}; give a score in [0, 1] for each of the {len(task.suffixes)} branches"
        )
    if task.depth < 1:
        raise InvalidTaskError(
            f"depth is {task.depth}; the depth of a branch must be at least 1 (the prefix has depth 0)"
        )
    return [block_score(score, task.depth) for score in scores]
