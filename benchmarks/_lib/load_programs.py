"""Recorded votes and searches as programs for the simulated engine: their rounds, stops, and right answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._lib.searching import Searched
from scaffolding_ext.answers import group
from scaffolding_ext.controllers.budgets.queueing.simulation import NEVER
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.deadline import WIDENING, SampleTimes
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import RecordedQuestion
from scaffolding_ext.evaluation.traffic.programs import (
    Program,
    RequestRound,
    Work,
    vote_in_time_program,
    vote_program,
    vote_steps,
)

SEARCH_SHARE = 2 / 3  # of its time, in which a search with a deadline ends


class Source(NamedTuple):
    """A recording of a real model's samples.

    Attributes:
        file: In the data folder.
        task: Part of the task's name; None takes all questions.
        num_recorded: Samples of each question that are read; None: as many as most questions have.
        num_samples: Samples of a vote.
    """

    file: str
    task: str | None
    num_recorded: int | None
    num_samples: int


CONSOL, EPOCH = "consol_votes.jsonl.gz", "epoch_votes.jsonl.gz"
CHOOSING = "R1-8B, MATH-500"
RECORDINGS = {
    CHOOSING: Source("r1_distill_8b_math500_80_samples.jsonl.gz", None, None, 16),
    "Epoch, AIME": Source(EPOCH, "OTIS", 8, 8),
    "Epoch, GPQA": Source(EPOCH, "GPQA", 8, 8),
    "o3-mini, AIME24": Source(CONSOL, "aime24", None, 16),
}


def read_questions(data: Path, source: Source) -> Sequence[RecordedQuestion]:
    """The questions of a recording."""
    return read_recording([data / source.file], task=source.task, num_samples=source.num_recorded).questions


@dataclass(frozen=True)
class RecordedVote:
    """Recorded samples of a question in the order in which they are drawn: class, tokens and rightness of each."""

    classes: list[int]
    lengths: list[int]
    correct: list[bool]

    @property
    def max_samples(self) -> int:
        return len(self.classes)

    @property
    def size(self) -> float:
        """Mean tokens of a sample: by it, questions are short or long."""
        return float(np.mean(self.lengths))

    def is_right(self, voted: Sequence[int]) -> bool:
        """Whether the vote of these samples gives the right answer."""
        winner = vote([self.classes[index] for index in voted])
        return winner >= 0 and self.correct[self.classes.index(winner)]

    def stopped(self, rule: AllocationRule) -> tuple[Sequence[int], float]:
        """The samples that a rule draws, and their tokens."""
        num = 0
        while more := rule.num_more(Votes(self.classes[:num], self.max_samples, lengths=self.lengths[:num])):
            num += more
        return range(num), sum(self.lengths[:num])

    def program(self, rule: AllocationRule) -> Program:
        return vote_program(rule, self.classes, self.lengths)

    def program_in_time(self, rule: AllocationRule, times: SampleTimes, widening: int = WIDENING) -> Program:
        return vote_in_time_program(rule, self.classes, self.lengths, times, widening)


@dataclass(frozen=True)
class RecordedSearch:
    """A recorded search: the tokens of each round, how many leaves had ended after it, and the leaves.

    The recording has a round's tokens, and not those of each branch: here all open branches have equally many.
    """

    rounds: Sequence[Sequence[int]]
    classes: list[int]
    values: list[float]
    correct: list[bool]

    @classmethod
    def of(cls, search: Searched) -> RecordedSearch:
        return cls(search.rounds, group(search.answers), search.values, search.is_right)

    @property
    def max_samples(self) -> int:
        return len(self.classes)

    @property
    def size(self) -> float:
        """Tokens for each leaf."""
        return self.rounds[-1][0] / self.max_samples

    def is_right(self, voted: Sequence[int]) -> bool:
        """Whether these leaves, weighed by their values, elect the right answer."""
        winner = vote([self.classes[leaf] for leaf in voted], [max(0.0, self.values[leaf]) for leaf in voted])
        return winner >= 0 and self.correct[self.classes.index(winner)]

    def stopped(self, rule: AllocationRule) -> tuple[Sequence[int], float]:
        """The leaves that have ended when a rule stops, and the tokens until then."""
        at = next(at for at in range(len(self.rounds)) if self._is_enough(rule, at))
        return range(self.rounds[at][1]), self.rounds[at][0]

    def program(self, rule: AllocationRule) -> Program:
        return self._program(rule, in_time=False)

    def program_in_time(self, rule: AllocationRule, times: SampleTimes, widening: int = WIDENING) -> Program:
        return self._program(rule, in_time=True)

    def _program(self, rule: AllocationRule, *, in_time: bool) -> Program:
        def work(now: float, deadline: float) -> Work:
            until = now + SEARCH_SHARE * (deadline - now) if in_time else NEVER
            num_ended = num_tokens = 0
            for at, (tokens, ended) in enumerate(self.rounds):
                num_open = self.max_samples - num_ended
                if tokens == num_tokens or not num_open:
                    continue
                steps = vote_steps(self.classes[:num_ended], self.max_samples)
                each = ((tokens - num_tokens) / num_open,) * num_open
                end = yield RequestRound(each, steps, until=until if num_ended else NEVER)
                if len(end.ended) < num_open:
                    break
                num_tokens, num_ended = tokens, ended
                if self._is_enough(rule, at) or (num_ended and end.now >= until):
                    break
            return range(num_ended)

        return work

    def _is_enough(self, rule: AllocationRule, at: int) -> bool:
        num = self.rounds[at][1]
        if at == len(self.rounds) - 1:
            return True
        return num > 0 and not rule.num_more(Votes(self.classes[:num], self.max_samples))


Recorded = RecordedVote | RecordedSearch
IN_TIME = "in time"


def program_of(
    one: Recorded, stopping: str, rule: AllocationRule, times: SampleTimes, widening: int = WIDENING
) -> Program:
    """The program under a rule; it knows its deadline where the stopping is `IN_TIME`."""
    return one.program_in_time(rule, times, widening) if stopping == IN_TIME else one.program(rule)


def votes_of(
    questions: Sequence[RecordedQuestion], num_samples: int, orders: int, rng: np.random.Generator
) -> list[RecordedVote]:
    """Votes over the samples of each question, in random orders."""
    found = []
    for question in questions:
        for _ in range(orders):
            chosen = rng.permutation(question.num_samples)[:num_samples]
            columns = (question.classes[chosen], question.tokens[chosen], question.correct[chosen])
            found.append(RecordedVote(*(column.tolist() for column in columns)))
    return found
