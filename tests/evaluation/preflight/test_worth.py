"""The findings of a pre-flight on chains whose truth is known."""

from __future__ import annotations

import gzip
import json
from math import comb, exp
from pathlib import Path

import numpy as np
import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.preflight.arms import (
    DRAFT_ALONE,
    TARGET_ALONE,
    Arm,
    ArmChunk,
    ComparedChain,
    SecondsPerToken,
    read_runs,
)
from scaffolding_ext.evaluation.preflight.preflight_text import document_of, gates_of, text_of
from scaffolding_ext.evaluation.preflight.worth import coin_shares, find, one_calibration, signal_quality, skip_gate

PRICE = SecondsPerToken(draft=0.001, target=0.01, scored=0.0001, judged=0.0002)


def chain(
    question: int, is_right: bool, score: float | None = None, num_draft: int = 100, num_target: int = 0
) -> ComparedChain:
    chunks = () if score is None else (ArmChunk(0, score, num_draft, num_target, num_target > 0),)
    scored = 0 if score is None else num_draft
    return ComparedChain(question, "1" if is_right else "2", is_right, num_draft, num_target, scored, chunks=chunks)


def arm(name: str, rights: list[list[bool]], **fields: int) -> Arm:
    return Arm(name, [chain(q, right, **fields) for q, own in enumerate(rights) for right in own])


def drawn(name: str, chance: float, num_questions: int, num_chains: int, seed: int, **fields: int) -> Arm:
    rng = np.random.default_rng(seed)
    return arm(name, (rng.random((num_questions, num_chains)) < chance).tolist(), **fields)


def test_a_vote_of_some_chains_is_right_as_often_as_counted_by_hand() -> None:
    """Three of five chains are right, so a vote of three is right where two or three of them are drawn."""
    right = arm("a", [[True, True, True, False, False], [False] * 5]).right(3)
    expected = (comb(3, 2) * 2 + 1) / comb(5, 3)
    assert right == pytest.approx([expected, 0.0], abs=4 * (expected * (1 - expected) / 64) ** 0.5)


def test_the_cost_of_a_chain_is_that_of_all_roles() -> None:
    own = ComparedChain(0, "1", True, num_draft=100, num_target=10, num_scored=100, num_judged=50)
    assert PRICE.of(own) == pytest.approx(0.1 + 0.1 + 0.01 + 0.01)
    assert Arm("a", [own]).cost(3, PRICE) == pytest.approx(0.66)


def test_a_score_that_knows_chains_is_told_from_one_that_knows_questions() -> None:
    rng = np.random.default_rng(0)
    ease = rng.random(40)
    rights = rng.random((40, 8)) < ease[:, None]
    by_chain = Arm("a", [chain(q, r, 1.0 - r) for q, own in enumerate(rights.tolist()) for r in own])
    by_question = Arm("a", [chain(q, r, 1.0 - ease[q]) for q, own in enumerate(rights.tolist()) for r in own])
    assert signal_quality(by_chain, "score", -1.0).within == (1.0, 1.0, 1.0)
    found = signal_quality(by_question, "score", -1.0)
    assert found.within.value == 0.5
    assert found.across.low > 0.6


def test_coins_are_counted_by_the_questions_that_reached_a_turn_before() -> None:
    """Ten questions of two chunks: pools that grow have coins for the first 8 questions of both turns."""
    chunks = tuple(ArmChunk(turn, 1.0, 4, 0, False) for turn in (0, 1))
    chains = [ComparedChain(q, "1", True, 8, 0, 8, chunks=chunks) for q in range(10)]
    longer = chains[0]._replace(chunks=(*chunks, ArmChunk(2, 1.0, 4, 0, False)))
    assert coin_shares(chains) == {"calibrated": 0.0, "growing": 16 / 20, "first_turn": 1 / 20}
    shares = coin_shares([longer, *chains[1:]])
    assert shares["growing"] == 17 / 21
    # The one decision of turn 2 has no pool where its question is not calibrated on: half of the halves.
    assert shares["calibrated"] == pytest.approx(0.5 / 11, abs=4 * 0.5 / 11 / 200**0.5)


def test_one_calibration_scatters_more_where_scores_of_a_question_are_alike() -> None:
    rng = np.random.default_rng(1)
    own = [chain(q, True, float(score)) for q, score in enumerate(rng.normal(size=40)) for _ in range(8)]
    alone = [each._replace(chunks=(each.chunks[0]._replace(score=float(rng.normal())),)) for each in own]
    alike, independent = one_calibration(own, 0.4).rate, one_calibration(alone, 0.4).rate
    assert alike.value == pytest.approx(0.4, abs=0.03)
    assert independent.value == pytest.approx(0.4, abs=0.03)
    assert alike.high - alike.low > 2 * (independent.high - independent.low)


def test_a_cheap_second_model_whose_votes_are_better_pays_and_one_that_is_worse_does_not() -> None:
    target = drawn(TARGET_ALONE, 0.6, 80, 8, 0, num_draft=0, num_target=100)
    good = drawn("draft/target 0.4", 0.75, 80, 8, 1, num_draft=100, num_target=0)
    bad = drawn("draft/target 0.4", 0.2, 80, 8, 1, num_draft=100, num_target=0)
    assert gates_of(find([good, target], PRICE, [0.4]))["take-over pays"]
    assert not gates_of(find([bad, target], PRICE, [0.4]))["take-over pays"]
    cheap, dear = (find([good, target], PRICE._replace(draft=each), [0.4]).forecasts[0] for each in (0.001, 0.05))
    assert cheap.gain is not None
    assert dear.gain is not None
    assert dear.gain.value < cheap.gain.value  # at its cost the target votes with more chains


def test_a_router_pays_where_first_chunks_tell_the_questions_that_the_draft_cannot_answer() -> None:
    rng = np.random.default_rng(2)
    is_hard = np.arange(80) % 4 == 0
    drafts = [chain(q, not is_hard[q], float(is_hard[q]) + rng.random() / 2) for q in range(80) for _ in range(4)]
    target = arm(TARGET_ALONE, [[True] * 4] * 80, num_draft=0, num_target=100)
    found = find([Arm(DRAFT_ALONE, drafts), target], PRICE, [0.4])
    routed = next(each for each in found.forecasts if each.name.startswith("router, 25%"))
    assert routed.accuracy.value == 1.0
    assert routed.cost < target.cost(routed.num_chains, PRICE)


def test_the_skip_gate_loses_what_choosing_by_confidence_loses() -> None:
    def judged(confidences: tuple[float, float]) -> Arm:
        chains = [
            chain(q, right)._replace(verdict=float(right), confidence=sure)
            for q in range(20)
            for right, sure in zip((True, False), confidences, strict=True)
        ]
        return Arm("samples", chains)

    agreeing, misled = skip_gate(judged((0.9, 0.2))), skip_gate(judged((0.2, 0.9)))
    assert agreeing is not None
    assert misled is not None
    assert (agreeing.passes, agreeing.loss.value) == (1.0, 0.0)
    assert (misled.passes, misled.loss.value) == (1.0, 1.0)


def test_a_page_has_80_columns_and_its_data_is_json() -> None:
    target = drawn(TARGET_ALONE, 0.6, 12, 4, 0, num_draft=0, num_target=100)
    rng = np.random.default_rng(0)
    drafts = [
        chain(q, bool(rng.random() < 0.5), rng.random())._replace(verdict=0.5, confidence=0.5)
        for q in range(12)
        for _ in range(4)
    ]
    found = find([Arm(DRAFT_ALONE, drafts), target], PRICE, [0.2, 0.4])
    lines = text_of(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 60
    assert json.loads(json.dumps(document_of(found)))["gates"] == gates_of(found)


def rows() -> list[dict[str, object]]:
    turns = [
        {"draft": "x" * 40, "ppl": exp(0.5), "target": None},
        {"draft": "\\boxed{4}", "ppl": None, "target": "y" * 8},
    ]
    return [{"question": q, "answer": "4", "turns": turns} for q in ("a", "b")]


def test_recorded_runs_are_read_with_their_scores_and_tokens(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows())).encode()))
    (first,), _ = read_runs(path).by_question
    assert first.is_right
    assert (first.num_draft, first.num_target, first.num_scored) == (10 + 3, 2, 10)
    assert first.score == pytest.approx(0.5)
    assert [chunk.taken_over for chunk in first.chunks] == [False, True]


def test_a_row_that_is_no_chain_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(rows()[0]) + "\n" + json.dumps({"question": "a"}))
    with pytest.raises(ConfigError, match="row 2"):
        read_runs(path)
