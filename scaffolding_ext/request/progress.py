"""How far a program is: all that a policy of `scheduling` may order it by."""

from __future__ import annotations

from typing import NamedTuple


class Steps(NamedTuple):
    """What a program's controller says of its steps: the samples of a vote, the probes of a chain.

    Attributes:
        kind: Whose steps are alike, so that their costs can be averaged.
        num_done: Steps that have ended.
        num_left: The knob that remains: the steps that may still come, those that run included.
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
    steps: Steps = Steps()
