"""Rule over the model's confidence in its probed answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.probing import ProbeNeeds
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule


class AnswerConfidence(StoppingRule):
    """The geometric mean of the probabilities of the answer's tokens is at least `threshold` (DEER).

    Reference: Yang et al., "Dynamic Early Exit in Reasoning Models" (DEER), arXiv 2504.15895, and its released code,
        whose variant for the over-confident Qwen3 models counts a trial answer only if the model closes its thinking
        after it.
    Deviation: The probabilities are those of the drawn tokens, up to the closing brace; the paper takes the highest
        ones, which is the same for a greedy probe. Probes are on a schedule, not at changes of thought. A model that
        ends after its answer has closed its thinking.

    Args:
        threshold: lambda, in (0, 1].
        must_close: The variant: the response must close thinking, or end; the probe's `max_tokens` must leave room.
    """

    needs = ProbeNeeds(answer_logprobs=True)
    exit_reason = "confidence"
    stops_when = "the answer has a probability of {0.threshold:g}"

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"sure answers": [{"threshold": threshold} for threshold in (0.999, 0.99, 0.95, 0.9, 0.8, 0.5)]}

    def __init__(self, threshold: float = 0.95, must_close: bool = False) -> None:
        self.threshold = require.share("threshold", threshold)
        self.must_close = must_close

    def __call__(self, probes: Sequence[Probe]) -> bool:
        newest = probes[-1]
        return (newest.confidence or 0.0) >= self.threshold and (newest.closes or not self.must_close)

    def figures(self, probes: Sequence[Probe]) -> Mapping[str, float]:
        return {"confidence": probes[-1].confidence or 0.0}
