"""What a request costs on the front's thread, in function calls: HTTP, checks, the answer; not the stack's own work."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from scaffolding_ext.serving import connections

NUM_REQUESTS = 50
PARSER = "httptools" if "HttpTools" in connections._HttpProtocol.__name__ else "h11"


@pytest.mark.parametrize(("stream", "name"), [(False, "request"), (True, "stream")])
def test_a_request(
    serve: Any, call_count: Any, within_ceiling: Callable[[str, float], None], stream: bool, name: str
) -> None:
    served = serve("It is 4.")
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=30)
    asked = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}], "stream": stream}
    headers = {"authorization": "Bearer x", "content-type": "application/json", "accept": "*/*", "user-agent": "x"}

    def ask(num: int) -> None:
        for _ in range(num):
            connection.request("POST", "/v1/chat/completions", json.dumps(asked).encode(), headers)
            answer = connection.getresponse()
            assert (answer.status, (b"[DONE]" if stream else b"It is 4.") in answer.read()) == (200, True)

    with contextlib.closing(connection):
        ask(10)
        with call_count.on_loop(served.thread.loop):
            ask(NUM_REQUESTS)
    within_ceiling(f"serve, calls a {name} ({PARSER})", call_count.num / NUM_REQUESTS)
