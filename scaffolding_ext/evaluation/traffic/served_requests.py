"""Figures of arriving requests: shares in time, percentiles of their times, and the queue that they form."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.stats.intervals import Estimate

Booleans = npt.NDArray[np.bool_]
PERCENTILES = (50, 90, 99)
_BLOCKS = 20
_RESAMPLES = 1000
_SEED = 0  # of the resamples: a run has one summary


@dataclass(frozen=True)
class ServedRequests:
    """Requests in order of arrival, each array of shape [num_requests].

    Attributes:
        arrived: Seconds from any origin, non-decreasing.
        seconds: From arrival to end, including waiting.
        first_token: Seconds to the first token; NaN if unknown.
        is_wanted: Its answer has a time limit.
        is_in_time: It was answered within that limit.
    """

    arrived: Floats
    seconds: Floats
    first_token: Floats
    num_decoded: Floats
    is_answered: Booleans
    is_refused: Booleans
    is_wanted: Booleans
    is_in_time: Booleans


class QueueLength(NamedTuple):
    """Number of requests that run or wait, from each of the times on.

    Attributes:
        times: Seconds from the first arrival, increasing, shape [num_changes].
        lengths: Shape [num_changes].
    """

    times: Floats
    lengths: Floats

    @property
    def mean(self) -> float:
        """Time average, until the last request has ended."""
        spans = np.diff(self.times)
        return float(self.lengths[:-1] @ spans / spans.sum()) if spans.sum() > 0 else 0.0


class TrafficFigures(NamedTuple):
    """Figures of requests. Intervals are 95 %, from resampling blocks of consecutive arrivals.

    Attributes:
        num_failed: Requests without an answer that were not refused.
        in_time: Share of all requests that were answered in time; None without an objective.
        seconds: `mean`, `p50`, `p90` and `p99` of the answers.
        first_token: The same to the first token; empty if unknown.
        seconds_per_token: The same for the time in the system per decoded token.
        mean_queue: Time average of the requests that run or wait.
    """

    num: int
    num_answered: int
    num_late: int
    num_refused: int
    num_failed: int
    arrival_rate: float
    in_time: Estimate | None
    seconds: dict[str, Estimate]
    first_token: dict[str, Estimate]
    seconds_per_token: dict[str, Estimate]
    mean_queue: float
    most_queue: int


def traffic_figures(requests: ServedRequests) -> TrafficFigures:
    answered, refused = requests.is_answered, requests.is_refused
    queue = queue_length(requests)
    span = float(requests.arrived[-1] - requests.arrived[0])
    return TrafficFigures(
        num=len(answered),
        num_answered=int(answered.sum()),
        num_late=int((answered & requests.is_wanted & ~requests.is_in_time).sum()),
        num_refused=int(refused.sum()),
        num_failed=int((~answered & ~refused).sum()),
        arrival_rate=(len(answered) - 1) / span if span > 0 else 0.0,
        in_time=block_estimate(requests.is_in_time.astype(np.float64), np.mean) if requests.is_wanted.any() else None,
        seconds=spread(np.where(answered, requests.seconds, np.nan)),
        first_token=spread(np.where(answered, requests.first_token, np.nan)),
        seconds_per_token=spread(
            np.where(
                answered & (requests.num_decoded > 0), requests.seconds / np.maximum(1, requests.num_decoded), np.nan
            )
        ),
        mean_queue=queue.mean,
        most_queue=int(queue.lengths.max()),
    )


def spread(values: Floats) -> dict[str, Estimate]:
    """Return mean and percentiles of values in order of arrival; NaN stands for a missing value."""
    if np.isnan(values).all():
        return {}
    percentiles = {f"p{at}": functools.partial(np.nanpercentile, q=at) for at in PERCENTILES}
    figures: dict[str, Callable[[Floats], Any]] = {"mean": np.nanmean, **percentiles}
    return {name: block_estimate(values, figure) for name, figure in figures.items()}


def block_estimate(values: Floats, figure: Callable[[Floats], Any]) -> Estimate:
    blocks = [block for block in np.array_split(values, _BLOCKS) if len(block) and not np.isnan(block).all()]
    drawn = np.random.default_rng(_SEED).integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    resampled = [float(figure(np.concatenate([blocks[number] for number in row]))) for row in drawn]
    low, high = np.percentile(resampled, (2.5, 97.5))
    return Estimate(float(figure(values)), float(low), float(high))


def queue_length(requests: ServedRequests) -> QueueLength:
    """Return the requests in the system over time; refused ones were never in it."""
    inside = ~requests.is_refused
    begins = requests.arrived[inside]
    ends = begins + requests.seconds[inside]
    times = np.concatenate([begins, ends])
    changes = np.repeat([1.0, -1.0], len(begins))
    order = np.argsort(times, kind="stable")
    if not len(order):
        return QueueLength(np.zeros(1), np.zeros(1))
    return QueueLength(times[order] - requests.arrived[0], np.cumsum(changes[order]))
