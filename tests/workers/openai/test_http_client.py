"""The HTTP client behind `OpenAIWorker`: its size, its proxies, and what it tells of attempts that failed."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from scaffolding_ext.errors import ConfigError, EngineError, ServerBusyError, ServerDownError, ServerRefusalError
from scaffolding_ext.workers.openai import events as events_module
from scaffolding_ext.workers.openai import http_client as http_client_module
from scaffolding_ext.workers.openai.connection import Connection
from scaffolding_ext.workers.openai.http_client import causes, http_client

# Self-signed, for localhost, made for this test.
KEY_AND_CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgZ8dIMLDnR2E0oVNB
tY045tt1wyuJH4HrClbLj7D8IPehRANCAAQG+90VOPuZGfXkORWhNYA7l1OMldNE
4/6XkR4mJDiCTps1HMLPPgpMg9442sIXTvJ3JdFquy1uG9qcVcejDy+O
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfjCCASWgAwIBAgIUf+NSi3mXd/+IErurjCLaOy1U0wowCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyODA2NDMzMVoYDzIxMjYxMTA0
MDY0MzMxWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQG+90VOPuZGfXkORWhNYA7l1OMldNE4/6XkR4mJDiCTps1HMLPPgpM
g9442sIXTvJ3JdFquy1uG9qcVcejDy+Oo1MwUTAdBgNVHQ4EFgQU6ehg3HLrcpm+
Zj6CvBh/FLfE+mIwHwYDVR0jBBgwFoAU6ehg3HLrcpm+Zj6CvBh/FLfE+mIwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiBh3ucbRq6B6KoElGamJUeL
KD+AF/QNOqqskFelosZGdwIgcDYZx+MxQTgclJ7ctwwtP7Zu6IfQN0NKRuNZyTjh
gZw=
-----END CERTIFICATE-----
"""


@contextmanager
def served(answer: Any, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server on the loopback address; yields its URL and the paths that were asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, headers = answer(len(asked))
            body = headers.pop("body", "{}").encode()
            self.send_response(status)
            for name, value in {"Content-Length": len(body), "Content-Type": "application/json", **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if tls is not None:
        server.socket, scheme = tls.wrap_socket(server.socket, server_side=True), "https"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{scheme}://localhost:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def read_stream(connection: Connection) -> None:
    async with connection.stream("completions", {"model": "m"}) as pieces:
        async for _ in pieces:
            pass


def failure_at(url: str, max_retries: int = 1, work: Any = Connection.models) -> Exception:
    connection = Connection(
        url,
        "secret",
        "KEY",
        max_retries=max_retries,
        timeout_seconds=30.0,
        deadline_seconds=60.0,
        max_concurrency=4,
    )
    try:
        with pytest.raises(Exception) as raised:
            connection.run_blocking(work, connection)
        return raised.value
    finally:
        connection.close()


def test_a_certificate_that_is_not_trusted_is_named(tmp_path: Path) -> None:
    (tmp_path / "both.pem").write_text(KEY_AND_CERTIFICATE)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both.pem")
    with served(lambda number: (200, {}), tls) as (url, asked):
        error = failure_at(url, max_retries=0)
    assert isinstance(error, EngineError)
    assert "cannot reach https://localhost" in str(error)
    assert "self-signed" in str(error)
    assert asked == []


@pytest.mark.parametrize(("wait", "num_asked"), [("198300", 1), ("0", 3), ("Wed, 21 Oct 2026 07:28:00 GMT", 3)])
def test_a_wait_that_is_too_long_is_told_and_not_retried(wait: str, num_asked: int) -> None:
    with served(lambda number: (429, {"Retry-After": wait})) as (url, asked):
        error = failure_at(url, max_retries=2)
    assert isinstance(error, ServerBusyError)
    assert len(asked) == num_asked
    assert ("asks to wait 198300 s" in str(error)) == (wait == "198300")


@pytest.mark.parametrize(
    ("body", "kind", "num_asked"),
    [
        ({"error": {"message": "the provider said no", "code": 429}}, ServerBusyError, 2),
        ({"error": {"message": "the provider said no", "code": "503"}}, ServerDownError, 2),
        ({"error": {"message": "the provider said no", "code": 400}}, ServerRefusalError, 1),
        ({"error": "the provider said no"}, EngineError, 2),
        ({"object": "error", "message": "the provider said no", "type": "Error", "code": 400}, ServerRefusalError, 1),
    ],
)
def test_an_error_with_status_200_is_read_as_its_code_says(
    body: dict[str, Any], kind: type[Exception], num_asked: int
) -> None:
    with served(lambda number: (200, {"Retry-After": "0", "body": json.dumps(body)})) as (url, asked):
        error = failure_at(url)
    assert type(error) is kind
    assert "the provider said no" in str(error)
    assert len(asked) == num_asked


def test_an_address_without_v1_is_told() -> None:
    with served(lambda number: (404, {})) as (url, _):
        address = url.removesuffix("/v1")
        assert str(failure_at(address)).endswith(f"Its address may end in /v1: {url}")
        assert "may end in" not in str(failure_at(url))


def test_the_cause_of_a_failed_connection_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with served(lambda number: (200, {})) as (url, _):
        pass  # its port is closed now
    error = failure_at(url, 0)
    assert "onnect" in str(error)  # what the system said, too
    assert "The environment sets HTTP_PROXY" in str(error)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "nonsense://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_named(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ConfigError, match=r"^base_url: the proxy in ALL_PROXY cannot be used: .* NO_PROXY"):
        http_client(4, 30.0, 60.0)


def test_causes_end_in_a_circle() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert list(causes(first)) == [first, second]


def test_the_pool_holds_as_many_connections_as_the_worker_wants_and_nobody_waits_for_it() -> None:
    num = 5000
    client = http_client(num, 30.0, 60.0)
    pool = client._transport._pool
    assert (pool._max_connections, pool._max_keepalive_connections, client.timeout.pool) == (num, num, None)


def test_a_redirect_is_not_followed() -> None:
    with (
        served(lambda number: (200, {})) as (elsewhere, other),
        served(lambda number: (307, {"Location": f"{elsewhere}/models"})) as (url, asked),
    ):
        error = failure_at(url)
    assert isinstance(error, EngineError)
    assert "answered with a redirect (307), which is not followed: set base_url" in str(error)
    assert (len(asked), other) == (1, [])


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client_module, "_MOST_ANSWER", 1000)
    with served(lambda number: (200, {"body": " " * 1001})) as (url, asked):
        error = failure_at(url)
    assert type(error) is EngineError
    assert "the server sends an answer of more than 1000 bytes" in str(error)
    assert len(asked) == 1


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_a_line_without_end_is_given_up_and_a_long_stream_is_not(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "_MOST_EVENT", 1000)
    line = f": {'x' * 900}{end}"
    body = line * 100 + "data: " + "x" * 200_000
    with served(lambda number: (200, {"body": body, "Content-Type": "text/event-stream"})) as (url, asked):
        error = failure_at(url, work=read_stream)
    assert type(error) is events_module.TooLongError
    assert "the server sends an event of more than 1000 bytes" in str(error)
    assert len(asked) == 1


PAGE = "<!doctype html><title>Sign in</title>"


@pytest.mark.parametrize(
    ("work", "kind", "body", "message"),
    [
        (Connection.models, "text/html", PAGE, "answers with a page of HTML"),
        (Connection.models, "text/html; charset=utf-8", PAGE, "does a proxy ask for a login, or is /v1 missing?"),
        (read_stream, "text/html", PAGE, "answers with a page of HTML"),
        (read_stream, "application/xhtml+xml", PAGE, "answers with a page of HTML"),
        (read_stream, "application/json", "{}", "it does not stream"),
    ],
)
def test_what_is_no_answer_of_such_a_server_is_named(work: Any, kind: str, body: str, message: str) -> None:
    with served(lambda number: (200, {"Content-Type": kind, "body": body})) as (url, asked):
        error = failure_at(url, work=work)
    assert type(error) is EngineError
    assert message in str(error)
    assert len(asked) == 1, "it is not tried again"
