"""Sweeps: runs of one controller with different knobs, as accuracy against tokens, and savings at equal accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.documents import plain
from scaffolding_ext.evaluation.compare.finished_run import FinishedRun
from scaffolding_ext.evaluation.compare.paired import Point, paired
from scaffolding_ext.stats.intervals import Estimate
from scaffolding_ext.stats.resampling import resampled_totals


class CostAt(NamedTuple):
    """Cost of an accuracy, with an entry per row of points.

    Attributes:
        cost: In the unit of the points' costs; infinite if no point is as accurate.
        interpolated: True if it lies between two points; otherwise it is the cheapest point's cost, or infinite.
    """

    cost: npt.NDArray[np.float64]
    interpolated: npt.NDArray[np.bool_]


def cost_at_accuracy(accuracy: npt.ArrayLike, cost: npt.ArrayLike, wanted: npt.ArrayLike) -> CostAt:
    """Return the cost at which the frontier of some points reaches an accuracy, linear between neighbours.

    Points that are no more accurate than a cheaper one are not on the frontier. Interpolated figures are attainable:
    choosing randomly between two neighbours for each question gives every accuracy and cost on the line between them.
    Nothing is extrapolated: if the cheapest point is accurate enough, its cost is taken.

    Args:
        accuracy: Of each point, shape [num_rows, num_points].
        cost: Of each point, shape [num_rows, num_points].
        wanted: The accuracy of each row, shape [num_rows].

    Raises:
        ValueError: The shapes do not match.
    """
    levels, costs, goal = (np.asarray(values, dtype=np.float64) for values in (accuracy, cost, wanted))
    if levels.ndim != 2 or levels.shape != costs.shape or goal.shape != levels.shape[:1] or not levels.size:
        raise ValueError(
            f"accuracy has shape {levels.shape}, cost {costs.shape} and wanted {goal.shape}; give [num_rows, "
            "num_points] twice, and [num_rows]."
        )
    order = np.lexsort((-levels, costs), axis=-1)
    levels, costs = (np.take_along_axis(values, order, axis=1) for values in (levels, costs))
    best = np.maximum.accumulate(levels, axis=1)
    reaches = best >= goal[:, None]
    rows = np.arange(len(goal))
    first = np.argmax(reaches, axis=1)
    is_reached = reaches[rows, first]
    interpolated = is_reached & (first > 0)
    before = np.maximum(first - 1, 0)
    cheaper = np.argmax(levels == best[rows, before][:, None], axis=1)  # the cheapest of the best before
    low, high = best[rows, before], levels[rows, first]
    share = np.where(interpolated, (goal - low) / np.where(interpolated, high - low, 1), 1.0)
    between = costs[rows, cheaper] + share * (costs[rows, first] - costs[rows, cheaper])
    found = np.where(interpolated, between, costs[rows, first])
    return CostAt(np.where(is_reached, found, np.inf), interpolated)


_ENDS = (0.025, 0.975)


class Knobs(NamedTuple):
    """A run of a sweep.

    Attributes:
        values: Its values of the arguments that differ within the sweep, by dotted path.
    """

    point: Point
    values: dict[str, Any]


class Saving(NamedTuple):
    """Saving of a sweep at the accuracy of the baseline.

    Attributes:
        saved: Share of the baseline's decoded tokens that are saved, with its 95 % interval; None if no run of the
            sweep is as accurate. The lower end is minus infinity if more than 2.5 % of the resamples do not reach it.
        interpolated: The figure lies between two runs, on the line between them.
        reached_share: Share of the resamples in which the sweep is as accurate as the baseline.
    """

    saved: Estimate | None
    interpolated: bool
    reached_share: float


class Sweep(NamedTuple):
    """Runs of one controller with different knobs, by increasing tokens.

    Attributes:
        baseline: Name of the run whose accuracy is to be matched.
    """

    name: str
    runs: list[Knobs]
    baseline: str
    saving: Saving

    def to_json(self) -> dict[str, Any]:
        return plain(self) | {"runs": [plain(run.point) | {"knobs": run.values} for run in self.runs]}  # type: ignore[no-any-return]


def sweeps_of(
    runs: Sequence[FinishedRun], points: Sequence[Point], seed: int = 0, num_resamples: int = 10_000
) -> list[Sweep]:
    """Find the sweeps among runs; the first run is the baseline, and belongs to none.

    Two runs are of one sweep if their stacks have the same controllers, workers and prompts, and differ only in
    arguments of controllers.

    Args:
        runs: The baseline, and others.

    Raises:
        DatasetError: A sweep and the baseline share fewer than two questions.
    """
    families: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        if number and run.config.get("controller"):
            families.setdefault(_shape(run.config), []).append(number)
    sweeps = []
    for members in families.values():
        if len(members) < 2:
            continue
        arguments = [dict(_flattened(runs[number].config["controller"])) for number in members]
        paths = dict.fromkeys(path for own in arguments for path in own)
        differing = [path for path in paths if len({repr(own.get(path)) for own in arguments}) > 1]
        placed = [
            Knobs(points[number], {path.removeprefix("args."): own.get(path) for path in differing})
            for number, own in zip(members, arguments, strict=True)
        ]
        saving = _saving(runs[0], [runs[number] for number in members], seed, num_resamples)
        name = str(runs[members[0]].config["controller"].get("type", "controller"))
        sweeps.append(Sweep(name, sorted(placed, key=lambda run: run.point.tokens.value), runs[0].name, saving))
    return sweeps


def _saving(baseline: FinishedRun, runs: Sequence[FinishedRun], seed: int, num_resamples: int) -> Saving:
    pairs = paired((baseline, *runs))
    columns = [
        pairs.totals(run.columns[name][rows])
        for name in ("correct", "decoded")
        for run, rows in zip((baseline, *runs), pairs.rows, strict=True)
    ]
    sizes = pairs.totals(np.ones(pairs.num_samples))
    rows = np.column_stack([*columns, sizes])
    drawn = resampled_totals(rows, len(rows), num_resamples, np.random.default_rng(seed))
    totals = np.vstack((rows.sum(axis=0), drawn))  # the first row is the estimate
    means = totals[:, :-1] / totals[:, -1:]
    accuracy, tokens = np.hsplit(means, 2)
    found = cost_at_accuracy(accuracy[:, 1:], tokens[:, 1:], accuracy[:, 0])
    with np.errstate(divide="ignore", invalid="ignore"):
        saved = 1 - found.cost / tokens[:, 0]
    saved = np.where(np.isnan(saved), -np.inf, saved)
    reached_share = float(np.isfinite(found.cost[1:]).mean())
    if not np.isfinite(saved[0]):
        return Saving(None, False, reached_share)
    low, high = np.quantile(saved[1:], _ENDS, method="nearest")
    return Saving(Estimate(float(saved[0]), float(low), float(high)), bool(found.interpolated[0]), reached_share)


def _shape(config: Mapping[str, Any]) -> str:
    kinds = sorted(
        (path, value) for path, value in _flattened(config["controller"]) if path.rpartition(".")[2] == "type"
    )
    return repr((kinds, config.get("workers"), config.get("prompt") or None))


def _flattened(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        return [(path, value)]
    return [pair for key, inner in value.items() for pair in _flattened(inner, f"{path}.{key}" if path else str(key))]
