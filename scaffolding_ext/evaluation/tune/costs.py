"""The samples of a recording under one way to end their chains: answers, weights, and what each sample costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.evaluation.logs.samples import Recording

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Cost = Literal["decoded", "kept", "blocks", "nothing", "dollars", "critical", "seconds"]
COSTS: dict[Cost, str] = {
    "decoded": "decoded tokens",
    "kept": "computed tokens, the chain's KV kept",
    "blocks": "computed tokens, prefixes cached in blocks",
    "nothing": "computed tokens, nothing kept between requests",
    "dollars": "dollars",
    "critical": "tokens on the critical path",
    "seconds": "seconds",
}
PATHS: tuple[Cost, ...] = ("critical", "seconds")  # the samples of a round run side by side: the longest one counts
WEIGHTS = ("mean_logprob", "reward", "answer_probability", "shortness")


class Price(NamedTuple):
    """Dollars for a million tokens: read, read from a cache, and decoded."""

    read: float
    cached: float
    decoded: float


@dataclass(frozen=True, eq=False)
class EndedSamples:
    """Every sample of every question; columns of shape [num_questions, num_samples].

    Attributes:
        classes: Class of the answer; -1 where there is none.
        correct: Whether it is right.
        tokens: Tokens that the sample decodes.
        costs: What the sample costs by itself; of `PATHS`, how long it takes.
        once: What a question costs beside that, however many samples it has, shape [num_questions].
        weights: What its vote weighs, by the name of the weight; a weight that was not recorded is not there.
        rewards: Reward in [0, 1]; None where there is none.
        probabilities: Probability of the asked answer; None where the chain was not asked.
        round_ends: Number of samples after the round of each sample; None where samples are independent.
    """

    classes: Ints
    correct: Bools
    tokens: Ints
    costs: Mapping[Cost, Floats]
    once: Mapping[Cost, Floats]
    weights: Mapping[str, Floats]
    rewards: Floats | None = None
    probabilities: Floats | None = None
    round_ends: Ints | None = None


def whole_samples(recording: Recording, price: Price | None = None) -> EndedSamples:
    """The samples as they were recorded: every chain ends by itself."""
    questions = recording.questions
    tokens = _column(recording, "tokens").astype(np.int64)
    prompts = np.array([each.looks[0].num_prompt_tokens if each.looks else 0 for each in questions], dtype=float)
    decoded = tokens.astype(float)
    costs: dict[Cost, Floats] = {
        "decoded": decoded,
        "kept": decoded,
        "blocks": decoded,
        "nothing": decoded + prompts[:, None],
    }
    if not recording.is_of_searches:  # a solution of a search has a share of its round's tokens, and no length
        costs["critical"] = decoded
    once: dict[Cost, Floats] = {"kept": prompts, "blocks": prompts}
    if price is not None:
        costs["dollars"] = (decoded * price.decoded + prompts[:, None] * price.cached) / 1e6
        once["dollars"] = prompts * (price.read - price.cached) / 1e6
    seconds = seconds_of(recording)
    if seconds is not None:
        costs["seconds"] = seconds
    rewards = None if "rewards" in recording.missing else _column(recording, "rewards")
    return EndedSamples(
        np.stack([each.classes for each in questions]),
        np.stack([each.correct for each in questions]),
        tokens,
        costs,
        once,
        weights_of(recording, tokens, rewards),
        rewards,
        probabilities_of(recording),
        _round_ends(recording) if recording.is_of_searches else None,
    )


def _round_ends(recording: Recording) -> Ints:
    index = np.arange(recording.num_samples)
    rounds = [np.array(each.rounds or [recording.num_samples]) for each in recording.questions]
    return np.stack([sizes[np.searchsorted(sizes, index, side="right")] for sizes in rounds])


def weights_of(recording: Recording, tokens: Ints, rewards: Floats | None) -> dict[str, Floats]:
    """The weights that the recording allows, each at most 1."""
    weights: dict[str, Floats] = {}
    if "logprobs" not in recording.missing:
        weights["mean_logprob"] = np.exp(np.minimum(0.0, _column(recording, "logprobs")))
    if rewards is not None:
        weights["reward"] = np.clip(rewards, 0.0, 1.0)
    probabilities = probabilities_of(recording)
    if probabilities is not None:
        weights["answer_probability"] = probabilities
    if "tokens" not in recording.missing and not recording.is_of_searches:
        weights["shortness"] = tokens.min(axis=1, keepdims=True) / np.maximum(1, tokens)
    return weights


def probabilities_of(recording: Recording) -> Floats | None:
    """Probability of the asked answer at the last look at each sample; None where a chain was not asked."""
    if "looks" in recording.missing:
        return None
    found = [
        [looks.probes[-1].confidence if looks.probes else None for looks in question.looks or ()]
        for question in recording.questions
    ]
    if any(value is None for row in found for value in row):
        return None
    return np.array(found, dtype=float)


def seconds_of(recording: Recording) -> Floats | None:
    """Seconds of each sample: as recorded, and fitted from the tokens (a + b tokens) where only some samples have them.

    None where fewer than two samples have seconds.
    """
    tokens = _column(recording, "tokens")
    seconds = np.stack(
        [
            np.full(recording.num_samples, np.nan) if each.seconds is None else np.asarray(each.seconds, dtype=float)
            for each in recording.questions
        ]
    )
    known = np.isfinite(seconds)
    if known.all():
        return seconds
    if known.sum() < 2 or "tokens" in recording.missing:
        return None
    slope, start = np.polyfit(tokens[known], seconds[known], 1)
    return np.where(known, seconds, np.maximum(0.0, start + slope * tokens))


def _column(recording: Recording, name: str) -> npt.NDArray[Any]:
    return np.stack([np.asarray(getattr(each, name), dtype=float) for each in recording.questions])
