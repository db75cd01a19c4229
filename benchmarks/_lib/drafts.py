"""Recorded chains that a draft wrote in chunks, with the target's scores and what it appended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.answers import extract
from scaffolding_ext.evaluation.logs.graded import recording_of
from scaffolding_ext.evaluation.logs.samples import LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.run.jsonl import read_rows

RUNS = "r1_distill_8b_math500_draft_target.jsonl.gz"  # chains that the target helped
ALONE = "r1_distill_8b_math500_draft_only.jsonl.gz"  # the same questions without the target
CHUNK_TOKENS = 500  # of a chunk of the released chains, unless it is the last
CHARACTERS = 4  # of a token, in a chain of one chunk


class DraftedChunk(NamedTuple):
    """A chunk that a draft wrote, and the target's reaction.

    Attributes:
        score: Mean negative log-likelihood under the target; None if it was not scored.
        num_draft_tokens: Its tokens.
        num_target_tokens: Tokens that the target wrote after it; 0 if it was accepted.
    """

    score: float | None
    num_draft_tokens: int
    num_target_tokens: int


class DraftedQuestion(NamedTuple):
    """The chains on a question.

    Attributes:
        chains: Chunks of each chain.
        right: Whether each chain's answer is right.
    """

    chains: list[list[DraftedChunk]]
    right: list[bool]


def read_drafts(path: Path) -> list[DraftedQuestion]:
    """The questions of a file with a row a chain: `question`, `answer`, and `turns` of `draft`, `ppl` and `target`."""
    logged: dict[str, LoggedQuestion] = {}
    chains: dict[str, list[list[DraftedChunk]]] = {}
    for row in (each.value for each in read_rows(path)):
        name, turns = str(row["question"]), row["turns"]
        chunks = chunks_of(turns)
        chains.setdefault(name, []).append(chunks)
        text = "".join((turn["draft"] or "") + (turn["target"] or "") for turn in turns)
        tokens = sum(chunk.num_draft_tokens + chunk.num_target_tokens for chunk in chunks)
        question = logged.setdefault(name, LoggedQuestion(name, str(row["answer"]), [], path.name))
        question.samples.append(LoggedSample(extract(text), None, tokens))
    graded = recording_of(list(logged.values()), [path.name], path.name).questions
    return [DraftedQuestion(chains[each.id], each.correct.tolist()) for each in graded]


def chunks_of(turns: Sequence[Mapping[str, Any]]) -> list[DraftedChunk]:
    """The chunks of a chain. A piece that is followed by another counts 500 tokens, the last one by its characters."""
    pieces = [len(text or "") for turn in turns for text in (turn["draft"], turn["target"])]
    last = max((place for place, length in enumerate(pieces) if length), default=0)
    num_before = sum(bool(length) for length in pieces[:last])
    rate = sum(pieces[:last]) / (CHUNK_TOKENS * num_before) if num_before else CHARACTERS

    def tokens(place: int) -> int:
        if not pieces[place]:
            return 0
        return CHUNK_TOKENS if place < last else min(CHUNK_TOKENS, math.ceil(pieces[place] / rate))

    return [
        DraftedChunk(None if turn["ppl"] is None else math.log(turn["ppl"]), tokens(2 * at), tokens(2 * at + 1))
        for at, turn in enumerate(turns)
    ]
