"""A test double: an OpenAI-compatible server over any worker, with a switch for each way to misbehave.

It speaks HTTP/1.1 with the standard library alone, on a thread of its own, and counts what passes through it:

    with OpenAIServer(HuggingFaceWorker("tinylm/draft"), "tinylm/draft") as server:
        worker = OpenAIWorker(server.url, "tinylm/draft")
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Worker
from scaffolding_ext.protocol.meta import token_counts_of
from tests.servers.releases import Release
from tests.servers.shapes import Shape, Told, num_logprobs, usage


class HttpAnswer:
    """Writes one answer. Its methods return whether the connection can serve another request.

    Args:
        writer: The connection's.
        count: Called with the number of bytes of each write.
    """

    def __init__(self, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
        self._count = count
        self._writer = writer
        self._begun = False

    async def json(self, document: dict[str, Any], status: int = 200) -> bool:
        """A whole answer."""
        return await self.raw(json.dumps(document).encode(), "application/json", status)

    async def refuse(self, status: int, message: str) -> bool:
        """An error, as OpenAI's interface tells it."""
        return await self.json({"error": {"message": message, "type": "error", "code": status}}, status)

    async def raw(self, content: bytes, kind: str, status: int = 200) -> bool:
        """A whole answer with any body. It tells clients to try again at once."""
        head = f"HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\nretry-after-ms: 1\r\ncontent-length: {len(content)}\r\n"
        await self._write(head.encode() + b"\r\n" + content)
        return True

    async def event(self, document: dict[str, Any]) -> None:
        """One piece of a stream."""
        await self._chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    async def end_events(self) -> bool:
        """The end of a stream."""
        await self._chunk(b"data: [DONE]\n\n")
        await self._write(b"0\r\n\r\n")
        return True

    def reset(self) -> bool:
        """Break the connection without a farewell."""
        self._writer.transport.abort()
        return False

    async def _chunk(self, content: bytes) -> None:
        if not self._begun:
            self._begun = True
            await self._write(
                b"HTTP/1.1 200 -\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
        await self._write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    async def _write(self, content: bytes) -> None:
        self._count(len(content))
        self._writer.write(content)
        await self._writer.drain()


FAULTS = ("429", "500", "503", "401", "reset", "reset_mid_stream", "slow", "garbage", "filter", "early", "late")
_WAIT_SECONDS = 30.0
_VOCABULARY = 512  # tokens
_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "min_tokens", "ignore_eos")
_OWNERS = {"trtllm": "tensorrt_llm", "vllm": "vllm", "llama_cpp": "llamacpp"}


class Request(NamedTuple):
    """One request as it came in.

    Attributes:
        path: Its path.
        headers: Its headers, by lower-case name.
        body: Its JSON body.
        num_bytes: Bytes of its body.
    """

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    num_bytes: int
    method: str = "POST"


class OpenAIServer:
    """Serves a worker over HTTP.

    Args:
        worker: Does the work; it stays its owner's to shut down.
        model: The name that it serves it under.
        flavor: Whose answers it gives, and whose refusals: `"vllm"`, `"sglang"`, `"trtllm"` (token ids in place of
            text, on request), `"llama_cpp"` (log-probabilities in the shape of chat completions, no scores, and the
            errors of the real one), or any other, without token ids.
        fault: Called with the number of the request (from 0) and the request; returns how the answer fails: one
            of `FAULTS`, or None. `"early"` and `"late"` shift the scores of a prompt by one token; `"filter"` ends an
            answer with `content_filter`.
        allowed: Fields that a request may have; others are refused with status 400. None allows all.
        encode: Token ids of a text, where the server must know them.
        decode: Text of token ids, for answers in the llama.cpp shapes.
        keeps_turns_open: Whether a chat goes on with an unfinished assistant turn.
        max_model_len: What it says of its context.
        bos: Token that it puts before every text.
        is_older: Whether it lacks what its kind has had since 2026; see `releases`.
        reasons: Whether a reasoning parser tells a chat's thinking apart.
        by_priority: Whether it schedules by priority: vLLM refuses one otherwise.
        step_len: Tokens of a step of a trtllm-serve without chunked prefill, which refuses longer prompts.
        root: What it says is behind the model's name.
        tells_reuse: Whether its usage has the cached tokens of a prompt.

    A request without a temperature is sampled as the worker samples by itself.

    Attributes:
        requests: All requests, in order of arrival.
        num_bytes_sent: Bytes of all answers.
        num_running: Requests in work.
        num_connections: Open connections.
        num_stopped: Requests given up because their client went away.
    """

    def __init__(
        self,
        worker: Worker,
        model: str,
        *,
        flavor: str = "vllm",
        fault: Callable[[int, Request], str | None] = lambda number, request: None,
        allowed: frozenset[str] | None = None,
        encode: Callable[[str], list[int]] = lambda text: list(map(ord, text)),
        decode: Callable[[list[int]], str] = lambda ids: "".join(map(chr, ids)),
        keeps_turns_open: bool = True,
        max_model_len: int | None = None,
        bos: int | None = None,
        is_older: bool = False,
        reasons: bool = False,
        by_priority: bool = False,
        step_len: int | None = None,
        root: str | None = None,
        tells_reuse: bool = True,
    ) -> None:
        self.fault = fault
        self.requests: list[Request] = []
        self.num_bytes_sent = 0
        self.num_running = 0
        self.num_connections = 0
        self.num_stopped = 0
        self._worker = worker
        self._model = model
        self._flavor = flavor
        self._allowed = allowed
        self._release = Release(flavor, is_older, reasons, by_priority, step_len)
        self._shape = Shape(self._release, encode, decode, keeps_turns_open, bos)
        self._root = root
        self._tells_reuse = tells_reuse
        self._max_model_len = max_model_len
        self._loop = asyncio.new_event_loop()
        self._stopped = threading.Semaphore(0)
        self._port = 0
        self._thread = threading.Thread(target=self._run, name="openai-server", daemon=True)

    @property
    def url(self) -> str:
        """Base address for clients."""
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_WAIT_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join(_WAIT_SECONDS)

    def wait_for_stopped(self) -> None:
        """Wait until one more request has been given up because its client went away.

        Raises:
            TimeoutError: None has.
        """
        if not self._stopped.acquire(timeout=_WAIT_SECONDS):
            raise TimeoutError(f"no client went away within {_WAIT_SECONDS} s")

    def _count(self, num_bytes: int) -> None:
        self.num_bytes_sent += num_bytes

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._loop.stop()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while await self._serve(reader, HttpAnswer(writer, self._count)):
                pass
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()  # the client has gone, or the server is closing: there is nobody to tell
        finally:
            self.num_connections -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, answer: HttpAnswer) -> bool:
        """Serve one request; returns whether another may follow."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().splitlines()
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, *_ = first.split()
        request = Request(path, headers, json.loads(body or b"{}"), len(body), method)
        number = len(self.requests)
        self.requests.append(request)
        work = asyncio.ensure_future(self._answer(request, answer, self.fault(number, request)))
        gone = asyncio.ensure_future(reader.read(1))  # a client of HTTP/1.1 sends nothing before it has its answer
        self.num_running += 1
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.num_stopped += 1
                self._stopped.release()
                return False
            return work.result()
        finally:
            self.num_running -= 1
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer(self, request: Request, answer: HttpAnswer, fault: str | None) -> bool:
        if request.path.endswith("/models"):
            entry = {"id": self._model, "object": "model", "owned_by": _OWNERS.get(self._flavor, self._flavor)}
            entry |= {} if self._root is None else {"root": self._root}
            length = self._max_model_len
            told = {"meta": {"n_ctx": length}} if self._flavor == "llama_cpp" else {"max_model_len": length}
            return await answer.json({"object": "list", "data": [entry | told]})
        if fault == "slow":
            await asyncio.Event().wait()  # until the client gives up
        if fault == "reset":
            return answer.reset()
        if fault == "garbage":
            return await answer.raw(b"<html>not what you asked for", "application/json")
        if fault is not None and fault.isdecimal():
            return await answer.refuse(int(fault), "this server was told to fail")
        unknown = request.body.keys() - self._allowed if self._allowed is not None else ()
        if unknown:
            return await answer.refuse(400, f"extra fields not permitted: {', '.join(sorted(unknown))}")
        try:
            self._release.check(request.body)
            if request.body.get("echo"):
                scored = self._shape.scored(request.body)
                await self._worker.run_task(scored)
                return await answer.json(self._shape.scores(scored, request.body, fault))
            return await self._generate(request, answer, fault)
        except InvalidTaskError as error:
            return await answer.refuse(400, str(error))

    async def _generate(self, request: Request, answer: HttpAnswer, fault: str | None) -> bool:
        body = request.body
        fields = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
        if "top_k" in fields:
            fields["top_k"] = max(0, fields["top_k"])
        if body.get("detokenize") is False:  # as trtllm-serve: what has no text has no stop strings
            fields.pop("stop", None)
        prompt, wanted = self._shape.prompt(body), num_logprobs(body)
        wanted = _VOCABULARY if self._release.given_tokens(body) else wanted
        if not body.get("stream"):
            task = GenerationTask(**prompt, **fields, num_logprobs=wanted)
            await self._worker.run_task(task)
            choice, _ = self._shape.choice(task, body, Told())
            _filter(choice, fault)
            return await answer.json({"choices": [choice], "usage": usage(token_counts_of(task), self._tells_reuse)})
        interval = body.get("stream_interval", 1)
        stream = StreamGenerationTask(**prompt, **fields, num_logprobs=wanted, streaming_step=1)
        told, is_continuous = Told(), (body.get("stream_options") or {}).get("continuous_usage_stats", False)
        try:
            while not stream.end_flag:
                await self._worker.run_task(stream)
                choice, told = self._shape.choice(stream, body, told)
                _filter(choice, fault)
                stream.streaming_step = interval
                so_far = usage(token_counts_of(stream), False) if is_continuous else None
                await answer.event({"choices": [choice], "usage": so_far})
                if fault == "reset_mid_stream":
                    return False  # closes behind what was sent: a reset here might overtake it
        finally:
            if not stream.end_flag:
                stream.cancel_flag = True
                await self._worker.run_task(stream)
        await answer.event({"choices": [], "usage": usage(token_counts_of(stream), self._tells_reuse)})
        return await answer.end_events()


def _filter(choice: dict[str, Any], fault: str | None) -> None:
    if fault == "filter" and choice["finish_reason"] is not None:
        choice["finish_reason"] = "content_filter"
