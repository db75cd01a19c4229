"""Votes: plain, weighted, and filtered by confidence. Ties go to the class that appeared first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

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
        if not weight >= 0:
            raise ValueError(f"weight {index} is {weight}; it must be at least 0")
        if number != -1:
            totals[number] = totals.get(number, 0.0) + weight
    return max(totals, key=totals.__getitem__, default=-1)  # of equals, the first inserted


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
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}; it must be at least 1")
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


def keep_most_confident(confidences: Sequence[float], keep_share: float) -> list[bool]:
    """Which traces vote: the `keep_share` with the highest confidence, at least one.

    Args:
        confidences: Confidence of each trace, shape [num_traces], at least one.
        keep_share: eta as a share, in (0, 1]: 0.1 or 0.9 in the paper.

    Returns:
        Whether each is kept, shape [num_traces]; of equals the earlier.

    Raises:
        ValueError: `keep_share` is out of range, or there is no trace.

    Reference:
        Deep Think with Confidence, arXiv 2508.15260, section on confidence filtering.
    """
    if not 0 < keep_share <= 1:
        raise ValueError(f"keep_share is {keep_share}; it must lie in (0, 1]")
    if not len(confidences):
        raise ValueError("there is no trace to keep")
    num_kept = max(1, math.ceil(keep_share * len(confidences) - 1e-9))
    kept = np.argsort(-np.asarray(confidences, dtype=float), kind="stable")[:num_kept]
    return [bool(flag) for flag in np.isin(np.arange(len(confidences)), kept)]


def filtered_vote(classes: Sequence[int], confidences: Sequence[float], keep_share: float) -> int:
    """DeepConf's offline vote: the most confident traces alone, each weighted by its confidence.

    Traces without an answer are left out before the share is taken. Arguments as in `vote` and `keep_most_confident`.

    Returns:
        The class, or -1 where no trace has an answer.

    Raises:
        ValueError: As `vote` and `keep_most_confident` do.

    Reference:
        Deep Think with Confidence, arXiv 2508.15260, offline thinking.
    """
    if len(confidences) != len(classes):
        raise ValueError(f"{len(confidences)} confidences for {len(classes)} traces; give one a trace")
    answered = [index for index, number in enumerate(classes) if number != -1]
    if not answered:
        return -1
    kept = keep_most_confident([confidences[index] for index in answered], keep_share)
    voters = [index for index, keep in zip(answered, kept, strict=True) if keep]
    return vote([classes[index] for index in voters], [confidences[index] for index in voters])
