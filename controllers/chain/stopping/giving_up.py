"""A rule that ends chains which will not converge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scipy.special import expit

from scaffolding_ext import require
from scaffolding_ext.controllers.certaindex import window_consistency
from scaffolding_ext.controllers.chain.looking import LookNeeds
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.controllers.chain.stopping.confidence import certainty
from scaffolding_ext.controllers.chain.stopping.entropy import moving_average

_NEEDS = {
    "agreement": LookNeeds(),
    "confidence": LookNeeds(answer_logprobs=True),
    "certainty": LookNeeds(answer=False, chain_logprobs=True),
}
_WINDOWS = {"agreement": 3, "confidence": 1, "certainty": 64}


class GiveUp(StoppingRule):
    """Ends a chain that is not sure enough for its length: the lower threshold of Conformal Thinking.

    A signal of the chain's confidence must stay above a threshold that rises with its length: from `least` to `most`,
    half way at `midpoint` tokens. Combined with a rule that stops sure chains (`any`), it ends both solved and hopeless
    chains.

    Reference: "Conformal Thinking: Risk Control for Reasoning on a Compute Budget", arXiv 2602.03814, and its released
        code (a logistic curve over the tokens; the signal is smoothed).

    Args:
        signal: The chain's confidence, in [0, 1]: `"agreement"` of the last `window` answers with the newest,
            `"confidence"` (geometric mean of the answer's probabilities), `"certainty"` (of the last `window` tokens;
            it asks nothing).
        most: Threshold of an infinitely long chain.
        midpoint: Tokens at which the threshold is half way.
        steepness: Rate of its rise, in 1 / token.
        min_tokens: Tokens before which nothing is given up: a short chain has no answer yet.
        least: Threshold near which a chain begins.
        smoothing: Weight of the newest value of the signal in its moving average, in (0, 1].
        window: Of the signal; None takes 3 answers, or 64 tokens.
        answer: Answer of a chain that was given up: `"best"`, the most frequent so far (if there is none, it is asked
            for one), or `"none"`.
    """

    exit_reason = "gave_up"

    @classmethod
    def settings_to_try(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        signals = ("agreement", "confidence", "certainty")
        return {f"gives up by {each}": [{"signal": each, "midpoint": half} for half in (2048, 512)] for each in signals}

    def __init__(
        self,
        signal: Literal["agreement", "confidence", "certainty"] = "confidence",
        most: float = 0.5,
        midpoint: int = 1024,
        steepness: float = 0.01,
        *,
        min_tokens: int = 256,
        least: float = 0.0,
        smoothing: float = 0.95,
        window: int | None = None,
        answer: Literal["best", "none"] = "best",
    ) -> None:
        self.signal = require.one_of("signal", signal, tuple(_NEEDS))
        self.needs = _NEEDS[signal]
        self.most = require.share("most", most)
        self.midpoint = require.whole("midpoint", midpoint)
        self.steepness = require.number("steepness", steepness, above=0)
        self.min_tokens = require.whole("min_tokens", min_tokens, least=0)
        self.least = require.number("least", least, least=0, below=1)
        self.smoothing = require.share("smoothing", smoothing)
        self.window = _WINDOWS[signal] if window is None else require.whole("window", window)
        self.answer = require.one_of("answer", answer, ("best", "none"))

    def __call__(self, probes: Sequence[Probe]) -> bool:
        is_long = probes[-1].prefix.num_tokens >= self.min_tokens
        return is_long and self._sure(probes) <= self._threshold(probes)

    def figures(self, probes: Sequence[Probe]) -> Mapping[str, float]:
        return {self.signal: self._sure(probes), "threshold": self._threshold(probes)}

    def _sure(self, probes: Sequence[Probe]) -> float:
        return moving_average([self._value(probes, index) for index in range(len(probes))], self.smoothing).mean

    def _value(self, probes: Sequence[Probe], index: int) -> float:
        if self.signal == "confidence":
            return probes[index].confidence or 0.0
        if self.signal == "certainty":
            return certainty(probes[index].prefix, self.window)
        seen = probes[max(0, index + 1 - self.window) : index + 1]
        return window_consistency([-1 if probe.hedged else probe.answer_class for probe in seen], len(seen))

    def _threshold(self, probes: Sequence[Probe]) -> float:
        num_tokens = probes[-1].prefix.num_tokens
        return rising_threshold(num_tokens, self.least, self.most, self.midpoint, self.steepness)


def rising_threshold(num_tokens: float, least: float, most: float, midpoint: float, steepness: float) -> float:
    """Logistic curve over the length of a chain, from `least` to `most`.

    Args:
        midpoint: Tokens at which it is half way.
        steepness: Its rate, in 1 / token; 4 / steepness tokens take it from 12 to 88 % of its way.

    Reference: "Conformal Thinking: Risk Control for Reasoning on a Compute Budget", arXiv 2602.03814, the lower
        threshold.
    """
    return least + (most - least) * float(expit(steepness * (num_tokens - midpoint)))
