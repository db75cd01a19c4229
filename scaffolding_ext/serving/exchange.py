"""One HTTP exchange, directly on ASGI: a request's body, its answer, and the moment at which the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from scaffolding_ext.serving.refusals import ApiError

Message = MutableMapping[str, Any]
_STREAM_HEADERS = (  # proxies must not hold events back
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class Exchange:
    """A request and its answer.

    Args:
        scope: The scope of ASGI.
        receive: The receive function of ASGI.
        send: The send function of ASGI.
        id: The request's id; the answer's header `x-request-id` and the log hold it.

    Attributes:
        id: As given.
        authorization: The header of that name, or None.
        trace_parent: The header `traceparent`, or None.
        status: The status of the answer once it has begun; 0 before.
    """

    def __init__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
        id: str,
    ) -> None:
        self.id = id
        self.status = 0
        self.authorization: str | None = None
        self.trace_parent: str | None = None
        self._length = 0
        self._receive = receive
        self._send = send
        for name, value in scope["headers"]:
            if name == b"authorization":
                self.authorization = value.decode("latin-1")
            elif name == b"content-length" and value.isdigit():
                self._length = int(value[:20])
            elif name == b"traceparent":
                self.trace_parent = value.decode("latin-1")

    async def body(self, most: int, seconds: float) -> bytes:
        """The request's body.

        Args:
            most: Most bytes of the body.
            seconds: Most seconds until the body has arrived.

        Raises:
            ApiError: The body is too long or does not arrive in time, or the client disconnects.
        """
        if self._length > most:
            raise _too_long(most)
        is_late, reader = False, asyncio.current_task()

        def expire() -> None:
            nonlocal is_late
            is_late = True
            assert reader is not None
            reader.cancel()

        timer = asyncio.get_running_loop().call_later(seconds, expire)
        try:
            return await self._read(most)
        except asyncio.CancelledError:
            if is_late:
                raise ApiError(
                    408, f"the body of the request did not arrive within {seconds:g} s: send it again", "body_timeout"
                ) from None
            raise
        finally:
            timer.cancel()

    async def _read(self, most: int) -> bytes:
        content: bytes = b""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ApiError(499, "the client closed the connection", "cancelled")
            content += message.get("body", b"")
            if len(content) > most:
                raise _too_long(most)
            if not message.get("more_body", False):
                return content

    async def gone(self) -> None:
        """Wait until the client has disconnected; call it only after the body is read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer of JSON."""
        own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        own += [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        await self._begin(status, own)
        await self._send({"type": "http.response.body", "body": content})

    async def stream(self, events: AsyncIterable[bytes]) -> None:
        """Send events as they come."""
        await self._begin(200, _STREAM_HEADERS)
        async for event in events:
            await self._send({"type": "http.response.body", "body": event, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def _begin(self, status: int, headers: Any) -> None:
        self.status = status
        headers = [*headers, (b"x-request-id", self.id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _too_long(most: int) -> ApiError:
    return ApiError(413, f"the body of the request is longer than {most} bytes: shorten it", "body_too_large")
