"""The front as an ASGI application: routes, and what happens to a request from its body to its answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.serving.access import Keys, TokenBudgets
from scaffolding_ext.serving.bodies import Body, ChatBody, CompletionBody, read_body
from scaffolding_ext.serving.events import Events
from scaffolding_ext.serving.jobs import Job
from scaffolding_ext.serving.metrics import Metrics
from scaffolding_ext.serving.refusals import ApiError, of_failure
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.settings import Limits

_log = logging.getLogger(__name__)
_LONG = 1 << 15  # bytes of a body whose prompt is tokenised beside the event loop
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # no proxy may hold events back


class Front:
    """Serves stacks under OpenAI's HTTP interface.

    Args:
        stacks: Each is a model; they are shut down with the application.
        limits: Of requests.
        keys: Who may ask.
        tokens_per_minute: Of each holder of a key; None bounds nothing.
        clock: Seconds, for budgets and durations.

    Raises:
        ConfigError: Two stacks have one name.

    Attributes:
        app: The ASGI application.
        metrics: What it tells Prometheus.
        jobs: Requests under way.
    """

    def __init__(
        self,
        stacks: Sequence[ServedStack],
        limits: Limits | None = None,
        keys: Keys | None = None,
        tokens_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stacks = {stack.name: stack for stack in stacks}
        if len(self.stacks) < len(stacks):
            raise ConfigError("has a name twice; give each stack its own: --stack NAME=FILE", "stack")
        self.limits = limits or Limits()
        self.jobs: set[Job] = set()
        self._keys = keys or Keys(None)
        self._budgets = TokenBudgets(tokens_per_minute, clock)
        self._clock = clock
        self.metrics = Metrics(lambda: {name: stack.num_open for name, stack in self.stacks.items()})
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._endpoint("chat", ChatBody), methods=["POST"]),
                Route("/v1/completions", self._endpoint("completions", CompletionBody), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._page),
            ],
            exception_handlers={HTTPException: self._unrouted},
            lifespan=self._lifespan,
        )

    # ---- requests that generate

    def _endpoint(self, name: str, kind: type[Body]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            started, model = self._clock(), ""
            try:
                holder = self._keys.holder(request.headers.get("authorization"))
                content = await self._content(request)
                body = read_body(kind, content)
                stack = self._stack(body.model)
                model = stack.name
                self._budgets.check(holder)
                asked = stack.asked(body) if len(content) < _LONG else await asyncio.to_thread(stack.asked, body)
                job = Job(stack, body, asked, lambda job: self._ended(job, holder))
                self.jobs.add(job)
                respond = self._streamed if body.stream else self._whole
                response = await respond(request, job, started)
            except ApiError as error:
                response = self._refused(error, model)
            except ClientDisconnect:
                response = self._refused(ApiError(499, "the client went away", "cancelled"), model)
            except Exception as error:
                _log.exception("%s failed", name, exc_info=error if self.limits.shows_content else None)
                response = self._refused(of_failure(error), model)
            self.metrics.answered(model, name, response.status_code, self._clock() - started)
            return response

        return answer

    async def _content(self, request: Request) -> bytes:
        """A request's body, as long as it may be and no longer.

        Raises:
            ApiError: It is longer, or does not come.
        """
        most = self.limits.max_body_bytes
        too_long = ApiError(413, f"the body is longer than {most} bytes", "body_too_large")
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told[:20]) > most:
            raise too_long
        parts: list[bytes] = []

        async def read() -> None:
            num_bytes = 0
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > most:
                    raise too_long
                parts.append(part)

        try:
            await asyncio.wait_for(read(), self.limits.body_seconds)
        except asyncio.TimeoutError:
            raise ApiError(408, "the body did not arrive in time", "body_timeout") from None
        return b"".join(parts)

    def _stack(self, name: str) -> ServedStack:
        stack = self.stacks.get(name)
        if stack is None:
            known = ", ".join(self.stacks)
            raise ApiError(404, f"the model {name[:80]!r} is not served; known: {known}", "model_not_found", "model")
        return stack

    async def _whole(self, request: Request, job: Job, started: float) -> Response:
        """The whole answer, unless the client goes away before it is there."""
        await self._unless_gone(request, job, job.settled)
        return _json(job.document())

    async def _streamed(self, request: Request, job: Job, started: float) -> Response:
        model = job.stack.name
        events = Events(
            job, self.limits.keep_alive_seconds, lambda: self.metrics.first_text(model, self._clock() - started)
        )
        ready = asyncio.ensure_future(events.ready())
        try:
            await self._unless_gone(request, job, ready)
        finally:
            ready.cancel()
        return _EventResponse(events)

    async def _unless_gone(self, request: Request, job: Job, work: asyncio.Future[None]) -> None:
        """Wait for the work; a client that goes away stops the job.

        Raises:
            ApiError: It did, or what the work raises.
        """
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ApiError(499, "the client went away, so the request was cancelled", "cancelled")
            work.result()
        except BaseException:
            job.cancel()
            raise
        finally:
            gone.cancel()

    def _ended(self, job: Job, holder: str) -> None:
        self.jobs.discard(job)
        num_tokens = job.num_tokens
        self._budgets.charge(holder, num_tokens)
        for result in job.results:
            error = result.exception() if result.finished else None
            failed = "unfinished" if not result.finished else None if error is None else of_failure(error).code
            self.metrics.ended(job.stack.name, result.program, failed or result.exit_reason or "end")
        codes = [failure.code for i in range(len(job.results)) if (failure := job.failure_of(i)) is not None]
        _log.info(
            "%s %s: %d choices, %d tokens, %s", job.id, job.stack.name, len(job.results), num_tokens, codes or "ok"
        )
        if self.limits.shows_content:
            texts = [result.outputs[0].text if result.outputs else None for result in job.results]
            _log.info("%s asked %r, got %r", job.id, [text for text, _ in job.asked.prompts], texts)

    def _refused(self, error: ApiError, model: str) -> Response:
        self.metrics.refused(model, error.code)
        _log.info("refused with %d %s (model %s)", error.status, error.code, model or "-")
        return _json(error.document(), error.status, error.headers)

    # ---- the others

    async def _models(self, request: Request) -> Response:
        return self._guarded(request, lambda: {"object": "list", "data": [s.document() for s in self.stacks.values()]})

    async def _model(self, request: Request) -> Response:
        return self._guarded(request, lambda: self._stack(request.path_params["name"]).document())

    def _guarded(self, request: Request, document: Callable[[], dict[str, Any]]) -> Response:
        try:
            self._keys.holder(request.headers.get("authorization"))
            return _json(document())
        except ApiError as error:
            return self._refused(error, "")

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        down = [name for name, stack in self.stacks.items() if not stack.llm.loop.is_running()]
        return _json({"status": "not ready" if down else "ready", "down": down}, 503 if down else 200)

    async def _page(self, request: Request) -> Response:
        return Response(self.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _unrouted(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
        message = f"{request.method} {request.url.path[:80]}: {error.detail}; see /v1/models, /v1/chat/completions"
        return self._refused(ApiError(error.status_code, message, code), "")

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            for job in self.jobs:
                job.cancel()
            await asyncio.gather(*(job.settled for job in list(self.jobs)), return_exceptions=True)
            for stack in self.stacks.values():
                await asyncio.to_thread(stack.llm.shutdown)


class _EventResponse(StreamingResponse):
    """A stream that stops its job when it ends, however it does: a client that is gone reads no further."""

    def __init__(self, events: Events) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_STREAM_HEADERS)
        self._events = events

    async def __call__(self, *arguments: Any) -> None:
        try:
            await super().__call__(*arguments)
        finally:
            self._events.close()


async def _gone(request: Request) -> None:
    """Wait until the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(document: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(document, inf_nan_mode="null"), status, headers, "application/json")
