"""Least attained service first."""

from __future__ import annotations

from scaffolding_ext.request.progress import Progress
from scaffolding_ext.scheduling.base import AgeingPolicy


class LeastAttained(AgeingPolicy):
    """Serves the program first that has decoded the fewest tokens: short ones end soon, and nothing is estimated.

    Reference:
        Nuyens and Wierman, "The Foreground-Background Queue: a Survey"; here between requests, which are not
        interrupted.
    """

    def num_tokens(self, progress: Progress) -> float:
        return progress.num_tokens
