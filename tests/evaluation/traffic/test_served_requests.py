"""Figures of requests, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from scaffolding_ext.evaluation.traffic.served_requests import ServedRequests, queue_length, traffic_figures

NAN = float("nan")


def requests(**changes: list[float]) -> ServedRequests:
    """Four requests: in time, late, refused, failed."""
    columns: dict[str, list[float]] = {
        "arrived": [10.0, 11.0, 12.0, 14.0],
        "seconds": [2.0, 4.0, 0.0, 1.0],
        "first_token": [0.5, 1.5, NAN, NAN],
        "num_decoded": [4.0, 8.0, 0.0, 3.0],
        "is_answered": [1, 1, 0, 0],
        "is_refused": [0, 0, 1, 0],
        "is_wanted": [1, 1, 1, 1],
        "is_in_time": [1, 0, 0, 0],
    } | changes
    return ServedRequests(
        **{name: np.array(value, bool if name.startswith("is_") else float) for name, value in columns.items()}
    )


def test_each_request_counts_once_and_only_answers_in_time_attain() -> None:
    found = traffic_figures(requests())
    assert (found.num, found.num_answered, found.num_late, found.num_refused, found.num_failed) == (4, 2, 1, 1, 1)
    assert found.in_time is not None
    assert found.in_time.value == 0.25
    assert found.arrival_rate == 3 / 4
    assert found.seconds["p50"].value == found.seconds["mean"].value == 3
    assert found.first_token["mean"].value == 1
    assert found.seconds_per_token["mean"].value == 0.5
    assert found.seconds["mean"].low <= 3 <= found.seconds["mean"].high


def test_without_an_objective_or_tokens_nothing_is_claimed_of_them() -> None:
    found = traffic_figures(requests(is_wanted=[0] * 4, is_in_time=[0] * 4, first_token=[NAN] * 4, is_answered=[0] * 4))
    assert found.in_time is None
    assert found.seconds == found.first_token == found.seconds_per_token == {}
    assert found.num_late == 0


def test_the_queue_is_what_has_arrived_and_not_ended() -> None:
    found = queue_length(requests())
    steps = dict(zip(found.times.tolist(), found.lengths.tolist(), strict=True))
    assert steps == {0: 1, 1: 2, 2: 1, 4: 2, 5: 0}  # the refused one never waits
    assert found.mean == pytest.approx((1 + 2 + 2 * 1 + 2) / 5)
