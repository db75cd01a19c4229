"""Votes: plain, weighted, and filtered by confidence. Ties go to the class that appeared first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require

Aggregate = Literal["mean", "tail", "lowest_group", "bottom_10"]


def vote(classes: Sequence[int], weights: Sequence[float] | None = None) -> int:
    """The class with most votes, or with the largest sum of weights; of equals the one that appeared first.

    Args:
        classes: Class of each sample's answer in order, shape [num_samples]; -1 (no answer) does not vote.
        weights: Weight of each sample, at least 0; None counts each once.

    Returns:
        The class, or -1 where no sample has an answer.

    Raises:
        ValueError: There are not as many weights as samples, or a weight is negative or not a number.
    """
    if weights is not None and len(weights) != len(classes):
        raise ValueError(f"{len(weights)} weights for {len(classes)} samples; give one a sample")
    totals: dict[int, float] = {}
    for index, number in enumerate(classes):
        weight = 1.0 if weights is None else weights[index]
        if type(weight) is not float or not 0.0 <= weight < math.inf:  # a sound weight costs no call
            weight = require.number(f"weight {index}", weight, least=0)
        if number != -1:
            totals[number] = totals.get(number, 0.0) + weight
    return max(totals, key=totals.__getitem__, default=-1)  # of equals, the first inserted


class Election(NamedTuple):
    """How a vote ended.

    Attributes:
        winner: The class that won; -1 where no sample has an answer.
        first: Index of the first sample of that class, which is the vote's output; 0 where no sample has an answer.
    """

    winner: int
    first: int


def elect(classes: Sequence[int], weights: Sequence[float] | None = None) -> Election:
    """The winner, as `vote` finds it, and the sample that stands for it.

    Raises:
        ValueError: As `vote`.
    """
    winner = vote(classes, weights)
    return Election(winner, list(classes).index(winner) if winner != -1 else 0)


def trace_confidence(
    top_logprobs: npt.ArrayLike, aggregate: Aggregate = "lowest_group", group_size: int = 2048
) -> float:
    """Confidence of one trace from the log-probabilities of each position's k likeliest tokens.

    A position's confidence is the negative mean of its k log-probabilities: the more the model favours one token, the
    less likely the others, and the higher it is. A group is a sliding window of positions.

    Args:
        top_logprobs: Natural logs, at most 0, shape [num_tokens, k], at least one token.
        aggregate: `"mean"` over all positions, `"tail"` over the last `group_size`, `"lowest_group"` of all groups, or
            `"bottom_10"`, the mean of the lowest tenth of them.
        group_size: Positions in a group; a shorter trace is one group.

    Returns:
        The confidence in nats, at least 0.

    Raises:
        ValueError: The shape is another, there is no token, or a setting is unknown.

    Reference:
        Fu et al., "Deep Think with Confidence", arXiv 2508.15260, section 3.
    """
    values = np.asarray(top_logprobs, dtype=float)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"top_logprobs has shape {values.shape}; it must be [num_tokens, k] with at least one token")
    require.whole("group_size", group_size)
    positions = -values.mean(axis=1)
    if aggregate == "mean":
        return float(positions.mean())
    if aggregate == "tail":
        return float(positions[-group_size:].mean())
    size = min(group_size, len(positions))
    sums = np.cumsum(np.concatenate(([0.0], positions)))
    groups = np.sort((sums[size:] - sums[:-size]) / size)
    if aggregate == "lowest_group":
        return float(groups[0])
    if aggregate == "bottom_10":
        return float(groups[: max(1, len(groups) // 10)].mean())
    raise ValueError(f"aggregate is {aggregate!r}; choose mean, tail, lowest_group or bottom_10")


def filtered_weights(classes: Sequence[int], confidences: Sequence[float], keep_share: float) -> list[float]:
    """What the votes of DeepConf's offline vote weigh: the most confident traces their confidence, the others nothing.

    Args:
        classes: Class of each trace's answer, shape [num_traces]; -1 where there is none. Such traces are left out
            before the share is taken.
        confidences: Confidence of each trace, shape [num_traces].
        keep_share: eta as a share, in (0, 1], of which at least one trace is kept: 0.1 or 0.9 in the paper.

    Returns:
        A weight for each trace, for `vote`; of equally confident ones the earlier are kept.

    Raises:
        ValueError: `keep_share` is out of range, or the lengths differ.

    Reference:
        Deep Think with Confidence, arXiv 2508.15260, sections on confidence filtering and offline thinking.
    """
    require.share("keep_share", keep_share)
    if len(confidences) != len(classes):
        raise ValueError(f"{len(confidences)} confidences for {len(classes)} traces; give one a trace")
    answered = [index for index, number in enumerate(classes) if number != -1]
    ranked = sorted(answered, key=lambda index: -confidences[index])
    kept = set(ranked[: math.ceil(keep_share * len(answered) - 1e-9)])
    return [confidence if index in kept else 0.0 for index, confidence in enumerate(confidences)]
