"""HTTP client of the openai library, sized by the worker, that gives up on what is no answer."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.workers.openai.events import TooLongError

PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
_STAYS = {"x-should-retry": "false"}
_MOST_ANSWER = 1 << 28  # bytes


def http_client(max_connections: int, timeout_seconds: float, longest_wait: float) -> Any:
    """Make a client for the openai library.

    Args:
        max_connections: Concurrent requests; none waits for the pool.
        timeout_seconds: Seconds of silence after which an attempt fails.
        longest_wait: Seconds; a server that asks for a longer wait is not asked again.

    Raises:
        ConfigError: The environment names a proxy that cannot be used.
    """
    import openai

    base: Any = openai.DefaultAsyncHttpxClient
    http: Any = importlib.import_module(base.__mro__[1].__module__.partition(".")[0])  # httpx; httpx2 since openai 3

    class Client(base):  # type: ignore[misc]
        async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
            try:
                response = await super().send(request, stream=True, **options)
                if response.status_code != 200 or not _is_stream(response):
                    response.aiter_bytes = _bounded(response)
                if (problem := _wrong_kind(response, stream)) is not None:
                    await response.aclose()
                    return http.Response(500, headers=_STAYS, text=problem, request=request)
                if (status := await _error_status(response)) is not None:
                    response.status_code = status
                elif not stream:
                    await response.aread()
            except TooLongError as error:
                await response.aclose()
                return http.Response(500, headers=_STAYS, text=str(error), request=request)
            wait = seconds_to_wait(response)
            if wait is not None and wait > longest_wait:
                response.headers.update(_STAYS)
            return response

    limits = http.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    try:
        timeout = http.Timeout(timeout_seconds, pool=None)
        return Client(limits=limits, timeout=timeout, follow_redirects=False)
    except (ImportError, ValueError) as error:  # of a proxy of the environment
        raise ConfigError(
            f"the proxy in {' or '.join(named_proxies()) or 'the environment'} cannot be used: {error}. Unset it, or "
            "set NO_PROXY for the server",
            "base_url",
        ) from error


def _is_stream(response: Any) -> bool:
    return "event-stream" in response.headers.get("content-type", "")


def _bounded(response: Any) -> Callable[..., AsyncIterator[bytes]]:
    """The response's `aiter_bytes`, which gives up on an answer that is too long."""
    pieces = response.aiter_bytes

    async def bounded(*size: int) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for piece in pieces(*size):
            num_bytes += len(piece)
            if num_bytes > _MOST_ANSWER:
                raise TooLongError(f"the server sends an answer of more than {_MOST_ANSWER} bytes")
            yield piece

    return bounded


def _wrong_kind(response: Any, is_stream: bool) -> str | None:
    """Name an answer of status 200 that is no answer of such a server; None if it may be one."""
    kind = response.headers.get("content-type", "")
    if response.status_code != 200 or _is_stream(response):
        return None
    if "html" in kind:
        return f"it answers with a page of HTML (content type {kind}): does a proxy ask for a login, or is /v1 missing?"
    if is_stream and "json" in kind:
        return f"it answers a streamed request with one document (content type {kind}): it does not stream"
    return None


async def _error_status(response: Any) -> int | None:
    """Status that a gateway's answer should have had: some send 200 with nothing but an error in the body."""
    if response.status_code != 200 or "json" not in response.headers.get("content-type", ""):
        return None
    content = await response.aread()
    if b'"error"' not in content or b'"choices"' in content:  # long answers are parsed once, by the library
        return None
    try:
        body = json.loads(content)
    except ValueError:
        return None
    error = body.get("error") or (body if body.get("object") == "error" else None) if isinstance(body, dict) else None
    if not error:
        return None
    code = str(error.get("code")) if isinstance(error, dict) else ""
    return int(code) if re.fullmatch("[45][0-9][0-9]", code) else 500


def named_proxies() -> list[str]:
    """Environment variables that name a proxy."""
    return [name for name in PROXIES if os.environ.get(name) or os.environ.get(name.lower())]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, the outermost first."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def seconds_to_wait(response: Any) -> float | None:
    """Seconds that a server asks to wait, if it says so as a number."""
    said = None if response is None else response.headers.get("retry-after")
    try:
        return None if said is None else float(said)
    except ValueError:  # a date
        return None
