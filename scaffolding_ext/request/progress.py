"""How far a program is. A policy of `scheduling` orders programs by this alone."""

from __future__ import annotations

from typing import NamedTuple


class StepCounts(NamedTuple):
    """The steps of a program, such as the samples of a vote or the probes of a chain.

    Attributes:
        kind: Programs of one kind have like steps, so their costs can be averaged.
        num_left: Steps that may still come, running ones included (the paper's remaining knob).
        certaindex: How settled the answer is, in [0, 1]; a program that is certain stops.
    """

    kind: str = ""
    num_done: int = 0
    num_left: int = 1
    certaindex: float = 0.0


class Progress(NamedTuple):
    """A program at one moment.

    Attributes:
        number: The lower, the older the program.
        arrived: In seconds of a monotonic clock, as `deadline`.
        num_tokens: Tokens that it has decoded.
    """

    number: int
    arrived: float
    deadline: float | None = None
    num_tokens: int = 0
    steps: StepCounts = StepCounts()
