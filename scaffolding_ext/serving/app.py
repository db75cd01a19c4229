"""The server as a Starlette application: its routes, and the path of a request from body to answer."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from scaffolding_ext.documents import as_json
from scaffolding_ext.errors import ConfigError, ShutdownError
from scaffolding_ext.evaluation.tables import drawn_of
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.serving.bodies import Body, ChatBody, CompletionBody, read_body
from scaffolding_ext.serving.jobs import Events, Job
from scaffolding_ext.serving.metrics import Metrics
from scaffolding_ext.serving.refusals import CLIENT_LEFT, ApiError, of_failure, wait_and_retry
from scaffolding_ext.serving.served_stack import ServedStack, new_id
from scaffolding_ext.serving.settings import Limits

_log = logging.getLogger(__name__)
_LARGE = 1 << 11  # bytes; a smaller body is read at once, within about 1 ms
_MOST_LARGE = 64  # larger bodies that wait to be read, one after the other
_MOST_PER_SECOND = 1 << 25  # bytes of larger bodies; receiving them takes the loop's time
_REST = 4  # parsing holds the GIL, so the next large body waits for this multiple of the last one's CPU time
_MOST_IGNORED = 1000  # unknown fields that the log names
_PORT = re.compile(r":\d+\Z")
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies must not hold events back


class Front:
    """Serves stacks under OpenAI's HTTP interface.

    Args:
        stacks: Stacks, one per model; they are shut down with the application.
        limits: Limits of requests.
        keys: Keys that may send requests; empty lets anybody in.
        clock: Returns the time in seconds, for durations.

    Raises:
        ConfigError: Two stacks have the same name.

    Attributes:
        app: The ASGI application.
        metrics: The metrics for Prometheus.
        jobs: Running requests.
        hosts: Names by which clients may address the server; None allows any.
    """

    def __init__(
        self,
        stacks: Sequence[ServedStack],
        limits: Limits | None = None,
        keys: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stacks = {stack.name: stack for stack in stacks}
        if len(self.stacks) < len(stacks):
            raise ConfigError("gives two stacks the same name: name each with --stack NAME=FILE", "stack")
        self.limits = limits or Limits()
        self.jobs: set[Job] = set()
        self._audits: set[asyncio.Task[None]] = set()  # the loop keeps only weak references
        self._ignored: set[str] = set()
        self._reading, self._num_large = asyncio.Semaphore(), 0
        self.hosts: Collection[str] | None = None
        self.keys = tuple(keys)
        self._clock = clock
        self.metrics = Metrics(lambda: {name: stack.num_open for name, stack in self.stacks.items()})
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._page),
            ],
            exception_handlers={HTTPException: self._unrouted},
            lifespan=self._lifespan,
        )

    def end_jobs(self) -> None:
        """End all running requests because the server stops; their clients get the error `shutting_down`."""
        for job in self.jobs:
            job.cancel(of_failure(ShutdownError("the server stops")))

    def _admit(self, request: Request) -> None:
        """Refuse a request without a valid key, or with a foreign Host header, as of DNS rebinding in a browser."""
        if self.hosts is not None and _PORT.sub("", _header(request, b"host")) not in self.hosts:
            raise ApiError(
                403,
                f"this server answers only to {', '.join(sorted(self.hosts))}: use one of them as host, or set keys",
                "unknown_host",
            )
        if not self.keys:
            return
        scheme, _, key = _header(request, b"authorization").partition(" ")
        if scheme.lower() != "bearer":
            raise ApiError(401, "the request has no key: send the header Authorization: Bearer KEY", "missing_api_key")
        if not any(hmac.compare_digest(own.encode(), key.strip().encode()) for own in self.keys):  # in constant time
            raise ApiError(401, "unknown key: ask the server's operator for one", "invalid_api_key")

    # ---- requests that generate

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, "chat", ChatBody, "chatcmpl")

    async def _complete(self, request: Request) -> Response:
        return await self._answer(request, "completions", CompletionBody, "cmpl")

    async def _answer(self, request: Request, endpoint: str, kind: type[Body], prefix: str) -> Response:
        """Answer a request; every failure is reported to the client and to the log."""
        id, started, model = new_id(prefix), self._clock(), ""
        job: Job | None = None
        answer: Response | None = None

        def count(status: int) -> None:
            self.metrics.answered(model, endpoint, status, self._clock() - started)

        try:
            self._admit(request)
            _check_type(_header(request, b"content-type"))
            content = await self._content(request)
            ignore = self._ignore if self.limits.ignores_unknown_fields else None
            async with self._turn(len(content)) as call:
                body: Body = await call(read_body, kind, content, self.limits.max_objects, ignore)
                stack = self._stack(body.model)
                model = stack.name
                wanted = await call(stack.read, body)
            wanted = wanted._replace(trace_parent=_header(request, b"traceparent") or None)
            job = Job(stack, body, wanted, self._ended, id)
            self.jobs.add(job)
            async with _cancelled_if_gone(job, request.receive):
                if not body.stream:
                    await asyncio.wait([job.settled])
                    answer = _json(job.document(), headers={"x-request-id": id})
                else:
                    events = Events(
                        job,
                        self.limits.keep_alive_seconds,
                        lambda: self.metrics.first_text(model, self._clock() - started),
                    )
                    await events.ready()
                    answer = _EventStream(job, events, lambda: count(200))
        except ApiError as error:
            answer = self._refused(error, model, id)
        except Exception as error:
            _log.exception("%s failed", id)
            answer = self._refused(of_failure(error), model, id)
        finally:
            if job is not None and not isinstance(answer, _EventStream):
                job.cancel()  # finished choices stay as they are
        if not isinstance(answer, _EventStream):
            count(answer.status_code)
        return answer

    async def _content(self, request: Request) -> bytes:
        """Read the body of a request.

        Raises:
            ApiError: The body is too long or does not arrive in time, or the client disconnects.
        """
        most, seconds = self.limits.max_body_bytes, self.limits.body_seconds
        length = _header(request, b"content-length")
        if length.isdigit() and int(length[:20]) > most:
            raise _too_long(most)
        try:
            return await asyncio.wait_for(_read(request, most), seconds)
        except asyncio.TimeoutError:
            raise ApiError(
                408, f"the body of the request did not arrive within {seconds:g} s: send it again", "body_timeout"
            ) from None
        except ClientDisconnect:
            raise ApiError(CLIENT_LEFT, "the client closed the connection", "cancelled") from None

    @contextlib.asynccontextmanager
    async def _turn(self, num_bytes: int) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Wait for one's turn to read a body, and yield a function that runs a call: on a thread if the body is large.

        Raises:
            ApiError: Too many large bodies wait already.
        """
        if num_bytes <= _LARGE:
            yield _at_once
            return
        if self._num_large >= _MOST_LARGE:
            raise wait_and_retry("too many large requests wait to be read: send it again", "too_many_requests", 1)
        busy = 0.0

        def timed(call: Callable[..., Any], *args: Any) -> Any:
            nonlocal busy
            began = time.thread_time()
            try:
                return call(*args)
            finally:
                busy += time.thread_time() - began

        self._num_large += 1
        try:
            await self._reading.acquire()
        finally:
            self._num_large -= 1
        try:
            yield lambda call, *args: asyncio.to_thread(timed, call, *args)
        finally:
            asyncio.get_running_loop().call_later(_REST * busy + num_bytes / _MOST_PER_SECOND, self._reading.release)

    def _ignore(self, field: str) -> None:
        """Log once that an unknown field is ignored."""
        if field not in self._ignored and len(self._ignored) < _MOST_IGNORED:
            self._ignored.add(field)
            _log.warning("the unknown field %r of requests is ignored", field)

    def _stack(self, name: str) -> ServedStack:
        stack = self.stacks.get(name)
        if stack is None:
            known = ", ".join(self.stacks)
            raise ApiError(404, f"unknown model {name[:80]!r}; this server has: {known}", "model_not_found", "model")
        return stack

    def _ended(self, job: Job) -> None:
        self.jobs.discard(job)
        num_decoded, model = job.usage()["completion_tokens"], job.stack.name
        codes = []
        for number, result in enumerate(job.results):
            failure = job.failure_of(number) if result.finished else None
            if failure is not None:
                codes.append(failure.code)
            if failure is not None and failure.status != CLIENT_LEFT:
                text, error = "%s: choice %d of %s failed with %s: %s", result.exception()
                traced = error if failure.status >= 500 else None  # a client's mistake needs no traceback
                _log.warning(text, job.id, number, model, failure.code, error, exc_info=traced)
            ended = "unfinished" if not result.finished else None if failure is None else failure.code
            self.metrics.ended(model, result.program, ended or result.exit_reason or "end", ended is None)
            if failure is None and result.finished and result.is_audited:
                self._wait_for_audit(job.stack, result)
        drawn = drawn_of([result.program for result in job.results])
        figures = [f"{len(job.results)} choices", f"{num_decoded} decoded tokens", drawn, str(codes or "ok")]
        _log.info("%s, %s: %s", job.id, model, ", ".join(filter(None, figures)))
        if self.limits.shows_content:
            texts = [result.outputs[0].text if result.outputs else None for result in job.results]
            _log.info("%s asked %r, got %r", job.id, [text for text, _ in job.wanted.prompts], texts)

    def _wait_for_audit(self, stack: ServedStack, result: ScaffoldingResult) -> None:
        """Count an audit's result when it ends."""

        async def count() -> None:
            found = await result.audited()
            self.metrics.audited(stack.name, "failed" if found is None else "changed" if found.changed else "same")
            if found is not None and stack.watch is not None and stack.watch.add(found.changed):
                text = "%s: stopping changes at least %.1f %% of the answers, at most %.1f %% are promised: tune again"
                _log.warning(text, stack.name, 100 * stack.watch.lower_bound(), 100 * stack.watch.promised)

        task = asyncio.get_running_loop().create_task(count())
        self._audits.add(task)
        task.add_done_callback(self._audits.discard)

    def _refused(self, error: ApiError, model: str, id: str) -> Response:
        self.metrics.refused(model, error.code)
        _log.info("%s refused with %d %s (model %s)", id, error.status, error.code, model or "-")
        return _json(error.document(), error.status, {**error.headers, "x-request-id": id})

    # ---- the others

    async def _models(self, request: Request) -> Response:
        return self._guarded(request, lambda: {"object": "list", "data": [s.document() for s in self.stacks.values()]})

    async def _model(self, request: Request) -> Response:
        return self._guarded(request, lambda: self._stack(request.path_params["name"]).document())

    def _guarded(self, request: Request, document: Callable[[], dict[str, Any]]) -> Response:
        try:
            self._admit(request)
            return _json(document())
        except ApiError as error:
            return self._refused(error, "", new_id("models"))

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        down = [name for name, stack in self.stacks.items() if not stack.llm.loop.is_running()]
        return _json({"status": "not ready" if down else "ready", "down": down}, 503 if down else 200)

    async def _page(self, request: Request) -> Response:
        return Response(self.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _unrouted(self, request: Request, error: Exception) -> Response:
        """Refuse a path or method. The log omits the path, which may hold a key or escape sequences."""
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
        path = ascii(request.url.path[:80])
        message = f"{request.method} {path}: {error.detail}; send GET /v1/models or POST /v1/chat/completions"
        if request.url.path.rstrip("/") == "/v1/responses":
            message = (
                "/v1/responses is not served: use chat completions (openai: client.chat.completions; LangChain: "
                "use_responses_api=False; inspect_ai: responses_api=false)"
            )
        return self._refused(ApiError(error.status_code, message, code), "", new_id("path"))

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.end_jobs()
            await asyncio.gather(*(job.settled for job in list(self.jobs)), return_exceptions=True)
            failures = [error for stack in self.stacks.values() if (error := await _shut_down(stack)) is not None]
            if failures:
                raise failures[0]


class _EventStream(StreamingResponse):
    """The events of a job as a response; the job ends with it."""

    def __init__(self, job: Job, events: Events, on_end: Callable[[], None]) -> None:
        super().__init__(events, headers={**_STREAM_HEADERS, "x-request-id": job.id}, media_type="text/event-stream")
        self._job, self._events, self._on_end = job, events, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with _cancelled_if_gone(self._job, receive):
                await self.stream_response(send)
        finally:
            self._events.close()
            self._on_end()


@contextlib.asynccontextmanager
async def _cancelled_if_gone(job: Job, receive: Receive) -> AsyncIterator[None]:
    """Cancel the job if the client disconnects inside the block; the request's body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


async def _at_once(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


def _header(request: Request, name: bytes) -> str:
    """The first header of a name; empty without one. Starlette's own look-up takes many more calls."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


def _check_type(content_type: str) -> None:
    """Refuse a body of another type: browsers send those for any page, without asking the server first."""
    if content_type != "application/json" and content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(
            415,
            f"the body's type is {content_type[:80]!r}: send the header Content-Type: application/json",
            "unsupported_media_type",
        )


async def _read(request: Request, most: int) -> bytes:
    parts, num_bytes = [], 0
    async for part in request.stream():
        parts.append(part)
        num_bytes += len(part)
        if num_bytes > most:
            raise _too_long(most)
    return b"".join(parts)


def _too_long(most: int) -> ApiError:
    return ApiError(413, f"the body of the request is longer than {most} bytes: shorten it", "body_too_large")


async def _shut_down(stack: ServedStack) -> Exception | None:
    """Shut a stack down. Errors are only logged, so the other stacks are shut down, too."""
    try:
        await asyncio.to_thread(stack.llm.shutdown)
    except Exception as error:  # a worker's shutdown may raise anything
        _log.exception("the stack %s could not be shut down", stack.name)
        return error
    return None


def _json(document: dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    content = to_json(document, inf_nan_mode="null", fallback=as_json)
    return Response(content, status, headers, media_type="application/json")
