"""Open connections have limits, so that silent ones keep nobody out and the log stays short."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.serving.settings import Limits

WAIT = 30.0
# Serves with few descriptors until standard input ends, and prints its address.
SERVER = """
import resource, sys
from scaffolding_ext import NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import ScriptedWorker
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
llm = ScaffoldingLlm(NativeGenerationController(), {"generation": ScriptedWorker("It is 4.")})
with FrontThread(Front([ServedStack("model", llm, Limits())])) as running:
    print(running.url, flush=True)
    sys.stdin.read()
"""


def opened(url: str, address: str = "127.0.0.1") -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), WAIT, source_address=(address, 0))


def is_closed(connection: socket.socket) -> bool:
    """Wait a little for the server to close it."""
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def healthy(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/health", timeout=WAIT) as answer:
        return bool(json.load(answer)["status"] == "ok")


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_an_address_has_half_of_the_connections(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(limits=Limits(max_connections=6))
    held = [opened(served.url, "127.0.0.2") for _ in range(5)]
    assert [is_closed(each) for each in held] == [False] * 3 + [True] * 2
    assert healthy(served.url)  # from another address
    (line,) = [record.getMessage() for record in caplog.records if "connections of an" in record.getMessage()]
    assert line.endswith("closed (1 times so far; the last: 127.0.0.2)")
    held.pop(0).close()
    held.append(opened(served.url, "127.0.0.2"))  # there is room again
    assert not is_closed(held[-1])
    for each in held:
        each.close()


def test_all_addresses_together_have_a_limit(serve: Any) -> None:
    served = serve(limits=Limits(max_connections=6))
    held = [opened(served.url, f"127.0.0.{2 + number % 4}") for number in range(8)]
    assert [is_closed(each) for each in held] == [False] * 6 + [True] * 2
    for each in held:
        each.close()
    assert eventually(lambda: served.thread._server.server_state.connections == set())
    assert healthy(served.url)


def test_silent_connections_leave_descriptors() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().strip()
        held = [opened(url, "127.0.0.2") for _ in range(300)]
        assert healthy(url)
        for each in held:
            each.close()
        process.stdin.close()
        assert len(error := process.stderr.read()) < 2000, error[:3000]


def test_the_server_raises_its_soft_limit() -> None:
    hard = 3000
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (150, {hard}))\n"
        "from scaffolding_ext.serving.connections import raise_descriptors\n"
        "raise_descriptors(); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(hard), str(hard)]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= hard


def test_fewer_than_two_connections_are_no_limit() -> None:
    with pytest.raises(ConfigError, match="max_connections"):
        Limits(max_connections=1)
