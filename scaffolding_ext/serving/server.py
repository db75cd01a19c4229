"""Runs a server on uvicorn: in the foreground until a signal, or on a thread beside its caller."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import socket
import threading
from collections.abc import Callable
from types import TracebackType

import uvicorn

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.connections import (
    BACKLOG,
    RepeatedCauses,
    limited_protocol,
    num_descriptors,
    raise_descriptors,
)

_log = logging.getLogger(__name__)
_WAIT_SECONDS = 60.0
_END_SECONDS = 5.0  # to deliver the errors of ended requests


def run_front(front: Front, host: str, port: int, listening: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT; running requests then have `drain_seconds` to end.

    Args:
        front: The front to serve.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        listening: Called with the port once clients can connect.

    Raises:
        ConfigError: The server cannot listen at this address and port.
    """
    raise_descriptors()
    if not front.keys and not _is_loopback(host):
        _log.warning("no key is needed, and %s can be reached from other machines: set --keys_env", host)
    listener = _listener(host, port)
    with listener:
        listener.listen()  # clients that connect now wait instead of being refused
        listening(listener.getsockname()[1])
        _Server(front, host, port).run(sockets=[listener])


class FrontThread:
    """A server on a separate thread, for tests and for programs that run beside it.

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
        self._server = _Server(front, host, port)
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), name="front", daemon=True)

    def __enter__(self) -> FrontThread:
        self._thread.start()
        if not self._server.has_started.wait(_WAIT_SECONDS):
            raise TimeoutError(f"the server did not start within {_WAIT_SECONDS} s: see its log")
        return self

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Event loop of the thread, once it runs."""
        return self._server.loop

    def stop(self) -> None:
        """Begin to shut down, as SIGTERM does; returns at once."""
        self._server.should_exit = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join(_WAIT_SECONDS)
        self._listener.close()


class _Server(uvicorn.Server):
    """Signals its start, and ends requests that outlast the drain time with an error."""

    def __init__(self, front: Front, host: str, port: int) -> None:
        self._causes = RepeatedCauses()
        config = uvicorn.Config(
            front.app,
            http=limited_protocol(front.limits, self._causes),
            host=host,
            port=port,
            backlog=min(BACKLOG, num_descriptors() // 4),
            access_log=False,  # the front has its own log; a path could hold private text
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=math.ceil(front.limits.drain_seconds + _END_SECONDS),
        )
        super().__init__(config)
        self._front = front
        if not front.keys and _is_loopback(host):
            front.hosts = {"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host}
        self.has_started = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._causes.handle)
        self.has_started.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = self.loop.call_later(self._front.limits.drain_seconds, self._front.end_jobs)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Name TCP explicitly: asyncio sets TCP_NODELAY only on sockets with this protocol.
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
