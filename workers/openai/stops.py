"""Stop strings of answers that come as token ids alone: their server does not match them."""

from __future__ import annotations

from collections.abc import Callable

from scaffolding_ext.protocol.stop_strings import StopStrings

_UNFINISHED = "\ufffd"  # ends decoded text whose last character is not whole
_MOST_WAITING = 8  # tokens that wait for the rest of a character; a character has at most four bytes


class IdStops:
    """Finds the token that completes a stop string in one growing list of token ids.

    Each token is decoded together with the few tokens before it that its text may depend on. So the cost is linear in
    the number of tokens.

    Args:
        strings: The strings that end the answer.
        decode: The text of token ids.
    """

    def __init__(self, strings: StopStrings, decode: Callable[[list[int]], str]) -> None:
        self.strings = strings
        self._decode = decode
        self._matcher = strings.matcher()
        self._context = self._read = 0  # ids before `_read` were matched; those from `_context` on decode the next ones

    def feed(self, ids: list[int], num_new: int) -> int | None:
        """The number of ids up to the end of the first complete stop string; None while no string is complete.

        Args:
            ids: All ids so far.
            num_new: The number of ids at the end that are new since the last call.
        """
        for end in range(len(ids) - num_new + 1, len(ids) + 1):
            known, text = self._decode(ids[self._context : self._read]), self._decode(ids[self._context : end])
            is_whole = len(text) > len(known) and not text.endswith(_UNFINISHED)
            if is_whole or end - self._read > _MOST_WAITING:
                self._context, self._read = self._read, end
                if self._matcher.feed(text[len(known) :]):
                    return end
        return None
