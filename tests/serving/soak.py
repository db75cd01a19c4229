"""The front over a backend that misbehaves: does each client get an answer, or an error by name, in time?

One request in ten meets a backend that loops in its thinking, one that ignores the budget of thinking, one that thinks
nothing or never ends its thinking, and one that drops the stream. Clients in a process of their own ask a plain stack
of a thinking model over a double of a server, half of them for streams, one in five on completions. Then every 200 must
have content, the ledgers that clients were told must be those that `/metrics` counts, and nothing may be held.
"""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import multiprocessing
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext import NativeGenerationController, OpenAIWorker, Prompting, ScaffoldingLlm
from scaffolding_ext.controllers.chain.ending import forced_answers
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import ScriptedWorker
from tests.servers.openai_server import OpenAIServer, Request

MODEL = "tinylm/target"
MAX_TOKENS = 1500  # of a chain
BUDGET = 24  # tokens of thinking, where the backend ignores it
KINDS = {"loops": 0.1, "budget": 0.1, "empty": 0.1, "drops": 0.1}
SILENCES = ("", "I think of columns.", "I think.</think>")
ANSWER = "It is \\boxed{42}."
SLOTS = 512
FEW = 500  # requests whose clients need no process of their own
NOTICE_S = 30.0  # for the last connections to be closed on both sides
_KIND = re.compile(r"kind (\w+) (\d+)")
_METRIC = re.compile(r"^scaffolding_(tokens|forced_answers)_total\{(.*)\} (\S+)$", re.MULTILINE)


class Held(NamedTuple):
    """What the process holds at one moment."""

    threads: int
    sockets: int


def held() -> Held:
    """Count threads and sockets (Linux)."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(path.readlink()))
        except OSError:  # the descriptor of the listing itself
            continue
    return Held(threading.active_count(), sum(link.startswith("socket:") for link in links))


class Thinking(ScriptedWorker):
    """A thinking model that does what its prompt says, in the tokens of an embedded model."""

    model = MODEL  # type: ignore[misc, assignment]

    def __init__(self, prompting: Prompting) -> None:
        self._prompting = prompting
        super().__init__(self._reply)

    def _reply(self, task: Any) -> list[int]:
        read = task.input_str or self._prompting.decode(task.input_tokens)
        return self._prompting.encode(reply(read))

    def _write(self, task: Any, generation: Any, num_tokens: int) -> None:
        super()._write(task, generation, num_tokens)
        task.output_str = self._prompting.decode(task.output_tokens)


def reply(read: str) -> str:
    """What the model writes behind a prompt, or behind its own unfinished thinking."""
    if read.endswith("boxed{"):
        return "42}."
    if read.rstrip().endswith("</think>"):
        return ANSWER
    kind, number = kind_of(read)
    if kind == "loops":
        return "Let me see. " + "Wait, is that right? " * 400
    if kind == "budget":
        return "Okay, by columns first. " * 20 + f"</think>{ANSWER}"
    if kind == "empty":
        return SILENCES[number % len(SILENCES)]
    return f"Six times seven is that.</think>{ANSWER}"


def kind_of(read: str) -> tuple[str, int]:
    """What a prompt asks the backend to do, and its number."""
    found = _KIND.search(read)
    return (found[1], int(found[2])) if found else ("good", 0)


class Ask(NamedTuple):
    """One client's request."""

    kind: str
    path: str
    stream: bool
    body: bytes

    @classmethod
    def drawn(cls, number: int, seed: int) -> Ask:
        """The request of that number."""
        rng = random.Random(f"{seed}/{number}")
        kind = rng.choices([*KINDS, "good"], [*KINDS.values(), 1 - sum(KINDS.values())])[0]
        stream, is_chat = rng.random() < 0.5, rng.random() < 0.8
        question = f"kind {kind} {number} : what is 6 times 7?"
        asked: dict[str, Any] = {"model": "model", "stream": stream, "seed": number}
        asked |= {"messages": [{"role": "user", "content": question}]} if is_chat else {"prompt": question}
        if kind == "budget":
            asked["thinking_budget"] = BUDGET
        return cls(kind, "chat/completions" if is_chat else "completions", stream, json.dumps(asked).encode())


class Told(NamedTuple):
    """What a client was told.

    Attributes:
        kind: Of its request.
        outcome: `"answered"`, `"error: CODE"`, or what is wrong: `"no content"`, `"late"`, `"broken: TYPE"`.
        seconds: Until it was told.
        ledger: Tokens by purpose and by how they were had, of an answer.
        forced: Answers that were forced, by the cause.
    """

    kind: str
    outcome: str
    seconds: float
    ledger: dict[str, int]
    forced: dict[str, int]


def ask_one(port: int, ask: Ask, timeout: float) -> Told:
    """Send a request and read what comes."""
    began, ledger, forced = time.monotonic(), dict[str, int](), dict[str, int]()
    try:
        outcome = _asked(port, ask, timeout, ledger, forced)
    except (OSError, http.client.HTTPException, ValueError) as error:
        outcome = f"broken: {type(error).__name__}"
    seconds = time.monotonic() - began
    return Told(ask.kind, "late" if seconds > timeout else outcome, seconds, ledger, forced)


def _asked(port: int, ask: Ask, timeout: float, ledger: dict[str, int], forced: dict[str, int]) -> str:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)) as connection:
        connection.request("POST", f"/v1/{ask.path}", ask.body, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    documents = [json.loads(text)] if answer.status != 200 or not ask.stream else []
    if not documents:
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        if not events or events[-1] != "[DONE]":
            return "broken: no end"
        documents = [json.loads(event) for event in events[:-1]]
    content, extras = "", dict[str, Any]()
    for document in documents:
        if "error" in document:
            return f"error: {document['error']['code']}"
        for choice in document["choices"]:
            part = choice.get("message") or choice.get("delta") or choice
            content += part.get("content") or part.get("text") or ""
            extras = choice.get("scaffolding") or extras
    for purpose, counts in extras["ledger"]["by_purpose"].items():
        ledger.update({f"{purpose} {how}": number for how, number in counts.items() if number})
    forced.update(extras.get("forced_answers", {}))
    return "answered" if content.strip() else "no content"


def ask_all(port: int, num: int, at_once: int, seed: int, timeout: float) -> list[Told]:
    """What all clients were told; for a process of their own."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda number: ask_one(port, Ask.drawn(number, seed), timeout), range(num)))


class Outcome(NamedTuple):
    """What came of a soak.

    Attributes:
        told: What each client was told.
        ledgers: Tokens by purpose and how, of all programs, those of failed requests included.
        metrics: The same, as `/metrics` has them.
        forced: Forced answers by the cause, of all programs.
        forced_metrics: The same, as `/metrics` has them.
        left: What is still held, by its name.
        num_calls: Requests at the backend.
    """

    told: list[Told]
    ledgers: dict[str, int]
    metrics: dict[str, int]
    forced: dict[str, int]
    forced_metrics: dict[str, int]
    left: dict[str, int]
    num_calls: int

    @property
    def ends(self) -> Counter[str]:
        """How requests ended, by their kind."""
        return Counter(f"{each.kind}: {each.outcome}" for each in self.told)

    @property
    def num_wrong(self) -> int:
        """Requests without content, and those that hung, broke off, or failed without a reason of the backend's."""
        fine = Counter({"answered", "error: engine_error", "error: no_answer"})
        return sum(each.outcome not in fine for each in self.told)


def soak(num_requests: int, at_once: int, seed: int, timeout: float, own_process: bool = True) -> Outcome:
    """Ask a front over a backend that misbehaves, and see what is told and what is left."""
    prompting = Prompting.for_model(MODEL)
    before = held()

    def fault(number: int, request: Request) -> str | None:
        prompt = request.body.get("prompt") or ""
        read = prompt if isinstance(prompt, str) else prompting.decode(prompt)
        return "reset_mid_stream" if kind_of(read)[0] == "drops" else None

    programs: list[Any] = []
    with contextlib.ExitStack() as parts:
        model = parts.enter_context(Thinking(prompting))
        server = parts.enter_context(
            OpenAIServer(model, MODEL, fault=fault, encode=prompting.encode, decode=prompting.decode)
        )
        worker = parts.enter_context(
            OpenAIWorker(server.url, MODEL, flavor="vllm", max_seq_len=4096, max_concurrency=SLOTS, max_retries=0)
        )
        limits = Limits(max_queue=4 * at_once, max_seconds=timeout)
        controller = NativeGenerationController({"temperature": 0.0, "max_tokens": MAX_TOKENS})
        stack = ServedStack("model", ScaffoldingLlm(controller, {"generation": worker}, at_once, seed=seed), limits)
        submit = stack.submit

        def kept(asked: Any) -> Any:
            results = submit(asked)
            programs.extend(result.program for result in results)
            return results

        stack.submit = kept  # type: ignore[method-assign]
        front = Front([stack], limits)
        with FrontThread(front) as thread:
            port = int(thread.url.rpartition(":")[2])
            told = _told(port, num_requests, at_once, seed, timeout, own_process)
            metrics, forced_metrics = _counted(front.metrics.page().decode())
            ledgers, forced = Counter[str](), Counter[str]()
            for program in programs:
                for purpose, counts in program.ledger.by_purpose.items():
                    ledgers.update({f"{purpose} {how}": n for how, n in counts._asdict().items() if n})
                forced.update(forced_answers(program.trace))
            left = {
                "choices": stack.num_open,
                "jobs": len(front.jobs),
                "tasks of the worker": worker.num_requests,
                "slots of the worker": SLOTS - worker._connection._slots._value,
                "streams of the worker": len(worker._streams),
                "requests at the backend": _once_noticed(lambda: server.num_running),
            }
    left |= {name: _once_noticed(lambda name=name: _more(before, name)) for name in before._fields}  # type: ignore[misc]
    return Outcome(told, dict(ledgers), metrics, dict(forced), forced_metrics, left, len(server.requests))


def _told(port: int, num: int, at_once: int, seed: int, timeout: float, own_process: bool) -> list[Told]:
    if not own_process:
        return ask_all(port, num, at_once, seed, timeout)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(ask_all, port, num, at_once, seed, timeout).result()


def _counted(page: str) -> tuple[dict[str, int], dict[str, int]]:
    """Tokens by purpose and how, and forced answers by the cause, as `/metrics` has them."""
    tokens, forced = Counter[str](), Counter[str]()
    for name, labels, value in _METRIC.findall(page):
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if name == "tokens":
            tokens[f"{named['purpose']} {named['how']}"] += int(float(value))
        else:
            forced[named["cause"]] += int(float(value))
    return dict(tokens), dict(forced)


def _more(before: Held, name: str) -> int:
    """How much more the process holds than before; what nobody refers to any more is not held."""
    gc.collect()
    return max(0, int(getattr(held(), name)) - int(getattr(before, name)))


def _once_noticed(count: Callable[[], int]) -> int:
    """What is left once both ends of a connection have had time to see that it is closed."""
    never, deadline = threading.Event(), time.monotonic() + NOTICE_S
    while (num := count()) and time.monotonic() < deadline:
        never.wait(0.05)
    return num


def answered_ledgers(told: Sequence[Told]) -> Counter[str]:
    """Tokens by purpose and how, as the clients that got an answer were told."""
    return sum((Counter(each.ledger) for each in told), Counter[str]())
