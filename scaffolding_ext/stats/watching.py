"""Sequential test of a promised loss while requests arrive: its bound holds at every moment, however long it runs.

Reference: Robbins, "Statistical methods related to the law of the iterated logarithm" (1970): a mixture of likelihood
ratios is a martingale, and by Ville's inequality it ever reaches 1 / alpha with probability alpha at most. The
mixture here is of Beta(1, 1 / (2 p)) cut to losses above p, for the Bernoulli case (Howard et al., arXiv 1810.08240,
section 4.2).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require

_TINY = 1e-9


class LossWatch:
    """Counts audited requests and reports when the promised loss is broken.

    Args:
        promised: The largest loss promised, as a share of requests, in (0, 1).
        alpha: Probability that a promise that holds is ever called broken, in (0, 1).
    """

    def __init__(self, promised: float, alpha: float = 0.05) -> None:
        self.promised = require.number("promised", promised, above=0, below=1)
        self.alpha = require.number("alpha", alpha, above=0, below=1)
        self.num_audited = 0
        self.num_lost = 0
        self._most_evidence = 0.0  # a logarithm

    def add(self, lost: bool) -> bool:
        """Count one audited request; return True if it is the one that breaks the promise."""
        was_broken = self.is_broken
        self.num_audited += 1
        self.num_lost += lost
        evidence = float(log_evidence(self.num_lost, self.num_audited, self.promised))
        self._most_evidence = max(self._most_evidence, evidence)
        return self.is_broken and not was_broken

    @property
    def is_broken(self) -> bool:
        """True once the evidence against the promise has reached 1 / alpha."""
        return self._most_evidence >= -math.log(self.alpha)

    def lower_bound(self) -> float:
        """Lower end of the anytime-valid confidence interval of the loss, at level 1 - alpha."""
        return lower_bound(self.num_lost, self.num_audited, self.alpha)


def log_evidence(num_lost: npt.ArrayLike, num_audited: npt.ArrayLike, promised: float) -> npt.NDArray[np.float64]:
    """Logarithm of the mixture likelihood ratio against "the loss is at most `promised`"; 0 without requests.

    Args:
        num_lost: Lost requests, any shape.
        num_audited: Audited requests, same shape.
    """
    from scipy.special import betaln  # slow to import
    from scipy.stats import beta

    lost, kept = np.asarray(num_lost), np.asarray(num_audited) - np.asarray(num_lost)
    first, second = 1.0, 1 / (2 * promised)
    mixture = betaln(first + lost, second + kept) - betaln(first, second)
    cut = beta.logsf(promised, first + lost, second + kept) - beta.logsf(promised, first, second)
    return np.asarray(mixture + cut - lost * math.log(promised) - kept * math.log(1 - promised))


def lower_bound(num_lost: int, num_audited: int, alpha: float) -> float:
    """Smallest loss that the evidence does not refute so far; 0 without a lost request."""
    if not num_lost:
        return 0.0
    from scipy.optimize import brentq  # slow to import

    def excess(promised: float) -> float:
        return float(log_evidence(num_lost, num_audited, promised)) + math.log(alpha)

    highest = min(num_lost / num_audited, 1 - _TINY)
    return float(brentq(excess, _TINY, highest)) if excess(highest) < 0 < excess(_TINY) else 0.0
