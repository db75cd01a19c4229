"""A served stack with audits: `/metrics` counts what they find, and the log says once that a promise is broken."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

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
