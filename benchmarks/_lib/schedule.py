"""Computes the seconds of chains of a draft and a target from the lengths of their chunks and the models' latencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaffolding_ext.protocol.meta import TokenCounts


class Latency(NamedTuple):
    """Seconds of a model whose decoding is bound by memory, so that concurrent calls overlap.

    Attributes:
        pass_s: Seconds of a pass, whatever its tokens: the weights are read once.
        token_s: Seconds for each token that is read in parallel.
    """

    pass_s: float
    token_s: float

    def of(self, counts: TokenCounts) -> float:
        """Seconds of a call: a pass for each decoded token, one pass for a call that only scores, and the reading."""
        return self.pass_s * max(1, counts.decoded) + self.token_s * counts.prefilled


class ScheduledChunk(NamedTuple):
    """A drafted chunk and what became of it.

    Attributes:
        chain: Its chain.
        turn: Its turn.
        draft_tokens: Tokens drafted.
        target_tokens: Tokens that the target wrote in its place; 0 where it stands.
        seconds_waited: From when it was drafted and scored until its decision was acted on.
    """

    chain: int
    turn: int
    draft_tokens: int
    target_tokens: int
    seconds_waited: float


def scheduled_ends(chunks: Sequence[ScheduledChunk], draft: Latency, target: Latency, *, in_step: bool) -> list[float]:
    """The end of each chain if its models had these latencies, nothing else took time and all calls overlapped.

    Args:
        chunks: Of all chains of a question.
        draft: Of the draft.
        target: Of the target.
        in_step: Whether chains wait for each other before each decision.

    Returns:
        Seconds of each chain. An answer that a chain is asked for behind its last chunk is left out.
    """
    ends: dict[int, float] = {}
    decided = 0.0
    by_turn: dict[int, list[ScheduledChunk]] = {}
    for chunk in chunks:
        by_turn.setdefault(chunk.turn, []).append(chunk)
    for turn in sorted(by_turn):
        drafted = {
            chunk.chain: ends.get(chunk.chain, 0.0)
            + draft.of(TokenCounts(chunk.draft_tokens))
            + target.of(TokenCounts(0, chunk.draft_tokens))
            for chunk in by_turn[turn]
        }
        decided = max(drafted.values())
        for chunk in by_turn[turn]:
            written = target.of(TokenCounts(chunk.target_tokens)) if chunk.target_tokens else 0.0
            ends[chunk.chain] = (decided if in_step else drafted[chunk.chain]) + written
    return [ends[chain] for chain in sorted(ends)]
