"""Entropy of layers, the exit rule, and its calibration against decisions of the full depth."""

import math

import numpy as np
import pytest

from scaffolding_ext.controllers.tree.gates.layer_exit import fit_layer_exit, median_layer_exit
from scaffolding_ext.protocol.branching import LayerExit, entropy


def test_entropy_by_hand():
    logits = np.log([[0.5, 0.25, 0.25], [1 / 3] * 3]) + 7.0  # a shift changes nothing
    assert entropy(logits) == pytest.approx([1.5 * math.log(2), math.log(3)])
    assert entropy([1000.0, -1000.0]) == pytest.approx(0.0)
    assert entropy(np.zeros((2, 4, 8))).shape == (2, 4)


def test_a_branch_settles_where_the_entropy_is_low_and_still():
    rule = LayerExit(max_entropy=1.0, max_change=0.2, min_layer=3)
    now, before = [0.9, 0.9, 1.0, 0.5], [1.0, 1.2, 1.0, 0.5]
    assert rule.settled(3, now, before).tolist() == [True, False, False, True]
    assert not rule.settled(2, now, before).any()


def test_the_layer_of_the_exit_is_the_first_that_settles():
    rule = LayerExit(max_entropy=1.0, max_change=0.2)
    curves = [
        [3.0, 0.9, 0.8, 0.1],  # low after two, still after three
        [0.5, 0.5, 3.0, 0.5],  # a first layer has none before it
        [3.0, 2.0, 1.5, 0.2],  # never: the last layer
    ]
    assert rule.layers(curves).tolist() == [3, 2, 4]


def test_the_papers_theta_is_the_median_entropy_where_verdicts_are_first_stable():
    curves = [
        [6.0, 5.5, 1.0, 0.5],  # stable after the second layer: 5.5
        [6.0, 2.0, 1.5, 0.5],  # after the third: 1.5
        [9.0, 5.0, 9.0, 4.0],  # never: the last layer, 4.0
    ]
    rule = median_layer_exit(curves, max_change=2.0)
    assert (rule.max_entropy, rule.max_change, rule.min_layer) == (pytest.approx(4.0), 2.0, 2)
    assert rule.layers(curves).tolist() == [4, 3, 4]
    assert median_layer_exit(curves[:2]).max_change == 3.0
    with pytest.raises(ValueError, match=r"shape .3,.; give"):
        median_layer_exit([1.0, 2.0, 3.0])


def random_verdicts(num_problems=40, num_layers=6, seed=0):
    """Scores that reach their last value after some layer, where the entropy has fallen, too."""
    rng = np.random.default_rng(seed)
    num_branches = 4 * num_problems
    settles = rng.integers(2, num_layers + 1, num_branches)
    layers = np.arange(1, num_layers + 1)
    entropies = np.where(layers >= settles[:, None], 0.1, 3.0 - 0.2 * layers) + rng.normal(0, 0.01, (1, num_layers))
    final = rng.random(num_branches)
    scores = np.where(layers >= settles[:, None], final[:, None], rng.random((num_branches, num_layers)))
    return entropies, scores, np.repeat(np.arange(num_problems), 4)


def test_a_fitted_rule_keeps_the_decisions_and_saves_layers():
    entropies, scores, groups = random_verdicts()
    fit = fit_layer_exit(entropies, scores, groups)
    assert fit.rule is not None
    assert fit.agreement >= 0.99
    assert fit.depth < 0.9
    left = fit.rule.layers(entropies)
    assert fit.exit_share == np.mean(left < 6)
    read = scores[np.arange(len(scores)), left - 1]
    winners = [max(range(4), key=lambda i, at=at: read[at + i]) for at in range(0, len(scores), 4)]
    full = [max(range(4), key=lambda i, at=at: scores[at + i, -1]) for at in range(0, len(scores), 4)]
    assert fit.agreement == np.mean(np.array(winners) == np.array(full))


def test_no_rule_is_fitted_where_no_layer_says_what_the_last_says():
    rng = np.random.default_rng(1)
    scores = rng.random((80, 5))
    fit = fit_layer_exit(np.full((80, 5), 1.0), scores, np.repeat(np.arange(20), 4), least_agreement=1.0)
    assert fit == (type(fit)(None, 1.0, 0.0, 1.0))


def test_less_agreement_saves_more():
    entropies, scores, groups = random_verdicts(seed=2)
    entropies = np.abs(entropies + np.random.default_rng(3).normal(0, 0.8, entropies.shape))
    depths = [fit_layer_exit(entropies, scores, groups, share).depth for share in (1.0, 0.9, 0.6)]
    assert depths == sorted(depths, reverse=True)
    assert depths[0] > depths[2]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="max_entropy"):
        LayerExit(0.0, 1.0)
    with pytest.raises(ValueError, match="min_layer: is 1"):
        LayerExit(1.0, 1.0, min_layer=1)
    with pytest.raises(ValueError, match="entropies has shape"):
        fit_layer_exit([[1.0, 2.0]], [[1.0]], [0])
