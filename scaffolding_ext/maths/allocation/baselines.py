"""What a rule must beat to be worth its name: the same number for all, and fewer where answers are short.

Reference: Fu et al., arXiv 2412.20993, baseline-even and baseline-length.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaffolding_ext.maths.allocation.base import AllocationRule, Votes


@dataclass(frozen=True, kw_only=True)
class Even(AllocationRule):
    """Baseline-even: every vote draws `num_samples`, whatever they say.

    Args:
        num_samples: Samples of every vote, at least 1.

    Raises:
        ValueError: The number is out of range.
    """

    num_samples: int = 8

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"num_samples is {self.num_samples}; it must be at least 1")

    def _num_more(self, votes: Votes) -> int:
        return self.num_samples - len(votes.classes)


@dataclass(frozen=True, kw_only=True)
class LengthThreshold(AllocationRule):
    """Baseline-length: after `knob` samples stop where they are short on average, else draw all the rest.

    Args:
        max_mean_length: Tokens, the mean length up to which a vote stops, above 0.
        knob: Samples before the look, at least 1.

    Raises:
        ValueError: A setting is out of range, or, when asked, the votes carry no lengths.
    """

    max_mean_length: float
    knob: int = 5

    def __post_init__(self) -> None:
        if not self.max_mean_length > 0:
            raise ValueError(f"max_mean_length is {self.max_mean_length}; it must be above 0")
        if self.knob < 1:
            raise ValueError(f"knob is {self.knob}; it must be at least 1")

    def _num_more(self, votes: Votes) -> int:
        if votes.lengths is None:
            raise ValueError("the votes carry no lengths; give them, or choose a rule that needs none")
        if len(votes.classes) < self.knob:
            return self.knob - len(votes.classes)
        mean = sum(votes.lengths[: self.knob]) / self.knob
        return 0 if mean <= self.max_mean_length else votes.num_remaining
