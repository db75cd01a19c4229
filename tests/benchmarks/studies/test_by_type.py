"""Intervals of served queues resample blocks of arrivals."""

from benchmarks.studies.by_type import blocks_of


def test_no_block_of_arrivals_lies_in_two_seeds() -> None:
    assert blocks_of([45, 5]).tolist() == [0] * 20 + [1] * 20 + [2] * 5 + [3, 3, 4, 4, 5]
