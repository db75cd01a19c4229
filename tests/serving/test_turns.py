"""Large bodies of one key wait for each other, and for nobody else's."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.serving import app, turns
from scaffolding_ext.serving.access import Keys
from scaffolding_ext.serving.bodies import read_body
from scaffolding_ext.serving.refusals import ApiError
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.serving.turns import LARGE, Turns

WAIT = 30.0
KEYS = {"anna": "secret-1", "bert": "secret-2"}


def ask(url: str, key: str, path: str = "chat/completions", **fields: Any) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/{path}", json.dumps({"model": "model"} | fields).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def messages(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_a_large_body_holds_up_the_next_of_its_key_only(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on, reading = threading.Semaphore(0), threading.Event(), []

    def slow(kind: Any, content: bytes, *rest: Any) -> Any:
        if b"slow" in content:
            reading.append(threading.current_thread())
            begun.release()
            assert may_go_on.wait(WAIT)
        return read_body(kind, content, *rest)

    monkeypatch.setattr(app, "read_body", slow)
    served = serve(keys=Keys(KEYS))
    large = messages("slow " * LARGE)
    with ThreadPoolExecutor(3) as pool:
        first, second = (pool.submit(ask, served.url, "secret-1", **large) for _ in range(2))
        assert begun.acquire(timeout=WAIT)
        assert ask(served.url, "secret-1", **messages("2+2?"))[0] == 200  # small: read at once
        other = pool.submit(ask, served.url, "secret-2", **large)
        assert begun.acquire(timeout=WAIT)
        assert len(reading) == 2  # one of each key
        assert served.thread._thread not in reading
        may_go_on.set()
        assert [each.result()[0] for each in (first, second, other)] == [200] * 3


def test_bodies_that_wait_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_MOST_WAITING", 100)

    async def run() -> None:
        queue = Turns()

        async def read() -> None:
            async with queue.turn("anna", 60):
                pass

        async with queue.turn("anna", 60):
            waiting = asyncio.create_task(read())
            await asyncio.sleep(0)
            with pytest.raises(ApiError, match="too many large requests of this key"):
                await read()
            async with queue.turn("bert", 1000):  # one body is never too large to wait
                pass
        await waiting
        await read()

    asyncio.run(run())


def test_the_next_body_waits_for_a_multiple_of_what_parsing_took(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        loop, queue, rests = asyncio.get_running_loop(), Turns(), []
        monkeypatch.setattr(loop, "call_later", lambda seconds, call: (rests.append(seconds), call()))
        clock = iter((1.0, 1.5))
        monkeypatch.setattr(turns.time, "thread_time", lambda: next(clock))
        async with queue.turn("anna", 1) as parse:
            assert await parse(lambda: 7) == 7
        assert rests == [2.0 + 1 / 2**25]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "fields", "size"),
    [
        ("chat/completions", messages("x" * 2000), "2000 characters"),
        ("completions", {"prompt": [7] * 60}, "60 tokens"),
    ],
)
def test_a_prompt_that_is_far_too_long_is_not_tokenised(
    serve: Any, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any], size: str
) -> None:
    from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController

    controller = NativeGenerationController()
    controller.prompting = Prompting.for_model("tinylm/target")
    served = serve(controller=controller, limits=Limits(max_prompt_tokens=50))
    for name in ("apply", "text_of"):
        monkeypatch.setattr(Prompting, name, lambda *_, **__: pytest.fail("it was tokenised"))
    status, document = ask(served.url, "none", path, **fields)
    assert (status, document["error"]["code"]) == (400, "context_length_exceeded")
    assert f"has {size}; it may have at most 50 tokens" in document["error"]["message"]


def test_too_many_prompts_are_not_read(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    monkeypatch.setattr(type(served.stack), "_text", lambda *_: pytest.fail("it was read"))
    status, document = ask(served.url, "none", "completions", prompt=["x"] * 17)
    assert (status, document["error"]["param"]) == (400, "n")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_tokens_keeps_the_name_that_the_client_gave(serve: Any, name: str) -> None:
    from scaffolding_ext.errors import ConfigError

    def fails(task: Any) -> str:
        raise ConfigError("is more than this engine takes", "max_tokens")

    served = serve(fails)
    for value, message in ((10**6, f"{name}: must be at most 65536"), (7, f"{name}: is more than this engine takes")):
        status, document = ask(served.url, "none", **messages("2+2?"), **{name: value})
        assert (status, document["error"]["param"], document["error"]["message"]) == (400, name, message)
