"""Certaindex: the certainty of a reasoning program's answer, in [0, 1], and the test that it suffices to stop.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), arXiv 2412.20993.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from scaffolding_ext import require

Measure = Literal["entropy", "mean_reward", "max_reward"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
MIN_ANSWERS = 3  # with fewer answers nothing is settled


def has_answers(classes: Sequence[int], min_answers: int = MIN_ANSWERS) -> bool:
    """Return True if `min_answers` samples have an answer; if there are fewer samples, all must have one.

    Args:
        classes: Class of each sample's answer, shape [num_samples]; -1 for no answer.
    """
    return sum(number != -1 for number in classes) >= max(1, min(min_answers, len(classes)))


def entropy_certaindex(classes: Sequence[int], min_answers: int = MIN_ANSWERS) -> float:
    """Normalised agreement of sampled answers: (log n - H) / log n, H the entropy of the answer classes in nats.

    Args:
        classes: Class of each sample's answer, shape [num_samples]; -1 for no answer.
        min_answers: Required answers, counted by `has_answers`.

    Returns:
        1 if all answers are equal, 0 if no two are or if there are too few answers.

    Reference: Certaindex, section on multi-path algorithms: semantic entropy of the answer clusters, normalised by log
        n.

    Deviation: n = 1 is 0 / 0 in the paper; it is 0 here, so that no threshold stops a vote on its first sample. Samples
        without an answer are ignored: n counts the answers.
    """
    counts = Counter(number for number in classes if number != -1)
    num_answers = counts.total()
    if num_answers < 2 or not has_answers(classes, min_answers):
        return 0.0
    # H = log n - sum(c log c) / n, so (log n - H) / log n is this, exact if all answers are equal.
    return min(1.0, sum(count * math.log(count) for count in counts.values()) / (num_answers * math.log(num_answers)))


def window_consistency(classes: Sequence[int], window: int) -> float:
    """C_k: the share of the last `window` probes whose answer equals the newest.

    Args:
        classes: Class of each probe's answer in order, shape [num_probes]; -1 for no answer.
        window: Number of probes, at least 1. Probes that do not exist yet count as disagreeing.

    Reference: Certaindex, section on chain of thought, C_k.
    """
    require.whole("window", window)
    if not classes or classes[-1] == -1:
        return 0.0
    return sum(number == classes[-1] for number in classes[-window:]) / window


def reward_certaindex(rewards: Sequence[float], aggregation: Literal["mean", "max"]) -> float:
    """Aggregate the paths' normalised terminal rewards: the mean (MCTS) or the maximum (REBASE).

    Args:
        rewards: Reward of each finished path, each in [0, 1], shape [num_paths].

    Raises:
        ValueError: A reward is outside [0, 1], or the aggregation is neither.

    Reference: Certaindex, section on algorithms with a reward model.
    """
    if aggregation not in ("mean", "max"):
        raise ValueError(f"aggregation is {aggregation!r}; choose mean or max")
    values = np.asarray(rewards, dtype=float)
    if not values.size:
        return 0.0
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"rewards are {values.min():g} to {values.max():g}; normalise them to [0, 1]")
    return float(values.mean() if aggregation == "mean" else values.max())


@dataclass(frozen=True)
class Threshold:
    measure: Measure
    at_least: float

    def __post_init__(self) -> None:
        require.one_of("measure", self.measure, MEASURES)
        require.number("at_least", self.at_least, least=0, most=1)

    @classmethod
    def of(cls, value: Threshold | Mapping[str, Any]) -> Threshold:
        return value if isinstance(value, Threshold) else cls(**value)


def measure_value(
    measure: Measure, classes: Sequence[int], rewards: Sequence[float] | None = None, min_answers: int = MIN_ANSWERS
) -> float:
    if measure == "entropy":
        return entropy_certaindex(classes, min_answers)
    require.one_of("measure", measure, MEASURES)
    if rewards is None:
        raise ValueError(f"{measure} needs the paths' rewards; give them, or threshold only the entropy")
    return reward_certaindex(rewards, "mean" if measure == "mean_reward" else "max")


def is_certain(
    thresholds: Sequence[Threshold],
    classes: Sequence[int],
    rewards: Sequence[float] | None = None,
    min_answers: int = MIN_ANSWERS,
) -> bool:
    """Return True if every measure reaches its threshold.

    Args:
        classes: Class of each sample's answer, -1 for no answer.
        min_answers: Answers required for any measure, counted by `has_answers`.
    """
    if not thresholds:
        raise ValueError("no thresholds, so everything would pass; give at least one")
    values = (measure_value(each.measure, classes, rewards, min_answers) >= each.at_least for each in thresholds)
    return has_answers(classes, min_answers) and all(values)
