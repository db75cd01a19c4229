"""Splits a model's text into thinking and answer, and finds the part that is already final while the text grows."""

from __future__ import annotations

from typing import NamedTuple

from scaffolding_ext.protocol.stop_strings import StopStrings

_UNFINISHED = "\ufffd"  # ends decoded text whose last character is not whole


class Shown(NamedTuple):
    """The parts of a text that a client sees.

    Attributes:
        reasoning: The thinking, without its marks.
        content: The answer.
        is_stopped: Whether a stop string ended it.
    """

    reasoning: str
    content: str
    is_stopped: bool


class Reading(NamedTuple):
    """How the texts of one request are split.

    Attributes:
        think_close: The mark that ends thinking; None if the whole text is the answer.
        stops: Strings that end the answer.
        think_open: The mark with which the model begins its thinking, if the prompt does not contain it.
    """

    think_close: str | None
    stops: StopStrings = StopStrings()
    think_open: str = "<think>"

    def whole(self, text: str) -> Shown:
        """The parts of a complete text; if its thinking never ended, the whole text is thinking."""
        if self.think_close is None:
            return self._cut("", text)
        thinking, _, said = text.partition(self.think_close)
        return self._cut(self._without_open(thinking), said.lstrip("\n"))

    def growing(self, text: str) -> Shown:
        """The final part of a growing text: for each longer text, `whole` begins with this part."""
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
        """Thinking without its opening mark, if the model writes this mark itself."""
        text = thinking.lstrip()
        return text.removeprefix(self.think_open).lstrip("\n") if text.startswith(self.think_open) else thinking
