"""One client must not freeze the server for others, learn of their prompts, or hide why its requests fail."""

from __future__ import annotations

import http.client
import json
import logging
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest

from scaffolding_ext import MajorityVoteController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError, EngineError
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import Gate, ScriptedWorker

WAIT = 30.0
ASK: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}]}
KEYS = ("secret-1", "secret-2")


def ask(url: str, key: str = "none", **fields: Any) -> Any:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(ASK | fields).encode(), headers)
    with urllib.request.urlopen(request, timeout=WAIT) as answer:
        return json.load(answer)


def the_warning(caplog: pytest.LogCaptureFixture) -> str:
    """The one warning of the front; what other tests left behind may warn at any time."""
    own = [record for record in caplog.records if record.name == "scaffolding_ext.serving.app"]
    (record,) = [record for record in own if record.levelno >= logging.WARNING]
    return logging.Formatter().format(record)


def test_why_a_request_failed_is_in_the_log(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    def reply(task: Any) -> Any:
        error = EngineError("the engine is out of memory")
        error.__cause__ = ValueError("block 7 is held twice")
        return error

    served = serve(reply, keys=KEYS)
    with served.client(api_key="secret-1") as client, pytest.raises(openai.InternalServerError) as failed:
        client.chat.completions.create(**ASK)
    served.thread.__exit__(None, None, None)
    name = failed.value.response.headers["x-request-id"]
    text = the_warning(caplog)
    for part in (name, "engine_error", "out of memory", "block 7 is held twice", "Traceback"):
        assert part in text
    assert "secret-1" not in text


def test_a_request_that_asks_for_the_impossible_is_logged_without_a_traceback(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    vote = MajorityVoteController(NativeGenerationController(), default_sample_num=2)
    served = serve(controller=vote, keys=KEYS)
    with served.client(api_key="secret-1") as client, pytest.raises(openai.BadRequestError, match="are equal"):
        client.chat.completions.create(**ASK, temperature=0)
    served.thread.__exit__(None, None, None)
    text = the_warning(caplog)
    for part in ("unsupported_value", "temperature: is 0"):
        assert part in text
    assert "Traceback" not in text


def test_a_body_that_does_not_come_is_refused(serve: Any) -> None:
    served = serve(limits=Limits(body_seconds=0.05))
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=WAIT)
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("content-length", "10")
    connection.putheader("content-type", "application/json")
    connection.endheaders(b"{")
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["error"]["code"]) == (408, "body_timeout")
    connection.close()


def test_the_seconds_of_a_stream_are_those_until_its_end(serve: Any) -> None:
    gate, clock = Gate(), iter(range(1000))
    served = serve(before=gate, limits=Limits(keep_alive_seconds=0.01), clock=lambda: float(next(clock)))
    body = json.dumps(ASK | {"stream": True}).encode()
    request = urllib.request.Request(f"{served.url}/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT) as answer:
        assert answer.readline() == b": keep-alive\n"
        before = served.metric("scaffolding_request_seconds_count")
        gate.open()
        answer.read()
    served.thread.__exit__(None, None, None)
    assert before == 0
    assert served.metric("scaffolding_request_seconds_count") == 1
    assert served.metric("scaffolding_requests_total", status="200") == 1
    assert served.metric("scaffolding_request_seconds_sum") >= served.metric("scaffolding_first_text_seconds_sum")


def test_every_stack_is_shut_down_though_one_fails(
    serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (serve() for _ in range(2))
    first.stack.name = "broken"
    front = Front([first.stack, second.stack])
    shut_down = []

    def broken(self: ScriptedWorker) -> None:
        shut_down.append(self)
        raise OSError("the device is gone")

    monkeypatch.setattr(first.stack.llm, "shutdown", lambda: broken(first.worker))
    monkeypatch.setattr(second.stack.llm, "shutdown", lambda: shut_down.append(second.worker))

    async def run() -> None:
        async with front.app.router.lifespan_context(front.app):
            pass

    import asyncio

    with pytest.raises(OSError, match="the device is gone"):
        asyncio.run(run())
    assert shut_down == [first.worker, second.worker]
    assert "the stack broken could not be shut down" in caplog.text
    monkeypatch.undo()


def test_a_fault_of_the_server_is_not_told_as_the_clients(serve: Any) -> None:
    def fails(task: Any) -> str:
        raise ConfigError("is missing on this machine", "checkpoint" if task.input_str == "engine" else "temperature")

    served = serve(fails)

    def failure(content: str, **fields: Any) -> Any:
        with pytest.raises(urllib.error.HTTPError) as failed:
            ask(served.url, messages=[{"role": "user", "content": content}], **fields)
        with failed.value as error:
            return error.code, json.load(error)["error"]["param"]

    assert failure("engine", temperature=0.5) == (500, None)
    assert failure("sampling", temperature=0.5) == (400, "temperature")
    assert failure("sampling") == (500, None)  # the client gave no temperature: the stack's is wrong


def test_a_path_is_not_written_to_the_log(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    served = serve(keys=KEYS)
    for path in ("/%1b[31msk-very-secret", "/v1/models/sk-very-secret"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(served.url + path), timeout=WAIT)
        with refused.value as error:
            assert error.headers["x-request-id"]
    own = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("scaffolding_ext"))
    assert "404 not_found" in own
    assert "secret" not in own
    assert "\x1b" not in own
