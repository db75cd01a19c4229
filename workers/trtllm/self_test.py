"""Tries out what a release's sampler honours: penalties, and the seeds of one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Decode = Callable[[Mapping[str, Any]], Awaitable[list[int]]]
"""Decodes a short prompt with these fields of `SamplingParams`, and gives the token ids."""

PENALTIES = ("frequency_penalty", "presence_penalty")
_NUM_TOKENS = 6
_STRONG = 100.0  # larger than any difference of two logits


class SamplerWarning(UserWarning):
    """The installed release does not sample as it is told."""


async def honours_penalties(decode: Decode) -> bool:
    """Whether a high frequency penalty forbids written tokens, and a negative one makes the model repeat them."""
    greedy = {"max_tokens": _NUM_TOKENS, "top_k": 1, "ignore_eos": True}
    none_twice, all_alike = await asyncio.gather(
        decode({**greedy, "frequency_penalty": _STRONG}), decode({**greedy, "frequency_penalty": -_STRONG})
    )
    return len(set(none_twice)) == len(none_twice) and len(set(all_alike)) == 1


async def keeps_seeds_apart(decode: Decode) -> bool:
    """Whether a request draws the same tokens alone and beside a request with another seed."""
    drawn = {"max_tokens": _NUM_TOKENS, "temperature": 5.0, "top_p": 1.0, "ignore_eos": True}
    alone = await decode({**drawn, "seed": 2})
    _, beside = await asyncio.gather(decode({**drawn, "seed": 1}), decode({**drawn, "seed": 2}))
    return alone == beside
