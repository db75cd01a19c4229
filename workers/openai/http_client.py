"""HTTP client of the openai library: sized by the worker, and honest about what it sent."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import json
import os
import re
import ssl
from collections.abc import Iterator
from typing import Any

from scaffolding_ext.errors import ConfigError

PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
BAD_CERTIFICATE = 495  # as nginx answers; the library retries no answer with _STAYS
_STAYS = {"x-should-retry": "false"}
_num_sent: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("num_sent", default=None)


@contextlib.contextmanager
def counting_attempts() -> Iterator[list[int]]:
    """Count the requests that are sent inside, retries included, in the only item of the list."""
    counted = [0]
    token = _num_sent.set(counted)
    try:
        yield counted
    finally:
        _num_sent.reset(token)


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
        async def send(self, request: Any, **options: Any) -> Any:
            counted = _num_sent.get()
            if counted is not None:
                counted[0] += 1
            try:
                response = await super().send(request, **options)
            except http.ConnectError as error:
                told = next((each for each in causes(error) if isinstance(each, ssl.SSLCertVerificationError)), None)
                if told is None:
                    raise
                return http.Response(BAD_CERTIFICATE, headers=_STAYS, text=str(told), request=request)
            if (status := await _error_status(response)) is not None:
                response.status_code = status
            wait = seconds_to_wait(response)
            if wait is not None and wait > longest_wait:
                response.headers.update(_STAYS)
            return response

    limits = http.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    try:
        return Client(limits=limits, timeout=http.Timeout(timeout_seconds, pool=None))
    except (ImportError, ValueError) as error:  # of a proxy of the environment
        raise ConfigError(
            f"the proxy in {' or '.join(named_proxies()) or 'the environment'} cannot be used: {error}. Unset it, or "
            "set NO_PROXY for the server",
            "base_url",
        ) from error


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
    return int(code) if re.fullmatch("[45][0-9][0-9]", code) else 502


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
