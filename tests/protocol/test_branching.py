"""Formulas about branches that controllers and workers share."""

import pytest

from scaffolding_ext.protocol.branching import block_score


def test_scores_fall_with_depth():
    assert [block_score(0.6, depth) for depth in (0, 1, 2)] == pytest.approx([0.6, 0.3, 0.2])
    with pytest.raises(ValueError, match=r"score: is 1\.5"):
        block_score(1.5, 0)
    with pytest.raises(ValueError, match="depth: is -1"):
        block_score(0.5, -1)
