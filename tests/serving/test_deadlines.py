"""A late answer is told apart in the metrics, from one that was in time."""

from __future__ import annotations

import asyncio
from typing import Any

from scaffolding_ext.request.program import seconds_left

ASK = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}]}


async def past_its_deadline(task: Any) -> None:
    """Holds a request until its deadline is over; one without a deadline is not held."""
    left = seconds_left()
    if left is not None and left < 1:
        await asyncio.sleep(left + 0.1)


def test_answers_with_a_deadline_are_counted_by_whether_they_kept_it(serve: Any) -> None:
    served = serve(before=past_its_deadline)
    client = served.client()
    for scaffolding in ({"deadline": 0.05}, {"deadline": 60}, {}):
        answer = client.chat.completions.create(**ASK, extra_body={"scaffolding": scaffolding})
        assert "4" in answer.choices[0].message.content
    counted = {kept: served.metric("scaffolding_deadlines_total", kept=kept) for kept in ("late", "in_time")}
    assert counted == {"late": 1, "in_time": 1}
