"""A backend that loops, ignores budgets, says nothing and drops streams: a small soak."""

from __future__ import annotations

from collections import Counter

from tests.serving.soak import KINDS, answered_ledgers, soak


def test_every_client_is_told_something_and_nothing_is_held() -> None:
    outcome = soak(64, 32, seed=0, timeout=120.0, own_process=False)
    assert len(outcome.told) == 64
    assert outcome.num_wrong == 0, outcome.ends
    assert outcome.ledgers == outcome.metrics
    assert outcome.forced == outcome.forced_metrics
    assert not answered_ledgers(outcome.told) - Counter(outcome.ledgers)
    assert not any(outcome.left.values()), outcome.left
    assert {each.kind for each in outcome.told} == {*KINDS, "good"}
    assert all(each.outcome == "answered" for each in outcome.told if each.kind != "drops"), outcome.ends
    assert all(each.outcome == "error: engine_error" for each in outcome.told if each.kind == "drops"), outcome.ends
    assert {"loop", "budget_ignored"} <= outcome.forced.keys()
    assert outcome.forced.keys() & {"empty", "open_thinking", "no_answer"}
