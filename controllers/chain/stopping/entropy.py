"""A rule over the one token that the chain would write if it closed its thinking now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.controllers.chain.looking import LookNeeds
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.errors import ConfigError


class EntropyAfterThinking(StoppingRule):
    """The entropy of the token after closed thinking has settled (EAT).

    It stops once the variance of the entropy's exponential moving average is at most `variance`, at any level of
    entropy. No answer is decoded.

    If the worker reports the log-probabilities of only some tokens, the entropy is a lower bound and the trace says so
    (`entropy_is_bound`, with the probability that is `missing`).

    Reference: Wang, McInerney, Wang and Kallus, "Entropy After </Think> for reasoning model early exiting", arXiv
        2509.26522, and its released code (average and variance).
    Deviation: Looks are on the controller's schedule, not at paragraphs; the suffix opens the answer, as the released
        code's `include_final_answer_str` does.

    Args:
        variance: Largest variance, in nats squared.
        smoothing: Weight of the newest entropy in the average, in (0, 1].
        min_looks: Looks before it may stop, at least 2.
        top_k: Log-probabilities to read; the size of the vocabulary gives the exact entropy.
        suffix: Text that closes thinking; None takes the prompt family's `close`, up to and including the opening
            brace.
    """

    exit_reason = "entropy"

    @classmethod
    def settings_to_try(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"entropy": [{"variance": variance} for variance in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)]}

    def __init__(
        self,
        variance: float = 1e-3,
        smoothing: float = 0.2,
        min_looks: int = 4,
        top_k: int = 20,
        suffix: str | None = None,
    ) -> None:
        self.variance = require.number("variance", variance, least=0)
        self.smoothing = require.share("smoothing", smoothing)
        self.min_looks = require.whole("min_looks", min_looks, least=2)
        if suffix is not None and not (isinstance(suffix, str) and suffix):
            raise ConfigError(f"is {suffix!r}; give the text that closes thinking, such as '</think>'", "suffix")
        self.needs = LookNeeds(answer=False, entropy=require.whole("top_k", top_k), suffix=suffix)

    def _moving(self, probes: Sequence[Probe]) -> Moving:
        return moving_average([probe.entropy.nats for probe in probes if probe.entropy is not None], self.smoothing)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        return len(probes) >= self.min_looks and self._moving(probes).variance <= self.variance

    def figures(self, probes: Sequence[Probe]) -> Mapping[str, float]:
        moving = self._moving(probes)
        return {"entropy_mean": moving.mean, "entropy_variance": moving.variance}


class Moving(NamedTuple):
    """An exponential moving average after the newest value.

    Attributes:
        mean: m_i = a x_i + (1 - a) m_(i-1), from m_0 = x_0 on.
        variance: v_i = a (x_i - m_i)^2 + (1 - a) v_(i-1), from v_0 = 0 on.
    """

    mean: float
    variance: float


def moving_average(values: Sequence[float], smoothing: float) -> Moving:
    """Return mean and variance of an exponential moving average after all values.

    Args:
        smoothing: a, the newest value's weight, in (0, 1]; 1 ignores the others.

    Reference: Wang et al., "Entropy After </Think>", arXiv 2509.26522, the stopping rule.
    """
    require.share("smoothing", smoothing)
    if not len(values):
        raise ValueError("no values; at least one is needed")
    mean, variance = values[0], 0.0
    for value in values[1:]:
        mean = smoothing * value + (1.0 - smoothing) * mean
        variance = smoothing * (value - mean) ** 2 + (1.0 - smoothing) * variance
    return Moving(mean, variance)
