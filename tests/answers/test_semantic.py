"""Answers in words are grouped by the similarity of what they are embedded as."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.answers.semantic import group_by_meaning, sentence_embedder
from scaffolding_ext.errors import MissingDependencyError


def by_angle(texts: Sequence[str]) -> list[list[float]]:
    """A text is an angle in degrees, and its embedding the point there."""
    return [[float(np.cos(np.deg2rad(float(text)))), float(np.sin(np.deg2rad(float(text))))] for text in texts]


def test_near_texts_are_one_class_numbered_by_first_appearance() -> None:
    assert group_by_meaning(["90", None, "0", "85", "10", "90"], by_angle, 0.9) == [0, -1, 1, 0, 1, 0]


def test_linkage_is_by_the_average() -> None:
    # 0 and 20 join first. 50 is 30 degrees from one and 50 from the other: cosines .866 and .643, .754 on average.
    assert group_by_meaning(["0", "20", "50"], by_angle, 0.75) == [0, 0, 0]
    assert group_by_meaning(["0", "20", "50"], by_angle, 0.76) == [0, 0, 1]


def test_few_answers() -> None:
    assert group_by_meaning([], by_angle) == []
    assert group_by_meaning([None, None], by_angle) == [-1, -1]
    assert group_by_meaning(["5", None, "5"], by_angle) == [0, -1, 0]


def test_a_threshold_of_one_joins_what_points_the_same_way() -> None:
    assert group_by_meaning(["0", "360", "1"], by_angle, 1.0) == [0, 0, 1]


@settings(deadline=None)
@given(st.data(), st.lists(st.integers(0, 359).map(str), max_size=8))
def test_classes_do_not_depend_on_the_order(data: st.DataObject, answers: list[str]) -> None:
    order = data.draw(st.permutations(range(len(answers))))
    classes = group_by_meaning(answers, by_angle)
    back = dict(zip(order, group_by_meaning([answers[i] for i in order], by_angle), strict=True))
    assert all((classes[i] == classes[j]) == (back[i] == back[j]) for i in back for j in back)


@pytest.mark.parametrize("threshold", [0.0, 1.1, float("nan")])
def test_a_threshold_is_a_similarity(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold: is"):
        group_by_meaning(["0", "1"], by_angle, threshold)


def test_an_embedding_has_a_row_for_each_text_and_a_direction() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 2\) for 2 texts"):
        group_by_meaning(["0", "1"], lambda texts: [[1.0, 0.0]])
    with pytest.raises(ValueError, match="row of zeros"):
        group_by_meaning(["0", "1"], lambda texts: np.zeros((2, 3)))


def test_a_missing_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingDependencyError, match="semantic"):
        sentence_embedder("a/model")
