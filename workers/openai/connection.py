"""Connection to one server: the openai client on an event loop in a separate thread.

The client belongs to one loop, but a worker may be called from several loops in turn and is shut down outside of any
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from scaffolding_ext.errors import (
    EngineError,
    MissingDependencyError,
    NoOutputError,
    ServerBusyError,
    ServerDownError,
    ServerRefusalError,
    ServerTimeoutError,
    WorkerError,
)
from scaffolding_ext.request.program import record
from scaffolding_ext.workers.openai.events import events
from scaffolding_ext.workers.openai.fields import field
from scaffolding_ext.workers.openai.http_client import causes, http_client, named_proxies, seconds_to_wait
from scaffolding_ext.workers.shared.own_loop import OwnLoop, T

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_DOWN = (502, 503, 504)  # of a gateway before it
NO_KEY = "none"  # the client requires a key; servers without keys ignore it
_REFUSALS = range(400, 500)  # the request or the key is wrong; only 408, 409 and 429 are retried
_PATHS = {"completions": "/completions", "chat": "/chat/completions"}
_SPARE = 8  # connections for questions about the server itself
_SILENT_SECONDS = 2.0  # a start that takes longer is reported
# Headers with which the library describes itself to OpenAI; together they are as long as a short prompt.
_UNSENT = (
    *("X-Stainless-Lang", "X-Stainless-Package-Version", "X-Stainless-OS", "X-Stainless-Arch", "X-Stainless-Runtime"),
    *("X-Stainless-Runtime-Version", "X-Stainless-Async", "X-Stainless-Retry-Count", "X-Stainless-Read-Timeout"),
)
_SHUT_DOWN = "the OpenAIWorker has been shut down and takes no tasks: make a new worker"

R = TypeVar("R")
_log = logging.getLogger(__name__)


class Failures(NamedTuple):
    """Turns one server's failures into worker errors; no message may contain the key.

    Attributes:
        base_url: Address of the server.
        key: The key.
        key_name: Environment variable of the key.
        timeout_seconds: Seconds of silence after which an attempt fails.
        deadline_seconds: Maximum seconds per request.
        max_concurrency: Concurrent requests.
    """

    base_url: str
    key: str
    key_name: str
    timeout_seconds: float
    deadline_seconds: float
    max_concurrency: int

    def told(self, error: Exception) -> WorkerError:
        """Return the error to raise for an error of the library after its attempts."""
        import openai

        text = str(error)
        body = getattr(error, "body", None)
        text = self._without_key(f"{text} - {body}" if isinstance(body, str) and body not in text else text)
        if isinstance(error, openai.APIStatusError):
            status = error.status_code
            if status in (401, 403):
                return EngineError(
                    f"{self.base_url} refused the API key ({status}): set another key in the environment variable "
                    f"{self.key_name}"
                )
            if 300 <= status < 400:
                return EngineError(
                    f"{self.base_url} answered with a redirect ({status}), which is not followed: set base_url to the "
                    "address that the server itself has"
                )
            if status == 429:
                wait = seconds_to_wait(error.response)
                asks = "" if wait is None else f", and asks to wait {wait:g} s"
                return ServerBusyError(
                    f"{self.base_url} was too busy (429){asks}: lower max_concurrency (it is "
                    f"{self.max_concurrency}) or raise max_retries. It said: {text}",
                    wait,
                )
            if status in _REFUSALS and status not in (408, 409):
                is_bare = status == 404 and not self.base_url.rstrip("/").endswith("/v1")
                hint = f". Its address may end in /v1: {self.base_url.rstrip('/')}/v1" if is_bare else ""
                return ServerRefusalError(f"{self.base_url} refused the request: {text}{hint}")
            kind = ServerDownError if status in _DOWN else EngineError
            return kind(f"{self.base_url} failed. It said: {text}")
        if isinstance(error, openai.APITimeoutError):
            return ServerTimeoutError(
                f"{self.base_url} sent nothing for {self.timeout_seconds:g} s: raise "
                "timeout_seconds, or check if the server is busy"
            )
        if isinstance(error, openai.APIConnectionError):
            why = dict.fromkeys(self._without_key(str(each)) for each in causes(error) if str(each))
            proxies = named_proxies()
            through = f" The environment sets {', '.join(proxies)}." if proxies else ""
            return ServerDownError(f"cannot reach {self.base_url}: is the server running? ({'; '.join(why)}){through}")
        if isinstance(error, asyncio.TimeoutError):
            return ServerTimeoutError(
                f"{self.base_url} did not finish within deadline_seconds ({self.deadline_seconds:g} s): raise it, or "
                "lower max_tokens"
            )
        if isinstance(error, json.JSONDecodeError | openai.APIResponseValidationError):
            return EngineError(f"{self.base_url} sent an answer that is not JSON: {text}")
        return EngineError(
            f"{self.base_url} sent an answer that the worker cannot read: {type(error).__name__}: {text}"
        )

    def broken_off(self, why: str) -> EngineError:
        """Return the error to raise when a request fails after its answer has begun."""
        return ServerDownError(f"{self.base_url} ended its answer too early: {self._without_key(why)}")

    def _without_key(self, text: str) -> str:
        return text if self.key == NO_KEY else text.replace(self.key, "***")


class Connection(OwnLoop):
    """Sends requests to a server: a limited number concurrently, each within a deadline.

    The openai library retries a request that fails before its answer begins (429, 5xx, resets, time-outs), with
    exponential back-off and jitter, or as the server's `Retry-After` says.

    Args:
        base_url: Address that contains `/completions` and the other paths.
        api_key: Sent with each request; no error contains it.
        key_name: Environment variable of the key, for errors.
        max_retries: Maximum retries per request.
        timeout_seconds: Seconds of silence after which an attempt fails.
        deadline_seconds: Maximum seconds per request over all attempts.
        max_concurrency: Concurrent requests; more wait here.

    Attributes:
        num_decoded: Tokens of its answers, including open streams.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        key_name: str,
        *,
        max_retries: int,
        timeout_seconds: float,
        deadline_seconds: float,
        max_concurrency: int,
    ) -> None:
        self.num_decoded = 0
        try:
            from openai import AsyncOpenAI, Omit
        except ImportError as error:
            raise MissingDependencyError("openai", "openai") from error
        self.base_url = base_url
        self._failures = Failures(base_url, api_key, key_name, timeout_seconds, deadline_seconds, max_concurrency)
        self._deadline = deadline_seconds
        self._client: AsyncOpenAI = AsyncOpenAI(
            api_key=api_key,
            base_url=base_url,
            max_retries=max_retries,
            http_client=http_client(max_concurrency + _SPARE, timeout_seconds, deadline_seconds),
        )
        self._headers = {**dict.fromkeys(_UNSENT, Omit()), "X-Stainless-Raw-Response": "true"}
        self._slots = asyncio.Semaphore(max_concurrency)
        self._start_by: float | None = None
        super().__init__("openai-worker", _SHUT_DOWN)

    @contextlib.contextmanager
    def starting(self, seconds: float) -> Iterator[None]:
        """Bound the time of `run_blocking` calls in the block and report a slow server; an error closes the loop."""
        self._start_by, self._start_seconds = time.monotonic() + seconds, seconds
        told = threading.Timer(_SILENT_SECONDS, _log.warning, ("asking %s ...", self.base_url))
        told.daemon = True
        told.start()
        try:
            yield
        except BaseException:
            self.close()
            raise
        finally:
            told.cancel()
            self._start_by = None

    def run_blocking(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        return super().run_blocking(work if self._start_by is None else functools.partial(self._in_time, work), *args)

    async def _in_time(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        left = 0.0 if self._start_by is None else self._start_by - time.monotonic()
        try:
            return await asyncio.wait_for(work(*args), left)
        except asyncio.TimeoutError:
            raise EngineError(
                f"{self.base_url} did not answer within start_seconds ({self._start_seconds:g} s): check if the "
                "server is busy or stopped, or raise start_seconds"
            ) from None

    async def complete(self, path: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], R]) -> R:
        """Send a request and return the parsed answer. The trace shows its retries.

        Args:
            path: `"completions"` or `"chat"`.
            body: Fields of the request.
            read: Parses the answer's JSON object. Its errors count as the server's failure.

        Raises:
            EngineError: The server failed or cannot be reached.
            InvalidTaskError: The server refuses the request.
        """
        async with self._request():
            return await asyncio.wait_for(self._complete(path, body, read), self._deadline)

    async def _complete(self, path: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], R]) -> R:
        reply = json.loads((await self._create(path, body, stream=False)).content)
        if not field(reply, "choices"):
            raise EngineError(f"{self.base_url} answered without the field choices: is it an OpenAI-compatible server?")
        return read(reply)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Send a request and yield the pieces of its answer. Leaving the context closes the connection.

        Raises:
            EngineError: The server failed or cannot be reached.
            InvalidTaskError: The server refuses the request.
        """
        async with self._request(), _deadline(self._deadline):
            response = await self._create(path, body, stream=True)
            try:
                yield self._pieces(response)
            finally:
                await response.aclose()

    async def _pieces(self, response: Any) -> AsyncIterator[dict[str, Any]]:
        try:
            async for event in events(response.aiter_bytes()):
                piece = json.loads(event)
                if (error := field(piece, "error")) is not None:
                    raise self._failures.broken_off(str(field(error, "message") or error))
                yield piece
        except EngineError:
            raise
        except Exception as error:  # as in `_request`, but after an answer had begun
            raise self._failures.broken_off(f"{type(error).__name__}: {error}") from None

    async def models(self) -> list[Any]:
        """Entries of `/models`."""
        async with self._request():
            page = await asyncio.wait_for(self._client.models.list(), self._deadline)
            return list(page.data or ())

    async def _create(self, path: str, body: Mapping[str, Any], stream: bool) -> Any:
        """Send a request through the library, and return httpx's response; a streamed one is not read yet."""
        # Not through the library's methods of these paths, which inspect each field and token id.
        raw: Any = await self._client.post(
            _PATHS[path],
            cast_to=object,
            body={**body, "stream": True} if stream else body,
            options={"headers": self._headers},
            stream=stream,
        )
        if raw.retries_taken:
            record("retried", worker="OpenAIWorker", num_retries=raw.retries_taken)
        return raw.http_response

    @contextlib.asynccontextmanager
    async def _request(self) -> AsyncIterator[None]:
        """Hold a slot, and turn errors of the library into the worker's."""
        async with self._slots:
            try:
                yield
            except (WorkerError, NoOutputError, asyncio.CancelledError):
                raise
            except Exception as error:  # from the library, its transport, or a body that is not JSON
                raise self._failures.told(error) from None  # the cause would contain the request's key

    async def finish(self) -> None:
        await self._client.close()


@contextlib.asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[None]:
    """Backport of `asyncio.timeout` for Python 3.10."""
    task = asyncio.current_task()
    passed = False

    def cancel() -> None:
        nonlocal passed
        passed = True
        if task is not None:
            task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, cancel)
    try:
        yield
    except asyncio.CancelledError:
        if passed:
            raise asyncio.TimeoutError from None
        raise
    finally:
        timer.cancel()
