"""Samples of a recording under one way to end their chains: answers, weights, and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.evaluation.logs.samples import Bools, Floats, Ints, Recording

Cost = Literal["decoded", "dollars", "critical", "seconds"]
COSTS: dict[Cost, str] = {
    "decoded": "decoded tokens",
    "dollars": "dollars",
    "critical": "tokens on the critical path",
    "seconds": "seconds",
}
PATHS: tuple[Cost, ...] = ("critical", "seconds")  # samples of a round run in parallel: the longest one counts


class Price(NamedTuple):
    """Dollars per million tokens: read, read from a cache, and decoded."""

    read: float
    cached: float
    decoded: float


class Asked(NamedTuple):
    """Tokens of the requests on prefixes of each chain, shape [num_questions, num_samples].

    Attributes:
        prefixes: Tokens of the chain before them, including the question.
    """

    suffixes: Floats
    prefixes: Floats


class Costs(NamedTuple):
    """Costs by name.

    Attributes:
        each: Per sample; for `PATHS`, its duration. Shape [num_questions, num_samples].
        once: Additional cost per question, for any number of samples, shape [num_questions].
    """

    each: Mapping[Cost, Floats]
    once: Mapping[Cost, Floats]


@dataclass(frozen=True, eq=False)
class EndedSamples:
    """All samples of all questions under one way to end chains; columns of shape [num_questions, num_samples].

    Attributes:
        classes: Class of the answer; -1 without one.
        weights: Weight of its vote, by name; only recorded weights.
        rewards: Reward in [0, 1], if recorded.
    """

    classes: Ints
    correct: Bools
    tokens: Ints
    costs: Mapping[Cost, Floats]
    once: Mapping[Cost, Floats]
    weights: Mapping[str, Floats]
    rewards: Floats | None = None


def costs_of(recording: Recording, decoded: Floats, asked: Asked | None = None, price: Price | None = None) -> Costs:
    """Compute the costs of all samples.

    Args:
        decoded: Tokens that each decodes, shape [num_questions, num_samples].
        asked: Requests besides the chain; None for whole chains.
        price: Price of tokens; without one there is no cost in dollars.
    """
    prompts = np.array([each.probes[0].num_prompt_tokens if each.probes else 0 for each in recording.questions], float)
    suffixes, prefixes = asked or Asked(*np.zeros((2, *decoded.shape)))
    each: dict[Cost, Floats] = {"decoded": decoded, "critical": decoded}
    once: dict[Cost, Floats] = {}
    if price is not None:
        cached = prompts[:, None] + prefixes
        each["dollars"] = (decoded * price.decoded + cached * price.cached + suffixes * price.read) / 1e6
        once["dollars"] = prompts * (price.read - price.cached) / 1e6
    seconds = _seconds(recording)
    if seconds is not None:
        each["seconds"] = seconds * np.maximum(1, decoded) / np.maximum(1, _column(recording, "tokens"))
    return Costs(each, once)


def whole_samples(recording: Recording, price: Price | None = None) -> EndedSamples:
    """Return the samples as recorded, every chain with its natural end."""
    questions = recording.questions
    tokens = _column(recording, "tokens").astype(np.int64)
    rewards = None if "rewards" in recording.missing else _column(recording, "rewards")
    probabilities = probabilities_of(recording)
    weights: dict[str, Floats] = {}
    if "logprobs" not in recording.missing:
        weights["mean_logprob"] = np.exp(np.minimum(0.0, _column(recording, "logprobs")))
    if rewards is not None:
        weights["reward"] = np.clip(rewards, 0.0, 1.0)
    if probabilities is not None:
        weights["answer_probability"] = probabilities
    if "tokens" not in recording.missing:
        weights["shortness"] = shortness(tokens)
    return EndedSamples(
        np.stack([each.classes for each in questions]),
        np.stack([each.correct for each in questions]),
        tokens,
        *costs_of(recording, tokens.astype(float), price=price),
        weights,
        rewards,
    )


def shortness(tokens: Ints) -> Floats:
    """Return the weight of short chains: the tokens of the question's shortest over its own."""
    weights: Floats = tokens.min(axis=1, keepdims=True) / np.maximum(1, tokens)
    return weights


def probabilities_of(recording: Recording) -> Floats | None:
    """Return the probability of the probed answer at the last probe of each sample; None if a chain was not probed."""
    if "probes" in recording.missing:
        return None
    found = [
        [chain.probes[-1].confidence if chain.probes else None for chain in question.probes or ()]
        for question in recording.questions
    ]
    if any(value is None for row in found for value in row):
        return None
    return np.array(found, dtype=float)


def _seconds(recording: Recording) -> Floats | None:
    """Return the recorded seconds of each sample, fitted from tokens (a + b tokens) for questions without them.

    None if fewer than two samples have seconds.
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
