"""Formulas about branches that controllers and workers share."""

import math

import numpy as np
import pytest

from scaffolding_ext.protocol.branching import LatencyModel, block_score, break_even_branches


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


@pytest.mark.parametrize(
    "model", [LatencyModel(0.004, 3e-5, 2e-9), LatencyModel(0.004, 3e-5, 0), LatencyModel(0.004, 0, 2e-9)]
)
@pytest.mark.parametrize("num_branches", [2, 8])
def test_both_forms_of_the_break_even_agree_and_sharing_pays_beyond_them(model, num_branches):
    """By brute force: B readings of everything against one of the prefix and B of the suffix behind it."""

    def seconds(num_tokens, num_cached=0):
        pairs = num_tokens * (num_cached + (num_tokens + 1) / 2)
        return model.per_pass + model.per_token * num_tokens + model.per_pair * pairs

    star = model.break_even_len(num_branches)
    for length in (1, math.floor(star), math.floor(star) + 1, 2000):
        whole, prefix, suffix = seconds(length + 5), seconds(length), seconds(5, length)
        pays = num_branches * whole > prefix + num_branches * suffix
        assert pays == (length > star)
        timed = break_even_branches(whole, prefix, suffix)
        assert timed == pytest.approx(model.break_even_branches(length))
        assert pays == (num_branches > timed)
    assert model.break_even_len(1) == math.inf
    free = LatencyModel(0.004, 0.0, 0.0)
    assert free.break_even_len(8) == free.break_even_branches(64) == math.inf
