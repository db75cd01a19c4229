"""Conformal rule whose pools grow question by question while a batch runs, which saves a calibration."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.draft_target.chain import Decision, DraftTargetChain
from scaffolding_ext.controllers.draft_target.scores import Pool, ScorePool
from scaffolding_ext.controllers.draft_target.take_over import SHARES, TakeOverRule
from scaffolding_ext.protocol import ControllerGenerator


class GrowingPools:
    """Scores of recent questions, one pool per turn."""

    def __init__(self, most_questions: int) -> None:
        self._most_questions = most_questions
        self._questions: deque[list[tuple[int, float]]] = deque()
        self._turns: dict[int, ScorePool] = {}
        self._num_questions: dict[int, int] = {}

    def at(self, turn: int) -> tuple[ScorePool, int]:
        """Return the pool of a turn, and the number of questions in it."""
        return self._turns.setdefault(turn, ScorePool()), self._num_questions.get(turn, 0)

    def join(self, scores: list[tuple[int, float]]) -> None:
        """Add an answered question's scores, each with its turn; forget the oldest question if there are too many."""
        self._questions.append(scores)
        self._count(scores, 1)
        for turn, score in scores:
            self.at(turn)[0].add(score)
        if len(self._questions) > self._most_questions:
            oldest = self._questions.popleft()
            self._count(oldest, -1)
            for turn, score in oldest:
                self._turns[turn].remove(score)

    def _count(self, scores: list[tuple[int, float]], step: int) -> None:
        for turn in {turn for turn, _ in scores}:
            self._num_questions[turn] = self._num_questions.get(turn, 0) + step


class FirstTurnScores:
    """First-turn scores of recent questions, available as soon as each is known."""

    def __init__(self, most_questions: int) -> None:
        self.pool = ScorePool()
        self._most_questions = most_questions
        self._questions: deque[list[float]] = deque()

    @property
    def num_questions(self) -> int:
        return len(self._questions)

    def add(self, question: list[float], score: float) -> None:
        """Add a score of a question; the first one of a question may push out the oldest question."""
        if not question:
            self._questions.append(question)
            if len(self._questions) > self._most_questions:
                for oldest in self._questions.popleft():
                    self.pool.remove(oldest)
        question.append(score)
        self.pool.add(score)


class GrowingRule(TakeOverRule):
    """Ranks a chunk among those of its turn in questions answered before, at a rate near alpha.

    Until `min_questions` questions have reached a turn, a coin of probability alpha decides there. Decisions depend on
    the order in which requests end. If requests run one at a time, alpha holds on the first turn up to one part in the
    number of questions; otherwise it holds approximately (docs/algorithms/conformal_draft_target.md).

    Args:
        alpha: Share of the chunks that the target takes over, in [0, 1].
        min_questions: Questions whose scores a turn needs before it ranks, at least 1.
        most_questions: Number of questions remembered; the oldest are forgotten.
        pool: `"per_turn"` ranks a chunk among those of its turn in the answered questions, `"first_turn"` among the
            first turn's, as A1's code does, without any guarantee.
    """

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"growing": [{"alpha": alpha} for alpha in SHARES]}

    def __init__(
        self, alpha: float = 0.4, min_questions: int = 8, most_questions: int = 200, pool: Pool = "per_turn"
    ) -> None:
        self.alpha = require.number("alpha", alpha, least=0, most=1)
        self.min_questions = require.whole("min_questions", min_questions)
        self._pools = GrowingPools(require.whole("most_questions", most_questions, least=self.min_questions))
        self.pool = require.one_of("pool", pool, get_args(Pool))
        self._first = FirstTurnScores(most_questions)
        self._scores: list[tuple[int, float]] = []  # of a request
        self._first_scores: list[float] = []  # of a request's first turn

    def for_request(self) -> GrowingRule:
        twin = copy.copy(self)
        twin._scores, twin._first_scores = [], []
        return twin

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        yield from ()
        return [self._decided(chain, rng) for chain, rng in zip(chains, rngs, strict=True)]

    def observe(self, ended: Sequence[DraftTargetChain]) -> None:
        self._pools.join(self._scores)

    def _decided(self, chain: DraftTargetChain, rng: np.random.Generator) -> Decision:
        assert chain.score is not None, "chunks are scored"
        if self.pool == "first_turn":
            pool, num_questions = self._first.pool, self._first.num_questions
        else:
            self._scores.append((chain.turn, chain.score))
            pool, num_questions = self._pools.at(chain.turn)
        if num_questions < self.min_questions:
            pool = _NO_SCORES  # whose p-value is uniform: a coin
        p_value = pool.p_value(chain.score, "random", rng)
        figures = {"p_value": p_value, "alpha": self.alpha, "num_calibration": len(pool)}
        if self.pool == "first_turn" and chain.turn == 0:
            self._first.add(self._first_scores, chain.score)
        return Decision(p_value <= self.alpha, figures, priority=p_value)


_NO_SCORES = ScorePool()
