"""The text of a chain that is read piece by piece, put together so that nothing is lost at the borders."""

from __future__ import annotations

from scaffolding_ext.controllers.prompting import decode

_SPLIT = "\ufffd"  # what a decoder writes for a part of a character


class ChunkText:
    """Text that grows piece by piece.

    A worker decodes each chunk by itself. So it loses a character whose tokens lie in two chunks, and it does not see a
    stop string that lies in two chunks. Where the running request has the worker's tokenizer, token ids are decoded
    again in the context of those before, each a bounded number of times.

    Attributes:
        text: The text so far; an incomplete character is left out until it is whole.
    """

    def __init__(self) -> None:
        self.text = ""
        self._context: list[int] = []  # ids whose text is in `text`: the next ones are decoded behind them
        self._pending: list[int] = []  # ids behind them that end inside a character
        self._pending_text = ""  # the worker's text of those

    def add(self, text: str, token_ids: list[int] | None, stop: str | list[str] | None) -> bool:
        """Add a chunk.

        Args:
            text: As the worker decoded it.
            token_ids: Its ids, or None where the worker gives none.
            stop: The request's stop strings.

        Returns:
            Whether the text now holds a stop string; it and what follows are cut off.
        """
        searched = len(self.text)
        if token_ids is None or not is_text_of(token_ids, text):
            self.text += self._pending_text + text
            self._context, self._pending, self._pending_text = [], [], ""
        else:
            self._pending_text += text
            self.add_ids(token_ids)
        stops = [stop] if isinstance(stop, str) else stop or []
        found = [at for s in stops if s and (at := self.text.find(s, max(0, searched - len(s)))) >= 0]
        if found:
            self.text = self.text[: min(found)]
        return bool(found)

    def add_ids(self, token_ids: list[int]) -> None:
        """Add the text of token ids; the running request must have a tokenizer."""
        self._pending += token_ids
        known = decode(self._context) or ""
        together = decode(self._context + self._pending) or ""
        if not together.endswith(_SPLIT):
            self.text += together[len(known) :]
            self._context, self._pending, self._pending_text = self._pending, [], ""


def is_text_of(token_ids: list[int], text: str, whole: bool = True) -> bool:
    """Whether the running request's tokenizer gives a text for token ids, parts of characters left out.

    Args:
        token_ids: The ids.
        text: The text.
        whole: Off, the text may lack an end: a worker holds back what may become a stop string.
    """
    decoded = decode(token_ids)
    if decoded is None:
        return False
    ours, theirs = decoded.replace(_SPLIT, ""), text.replace(_SPLIT, "")
    return ours == theirs if whole else ours.startswith(theirs)


def without_end_token(token_ids: list[int]) -> list[int]:
    """The ids of an ended text, without the end token that some workers report: it has no text."""
    return token_ids[:-1] if decode(token_ids[-1:]) == "" else token_ids
