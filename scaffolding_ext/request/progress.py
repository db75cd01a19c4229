"""How far a program is. A policy of `scheduling` orders programs by this alone."""

from __future__ import annotations

from typing import NamedTuple


class StepCounts(NamedTuple):
    """The steps of a program, as its controller tells them: the samples of a vote, the probes of a chain.

    Attributes:
        kind: Programs of one kind have like steps, so their costs can be averaged.
        num_done: StepCounts that have ended.
        num_left: StepCounts that may still come, running ones included (the paper's remaining knob).
        certaindex: How settled the answer is, in [0, 1]; a program that is certain stops.
    """

    kind: str = ""
    num_done: int = 0
    num_left: int = 1
    certaindex: float = 0.0


class Progress(NamedTuple):
    """A program at one moment.

    Attributes:
        number: Its place among the programs: the lower, the older.
        arrived: When it came, in seconds of a monotonic clock.
        deadline: When its caller wants it to have ended, on that clock; None where nobody said.
        num_tokens: Tokens that it has decoded.
        steps: What its controller says; one that says nothing has a single step.
    """

    number: int
    arrived: float
    deadline: float | None = None
    num_tokens: int = 0
    steps: StepCounts = StepCounts()
