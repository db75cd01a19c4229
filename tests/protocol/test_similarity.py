"""Layer-weighted similarity: by hand, and what it must not depend on."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.protocol.branching import layer_weighted_similarity, layer_weights


def test_weights_by_hand():
    growth = math.exp(0.75)  # of alpha 1.5 over two layers
    assert layer_weights(2) == pytest.approx([1 / (1 + growth), growth / (1 + growth)])
    assert layer_weights(4, steepness=0.0) == pytest.approx([0.25] * 4)


def test_similarity_by_hand():
    root = [[1.0, 0.0], [3.0, 4.0]]
    branches = [
        [[2.0, 0.0], [6.0, 8.0]],  # the same directions
        [[0.0, 1.0], [3.0, 4.0]],  # at right angles in the first layer
        [[-1.0, 0.0], [0.0, 0.0]],  # opposed, and of no length
    ]
    first, second = layer_weights(2)
    assert layer_weighted_similarity(branches, root) == pytest.approx([1.0, second, -first])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.1, 9.0))
def test_a_branch_is_like_itself_whatever_its_length(seed, scale):
    root = np.random.default_rng(seed).normal(size=(3, 5))
    assert layer_weighted_similarity(root[None] * scale, root) == pytest.approx([1.0])


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"hidden has shape \(2, 3\)"):
        layer_weighted_similarity(np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(ValueError, match="num_layers"):
        layer_weights(0)
