"""llama.cpp's two servers with the embedded target model, for `test_llama_servers.py`."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

MODEL = "tinylm/target"
CONTEXT_LEN = 2048
START_SECONDS = 300.0


class Running:
    """A server at an address, with its process group."""

    def __init__(self, address: str, process: subprocess.Popen[bytes]) -> None:
        self.address = address
        self._process = process

    def end(self) -> None:
        """SIGTERM, and SIGKILL if that does not end it."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, to its children too: vLLM's engine outlives its server otherwise."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def url(self) -> str:
        return f"{self.address}/v1"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return its answer to a request that OpenAIWorker does not make."""
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.address}{path}", data, timeout=60) as reply:
            return json.load(reply)

    def num_busy_slots(self) -> int:
        """Requests that llama-server is working on."""
        return sum(slot["is_processing"] for slot in self.ask("/slots"))

    def wait_for_busy_slots(self, number: int) -> None:
        """Until it works on so many."""
        wait_until(lambda: self.num_busy_slots() == number)


@contextlib.contextmanager
def running(
    command: Callable[[int], list[str]],
    log: Path,
    environment: Mapping[str, str] | None = None,
    port: int | None = None,
) -> Iterator[Running]:
    """A server on a free port of this machine, when it has loaded its model; SIGTERM ends it."""
    port = free_port() if port is None else port
    with log.open("ab") as output:
        process = subprocess.Popen(
            command(port), stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    server = Running(f"http://127.0.0.1:{port}", process)
    try:
        wait_until(lambda: answers(server, process, log))
        yield server
    finally:
        server.end()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answers(server: Running, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text(errors="replace")[-3000:]
    try:
        return bool(server.ask("/v1/models")["data"])
    except OSError:  # not yet there, or still loading
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll what another process does."""
    end = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not within {START_SECONDS} s"
        time.sleep(0.05)


def named(variable: str) -> str:
    """The program that a variable of the environment names."""
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no program")
    return os.environ[variable]


def llama_server(model: Path, alias: str = MODEL) -> Callable[[int], list[str]]:
    """With four slots, each of the model's whole context: a program that was built, or the one in xllamacpp's wheel."""
    if not os.environ.get("SCAFFOLDING_LLAMA_SERVER"):
        has_wheel = importlib.util.find_spec("xllamacpp") is not None
        python = sys.executable if has_wheel else named("SCAFFOLDING_XLLAMACPP")
        script = Path(__file__).parent / "xllamacpp_server.py"
        return lambda port: [python, str(script), str(model), alias, str(port), str(CONTEXT_LEN), "4"]
    program = named("SCAFFOLDING_LLAMA_SERVER")
    return lambda port: [
        *(program, "--model", str(model), "--alias", alias, "--host", "127.0.0.1", "--port", str(port)),
        *("--ctx-size", str(4 * CONTEXT_LEN), "--parallel", "4", "--threads", "1", "--slots"),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the model as a GGUF file."""
    pytest.importorskip("gguf")
    from tests.integration.to_gguf import write_gguf

    folder = tmp_path_factory.mktemp("llama")
    write_gguf(MODEL, folder / "target.gguf")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """llama-server with the model as it is."""
    with running(llama_server(folder / "target.gguf"), folder / "llama-server.log") as found:
        yield found
