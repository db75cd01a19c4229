"""Recorded votes as programs for the simulated engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._lib.traffic.engine import NEVER
from benchmarks._lib.traffic.programs import Program, RequestRound, Work
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import RecordedQuestion
from scaffolding_ext.request.program import LAST_STEP, StepCounts

NumMore = Callable[[tuple[int, ...], int], int]
"""Samples to draw next, given the classes so far and the most that a vote may have."""


class Source(NamedTuple):
    """A recording: its file, part of its tasks' names, samples of a vote, and samples read of each question."""

    file: str
    task: str | None
    num_samples: int
    num_recorded: int | None = None  # as many as most questions have


RECORDINGS = {
    "R1-8B, MATH-500": Source("r1_distill_8b_math500_80_samples.jsonl.gz", None, 16),
    "Epoch, AIME": Source("epoch_votes.jsonl.gz", "OTIS", 8, 8),
    "Epoch, GPQA": Source("epoch_votes.jsonl.gz", "GPQA", 8, 8),
    "o3-mini, AIME24": Source("consol_votes.jsonl.gz", "aime24", 16),
}


def read_questions(data: Path, source: Source) -> Sequence[RecordedQuestion]:
    return read_recording([data / source.file], task=source.task, num_samples=source.num_recorded).questions


def votes_of(
    questions: Sequence[RecordedQuestion], num_samples: int, num_orders: int, rng: np.random.Generator
) -> list[LabelledVote]:
    """Draw votes over the samples of each question, in random orders."""
    return [
        LabelledVote(
            question.id,
            question.classes[order].tolist(),
            question.correct[order].tolist(),
            question.tokens[order].tolist(),
        )
        for question in questions
        for order in (rng.permutation(question.num_samples)[:num_samples] for _ in range(num_orders))
    ]


def asked_once(rule: AllocationRule) -> NumMore:
    """Return a rule's decisions, each computed once."""
    return functools.lru_cache(1 << 18)(lambda classes, most: rule.num_more(Votes(classes, most)))


class Ballot(NamedTuple):
    """Answer of a served vote: the samples that voted, and the number of samples drawn."""

    voted: Sequence[int]
    num_drawn: int


def vote_program(vote: LabelledVote, num_more: NumMore, in_time: bool = False) -> Program:
    """Build the program of a vote that draws its samples in order, as its rule says; its answer is a `Ballot`.

    Args:
        in_time: True if the vote knows its deadline, as the controller does.
    """
    classes, lengths, most = vote.classes, vote.lengths, len(vote.classes)

    def work(now: float, deadline: float) -> Work:
        voted: list[int] = []
        drawn, until = 0, now + (1 - LAST_STEP) * (deadline - now) if in_time else NEVER
        while drawn < most and now < until:
            num = num_more(tuple(classes[index] for index in voted), most) or int(not drawn)
            if not num:
                break
            seen = entropy_certaindex([classes[index] for index in voted])
            steps = StepCounts("vote" if most > 1 else "chain", len(voted), most - len(voted), seen)
            end = yield RequestRound(tuple(lengths[drawn : drawn + num]), steps, until)
            voted += [drawn + index for index in sorted(end.ended)]
            now, drawn = end.now, drawn + num
        if not voted:  # the first to end answers late; here it begins again
            shortest = min(range(drawn), key=lengths.__getitem__)
            yield RequestRound((lengths[shortest],))
            voted = [shortest]
        return Ballot(voted, drawn)

    return work
