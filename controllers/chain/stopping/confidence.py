"""Rules over the model's confidence in its probed answer or in the text it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.looking import LookNeeds
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.protocol.task_results import mean_token_probability, sampled_logprobs


class AnswerConfidence(StoppingRule):
    """The geometric mean of the probabilities of the answer's tokens is at least `threshold` (DEER).

    DEER looks when a chain changes its thought (`schedule: {type: ThoughtChanges}`); any other schedule works, too.

    Reference: Yang et al., "Dynamic Early Exit in Reasoning Models" (DEER), arXiv 2504.15895, and its released code,
        whose variant for the over-confident Qwen3 models counts a trial answer only if the model closes its thinking
        after it.
    Deviation: The probabilities are those of the drawn tokens, up to the closing brace; the paper takes the highest
        ones, which is the same for a greedy probe. A model that ends after its answer has closed its thinking.

    Args:
        threshold: lambda, in (0, 1].
        must_close: The variant: the response must close thinking, or end; the probe's `max_tokens` must leave room.
    """

    needs = LookNeeds(answer_logprobs=True)
    exit_reason = "confidence"

    @classmethod
    def settings_to_try(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"sure answers": [{"threshold": threshold} for threshold in (0.999, 0.99, 0.95, 0.9, 0.8, 0.5)]}

    def __init__(self, threshold: float = 0.95, must_close: bool = False) -> None:
        self.threshold = require.share("threshold", threshold)
        self.must_close = must_close

    def __call__(self, probes: Sequence[Probe]) -> bool:
        newest = probes[-1]
        return (newest.confidence or 0.0) >= self.threshold and (newest.closes or not self.must_close)

    def figures(self, probes: Sequence[Probe]) -> Mapping[str, float]:
        return {"confidence": probes[-1].confidence or 0.0}


class ChainCertainty(StoppingRule):
    """The model is certain of its text: the geometric mean of the last `window` tokens' probabilities is high.

    The chain is asked nothing: a look costs no token.

    Reference: the mean log-probability of a group of tokens is the confidence of Fu et al., "Deep Think with
        Confidence" (DeepConf), arXiv 2508.15260, which stops a trace when it is low.
    Deviation: It is computed from the drawn tokens, and ends thinking when it is high.

    Args:
        threshold: In (0, 1].
        window: Tokens that are read; shorter chains are not stopped.
    """

    needs = LookNeeds(answer=False, chain_logprobs=True)
    exit_reason = "certainty"

    @classmethod
    def settings_to_try(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"sure chain": [{"threshold": threshold} for threshold in (0.999, 0.99, 0.98, 0.95, 0.9)]}

    def __init__(self, threshold: float = 0.99, window: int = 64) -> None:
        self.threshold = require.share("threshold", threshold)
        self.window = require.whole("window", window)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        prefix = probes[-1].prefix
        return prefix.num_tokens >= self.window and certainty(prefix, self.window) >= self.threshold

    def figures(self, probes: Sequence[Probe]) -> Mapping[str, float]:
        return {"certainty": certainty(probes[-1].prefix, self.window)}


def certainty(prefix: Prefix, window: int) -> float:
    last = slice(max(0, prefix.num_tokens - window), prefix.num_tokens)
    ids = None if prefix.token_ids is None else prefix.token_ids[last]
    return mean_token_probability(sampled_logprobs(ids, prefix.token_logprobs()[last]))
