"""Which branches stay: the best by score and confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaffolding_ext.controllers.tree.branch import Branch


def value_of(branch: Branch, weighs_confidence: bool = True) -> float:
    """What a judged branch is worth against others: its score, times the square root of its confidence.

    Reference:
        RKSC, selection.
    """
    assert branch.score is not None, "branches are scored before they are selected"
    return branch.score * math.sqrt(branch.confidence) if weighs_confidence else branch.score


def best(branches: Sequence[Branch], num_kept: int, weighs_confidence: bool = True) -> list[Branch]:
    """The branches that are worth most, best first; of equals those with the lower path."""
    return sorted(branches, key=lambda branch: (-value_of(branch, weighs_confidence), branch.path))[:num_kept]
