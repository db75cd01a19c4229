"""Runs whose requests arrived by the clock, beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaffolding_ext.evaluation.compare.finished_run import Run
from scaffolding_ext.evaluation.compare.paired import paired
from scaffolding_ext.evaluation.run.load_test import requests_of
from scaffolding_ext.evaluation.traffic.served_requests import TrafficFigures, traffic_figures
from scaffolding_ext.stats.intervals import Estimate, paired_bootstrap


class UnderLoad(NamedTuple):
    """A run under load.

    Attributes:
        figures: Its own.
        more_in_time: Share of the samples that it answers in time and the first run does not, less the reverse, with
            the 95 % interval of resampled questions; None of the first run, and where a run has no objective.
    """

    figures: TrafficFigures
    more_in_time: Estimate | None


def under_load(runs: Sequence[Run], seed: int) -> dict[str, UnderLoad]:
    """The runs whose stack says an arrival rate, by name."""
    found: dict[str, UnderLoad] = {}
    for run in runs:
        if (run.config.get("evaluation") or {}).get("arrival_rate") is None:
            continue
        figures = traffic_figures(requests_of(run.columns))
        found[run.name] = UnderLoad(figures, None if run is runs[0] else _more_in_time(runs[0], run, seed))
    return found


def _more_in_time(baseline: Run, run: Run, seed: int) -> Estimate | None:
    pairs = paired([baseline, run])
    columns = [
        {name: column[rows] for name, column in one.columns.items()}
        for one, rows in zip((baseline, run), pairs.rows, strict=True)
    ]
    if not all(each["is_wanted"].any() for each in columns):
        return None
    before, now = (each["is_in_time"].astype(np.float64) for each in columns)
    return paired_bootstrap(now, before, pairs.question_of, rng=np.random.default_rng(seed))
