"""Reader of server-sent events, which cost it less than the openai library's objects: one piece of text each."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator

from scaffolding_ext.workers.openai.fields import UnreadableAnswerError

_MOST_EVENT = 1 << 24  # bytes
_DONE = b"[DONE]"


class TooLongError(UnreadableAnswerError):
    """A whole answer, or one event of a stream, that has no end in sight."""


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the data of each event up to `[DONE]`; comments, names of events and an unfinished event are dropped.

    Raises:
        TooLongError: An event has more than 16 MiB.
        UnicodeDecodeError: It is not UTF-8.
    """
    begun: list[bytes] = []  # of an unfinished line
    data: list[bytes] = []
    num_bytes, is_first = 0, True
    async for chunk in chunks:
        if is_first:
            chunk, is_first = chunk.removeprefix(codecs.BOM_UTF8), False
        num_bytes += len(chunk)
        if num_bytes > _MOST_EVENT:
            raise TooLongError(f"the server sends an event of more than {_MOST_EVENT} bytes")
        begun.append(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            continue
        lines = b"".join(begun).splitlines(keepends=True)
        begun = [] if lines[-1].endswith(b"\n") else [lines.pop()]  # a carriage return may be half of a line's end
        for line in lines:
            line = line.rstrip(b"\r\n")
            if line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line and data:
                event, data = b"\n".join(data), []
                if event.startswith(_DONE):
                    return
                yield event.decode()
        if not data:
            num_bytes = sum(map(len, begun))
