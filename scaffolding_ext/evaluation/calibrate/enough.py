"""Number of questions that a calibration needs: too few are refused, few cause a warning."""

from __future__ import annotations

import math
from typing import NamedTuple

from scaffolding_ext.errors import ConfigError

CONFIDENCE = 0.9
RATE_ERROR = 0.1  # maximum acceptable error of a take-over rate
_MOST_AGREEMENT = 0.999
_MOST_QUESTIONS = 10_000


class QuestionsNeeded(NamedTuple):
    """Questions that a calibration needs: `least` for thresholds, and `enough` for its promise."""

    least: int
    enough: int
    promise: str

    def check(self, num_questions: int) -> str | None:
        """Return a warning if there are few questions.

        Raises:
            ConfigError: There are too few.
        """
        if num_questions < self.least:
            raise ConfigError(
                f"has {num_questions} questions; a calibration needs at least {self.least}, and {self.enough} until "
                f"{self.promise}: give more",
                "dataset",
            )
        if num_questions < self.enough:
            return f"{num_questions} questions are few: {self.enough} are needed until {self.promise}"
        return None


def needed_for_rate(alpha: float) -> QuestionsNeeded:
    """Return the questions needed for a target that takes over a share of the chunks.

    A p-value among n scores is at least 1 / (n + 1). Given its calibration, the rate of split conformal prediction has
    a beta distribution. Chunks of one question are correlated, so questions are counted.

    Reference:
        Vovk, "Conditional validity of inductive conformal predictors", 2012, proposition 2a, for the distribution.
    """
    from scipy.stats import beta  # slow to load

    def is_near(num: int) -> bool:
        rank = max(1, math.floor((num + 1) * alpha))
        low, high = beta.cdf([alpha - RATE_ERROR, alpha + RATE_ERROR], rank, num + 1 - rank)
        return bool(high - low >= CONFIDENCE)

    least = max(1, math.ceil(1 / alpha) - 1)
    enough = next(num for num in range(least + 1, _MOST_QUESTIONS) if is_near(num))
    promise = f"the rate at alpha {alpha:g} is within {RATE_ERROR:g} of it with a confidence of {CONFIDENCE:g}"
    return QuestionsNeeded(least, enough, promise)


def needed_for_agreement(least_agreement: float) -> QuestionsNeeded:
    """Return the questions needed for gates with quartile thresholds that must preserve a share of the decisions."""
    share = min(least_agreement, _MOST_AGREEMENT)
    enough = max(4, math.ceil(math.log(1 - CONFIDENCE) / math.log(share)))
    promise = f"decisions that all agree show an agreement of {share:g} with a confidence of {CONFIDENCE:g}"
    return QuestionsNeeded(4, enough, promise)
