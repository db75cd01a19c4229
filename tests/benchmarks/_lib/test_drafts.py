"""Chains of drafted chunks are read as the authors of A1 released them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks._lib.drafts import DraftedChunk, read_drafts
from benchmarks.studies.conformal_replay import scored_chunks


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two chains on one question: the target appends to the first chunk of one, and never scores the other."""
    helped = [
        {"draft": "a" * 1000, "ppl": math.e, "target": "b" * 1000},
        {"draft": "So \\boxed{3}" + " " * 488, "ppl": math.e**2, "target": None},
    ]
    alone = [{"draft": "So \\boxed{4}", "ppl": None, "target": None}]
    rows = [{"question": "1 + 2", "answer": "3", "turns": turns} for turns in (helped, alone)]
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_chunks_have_scores_and_tokens_and_chains_are_graded(runs: Path) -> None:
    (question,) = read_drafts(runs)
    assert question.right == [True, False]
    first, second = question.chains
    assert first == [DraftedChunk(1.0, 500, 500), DraftedChunk(2.0, 250, 0)]  # the last by its characters
    assert second == [DraftedChunk(None, 3, 0)]  # four characters a token


def test_only_scored_chunks_are_decided_on(runs: Path) -> None:
    chunks = scored_chunks(read_drafts(runs))
    assert (chunks.turn.tolist(), chunks.score.tolist(), chunks.right.tolist()) == ([0, 1], [1.0, 2.0], [1.0, 1.0])
