"""Formulas about branches that controllers and workers share."""

import math

import numpy as np
import pytest

from scaffolding_ext.protocol.branching import block_score, break_even_branches


def test_scores_fall_with_depth():
    assert [block_score(0.6, depth) for depth in (0, 1, 2)] == pytest.approx([0.6, 0.3, 0.2])
    with pytest.raises(ValueError, match=r"score: is 1\.5"):
        block_score(1.5, 0)
    with pytest.raises(ValueError, match="depth: is -1"):
        block_score(0.5, -1)


def test_sharing_pays_from_the_break_even_on():
    """Branches one after the other, as the break-even has it: B wholes against one prefix and B suffixes."""
    rng = np.random.default_rng(0)
    for whole, prefix, suffix in rng.uniform(0.1, 2.0, (200, 3)) * (2, 1, 0.5):
        least = break_even_branches(whole, prefix, suffix)
        for num_branches in range(1, 12):
            assert (num_branches * whole > prefix + num_branches * suffix) == (num_branches > least)
    assert break_even_branches(whole=40.0, prefix=88.8, suffix=40.0) == math.inf
