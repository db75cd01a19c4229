"""Connections of the server: how many may be open, how long a request's head may take, and the log about them."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from typing import Any

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _HttpProtocol

    _HAS_NO_LIMIT = True
except ImportError:  # the slower parser, which comes with uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol as _HttpProtocol  # type: ignore[assignment]

    _HAS_NO_LIMIT = False

from scaffolding_ext.serving.settings import Limits

_log = logging.getLogger(__name__)
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_MOST_DESCRIPTORS = 1 << 16
BACKLOG = 2048  # connections that the kernel holds; so many are accepted at a time
_SHARE = 0.75  # of the descriptors, for clients; the rest is for engines, upstream connections and files


class RepeatedCauses:
    """Logs a cause when it comes for the first time, and then only at 10, 100, 1,000, ... times."""

    def __init__(self) -> None:
        self._num: Counter[str] = Counter()

    def warn(self, cause: str, last: str = "") -> None:
        """Log the cause if its turn has come.

        Args:
            cause: One of a few texts.
            last: Details of this time.
        """
        self._num[cause] += 1
        if str(self._num[cause]).strip("0") == "1":
            _log.warning("%s (%d times so far%s)", cause, self._num[cause], last and f"; the last: {last}")

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Exception handler of an event loop, which otherwise logs each failed `accept` with its traceback."""
        error = context.get("exception")
        if isinstance(error, OSError):
            self.warn(f"{context['message']}: {error.strerror}")
        else:
            loop.default_exception_handler(context)


def raise_descriptors() -> None:
    """Raise the soft limit of open descriptors to the hard one, at most to 65,536."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def num_descriptors() -> int:
    """Descriptors that this process may open; a large number without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def limited_protocol(limits: Limits, causes: RepeatedCauses) -> type[asyncio.Protocol]:
    """uvicorn's protocol with limits on connections, and on the time and size of a request's head.

    uvicorn closes only connections that have received nothing since their last answer. httptools keeps heads of any
    length; h11 has its own limit. Bytes after the head that are not body (trailers of a chunked body) count as well.
    """
    most = min(limits.max_connections, int(_SHARE * num_descriptors()))
    num_by_address: Counter[str] = Counter()

    class Protocol(_HttpProtocol):
        _address: str | None = None  # of an admitted connection
        _timer: asyncio.TimerHandle | None = None
        _num_bytes = 0  # bytes outside bodies

        def connection_made(self, transport: Any) -> None:
            address = (transport.get_extra_info("peername") or ("",))[0]
            if len(self.connections) >= most:
                causes.warn(f"{most} connections are open: further ones are closed")
                transport.abort()
            elif num_by_address[address] >= most // 2:
                causes.warn(f"{most // 2} connections of an address are open: its further ones are closed", address)
                transport.abort()
            else:
                self._address = address
                num_by_address[address] += 1
                super().connection_made(transport)
                self._watch()

        def data_received(self, data: bytes) -> None:
            self._num_bytes += len(data)
            super().data_received(data)
            if _HAS_NO_LIMIT and self._num_bytes > limits.max_head_bytes:
                if not self._in_request:
                    self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()
            self._watch()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._num_bytes = 0

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self._num_bytes = 0

        def on_body(self, body: bytes) -> None:
            self._num_bytes -= len(body)
            super().on_body(body)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._address is None:
                return
            super().connection_lost(exc)
            num_by_address[self._address] -= 1
            if not num_by_address[self._address]:
                del num_by_address[self._address]
            if self._timer is not None:
                self._timer.cancel()

        @property
        def _in_request(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _watch(self) -> None:
            if self._in_request and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            elif not self._in_request and self._timer is None:
                self._timer = self.loop.call_later(limits.head_seconds, self.transport.close)

    return Protocol
