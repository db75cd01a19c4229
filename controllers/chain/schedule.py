"""Where a chain of thought is looked at."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError

TURN_WORDS = ("Wait", "Hmm", "Alternatively")


class ProbeSchedule:
    """Looks at a chain at fixed gaps, or at gaps that grow geometrically.

    Args:
        chunk_size: Tokens of the gap between the first look and the second.
        first_probe: Tokens before the first look, which 0 has before the chain begins; None takes `chunk_size`.
        growth: Each gap is so many times the one before; 1 keeps them equal.

    Raises:
        ConfigError: `chunk_size` or the growth is below 1, or `first_probe` below 0.
    """

    def __init__(self, chunk_size: int = 64, first_probe: int | None = None, growth: float = 1.0) -> None:
        self.chunk_size = require.whole("chunk_size", chunk_size)
        self.first_probe = chunk_size if first_probe is None else require.whole("first_probe", first_probe, least=0)
        self.growth = require.number("growth", growth, least=1)

    def gaps(self) -> Iterator[int]:
        """Tokens from each look to the next, the tokens before the first look first; without an end."""
        yield self.first_probe
        gap = float(self.chunk_size)
        while True:
            yield math.ceil(gap)
            gap *= self.growth

    def is_due(self, text: str) -> bool:
        """Whether the chain is looked at here; else it is read on.

        Args:
            text: What the chain wrote since its last look.
        """
        return True


class ThoughtChanges(ProbeSchedule):
    """Looks at a chain where it changes its thought: at the first multiple of `step` tokens behind such a word.

    Reference: Yang et al., "Dynamic Early Exit in Reasoning Models" (DEER), arXiv 2504.15895: thoughts end at "Wait".
    Deviation: the chain is asked behind the word, not in its place, at a position that its tokens alone fix.

    Args:
        step: Tokens between the positions where the chain is read: a change of thought is seen at the next.
        words: Words that begin a new thought; their case counts.

    Raises:
        ConfigError: `step` is below 1, or there are no words.
    """

    def __init__(self, step: int = 16, words: Sequence[str] = TURN_WORDS) -> None:
        super().__init__(require.whole("step", step))
        if isinstance(words, str) or not words or not all(isinstance(word, str) and word for word in words):
            raise ConfigError(f"is {words!r}; give a list of words, such as {list(TURN_WORDS)}", "words")
        self.step = step
        self.words = tuple(words)
        self._turn = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})(?=\W)")

    def is_due(self, text: str) -> bool:
        return self._turn.search(text) is not None
