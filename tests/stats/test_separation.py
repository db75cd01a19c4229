"""What tells right chains from wrong ones, by definition."""

from __future__ import annotations

import numpy as np
import pytest

from scaffolding_ext.stats import separation


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 5, 40).astype(float), rng.random(40) < 0.4
    positive, negative = scores[labels], scores[~labels]
    pairs = [(p > n) + (p == n) / 2 for p in positive for n in negative]
    assert separation.auc(scores, labels) == pytest.approx(np.mean(pairs))
    assert separation.auc(scores, np.ones(40, bool)) == 0.5


def test_a_score_that_knows_questions_knows_nothing_within_one() -> None:
    """Each question's score is its share of right chains, the same for all of its chains."""
    rng = np.random.default_rng(0)
    questions = np.repeat(np.arange(60), 8)
    ease = rng.random(60)
    labels = rng.random(480) < ease[questions]
    assert separation.auc_over_all(ease[questions], labels, questions).value > 0.75
    assert separation.auc_within(ease[questions], labels, questions).value == 0.5
    assert separation.auc_within(labels.astype(float), labels, questions) == (1.0, 1.0, 1.0)
    assert separation.auc_within(ease[questions], np.ones(480, bool), questions) == (0.5, 0.0, 1.0)
