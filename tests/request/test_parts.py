"""Parts of a request that may be dropped."""

from __future__ import annotations

import contextvars

from scaffolding_ext.request.parts import Part, on_count


def test_what_a_nested_part_holds_waits_for_the_outer_one_too() -> None:
    outer, inner, calls = Part(), Part(), list[str]()
    outer.may_be_dropped = inner.may_be_dropped = True
    within = contextvars.copy_context()
    within.run(outer.enter)
    deeper = within.copy()
    deeper.run(inner.enter)
    deeper.run(on_count, lambda: calls.append("said"))
    within.run(inner.count)
    assert calls == []
    outer.count()
    assert calls == ["said"]
