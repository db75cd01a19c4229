"""`/metrics` counts audits, drawn answers and deadlines; the log says once that a promise is broken."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.request.program import seconds_left

WAIT = 30.0
RULE = {"type": "StaticThreshold", "args": {"threshold": 0.9, "knob": 2}}
SAMPLING = {"sampling_params": {"temperature": 0.7}}
TUNED = {
    "setting": "a vote",
    "data": "sha256:0",
    "num_questions": 100,
    "num_samples": 6,
    "measure": "agreement",
    "cost": "decoded",
    "cost_share": 0.5,
    "points": [0.0, 0.0, 0.0],
    "max_loss": 0.02,
    "date": "2026-01-01",
    "version": "0",
}


def stack(respond: str, **tuned: Any) -> dict[str, Any]:
    native = {"type": "NativeGenerationController", "args": SAMPLING}
    vote = {"default_sample_num": 6, "allocation": RULE, "generation_controller": native}
    worker = {"type": "ScriptedWorker", "args": {"respond": respond}}
    found = {"controller": {"type": "MajorityVoteController", "args": vote}, "workers": {"generation": worker}}
    return {**found, "audit": 1.0, "seed": 0, **({"tuned": TUNED | tuned} if tuned else {})}


def waited_for(served: Any, number: int) -> None:
    """Wait until so many audits are counted."""
    over = threading.Event()
    count = served.front.metrics.audited

    def counted(model: str, finding: str) -> None:
        count(model, finding)
        if served.metric("scaffolding_audits_total", model="model") >= number:
            over.set()

    served.front.metrics.audited = counted
    served.over = over


def test_metrics_count_audits_and_their_tokens(serve: Any) -> None:
    served = serve(stack_file=stack("It is \\boxed{4}."))
    waited_for(served, 2)
    for _ in range(2):
        answer = served.client().chat.completions.create(model="model", messages=[{"role": "user", "content": "2+2?"}])
        assert answer.choices[0].message.content == "It is \\boxed{4}."
    assert served.over.wait(WAIT)
    assert served.metric("scaffolding_audits_total", finding="same") == 2
    assert served.stack.watch is None


@pytest.mark.parametrize("measure", ["agreement", "accuracy"])
def test_a_broken_promise_is_told_once(serve: Any, caplog: pytest.LogCaptureFixture, measure: str) -> None:
    caplog.set_level(logging.WARNING)
    served = serve(stack_file=stack("It is \\boxed{4}.", measure=measure))
    assert (served.stack.watch is None) == (measure == "accuracy")  # a server does not know what is right
    if served.stack.watch is None:
        return
    served.stack.watch.num_lost = served.stack.watch.num_audited = 20
    waited_for(served, 2)
    for _ in range(2):
        served.client().chat.completions.create(model="model", messages=[{"role": "user", "content": "2+2?"}])
    assert served.over.wait(WAIT)
    told = [record.getMessage() for record in caplog.records if "are promised" in record.getMessage()]
    assert len(told) == 1
    assert "at most 2.0 % are promised: tune again" in told[0]


ASK: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}]}


def vote(num: int, inner: Any = None, **options: Any) -> MajorityVoteController:
    return MajorityVoteController(inner or NativeGenerationController({"temperature": 0.7}), num, **options)


def ask(served: Any, caplog: pytest.LogCaptureFixture, **more: Any) -> tuple[list[Any], str]:
    """The field `scaffolding` of each choice, and the log's line of the request."""
    caplog.set_level(logging.INFO, "scaffolding_ext.serving")
    with served.client() as client:
        answer = client.chat.completions.create(**ASK, **more)
    (line,) = [each.getMessage() for each in caplog.records if each.getMessage().startswith(f"{answer.id}, model: ")]
    return [each.scaffolding for each in answer.choices], line


def test_a_vote_that_stops_says_what_it_drew_and_saved(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(controller=vote(16))
    choices, line = ask(served, caplog, n=2)
    drawn = choices[0]["drawn"]["answers"]
    assert 1 < drawn < 16
    assert [each["drawn"] for each in choices] == [{"answers": drawn, "most": 16}] * 2
    assert f" decoded tokens, {2 * drawn} of 32 answers, {1 - drawn / 16:.0%}".replace("%", " % saved, ok") in line
    assert served.metric("scaffolding_drawn_answers_total", model="model") == 2 * drawn
    assert served.metric("scaffolding_most_answers_total", model="model") == 32


def test_only_the_outermost_vote_counts(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(controller=vote(3, vote(2, allocation=None), allocation=None))
    choices, line = ask(served, caplog)
    assert choices[0]["drawn"] == {"answers": 3, "most": 3}
    assert line.endswith(" decoded tokens, 3 of 3 answers, ok")
    assert served.metric("scaffolding_drawn_answers_total") == 3


def test_a_stack_without_a_vote_says_nothing_of_answers(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    choices, line = ask(served, caplog)
    assert "drawn" not in choices[0]
    assert line.endswith(" decoded tokens, ok")
    assert served.metric("scaffolding_most_answers_total") == 0


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
