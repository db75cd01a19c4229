"""One notation of numbers and savings."""

from __future__ import annotations

from scaffolding_ext.evaluation.tables import saved


def test_a_ratio_of_tokens_is_told_as_what_is_saved() -> None:
    cases = [
        (0.34, (0.28, 0.42), "66 % saved (58 to 72)"),
        (0.98, (0.93, 1.03), "2 % saved (-3 to 7)"),
        (0.34, None, "66 % saved"),
        (1.5, None, "50 % more"),
        (8.9, None, "8.9×"),
        (1.5, (1.2, 1.9), "50 % more (20 to 90)"),
        (8.9, (8.1, 9.8), "8.9× (8.1 to 9.8)"),
    ]
    assert [
        (ratio, interval, told, found) for ratio, interval, told in cases if (found := saved(ratio, interval)) != told
    ] == []
