"""Which request a program is: its number in this process, and its sample in the run."""

from __future__ import annotations

import itertools

_numbers = itertools.count()


class Identity:
    """Tells one request from all others.

    Args:
        sample_id: Names the sample within the run; None where nobody named it.
        epoch: Repetition of the sample.

    Attributes:
        number: Unique within the process: the lower, the older the request.
        id: The number as a name, for logs and for workers.
        sample_id: As given.
        epoch: As given.
    """

    __slots__ = ("epoch", "id", "number", "sample_id")

    def __init__(self, sample_id: str | None = None, epoch: int = 0) -> None:
        self.number = next(_numbers)
        self.id = f"program-{self.number}"
        self.sample_id = sample_id
        self.epoch = epoch
