"""A late answer is told apart in the metrics, and a load test of a server agrees with the server's own figures."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.evaluation.run.session import Finished, Session
from scaffolding_ext.request.program import seconds_left
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.stack.config import StackConfig

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


def under_load(url: str, folder: Path, num: int, **evaluation: Any) -> Finished:
    """A load test of the server."""
    data = folder / "data.jsonl"
    rows = [{"id": str(number), "prompt": "2+2?", "target": "4"} for number in range(num)]
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    args = {
        "base_url": f"{url}/v1",
        "model": "model",
        "max_retries": 0,
        "max_seq_len": 2048,
        "text_prompts": True,
        "tokenizer": "tinylm/draft",
    }
    config = StackConfig.model_validate(
        {
            "controller": {"type": "NativeGenerationController"},
            "workers": {"generation": {"type": "OpenAIWorker", "args": args}},
            "prompt": {"model": "tinylm/draft"},
            "dataset": {"source": str(data)},
            "evaluation": {"arrival_rate": 500.0, "slo": 60.0} | evaluation,
        }
    )
    session = Session.of(config.for_run(), None)
    return session.finish(session.go(print))


def test_a_load_test_agrees_with_the_server_s_own_figures(serve: Any, tmp_path: Path) -> None:
    served = serve()
    document = under_load(served.url, tmp_path, 20).document
    assert document["first_error"] is None
    load = document["load"]
    assert (load["num_answered"], load["num_refused"], load["num_failed"]) == (20, 0, 0)
    answered = served.metric("scaffolding_requests_total", status="200")
    assert answered >= 20  # what the worker asks at its start may come on top
    assert served.metric("scaffolding_refusals_total", code="queue_full") == 0
    assert served.metric("scaffolding_request_seconds_count") >= 20


def test_a_full_server_refuses_by_name_and_loses_no_request(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num = 5
    have_been_refused = threading.Event()

    async def hold(task: Any) -> None:
        if is_measured:
            assert await asyncio.to_thread(have_been_refused.wait, 30)

    is_measured = False
    served = serve(before=hold, limits=Limits(max_queue=0), host={"max_parallel_requests": 1})
    codes: list[str] = []
    count = served.front.metrics.refused

    def refused(model: str, code: str) -> None:
        count(model, code)
        codes.append(code)
        if codes.count("queue_full") == num - 1:
            have_been_refused.set()

    monkeypatch.setattr(served.front.metrics, "refused", refused)
    is_measured = True
    finished = under_load(served.url, tmp_path, num)
    load, errors = finished.document["load"], finished.summary.errors
    assert (load["num"], load["num_answered"], load["num_refused"], load["num_failed"]) == (num, 1, num - 1, 0)
    assert errors == {"ServerBusyError": num - 1}
    assert served.metric("scaffolding_refusals_total", code="queue_full") == num - 1
    answered = served.metric("scaffolding_requests_total", status="200")
    assert served.metric("scaffolding_request_seconds_count") == answered
