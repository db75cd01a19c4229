"""Draft/target systems on questions, and what each did there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks._lib.lab import AT_ONCE, Lab
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.draft_target.calibrate_draft_target import CalibrateDraftTargetController, turns_in
from scaffolding_ext.controllers.draft_target.calibration_file import (
    ConformalCalibration,
    DraftTargetSetting,
    LevelScores,
    TurnScores,
)
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.conformal_rule import ConformalRule, Coverage
from scaffolding_ext.controllers.draft_target.take_over import TakeOverRule
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.scoring import score
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.request.results import ScaffoldingResult

CALIBRATION_SEED = 1_000_000  # added to the seed of the answers
GREEDY_AT_ONCE = 64  # chains


class Setting(NamedTuple):
    """What all systems of a study share.

    Attributes:
        num_chains: Chains a question.
        chunk_tokens: Tokens of a chunk, of draft and target alike.
        max_tokens: Tokens of a chain.
        max_turns: Chunks of a chain.
        on_reject: What a rejection leads to.
    """

    num_chains: int
    chunk_tokens: int
    max_tokens: int
    max_turns: int
    on_reject: Any


class Calibrated(NamedTuple):
    """Calibration chains.

    Attributes:
        turns: Scores of each turn.
        target_tokens: Tokens that the target decoded for them, a question.
    """

    turns: list[list[float]]
    target_tokens: float


class Answered(NamedTuple):
    """What a system did on one question.

    Attributes:
        vote: Whether the vote was right.
        right: Whether each chain's answer was.
        classes: Class of each chain's answer; -1 without one.
        target_tokens: Tokens that the target decoded.
        decoded: Tokens that both models decoded, rejected chunks and answers that were asked for included.
        computed: Positions that both models computed: those decoded, and those read or scored but not reused.
        chunks: (chain, turn, score or None, taken over, p-value or None) of each chunk.
    """

    vote: float
    right: list[float]
    classes: list[int]
    target_tokens: int
    decoded: int
    computed: int
    chunks: list[tuple[int, int, float | None, bool, float | None]]

    @property
    def best(self) -> float:
        """Whether any chain was right."""
        return max(self.right)

    @property
    def chains(self) -> float:
        """Share of the chains that were right."""
        return float(np.mean(self.right))

    def vote_of(self, chains: Sequence[int]) -> float:
        """Whether the vote of these chains alone is right."""
        classes = [self.classes[chain] for chain in chains]
        winner = vote(classes)
        return self.right[chains[classes.index(winner)]] if winner >= 0 else 0.0


class GreedyChain(NamedTuple):
    """What one greedy chain did on one question; attributes as those of `Answered`."""

    vote: float
    target_tokens: int
    decoded: int


def controller(
    setting: Setting,
    alpha: float = 0.0,
    turns: Sequence[Sequence[float]] = (),
    rule: TakeOverRule | None = None,
    coverage: Coverage = "marginal",
) -> ConformalDraftTargetController:
    """The controller with pools of some turns, or with another rule; at turns without a pool a coin decides."""
    scores = [TurnScores(scores=list(turn), rate=alpha, low=None, high=None) for turn in turns]
    calibrated = DraftTargetSetting(
        draft_model=None,
        target_model=None,
        draft_tokens=setting.chunk_tokens,
        target_tokens=setting.chunk_tokens,
        on_reject=setting.on_reject,
        score="mean_nll",
    )
    calibration = ConformalCalibration(
        source="held_out",
        setting=calibrated,
        num_chains=setting.num_chains,
        seed=0,
        questions=[],
        levels=[LevelScores(alpha=alpha, turns=scores)],
    )
    return ConformalDraftTargetController(
        draft_tokens=setting.chunk_tokens,
        target_tokens=setting.chunk_tokens,
        num_chains=setting.num_chains,
        max_turns=setting.max_turns,
        max_tokens=setting.max_tokens,
        on_reject=setting.on_reject,
        rule=rule or ConformalRule(alpha, coverage, calibration),
    )


def answered(
    lab: Lab,
    name: str,
    made: Controller,
    samples: Sequence[Example],
    workers: Mapping[str, Worker] | None = None,
    at_once: int = AT_ONCE,
) -> list[Answered]:
    """What a system did on the questions; from the lab's store where it was run before."""

    def run() -> list[Answered]:
        results = lab.answers(made, [sample.prompt for sample in samples], workers, at_once=at_once)
        return [_answered(result, sample.target) for result, sample in zip(results, samples, strict=True)]

    return [Answered(*row) for row in lab.stored(name, run)]


def greedy_chains(
    lab: Lab, name: str, tag: str, params: Mapping[str, Any], samples: Sequence[Example]
) -> list[GreedyChain]:
    """One chain of one of the engines a question, without any vote."""

    def run() -> list[GreedyChain]:
        made = NativeGenerationController(sampling_params=dict(params))
        workers = {"generation": lab.workers[tag]}
        results = lab.answers(made, [sample.prompt for sample in samples], workers, at_once=GREEDY_AT_ONCE)
        return [
            GreedyChain(
                float(score(result.answer, sample.target).correct),
                result.program.ledger.total.decoded if tag == "target" else 0,
                result.program.ledger.total.decoded,
            )
            for result, sample in zip(results, samples, strict=True)
        ]

    return [GreedyChain(*row) for row in lab.stored(name, run)]


def calibrated(
    lab: Lab,
    name: str,
    made: ConformalDraftTargetController,
    samples: Sequence[Example],
    num_turns: int | None = None,
) -> Calibrated:
    """Calibration chains on the questions, whose seeds are not those of the answers."""

    def run() -> Calibrated:
        calibrating = CalibrateDraftTargetController(made, [sample.prompt for sample in samples], num_turns)
        (result,) = lab.answers(calibrating, [samples[0].prompt], seed=lab.seed + CALIBRATION_SEED, at_once=1)
        trace = result.program.trace
        num_tokens = sum(event.get("num_target_tokens", 0) for event in trace)
        return Calibrated([turn.scores for turn in turns_in(trace)], num_tokens / len(samples))

    return Calibrated(*lab.stored(name, run))


def _answered(result: ScaffoldingResult, truth: str) -> Answered:
    trace = result.program.trace
    ends = sorted((event for event in trace if event["event"] == "end"), key=lambda event: event["chain"])
    (voted,) = (event for event in trace if event["event"] == "vote")
    chunks = [event for event in trace if event["event"] in ("accept", "take_over")]
    total = result.program.ledger.total
    return Answered(
        vote=float(score(result.answer, truth).correct),
        right=[float(score(event["answer"], truth).correct) for event in ends],
        classes=list(voted["classes"]),
        target_tokens=sum(event["num_target_tokens"] + event.get("num_rule_tokens", 0) for event in chunks),
        decoded=total.decoded,
        computed=total.decoded + total.prefilled,
        chunks=[(e["chain"], e["turn"], e["score"], e["event"] == "take_over", e.get("p_value")) for e in chunks],
    )


def pooled_rates(
    answers: Sequence[Answered], alpha: float, num_splits: int, num_calibration: int, rng: np.random.Generator
) -> dict[str, dict[int | None, list[float]]]:
    """Take-over rates of one run's chunks, ranked anew among chains drawn to be the calibration.

    A split draws half of the questions. Online, some chains of each of them are the pool and the others are decided;
    held out, the same chains are decided with chains of the other half as the pool. Chains stay whole.

    Returns:
        By kind and turn (None is all), the rate of each split.
    """
    rates: dict[str, dict[int | None, list[float]]] = {"online": {}, "held out": {}}
    by_turn: dict[int, list[tuple[int, int, float]]] = {}
    for question, answered in enumerate(answers):
        for chain, turn, value, _, _ in answered.chunks:
            if value is not None:
                by_turn.setdefault(turn, []).append((question, chain, value))
    num_chains = 1 + max(chain for rows in by_turn.values() for _, chain, _ in rows)
    for _ in range(num_splits):
        here = set(rng.permutation(len(answers))[: len(answers) // 2].tolist())
        pool_of = [set(rng.permutation(num_chains)[:num_calibration].tolist()) for _ in answers]
        for kind in rates:
            fired: dict[int, list[bool]] = {}
            for turn, rows in by_turn.items():
                pool = np.sort([v for q, c, v in rows if c in pool_of[q] and (q in here) == (kind == "online")])
                new = np.array([v for q, c, v in rows if q in here and c not in pool_of[q]])
                low, high = np.searchsorted(pool, new, "left"), np.searchsorted(pool, new, "right")
                ranks = len(pool) - high + rng.random(len(new)) * (high - low + 1)
                fired[turn] = (ranks / (len(pool) + 1) <= alpha).tolist()
            for turn, hits in fired.items():
                if hits:
                    rates[kind].setdefault(turn, []).append(float(np.mean(hits)))
            everything = [hit for hits in fired.values() for hit in hits]
            rates[kind].setdefault(None, []).append(float(np.mean(everything)))
    return rates
