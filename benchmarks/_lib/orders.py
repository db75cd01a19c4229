"""The orders that a study compares: the package's policies, and two that bound them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from benchmarks._lib.recorded_programs import RecordedProgram
from scaffolding_ext.request.program import Progress
from scaffolding_ext.scheduling import (
    AgeingPolicy,
    EarliestDeadline,
    Fifo,
    Gang,
    LeastAttained,
    Policy,
    ShortestRemaining,
)

KNOWN = "lengths known"


class Random(Policy):
    """Any order, one for each program."""

    def priority(self, progress: Progress) -> float:
        return random.Random(progress.number).random()


class LengthsKnown(AgeingPolicy):
    """The shortest remaining first, by what each program will decode in truth."""

    def __init__(self, programs: Sequence[RecordedProgram]) -> None:
        super().__init__()
        self._lengths = [program.num_tokens for program in programs]

    def num_tokens(self, progress: Progress) -> float:
        return self._lengths[progress.number] - progress.num_tokens


POLICIES: dict[str, Callable[[], Policy]] = {
    "first come": Fifo,
    "random": Random,
    "gang": Gang,
    "shortest remaining": ShortestRemaining,
    "least attained": LeastAttained,
    "earliest deadline": EarliestDeadline,
}
BASE = "first come"


def policy_of(name: str, programs: Sequence[RecordedProgram]) -> Policy:
    """A policy by its name here, for these programs."""
    return LengthsKnown(programs) if name == KNOWN else POLICIES[name]()
