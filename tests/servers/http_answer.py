"""The answers of the test double of an OpenAI-compatible server, as HTTP/1.1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any


class HttpAnswer:
    """Writes one answer. Its methods return whether the connection can serve another request.

    Args:
        writer: The connection's.
        count: Called with the number of bytes of each write.
    """

    def __init__(self, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
        self._count = count
        self._writer = writer
        self._begun = False

    async def json(self, document: dict[str, Any], status: int = 200) -> bool:
        """A whole answer."""
        return await self.raw(json.dumps(document).encode(), "application/json", status)

    async def refuse(self, status: int, message: str) -> bool:
        """An error, as OpenAI's interface tells it."""
        return await self.json({"error": {"message": message, "type": "error", "code": status}}, status)

    async def raw(self, content: bytes, kind: str, status: int = 200) -> bool:
        """A whole answer with any body. It tells clients to try again at once."""
        head = f"HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\nretry-after-ms: 1\r\ncontent-length: {len(content)}\r\n"
        await self._write(head.encode() + b"\r\n" + content)
        return True

    async def event(self, document: dict[str, Any]) -> None:
        """One piece of a stream."""
        await self._chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    async def end_events(self) -> bool:
        """The end of a stream."""
        await self._chunk(b"data: [DONE]\n\n")
        await self._write(b"0\r\n\r\n")
        return True

    def reset(self) -> bool:
        """Break the connection without a farewell."""
        self._writer.transport.abort()
        return False

    async def _chunk(self, content: bytes) -> None:
        if not self._begun:
            self._begun = True
            await self._write(
                b"HTTP/1.1 200 -\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
        await self._write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    async def _write(self, content: bytes) -> None:
        self._count(len(content))
        self._writer.write(content)
        await self._writer.drain()
