"""All requests of a program together."""

from __future__ import annotations

from scaffolding_ext.request.progress import Progress
from scaffolding_ext.scheduling.base import Policy


class Gang(Policy):
    """Serves the requests of the oldest program first, and so those of each program together.

    A program ends with its last request: served by turns, programs all end late. Nobody starves.

    Reference:
        Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), on gang scheduling.
    """

    def priority(self, progress: Progress) -> float:
        return float(progress.number)
