"""Limits, keys, clients that go away, and the end of the server."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.request.program import current_program
from scaffolding_ext.serving import app, server
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import Gate

WAIT = 30.0
ASK: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}]}
KEYS = ("secret-1", "secret-2")


def post(url: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any], Any]:
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"} | headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return answer.status, json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for another thread; the deadline is for a test that fails."""
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_body_has_a_limit(serve: Any) -> None:
    served = serve(limits=Limits(max_body_bytes=200))
    status, document, _ = post(served.url, json.dumps(ASK | {"user": "x" * 200}).encode())
    assert (status, document["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3}, "n"),
        ({"max_tokens": 101}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 51}]}, "messages"),
    ],
)
def test_what_a_request_may_ask_for_is_limited_by_name(serve: Any, fields: dict[str, Any], param: str) -> None:
    served = serve(limits=Limits(max_samples=2, max_request_tokens=100, max_prompt_tokens=50))
    status, document, _ = post(served.url, json.dumps(ASK | fields).encode())
    assert (status, document["error"]["param"]) == (400, param)
    assert not served.worker.tasks


def test_all_that_a_request_may_ask_for_is_served(serve: Any) -> None:
    served = serve(limits=Limits(max_samples=2, max_request_tokens=100, max_prompt_tokens=50))
    most = {"n": 2, "max_tokens": 100, "messages": [{"role": "user", "content": "x" * 50}]}
    status, document, _ = post(served.url, json.dumps(ASK | most).encode())
    assert (status, len(document.get("choices", ()))) == (200, 2), document


def test_a_controller_stops_at_the_tokens_of_a_request(serve: Any) -> None:
    vote = MajorityVoteController(NativeGenerationController({"temperature": 1.0}), 16, allocation="Curtailment")
    served = serve(lambda task: f"It is \\boxed{{{task.seed}}}.", vote, limits=Limits(max_request_tokens=20))
    status, document, _ = post(served.url, json.dumps(ASK).encode())
    assert (status, document["error"]["code"]) == (400, "token_limit_exceeded")
    assert served.metric("scaffolding_exits_total", reason="token_limit_exceeded") == 1


def test_a_full_queue_says_when_to_come_again(serve: Any) -> None:
    gate = Gate()
    served = serve(before=gate, limits=Limits(max_queue=1), host={"max_parallel_requests": 1})
    with served.client() as client:
        threads = [threading.Thread(target=client.chat.completions.create, kwargs=ASK) for _ in range(2)]
        threads[0].start()
        gate.wait_for()
        status, document, headers = post(served.url, json.dumps(ASK | {"n": 2}).encode())
        assert (status, document["error"]["code"]) == (429, "queue_full")
        assert int(headers["retry-after"]) >= 1
        threads[1].start()
        gate.open()
        for thread in threads:
            thread.join(WAIT)
    assert served.stack.num_open == 0


def test_each_key_is_let_in(serve: Any) -> None:
    served = serve(keys=KEYS)
    for key in KEYS:
        assert served.client(api_key=key).chat.completions.create(**ASK).choices
    with pytest.raises(openai.AuthenticationError) as refused:
        served.client(api_key="secret-3").models.list()
    assert refused.value.code == "invalid_api_key"
    assert post(served.url, b"{}")[1]["error"]["code"] == "missing_api_key"


def test_large_bodies_are_read_in_turn_and_too_many_are_refused(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_MOST_LARGE", 1)
    begun, may_go_on, inside = threading.Semaphore(0), threading.Event(), []
    served = serve()
    read = served.stack.read

    def slow(body: Any) -> Any:
        if len(body.messages[0].text) > 2048:
            inside.append(len(inside))
            begun.release()
            assert may_go_on.wait(WAIT)
        return read(body)

    served.stack.read = slow
    large = json.dumps(ASK | {"messages": [{"role": "user", "content": "1 " * 2048}]}).encode()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(post, served.url, large)
        assert begun.acquire(timeout=WAIT)
        second = pool.submit(post, served.url, large)
        wait_until(lambda: served.front._num_large == 1)
        status, document, headers = post(served.url, large)
        assert (status, document["error"]["code"], "retry-after" in headers) == (429, "too_many_requests", True)
        assert post(served.url, json.dumps(ASK).encode())[0] == 200  # small ones do not wait
        assert inside == [0]
        may_go_on.set()
        assert [first.result()[0], second.result()[0]] == [200, 200]


def test_without_keys_a_page_of_another_site_is_not_answered(serve: Any) -> None:
    served, body = serve(), json.dumps(ASK).encode()
    assert post(served.url, body, host="127.0.0.1:8000")[0] == 200
    assert post(served.url, body, host="[::1]")[0] == 200
    status, document, _ = post(served.url, body, host="evil.example:8000")
    assert (status, document["error"]["code"]) == (403, "unknown_host")
    with_keys = serve(keys=KEYS)
    assert post(with_keys.url, body, host="my.example", authorization="Bearer secret-1")[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type_is_refused(serve: Any, kind: str) -> None:
    status, document, _ = post(serve().url, json.dumps(ASK).encode(), **{"content-type": kind})
    assert (status, document["error"]["code"]) == (415, "unsupported_media_type")


def test_an_address_that_others_reach_without_a_key_is_warned_of(
    serve: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._Server, "run", lambda self, sockets: None)
    for host, keys, is_told in (("127.0.0.1", (), 0), ("0.0.0.0", KEYS, 0), ("0.0.0.0", (), 1)):
        caplog.clear()
        server.run_front(Front([], keys=keys), host, 0, lambda port: None)
        assert len([each for each in caplog.messages if "no key is needed" in each]) == is_told


@pytest.mark.parametrize("in_trailers", [False, True])
def test_a_head_that_never_ends_is_not_kept(serve: Any, in_trailers: bool) -> None:
    served = serve(limits=Limits(max_head_bytes=2048))
    host, port = served.url.removeprefix("http://").split(":")
    begin = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    begin += b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n" if in_trailers else b""
    with socket.create_connection((host, int(port)), WAIT) as connection:
        connection.sendall(begin)

        def send() -> None:
            for _ in range(1 << 14):
                connection.sendall(b"x-header: " + b"a" * 4096 + b"\r\n")

        with pytest.raises(OSError, match=r"reset|pipe|abort"):
            send()
    with served.client() as client:
        assert client.chat.completions.create(**ASK).choices


def test_a_head_of_usual_length_is_served_after_a_long_body_on_the_same_connection(serve: Any) -> None:
    served = serve(limits=Limits(max_head_bytes=2048))
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=WAIT)
    for _ in range(3):
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(ASK | {"user": "x" * 100_000}),
            {"content-type": "application/json"},
        )
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (200, True)
    connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels_its_program(serve: Any, stream: bool) -> None:
    gate = Gate()
    served = serve(before=gate)
    body = json.dumps(ASK | {"stream": stream}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), WAIT) as connection:
        connection.sendall(head.encode() + body)
        gate.wait_for()
    gate.wait_for_cancelled()
    served.thread.__exit__(None, None, None)
    assert served.stack.num_open == 0
    assert not served.front.jobs
    assert served.metric("scaffolding_exits_total", reason="cancelled") == 1


def test_comments_keep_a_silent_stream_alive(serve: Any) -> None:
    gate = Gate()
    served = serve(before=gate, limits=Limits(keep_alive_seconds=0.02))
    body = json.dumps(ASK | {"stream": True}).encode()
    request = urllib.request.Request(f"{served.url}/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT) as answer:
        assert answer.readline() == b": keep-alive\n"
        gate.open()
        lines = [line for line in answer if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]\n"


def test_the_server_ends_when_what_is_under_way_has(serve: Any) -> None:
    gate = Gate()
    served = serve(before=gate)
    texts: list[str] = []
    with served.client() as client:
        ask = threading.Thread(
            target=lambda: texts.append(client.chat.completions.create(**ASK).choices[0].message.content)
        )
        ask.start()
        gate.wait_for()
        served.thread.stop()
        gate.open()
        ask.join(WAIT)
    served.thread.__exit__(None, None, None)
    assert texts == ["It is \\boxed{4}."]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{served.url}/health", timeout=WAIT)


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_end_in_time_gets_an_error_that_says_so(serve: Any, stream: bool) -> None:
    gate = Gate()
    served = serve(before=gate, limits=Limits(drain_seconds=0.1, keep_alive_seconds=0.02))
    answers: list[Any] = []
    body = json.dumps(ASK | {"stream": stream}).encode()

    def ask() -> None:
        connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=WAIT)
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        has_begun.set()
        answers.append((answer.status, answer.read()))
        connection.close()

    has_begun = threading.Event()
    asking = threading.Thread(target=ask)
    asking.start()
    gate.wait_for()
    if stream:
        assert has_begun.wait(WAIT)  # a comment was sent
    served.thread.__exit__(None, None, None)
    gate.wait_for_cancelled()
    asking.join(WAIT)
    ((status, content),) = answers
    if stream:
        *_, error, done = (line for line in content.split(b"\n") if line.startswith(b"data: "))
        assert (status, done) == (200, b"data: [DONE]")
        document = json.loads(error.removeprefix(b"data: "))
    else:
        assert status == 503
        document = json.loads(content)
    assert document["error"]["code"] == "shutting_down"
    assert served.stack.num_open == 0


def test_health_and_readiness(serve: Any) -> None:
    served = serve()
    for path, status in (("/health", "ok"), ("/ready", "ready")):
        with urllib.request.urlopen(served.url + path, timeout=WAIT) as answer:
            assert json.load(answer)["status"] == status
    served.stack.llm.shutdown()
    with pytest.raises(urllib.error.HTTPError) as down:
        urllib.request.urlopen(f"{served.url}/ready", timeout=WAIT)
    assert down.value.code == 503
    assert json.load(down.value)["down"] == ["model"]


@pytest.mark.parametrize("shows", [False, True])
def test_content_is_in_the_log_only_where_it_is_asked_for(
    serve: Any, caplog: pytest.LogCaptureFixture, shows: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    served = serve(keys=("secret-key",), limits=Limits(shows_content=shows))
    with served.client(api_key="secret-key") as client:
        client.chat.completions.create(**ASK)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**ASK, top_logprobs=1)
    own = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("scaffolding_ext"))
    assert "16 decoded tokens" in own  # what was used is told
    assert ("2+2?" in own and "boxed{4}" in own) == shows
    assert "secret-key" not in own


def test_tokens_by_purpose_are_the_sum_of_the_ledgers(serve: Any) -> None:
    served = serve("x" * 100 + "\\boxed{4}", DynasorCoTController(400, 2, 20))
    with served.client() as client:
        ledgers = [client.chat.completions.create(**ASK).choices[0].scaffolding["ledger"] for _ in range(3)]
    for purpose in ("prompt", "chain", "probe", "discarded"):
        for how in ("decoded", "prefilled", "reused"):
            told = sum(ledger["by_purpose"].get(purpose, {}).get(how, 0) for ledger in ledgers)
            assert served.metric("scaffolding_tokens_total", purpose=purpose, how=how) == told
    assert served.metric("scaffolding_tokens_total", purpose="probe", how="decoded") > 0


def test_a_request_may_say_until_when_its_answer_is_wanted(serve: Any) -> None:
    def reply(task: Any) -> str:
        program = current_program()
        assert program is not None
        return f"{(program.lifetime.deadline or 0) - program.lifetime.began:.0f}"

    served = serve(reply)
    status, document, _ = post(served.url, json.dumps(ASK | {"scaffolding": {"deadline": 7.5}}).encode())
    assert (status, document["choices"][0]["message"]["content"]) == (200, "8")
    for wrong in (0, -1, True, "5", [5], 1e12):
        status, document, _ = post(served.url, json.dumps(ASK | {"scaffolding": {"deadline": wrong}}).encode())
        assert (status, document["error"]["param"]) == (400, "scaffolding.deadline")


def test_unknown_fields_are_left_out_where_the_operator_says_so(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(limits=Limits(ignores_unknown_fields=True))
    for _ in range(2):
        assert post(served.url, json.dumps(ASK | {"never": 1, "min_p": 0.1}).encode())[0] == 200
    told = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert told == [f"the unknown field {name!r} of requests is ignored" for name in ("never", "min_p")]
    assert post(served.url, json.dumps(ASK | {"top_logprobs": 1}).encode())[0] == 400  # known, and not served
    within = [{"role": "user", "content": [{"type": "text", "text": "2+2?", "cache_control": {}}], "never": 1}]
    assert post(served.url, json.dumps(ASK | {"messages": within}).encode())[0] == 200
    for place in ("messages.0.never", "messages.0.content.0.cache_control"):
        assert f"the unknown field {place!r} of requests is ignored" in caplog.text
