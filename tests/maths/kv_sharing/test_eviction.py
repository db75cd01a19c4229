"""The order of eviction: by score, then by age, against sorting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.maths.kv_sharing.eviction import EvictionOrder, block_score


def test_scores_fall_with_depth():
    assert [block_score(0.6, depth) for depth in (0, 1, 2)] == pytest.approx([0.6, 0.3, 0.2])
    with pytest.raises(ValueError, match=r"score is 1\.5"):
        block_score(1.5, 0)
    with pytest.raises(ValueError, match="depth is -1"):
        block_score(0.5, -1)


def test_the_lowest_leaves_first_and_of_equals_the_first():
    order = EvictionOrder()
    for key, score in {"a": 0.5, "b": 0.2, "c": 0.2, "d": 0.9}.items():
        order.put(key, score)
    order.put("d", 0.1)  # it has lost
    order.put("b", 0.3)
    order.discard("a")
    order.discard("never there")
    assert "a" not in order
    assert "d" in order
    assert len(order) == 3
    assert [order.pop() for _ in range(3)] == ["d", "c", "b"]
    with pytest.raises(KeyError, match="no key is left"):
        order.pop()


OPERATIONS = st.lists(st.tuples(st.sampled_from(["put", "discard", "pop"]), st.integers(0, 6), st.integers(0, 4)))


@given(OPERATIONS)
def test_it_is_a_sort_without_sorting(operations):
    order, known, clock = EvictionOrder(), {}, 0
    for name, key, score in operations:
        if name == "put":
            clock += 1
            order.put(key, score)
            known[key] = (score, clock)
        elif name == "discard":
            order.discard(key)
            known.pop(key, None)
        elif known:
            lowest = min(known, key=known.__getitem__)
            assert order.pop() == lowest
            del known[lowest]
        assert len(order) == len(known)
    assert [order.pop() for _ in range(len(known))] == sorted(known, key=known.__getitem__)


def test_scores_that_change_often_leave_nothing_behind():
    order = EvictionOrder()
    for number in range(1000):
        order.put(number % 4, number)
    assert len(order._heap) <= 2 * len(order) + 8
    assert [order.pop() for _ in range(4)] == [0, 1, 2, 3]
