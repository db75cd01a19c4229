"""Stop strings in token ids, for engines and servers that match no text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.prompts.encoding import UNREADABLE

_MOST_WAITING = 8  # tokens that wait for the rest of a character, of at most four bytes


def special_ids(strings: Iterable[str], tokenizer: Any) -> frozenset[int]:
    """Ids of the strings that are one special token: text without special tokens never contains them."""
    wanted = frozenset(strings)
    if not wanted:
        return frozenset()
    added = tokenizer.get_added_tokens_decoder().items()
    return frozenset(token_id for token_id, token in added if token.special and token.content in wanted)


class IdStops:
    """Finds the token that ends a growing list of token ids: an end id, or the token that completes a stop string.

    Each token is decoded with the few tokens before it that its text may depend on, so the cost is linear.
    """

    def __init__(
        self, strings: StopStrings, decode: Callable[[list[int]], str], end_ids: Collection[int] = frozenset()
    ) -> None:
        self.strings = strings
        self._decode = decode
        self._end_ids = end_ids
        self._matcher = strings.matcher()
        self._context = self._read = 0  # `_read` ids are matched; decoding the next starts at `_context`

    def feed(self, ids: list[int], num_new: int) -> int | None:
        """Number of ids up to the token that ends them, or None; the last `num_new` ids are new."""
        for end in range(len(ids) - num_new + 1, len(ids) + 1):
            if ids[end - 1] in self._end_ids:
                return end
            if not self.strings:
                continue
            known, text = self._decode(ids[self._context : self._read]), self._decode(ids[self._context : end])
            is_whole = len(text) > len(known) and not text.endswith(UNREADABLE)
            if is_whole or end - self._read > _MOST_WAITING:
                self._context, self._read = self._read, end
                if self._matcher.feed(text[len(known) :]):
                    return end
        return None

    def text(self, ids: list[int], ended: bool) -> str:
        """Text of ids before a stop string; unless they have ended, without an end that may begin one."""
        text = self._decode(ids)
        return self.strings.cut(text) if ended else self.strings.certain(text)
