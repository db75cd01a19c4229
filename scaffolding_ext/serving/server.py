"""Runs a front on uvicorn: in the foreground until a signal ends it, or on a thread beside its caller."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import uvicorn

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _HttpProtocol
except ImportError:  # the slower parser, which comes with uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol as _HttpProtocol  # type: ignore[assignment]

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.serving.app import Front

_WAIT_SECONDS = 60.0


def _config(front: Front, host: str, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        front.app,
        http=_protocol(front.limits.head_seconds),
        host=host,
        port=port,
        access_log=False,  # the front has its own log; a path could hold private text
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=math.ceil(front.limits.drain_seconds),
    )


def _protocol(head_seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol; it also closes a connection if the headers of the next request do not arrive in time.

    uvicorn itself closes only connections that have received nothing since their last answer.
    """

    class Protocol(_HttpProtocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._timer is not None:
                self._timer.cancel()

        def _watch(self) -> None:
            in_request = self.cycle is not None and not self.cycle.response_complete
            if in_request and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            elif not in_request and self._timer is None:
                self._timer = self.loop.call_later(head_seconds, self.transport.close)

    return Protocol


def run_front(front: Front, host: str, port: int, listening: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT; running requests then have `drain_seconds` to end.

    Args:
        front: The front to serve.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        listening: Called with the port, once clients can connect.

    Raises:
        ConfigError: The server cannot listen at this address and port.
    """
    listener = _listener(host, port)
    with listener:
        listener.listen()  # a client that connects now waits and is not refused
        listening(listener.getsockname()[1])
        uvicorn.Server(_config(front, host, port)).run(sockets=[listener])


class FrontThread:
    """A front on its own thread, for tests and for programs that continue beside it.

    Args:
        front: The front to serve; it is shut down at the end of the `with` block.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.

    Attributes:
        url: Its address.
    """

    def __init__(self, front: Front, host: str = "127.0.0.1", port: int = 0) -> None:
        self._listener = _listener(host, port)
        self.url = f"http://{host}:{self._listener.getsockname()[1]}"
        self._server = _Server(_config(front, host, port))
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), name="front", daemon=True)

    def __enter__(self) -> FrontThread:
        self._thread.start()
        if not self._server.has_started.wait(_WAIT_SECONDS):
            raise TimeoutError(f"the server did not start within {_WAIT_SECONDS} s: see its log")
        return self

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of its thread, once the loop runs."""
        return self._server.loop

    def stop(self) -> None:
        """Begin to end, as SIGTERM does; returns at once."""
        self._server.should_exit = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join(_WAIT_SECONDS)
        self._listener.close()


class _Server(uvicorn.Server):
    """Says when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.has_started.set()


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP is named because asyncio sends at once (TCP_NODELAY) only on sockets with the protocol TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            f"is {port}, on which the server cannot listen ({host}: {error}): choose another port or host", "port"
        ) from error
    return listener
