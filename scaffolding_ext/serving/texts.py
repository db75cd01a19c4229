"""Splits a model's text into thinking and what is said, and finds the part that is certain while it grows."""

from __future__ import annotations

from typing import NamedTuple

from scaffolding_ext.protocol.stop_strings import StopStrings

_UNFINISHED = "\ufffd"  # ends decoded text whose last character is not whole


class Shown(NamedTuple):
    """What a client sees of a text.

    Attributes:
        reasoning: The thinking, without its marks.
        content: What is said.
        is_stopped: Whether a stop string ended it.
    """

    reasoning: str
    content: str
    is_stopped: bool


class Reading(NamedTuple):
    """How texts of one request are read.

    Attributes:
        think_close: The mark that ends thinking; None where the whole text is said.
        stops: Strings that end what is said.
        think_open: The mark that a model begins its thinking with, where the prompt has not.
    """

    think_close: str | None
    stops: StopStrings = StopStrings()
    think_open: str = "<think>"

    def whole(self, text: str) -> Shown:
        """A text that has ended; one whose thinking never ended is nothing but thinking."""
        if self.think_close is None:
            return self._cut("", text)
        thinking, _, said = text.partition(self.think_close)
        return self._cut(self._without_open(thinking), said.lstrip("\n"))

    def growing(self, text: str) -> Shown:
        """What is certain to be shown of a text that others will follow: `whole` of any longer one begins with it."""
        text = text.rstrip(_UNFINISHED)
        if self.think_close is None:
            said, thinking = text, ""
        elif self.think_close in text:
            thinking, _, said = text.partition(self.think_close)
            thinking, said = self._without_open(thinking), said.lstrip("\n")
        else:
            if self.think_open.startswith(text.lstrip()):
                return Shown("", "", False)
            return Shown(self._without_open(StopStrings((self.think_close,)).certain(text)), "", False)
        shown = self._cut(thinking, said)
        return shown if shown.is_stopped else shown._replace(content=self.stops.certain(said))

    def _cut(self, thinking: str, said: str) -> Shown:
        content = self.stops.cut(said)
        return Shown(thinking, content, len(content) < len(said))

    def _without_open(self, thinking: str) -> str:
        """Thinking without its opening mark, where the model writes that itself."""
        text = thinking.lstrip()
        return text.removeprefix(self.think_open).lstrip("\n") if text.startswith(self.think_open) else thinking
