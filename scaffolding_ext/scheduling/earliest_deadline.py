"""Earliest deadline first."""

from __future__ import annotations

from scaffolding_ext import require
from scaffolding_ext.request.progress import Progress
from scaffolding_ext.scheduling.base import Policy


class EarliestDeadline(Policy):
    """Serves the program first whose caller wants it soonest (`generate_async(deadline=...)`).

    Nobody starves, since those that come later have later deadlines.

    Args:
        within: Seconds after its arrival that stand for the deadline of a program without one.

    Raises:
        ConfigError: It is not above 0.
    """

    def __init__(self, within: float = 60.0) -> None:
        self.within = require.number("within", within, above=0)

    def priority(self, progress: Progress) -> float:
        return progress.arrived + self.within if progress.deadline is None else progress.deadline
