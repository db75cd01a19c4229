"""`serve` on Ray Serve: two replicas, of which one is killed under load, and sessions that stay with their replica."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve")
openai = pytest.importorskip("openai")
pytestmark = [pytest.mark.integration, pytest.mark.slow]

NUM_REQUESTS, WAIT = 24, 240.0
HELPERS = """
import asyncio, os
from scaffolding_ext.testing import ScriptedWorker

async def before(task):
    line = f"{os.getpid()} {task.input_str.split()[-1]}\\n"
    os.write(os.open(os.environ["RAY_TEST_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), line.encode())
    while not os.path.exists(os.environ["RAY_TEST_LOG"] + ".go"):
        await asyncio.sleep(0.02)

class Logged(ScriptedWorker):
    def __init__(self):
        super().__init__(lambda task: f"It is \\\\boxed{{{task.input_str.split()[-1]}}}.", before=before)
"""


class Served:
    """An application that runs, and the log of its workers."""

    def __init__(self, url: str, log: Path, told: list[str]) -> None:
        self.url, self._log, self._told, self._num_seen = url, log, told, 0

    def wait_for_replicas(self, num: int) -> None:
        """Wait until Ray's router tells that it has so many, behind what it told before."""
        end = time.monotonic() + WAIT
        while True:
            while self._num_seen < len(self._told):
                line = self._told[self._num_seen]
                self._num_seen += 1
                assert "Exception importing" not in line, "".join(self._told)
                if f": {num} replicas," in line:
                    return
            assert time.monotonic() < end, "".join(self._told)
            time.sleep(0.1)

    def ask(self, number: int, session: str | None = None) -> Any:
        """The answer to a question, or the error that came instead."""
        headers = {} if session is None else {"x-session-id": session}
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=WAIT) as client:
            try:
                message = [{"role": "user", "content": f"say {number}"}]
                answer = client.chat.completions.create(model="said", messages=message, extra_headers=headers)
            except openai.APIError as error:
                return error
        return answer.choices[0].scaffolding["answer"]

    def begun(self) -> list[tuple[int, int]]:
        """Process and number of each question that a worker has begun."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [(int(pid), int(number)) for pid, number in map(str.split, lines)]

    def go(self) -> None:
        """Let the workers answer."""
        self._log.with_name(self._log.name + ".go").touch()

    def wait_for(self, num: int) -> list[tuple[int, int]]:
        """Wait until so many questions have been begun."""
        end = time.monotonic() + WAIT
        while len(found := self.begun()) < num:
            assert time.monotonic() < end, f"{len(found)} of {num} questions were begun"
            time.sleep(0.05)
        return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "ray_serve_helpers.py").write_text(HELPERS)
    stack = {
        "controller": {"type": "NativeGenerationController"},
        "workers": {"generation": {"type": "ray_serve_helpers:Logged"}},
        "max_parallel_requests": 64,
        "seed": 5,
    }
    (tmp_path / "stack.yaml").write_text(json.dumps(stack))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    deployment = {"name": "Stacks", "num_replicas": 2, "ray_actor_options": {"num_cpus": 0.1}}
    application = {
        "name": "stacks",
        "route_prefix": "/",
        "import_path": "scaffolding_ext.serving.ray_app:application",
        "args": {"stacks": {"said": str(tmp_path / "stack.yaml")}, "limits": {"max_seconds": WAIT}},
        "deployments": [deployment],
    }
    document = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}
    (tmp_path / "serve.yaml").write_text(json.dumps(document))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {
        "PYTHONPATH": path,
        "RAY_TEST_LOG": str(tmp_path / "log"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [str(Path(sys.executable).with_name("serve")), "run", "serve.yaml"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    told: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        told.extend(process.stdout)  # line by line, as they come

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        served = Served(f"http://127.0.0.1:{port}", tmp_path / "log", told)
        served.wait_for_replicas(2)
        yield served
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        reader.join(10)
        if process.stdout is not None:
            process.stdout.close()


def test_a_killed_replica_costs_only_what_it_held_and_sessions_stay(served: Served) -> None:
    with ThreadPoolExecutor(NUM_REQUESTS) as clients:
        answers = {number: clients.submit(served.ask, number) for number in range(NUM_REQUESTS)}
        held: dict[int, set[int]] = defaultdict(set)
        for pid, number in served.wait_for(NUM_REQUESTS):
            held[pid].add(number)
        assert len(held) == 2  # each replica has some
        killed = min(held)
        os.kill(killed, signal.SIGKILL)
        served.go()
        found = {number: answer.result() for number, answer in answers.items()}
    begun = Counter(number for _, number in served.begun())
    failed = {number for number, answer in found.items() if isinstance(answer, Exception)}
    again = {number for number, times in begun.items() if times > 1}
    assert failed | again <= held[killed]  # what it held fails, or is sent again by Ray; nothing else is touched
    assert held[killed] <= failed | again
    assert all(found[number] == str(number) for number in found.keys() - failed)
    assert all(isinstance(found[number], openai.APIStatusError) for number in failed)
    repeated = {number: served.ask(number) for number in failed}  # as clients of OpenAI do by themselves
    assert repeated == {number: str(number) for number in failed}

    served.wait_for_replicas(1)
    served.wait_for_replicas(2)  # Ray has put another in the place of the killed
    before = len(served.begun())
    asked = [(session, 1000 + 10 * session + turn) for turn in range(4) for session in range(12)]
    with ThreadPoolExecutor(8) as clients:
        said = list(clients.map(lambda one: served.ask(one[1], f"session-{one[0]}"), asked))
    assert said == [str(number) for _, number in asked]
    replicas: dict[int, set[int]] = defaultdict(set)
    for pid, number in served.begun()[before:]:
        replicas[(number - 1000) // 10].add(pid)
    at_most_two = [session for session, pids in replicas.items() if len(pids) > 1]
    assert len({pid for pids in replicas.values() for pid in pids}) == 2  # both replicas serve again
    assert not at_most_two
