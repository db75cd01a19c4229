"""Limits, keys, clients that go away, and the end of the server."""

from __future__ import annotations

import http.client
import json
import logging
import signal
import socket
import subprocess
import sys
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
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.request.program import current_program
from scaffolding_ext.serving import server
from scaffolding_ext.serving.access import Keys
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.refusals import ApiError
from scaffolding_ext.serving.settings import Knob, Limits
from scaffolding_ext.testing import Gate

WAIT = 30.0
ASK: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}]}
KEYS = {"anna": "secret-1", "bert": "secret-2"}
VOTE = {
    "controller": {
        "type": "MajorityVoteController",
        "args": {
            "default_sample_num": 4,
            "allocation": None,
            "generation_controller": {
                "type": "NativeGenerationController",
                "args": {"sampling_params": {"temperature": 1.0}},
            },
        },
    },
    "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "It is \\boxed{4}."}}},
}


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


@pytest.mark.parametrize("num", [3, 1025, 2**40])
def test_too_many_choices_have_one_refusal_however_many_they_are(serve: Any, num: int) -> None:
    status, document, _ = post(serve(limits=Limits(max_samples=2)).url, json.dumps(ASK | {"n": num}).encode())
    assert (status, document["error"]["message"]) == (400, f"n asks for {num} choices; the server gives at most 2")


def test_a_controller_stops_at_the_tokens_of_a_request(serve: Any) -> None:
    vote = MajorityVoteController(NativeGenerationController({"temperature": 1.0}), 16, allocation="Curtailment")
    served = serve(lambda task: f"It is \\boxed{{{task.seed}}}.", vote, limits=Limits(max_request_tokens=20))
    status, document, _ = post(served.url, json.dumps(ASK).encode())
    assert (status, document["error"]["code"]) == (400, "token_limit_exceeded")
    assert served.metric("scaffolding_exits_total", reason="token_limit_exceeded") == 1


def test_what_a_stack_cannot_honour_is_refused_by_name(serve: Any) -> None:
    served = serve(controller=DynasorCoTController())
    for fields, param in [({"frequency_penalty": 1.0}, "frequency_penalty"), ({"logprobs": True}, "logprobs")]:
        status, document, _ = post(served.url, json.dumps(ASK | fields).encode())
        assert (status, document["error"]["param"]) == (400, param)
        assert "DynasorCoTController" in document["error"]["message"]


def test_knobs_are_those_that_the_operator_lets_clients_turn(serve: Any) -> None:
    served = serve(stack_file=VOTE, knobs=(Knob("default_sample_num", 8), Knob("weight"), Knob("chunk_size")))
    assert sorted(served.stack.variants.knobs) == ["default_sample_num", "weight"]

    def ask(**knobs: Any) -> tuple[int, Any]:
        status, document, _ = post(served.url, json.dumps(ASK | {"scaffolding": knobs}).encode())
        return status, document["error"] if status >= 400 else document["usage"]["completion_tokens"]

    assert ask() == (200, 4 * 16)
    assert ask(default_sample_num=6) == (200, 6 * 16)
    assert ask(default_sample_num=6, weight="uniform") == (200, 6 * 16)
    for knobs, message in [
        ({"default_sample_num": 9}, "at most 8"),
        ({"default_sample_num": "six"}, "at most 8"),
        ({"default_sample_num": 1.5}, "must be of type"),
        ({"weight": "never"}, "uniform"),
        ({"weight": "os:system"}, "colon"),
        ({"weight": {"type": "os:system"}}, "must be a number"),
        ({"allocation": None}, "cannot be set by clients"),
    ]:
        status, error = ask(**knobs)
        assert (status, error["param"]) == (400, f"scaffolding.{next(iter(knobs))}")
        assert message in error["message"]


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


def test_keys_let_their_holders_in(serve: Any, tmp_path: Any) -> None:
    (tmp_path / "keys").write_text("# who may ask\nanna:secret-1\nsecret-2\n")
    served = serve(keys=Keys.in_file(tmp_path / "keys"))
    for key in ("secret-1", "secret-2"):
        assert served.client(api_key=key).chat.completions.create(**ASK).choices
    with pytest.raises(openai.AuthenticationError) as refused:
        served.client(api_key="secret-3").models.list()
    assert refused.value.code == "invalid_api_key"
    assert post(served.url, b"{}")[1]["error"]["code"] == "missing_api_key"


def test_keys_that_cannot_be_read_are_refused(tmp_path: Any) -> None:
    wrong = ["", "# nobody", "anna:key-1\nanna:key-2", "anna:", "anna:one-key\nbert:one-key", "x"]
    for text in (*wrong, "anna:key:1", "anna:key 1", "key\x1c12", "anna:schl\u00fcssel"):
        with pytest.raises(ConfigError, match="keys_env"):
            Keys.read(text, "keys_env")
    with pytest.raises(ConfigError, match="cannot be read"):
        Keys.in_file(tmp_path / "none")


def test_a_file_of_keys_may_begin_with_a_byte_order_mark(tmp_path: Any) -> None:
    (tmp_path / "keys").write_text("\ufeffanna:secret-1\r\n# and\r\nbert:secret-2\r\n", encoding="utf-8")
    keys = Keys.in_file(tmp_path / "keys")
    assert [keys.holder(f"Bearer {key}") for key in KEYS.values()] == list(KEYS)


def test_keys_are_read_again_while_requests_run(serve: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    path, gate = tmp_path / "keys", Gate()
    path.write_text("anna:secret-1\n")
    served = serve(before=gate, keys=Keys.in_file(path))
    body = json.dumps(ASK).encode()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, served.url, body, authorization="Bearer secret-1")
        gate.wait_for()
        path.write_text("bert:secret-2\n")
        served.front.reload_keys()
        gate.open()
        assert running.result()[0] == 200
    statuses = [post(served.url, body, authorization=f"Bearer {key}")[0] for key in KEYS.values()]
    assert statuses == [401, 200]
    path.write_text("")
    served.front.reload_keys()
    assert "the keys stay as they are: keys_file: holds no keys" in caplog.text
    assert post(served.url, body, authorization="Bearer secret-2")[0] == 200


def test_a_hang_up_reads_the_keys_again_and_ends_nothing(tmp_path: Any) -> None:
    path = tmp_path / "keys"
    path.write_text("anna:secret-1\n")
    command = [sys.executable, "-m", "scaffolding_ext", "serve", "--config", "configs:native"]
    options = ["--model", "tinylm/draft", "--port", "0", "--keys_file", str(path)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1].removesuffix("/v1")
        path.write_text("bert:secret-2\n")
        process.send_signal(signal.SIGHUP)
        body = json.dumps({"model": "native", "messages": ASK["messages"], "max_tokens": 4}).encode()
        wait_until(lambda: post(url, body, authorization="Bearer secret-2")[0] == 200)
        assert post(url, body, authorization="Bearer secret-1")[0] == 401
    finally:
        process.terminate()
        process.communicate(timeout=WAIT)


def test_without_keys_a_page_of_another_site_is_not_answered(serve: Any) -> None:
    served, body = serve(), json.dumps(ASK).encode()
    assert post(served.url, body, host="127.0.0.1:8000")[0] == 200
    assert post(served.url, body, host="[::1]")[0] == 200
    status, document, _ = post(served.url, body, host="evil.example:8000")
    assert (status, document["error"]["code"]) == (403, "unknown_host")
    with_keys = serve(keys=Keys(KEYS))
    assert post(with_keys.url, body, host="my.example", authorization="Bearer secret-1")[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type_is_refused(serve: Any, kind: str) -> None:
    status, document, _ = post(serve().url, json.dumps(ASK).encode(), **{"content-type": kind})
    assert (status, document["error"]["code"]) == (415, "unsupported_media_type")


def test_an_address_that_others_reach_without_a_key_is_warned_of(
    serve: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._Server, "run", lambda self, sockets: None)
    for host, keys, is_told in (("127.0.0.1", None, 0), ("0.0.0.0", Keys(KEYS), 0), ("0.0.0.0", None, 1)):
        caplog.clear()
        server.run_front(Front([], keys=keys), host, 0, lambda port: None)
        assert len([each for each in caplog.messages if "no key is needed" in each]) == is_told


def test_a_key_in_a_file_may_hold_a_comma(tmp_path: Any) -> None:
    (tmp_path / "keys").write_text("admin:pa,ss\n")
    keys = Keys.in_file(tmp_path / "keys")
    assert keys.holder("Bearer pa,ss") == "admin"
    for part in ("pa", "ss"):
        with pytest.raises(ApiError):
            keys.holder(f"Bearer {part}")


def test_one_key_does_not_take_the_whole_queue_and_keys_are_served_in_turn(serve: Any) -> None:
    gate, order = Gate(), []

    async def before(task: Any) -> None:
        order.append(task.input_str[0])
        await gate(task)

    served = serve(before=before, keys=Keys(KEYS), limits=Limits(max_queue=15), host={"max_parallel_requests": 1})

    def ask(name: str, key: str) -> tuple[int, Any]:
        body = json.dumps(ASK | {"messages": [{"role": "user", "content": name}]}).encode()
        return post(served.url, body, authorization=f"Bearer {key}")[:2]

    submit, submitted = served.stack.submit, []

    def count(wanted: Any) -> Any:
        results = submit(wanted)
        submitted.append(wanted.holder)  # not before the host has it: a request is open earlier than that
        return results

    served.stack.submit = count
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(ask, "a", "secret-1")]
        gate.wait_for()
        for number in range(2, 9):
            running.append(pool.submit(ask, "a", "secret-1"))
            wait_until(lambda number=number: len(submitted) == number)
        assert served.stack.num_open == 8
        status, document = ask("a", "secret-1")  # 8 of 16 are open, and 8 are free
        assert (status, document["error"]["code"]) == (429, "queue_full")
        for number in range(9, 12):
            running.append(pool.submit(ask, "b", "secret-2"))
            wait_until(lambda number=number: len(submitted) == number)
        gate.open()
        assert [future.result()[0] for future in running] == [200] * 11
    assert "".join(order).startswith("ababab")
    assert served.stack.num_open == 0


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
    served = serve(keys=Keys({"anna": "secret-key"}), limits=Limits(shows_content=shows))
    with served.client(api_key="secret-key") as client:
        client.chat.completions.create(**ASK)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**ASK, logit_bias={"1": 1})
    own = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("scaffolding_ext"))
    assert "20 tokens" in own  # what was used is told
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


def test_a_literal_extra_body_is_taken_as_the_bodys_own_fields(serve: Any) -> None:
    served = serve(stack_file=VOTE, knobs=(Knob("default_sample_num", 8),))
    extra = {"scaffolding": {"default_sample_num": 2}, "seed": 7}
    status, document, _ = post(served.url, json.dumps(ASK | {"extra_body": extra}).encode())
    assert (status, document["usage"]["completion_tokens"]) == (200, 2 * 16)
    assert document["choices"][0]["scaffolding"]["seed"] == 7
    for wrong, param in [({"seed": "x"}, "seed"), ({"never": 1}, "never"), ("x", "extra_body")]:
        status, document, _ = post(served.url, json.dumps(ASK | {"extra_body": wrong}).encode())
        assert (status, document["error"]["param"]) == (400, param)
    status, document, _ = post(served.url, json.dumps(ASK | {"seed": 1, "extra_body": {"seed": 2}}).encode())
    assert (status, "'seed' has one value" in document["error"]["message"]) == (400, True)


def test_unknown_fields_are_left_out_where_the_operator_says_so(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(limits=Limits(ignores_unknown_fields=True))
    for _ in range(2):
        assert post(served.url, json.dumps(ASK | {"never": 1, "min_p": 0.1}).encode())[0] == 200
    told = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert told == [f"the unknown field {name!r} in requests of anybody is ignored" for name in ("never", "min_p")]
    assert post(served.url, json.dumps(ASK | {"logit_bias": {"1": 1}}).encode())[0] == 400  # known, and not served
    within = [{"role": "user", "content": [{"type": "text", "text": "2+2?", "cache_control": {}}], "never": 1}]
    assert post(served.url, json.dumps(ASK | {"messages": within}).encode())[0] == 200
    for place in ("messages.0.never", "messages.0.content.0.cache_control"):
        assert f"the unknown field {place!r} in requests of anybody is ignored" in caplog.text
