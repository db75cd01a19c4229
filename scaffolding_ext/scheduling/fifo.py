"""First come, first served."""

from __future__ import annotations

from scaffolding_ext.request.progress import Progress
from scaffolding_ext.scheduling.base import Policy


class Fifo(Policy):
    """Serves requests in the order in which they come, whosever they are: what an engine does by itself.

    A program that sends requests in rounds queues up anew for each. Nobody starves.
    """

    def priority(self, progress: Progress) -> float:
        return 0.0
