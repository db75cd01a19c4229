"""The front as an ASGI application: routes, and what happens to a request from its body to its answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scaffolding_ext.documents import as_json
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.serving.access import ANYBODY, Keys, TokenBudgets
from scaffolding_ext.serving.bodies import Body, ChatBody, CompletionBody, read_body
from scaffolding_ext.serving.events import Events
from scaffolding_ext.serving.exchange import Exchange
from scaffolding_ext.serving.jobs import Job
from scaffolding_ext.serving.metrics import Metrics
from scaffolding_ext.serving.refusals import CLIENT_LEFT, ApiError, of_failure
from scaffolding_ext.serving.served_stack import ServedStack, new_id
from scaffolding_ext.serving.settings import Limits

_log = logging.getLogger(__name__)
_LONG = 1 << 15  # bytes; the prompt of a longer body is tokenised on a thread
_JSON = "application/json"


class Front:
    """Serves stacks under OpenAI's HTTP interface.

    Args:
        stacks: Each is a model; they are shut down with the application.
        limits: Limits of requests.
        keys: The keys that may send requests.
        tokens_per_minute: Token budget of each holder of a key; None sets no limit.
        clock: Gives the time in seconds, for budgets and durations.
        metrics: Makes the metrics; its argument counts the running choices.

    Raises:
        ConfigError: Two stacks have the same name.

    Attributes:
        app: The ASGI application.
        metrics: The metrics for Prometheus.
        jobs: Requests under way.
    """

    def __init__(
        self,
        stacks: Sequence[ServedStack],
        limits: Limits | None = None,
        keys: Keys | None = None,
        tokens_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        metrics: Callable[[Callable[[], dict[str, int]]], Metrics] = Metrics,
    ) -> None:
        self.stacks = {stack.name: stack for stack in stacks}
        if len(self.stacks) < len(stacks):
            raise ConfigError("gives two stacks the same name: give each its own by --stack NAME=FILE", "stack")
        self.limits = limits or Limits()
        self.jobs: set[Job] = set()
        self._keys = keys or Keys(None)
        self._budgets = TokenBudgets(tokens_per_minute, clock)
        self._clock = clock
        self.metrics = metrics(lambda: {name: stack.num_open for name, stack in self.stacks.items()})
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._endpoint("chat", ChatBody, "chatcmpl"), methods=["POST"]),
                Route("/v1/completions", self._endpoint("completions", CompletionBody, "cmpl"), methods=["POST"]),
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

    def _endpoint(self, name: str, kind: type[Body], prefix: str) -> _Endpoint:
        return _Endpoint(functools.partial(self._answer, name, kind), prefix)

    async def _answer(self, name: str, kind: type[Body], exchange: Exchange) -> None:
        """Answer a request; every failure is reported to the client and to the log."""
        started, model, holder = self._clock(), "", ANYBODY
        job: Job | None = None
        events: Events | None = None
        leaving: asyncio.Task[None] | None = None
        try:
            holder = self._keys.holder(exchange.authorization)
            content = await exchange.body(self.limits.max_body_bytes, self.limits.body_seconds)
            body = read_body(kind, content)
            stack = self._stack(body.model)
            model = stack.name
            self._budgets.check(holder)
            is_quick = len(content) < _LONG and not body.scaffolding
            asked = stack.asked(body) if is_quick else await asyncio.to_thread(stack.asked, body)
            asked = asked._replace(cache_salt=self._keys.cache_salt(holder), trace_parent=exchange.trace_parent)
            job = Job(stack, body, asked, lambda job: self._ended(job, holder), exchange.id)
            self.jobs.add(job)
            leaving = asyncio.create_task(self._cancel_when_gone(exchange, job))
            if body.stream:
                events = Events(
                    job, self.limits.keep_alive_seconds, lambda: self.metrics.first_text(model, self._clock() - started)
                )
                await events.ready()
                await exchange.stream(events)
            else:
                await asyncio.wait([job.settled])
                await exchange.answer(to_json(job.document(), inf_nan_mode="null", fallback=as_json))
        except ApiError as error:
            await self._refuse(exchange, error, model)
        except Exception as error:
            _log.exception("%s of %s failed", exchange.id, holder)
            await self._refuse(exchange, of_failure(error), model)
        finally:
            if leaving is not None:
                leaving.cancel()
            if events is not None:
                events.close()
            if job is not None:
                job.cancel()  # choices that have ended stay as they are
            self.metrics.answered(model, name, exchange.status, self._clock() - started)

    async def _cancel_when_gone(self, exchange: Exchange, job: Job) -> None:
        await exchange.gone()
        job.cancel()

    def _stack(self, name: str) -> ServedStack:
        stack = self.stacks.get(name)
        if stack is None:
            known = ", ".join(self.stacks)
            raise ApiError(
                404, f"the model {name[:80]!r} is not served; served are: {known}", "model_not_found", "model"
            )
        return stack

    def _ended(self, job: Job, holder: str) -> None:
        self.jobs.discard(job)
        num_tokens, model = job.num_tokens, job.stack.name
        self._budgets.charge(holder, num_tokens)
        codes = []
        for number, result in enumerate(job.results):
            error = result.exception() if result.finished else None
            failure = None if error is None else of_failure(error)
            if failure is not None:
                codes.append(failure.code)
            if failure is not None and failure.status != CLIENT_LEFT:
                text = "%s of %s: choice %d of %s failed with %s: %s"
                traced = error if failure.status >= 500 else None  # what a client asked wrongly is no fault of the code
                _log.warning(text, job.id, holder, number, model, failure.code, error, exc_info=traced)
            ended = "unfinished" if not result.finished else None if failure is None else failure.code
            self.metrics.ended(model, result.program, ended or result.exit_reason or "end")
        text = "%s of %s, %s: %d choices, %d tokens, %s"
        _log.info(text, job.id, holder, model, len(job.results), num_tokens, codes or "ok")
        if self.limits.shows_content:
            texts = [result.outputs[0].text if result.outputs else None for result in job.results]
            _log.info("%s asked %r, got %r", job.id, [text for text, _ in job.asked.prompts], texts)

    async def _refuse(self, exchange: Exchange, error: ApiError, model: str) -> None:
        content = self._refused(error, model, exchange.id)
        if not exchange.status:
            await exchange.answer(content, error.status, error.headers)

    def _refused(self, error: ApiError, model: str, id: str) -> bytes:
        self.metrics.refused(model, error.code)
        _log.info("%s refused with %d %s (model %s)", id, error.status, error.code, model or "-")
        return to_json(error.document())

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
            return Response(self._refused(error, "", request.url.path[:80]), error.status, error.headers, _JSON)

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
        path = request.url.path[:80]
        message = f"{request.method} {path}: {error.detail}; send GET /v1/models or POST /v1/chat/completions"
        content = self._refused(ApiError(error.status_code, message, code), "", path)
        return Response(content, error.status_code, media_type=_JSON)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            for job in self.jobs:
                job.cancel()
            await asyncio.gather(*(job.settled for job in list(self.jobs)), return_exceptions=True)
            failures = [error for stack in self.stacks.values() if (error := await _shut_down(stack)) is not None]
            if failures:
                raise failures[0]


class _Endpoint:
    """A generating endpoint as its own ASGI application: Starlette's requests and responses would cost more time."""

    def __init__(self, answer: Callable[[Exchange], Awaitable[None]], prefix: str) -> None:
        self._answer = answer
        self._prefix = prefix

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._answer(Exchange(scope, receive, send, new_id(self._prefix)))


async def _shut_down(stack: ServedStack) -> Exception | None:
    """Shut a stack down. An error is only logged, so that the other stacks are shut down, too."""
    try:
        await asyncio.to_thread(stack.llm.shutdown)
    except Exception as error:  # of any type: what a worker's shutdown raises
        _log.exception("the stack %s could not be shut down", stack.name)
        return error
    return None


def _json(document: dict[str, Any], status: int = 200) -> Response:
    return Response(to_json(document, inf_nan_mode="null", fallback=as_json), status, media_type=_JSON)
