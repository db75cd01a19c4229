"""Where a chain of thought is looked at."""

from __future__ import annotations

import math
from collections.abc import Iterator

from scaffolding_ext import require


class ProbeSchedule:
    """The gaps between looks at a chain.

    Args:
        chunk_size: Tokens of the gap between the first look and the second.
        first_probe: Tokens before the first look; None takes `chunk_size`.
        growth: Each gap is so many times the one before; 1 keeps them equal.

    Raises:
        ConfigError: A number of tokens is below 1, or the growth is.
    """

    def __init__(self, chunk_size: int = 64, first_probe: int | None = None, growth: float = 1.0) -> None:
        self.chunk_size = require.whole("chunk_size", chunk_size)
        self.first_probe = chunk_size if first_probe is None else require.whole("first_probe", first_probe)
        self.growth = require.number("growth", growth, least=1)

    def gaps(self) -> Iterator[int]:
        """Tokens from each look to the next, the tokens before the first look first; without an end."""
        yield self.first_probe
        gap = float(self.chunk_size)
        while True:
            yield math.ceil(gap)
            gap *= self.growth
