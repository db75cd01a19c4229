"""Attacks on `serve` by a holder of a key, or by nobody, and the time that another client's requests take meanwhile.

    python -m benchmarks.engines.attacks

The server runs in a process of its own. Five attacks send bodies that are refused, from several connections as fast as
they are answered; one opens connections without a key and sends nothing; one asks for streams and does not read them.
Another client asks one short question after the other, each on a new connection.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report

KEYS = "key-of-the-good,key-of-the-bad"
MOST_TIMES = 3.0  # the median of quiet
MOST_LOG = 1 << 20  # bytes
MOST_MEMORY = 32.0  # MiB that stay behind a second attack, above those behind the first
MEGABYTE = (1 << 20) - 200  # with the rest of its body, what one may have
NUM_SENDERS = 16
CACHE = 8 << 20  # bytes
ATTACKERS_ADDRESS = "127.0.0.2"
WAIT = 60.0


class Server(NamedTuple):
    """A served stack in its own process."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def resident_mib(self) -> float:
        """Resident memory (Linux)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return float(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextlib.contextmanager
def server(model: str) -> Iterator[Server]:
    """Serve a plain stack of the model with two keys."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        command = [sys.executable, "-m", "scaffolding_ext", "serve", "--config", "configs:native", "--model", model]
        command += ["--name", "model", "--port", "0", "--keys_env", "KEYS"]
        command += ["--set", f"workers.generation.args.prefix_cache_bytes={CACHE}"]  # full behind the first attack
        with log.open("wb") as errors:
            process = subprocess.Popen(
                ["sh", "-c", 'ulimit -Sn 1024; exec "$@"', "sh", *command],  # the usual soft limit
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"KEYS": KEYS},
            )
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            if "http://" not in line:
                raise RuntimeError(f"the server did not start: {log.read_text(encoding='utf-8')[-2000:]}")
            yield Server(process, int(line.rpartition(":")[2].partition("/")[0]), log)
        finally:
            process.terminate()
            process.wait(WAIT)


def question(text: str, **fields: object) -> bytes:
    """The body of a chat request."""
    return json.dumps({"model": "model", "messages": [{"role": "user", "content": text}], **fields}).encode()


def filled(unit: str, num_bytes: int) -> str:
    return ",".join([unit] * (num_bytes // (len(unit) + 1)))


def ask(port: int, path: str, body: bytes, holder: str) -> int:
    """Send a request on a new connection; returns its status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    headers = {"content-type": "application/json", "authorization": f"Bearer key-of-the-{holder}"}
    with contextlib.closing(connection):
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status


# ---- attacks: each runs in its own process until that is ended


def send(port: int, path: str, bodies: list[bytes]) -> None:
    """Send the bodies in turn, from many connections."""

    def sender(_: int) -> None:
        for body in itertools.cycle(bodies):
            with contextlib.suppress(OSError, http.client.HTTPException):
                ask(port, path, body, "bad")

    with ThreadPoolExecutor(NUM_SENDERS) as pool:
        list(pool.map(sender, range(NUM_SENDERS)))


def large_prompt(port: int) -> None:
    send(port, "/v1/chat/completions", [question("Start with 16. Apply d-4. " * (MEGABYTE // 26))])


def small_bodies(port: int) -> None:
    bodies = [question("1 " * 1100), question("1 " * 15_000), question("1 " * 400, temperature=9)]
    send(port, "/v1/chat/completions", bodies)


def long_lists(port: int) -> None:
    lists = [filled(unit, MEGABYTE) for unit in ('"Start with 16."', "[70,71,72]", "70")]
    send(port, "/v1/completions", [f'{{"model": "model", "prompt": [{each}]}}'.encode() for each in lists])


def many_turns(port: int) -> None:
    """Conversations of as many turns as one may have, whose rendering takes longest."""
    turns = filled('{"role": "user", "content": "1 1 1 1"}', 39 * 4000)
    send(port, "/v1/chat/completions", [f'{{"model": "model", "messages": [{turns}]}}'.encode()])


def large_json(port: int) -> None:
    wrong = [f'{{"model": "model", "messages": [{filled(unit, MEGABYTE)}]}}' for unit in ("{}", "[]")]
    other = ['{"model": "model", "messages": [], "x": [' + filled('{"a":[]}', MEGABYTE) + "]}"]
    send(port, "/v1/chat/completions", [body.encode() for body in wrong + other])


def silent_connections(port: int) -> None:
    """Open connections that send nothing, and open those again that the server closes."""
    held: list[socket.socket] = []
    while True:
        while len(held) < 1100:
            connection = socket.socket()
            connection.bind((ATTACKERS_ADDRESS, 0))
            connection.settimeout(1.0)
            try:
                connection.connect(("127.0.0.1", port))
            except OSError:
                connection.close()
                break
            connection.setblocking(False)
            held.append(connection)
        time.sleep(0.05)
        for connection in list(held):
            with contextlib.suppress(BlockingIOError):
                with contextlib.suppress(ConnectionError):
                    if connection.recv(1):
                        continue
                held.remove(connection)
                connection.close()


def unread_streams(port: int) -> None:
    """Ask for 60 long streams and read none of them."""
    body = question("Start with 16. Apply d-4,e-7. Find the total.", stream=True, max_tokens=700)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    head += "content-type: application/json\r\nauthorization: Bearer key-of-the-bad\r\n\r\n"
    held = []
    for _ in range(60):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", port))
        connection.sendall(head.encode() + body)
        held.append(connection)
    time.sleep(3600)


ATTACKS: dict[str, Callable[[int], None]] = {
    "large prompts": large_prompt,
    "small bodies": small_bodies,
    "long lists": long_lists,
    "many turns": many_turns,
    "large JSON": large_json,
    "1,100 silent connections": silent_connections,
    "60 unread streams": unread_streams,
}


@contextlib.contextmanager
def attacking(attacker: BaseProcess) -> Iterator[None]:
    """Run an attack during the block, from its first requests on."""
    attacker.start()
    try:
        time.sleep(3.0)  # until it has imported this module
        yield
    finally:
        attacker.kill()
        attacker.join()


def seconds_of(port: int, num: int) -> list[float]:
    """Seconds of short requests of the good client, one after the other."""
    found = []
    for number in range(num):
        begun = time.perf_counter()
        body = {"model": "model", "prompt": "Start with 5. Apply a+3.", "max_tokens": 8, "seed": number}
        status = ask(port, "/v1/completions", json.dumps(body).encode(), "good")
        if status != 200:
            raise RuntimeError(f"the good client's request ended with status {status}")
        found.append(time.perf_counter() - begun)
    return found


@benchmark("engines.attacks")
@size("--num_requests", 300, quick=20, help="Requests of the good client under each attack.")
@click.option("--model", default="tinylm/draft", show_default=True, help="The model.")
@click.option("--attack", "names", multiple=True, type=click.Choice(list(ATTACKS)), help="Only these attacks.")
def main(report: Report, num_requests: int, model: str, names: tuple[str, ...]) -> None:
    """The good client's median under each attack, as a multiple of that without; the log; memory that stays."""
    report.setting |= {"senders": NUM_SENDERS}
    context = multiprocessing.get_context("spawn")
    for name in track(names or list(ATTACKS), "attacks"):
        with server(model) as served:
            seconds_of(served.port, 10)
            quiet = float(np.median(seconds_of(served.port, num_requests)))
            under, memory = [], [served.resident_mib()]
            for _ in range(2):  # caches may grow in the first
                with attacking(context.Process(target=ATTACKS[name], args=(served.port,), daemon=True)):
                    under += seconds_of(served.port, num_requests)
                    peak = served.resident_mib()
                time.sleep(2.0)
                memory.append(served.resident_mib())
            num_bytes = served.log.stat().st_size
        times = float(np.median(under)) / quiet
        report.figure(f"{name}: median without, ms", 1000 * quiet)
        report.figure(f"{name}: median under it, ms", 1000 * float(np.median(under)))
        report.figure(f"{name}: 95th percentile under it, ms", 1000 * float(np.quantile(under, 0.95)))
        report.figure(f"{name}: memory under it, MiB above before", peak - memory[0])
        report.figure(f"{name}: bytes of the log", num_bytes)
        report.bar(f"{name}: median, times that without", times, "<=", MOST_TIMES)
        report.bar(f"{name}: bytes of the log", num_bytes, "<=", MOST_LOG)
        report.bar(f"{name}: memory behind a second one, MiB above the first", memory[2] - memory[1], "<=", MOST_MEMORY)


if __name__ == "__main__":
    main()
