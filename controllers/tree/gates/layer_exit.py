"""Layer after which a verdict may be read because the next token's distribution has settled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.protocol.branching import LayerExit

MAX_CHANGE = 3.0  # the paper's epsilon, in nats


@dataclass(frozen=True)
class LayerExitFit:
    """Performance of a rule on verdicts.

    Attributes:
        rule: None if no rule agrees often enough; then the last layer is read.
        agreement: Share of decisions equal to those at full depth.
        exit_share: Share of verdicts read before the last layer.
        depth: Mean share of the layers that a verdict runs through.
    """

    rule: LayerExit | None
    agreement: float
    exit_share: float
    depth: float


def fit_layer_exit(
    entropies: npt.ArrayLike,
    scores: npt.ArrayLike,
    groups: npt.ArrayLike,
    least_agreement: float = 0.99,
    num_steps: int = 12,
) -> LayerExitFit:
    """Find the rule that saves the most layers among those that agree with full depth often enough.

    Args:
        entropies: Entropy after each layer, in nats, shape (branches, layers).
        scores: Score that would be read after each layer, shape (branches, layers).
        groups: Decision that each branch belongs to (its problem), shape (branches,). A decision is the branch of a
            group with the highest score, the first of equals.
        least_agreement: Minimum share of decisions that agree with the last layer, in (0, 1].
        num_steps: Number of thetas and of epsilons to try; they are quantiles of the data.

    Deviation:
        RKSC does not consider decisions: `median_layer_exit` is its rule.
    """
    require.share("least_agreement", least_agreement)
    curves, read, members = np.asarray(entropies, dtype=float), np.asarray(scores, dtype=float), np.asarray(groups)
    if curves.ndim != 2 or curves.shape != read.shape or members.shape != curves.shape[:1] or not curves.size:
        raise ValueError(
            f"entropies has shape {curves.shape}, scores {read.shape} and groups {members.shape}; give "
            "(branches, layers) twice, and (branches,)"
        )
    best = LayerExitFit(None, 1.0, 0.0, 1.0)
    for rule in _candidates(curves, num_steps):
        if rule.layers(curves).mean() < best.depth * curves.shape[1]:
            found = judged_exit(rule, curves, read, members)
            best = found if found.agreement >= least_agreement else best
    return best


def judged_exit(
    rule: LayerExit, entropies: npt.NDArray[np.float64], scores: npt.NDArray[np.float64], groups: npt.NDArray[Any]
) -> LayerExitFit:
    """Performance of a rule on verdicts; the arrays are those of `fit_layer_exit`."""
    num_branches, num_layers = entropies.shape
    left = rule.layers(entropies)
    chosen = _winners(scores[np.arange(num_branches), left - 1], groups)
    agreement = float(np.mean(chosen == _winners(scores[:, -1], groups)))
    return LayerExitFit(rule, agreement, float(np.mean(left < num_layers)), float(left.mean() / num_layers))


def median_layer_exit(entropies: npt.ArrayLike, max_change: float = MAX_CHANGE) -> LayerExit:
    """The paper's rule: theta is the median entropy at the first stable point of each verdict.

    A verdict is stable after the first layer, from the second on, whose entropy changed by less than epsilon; one that
    never is counts with its last layer. Decisions are not considered, so their agreement is unknown.

    Args:
        entropies: Entropy after each layer, in nats, shape (branches, layers), at least one branch and two layers.
        max_change: Epsilon, in nats.

    Reference:
        RKSC, calibration of the layer exit.
    """
    curves = np.asarray(entropies, dtype=float)
    if curves.ndim != 2 or not len(curves) or curves.shape[1] < 2:
        raise ValueError(f"entropies has shape {curves.shape}; give (branches, layers), at least (1, 2)")
    stable = np.abs(np.diff(curves, axis=1)) < max_change
    stable[:, -1] = True
    first = stable.argmax(axis=1) + 1
    theta = float(np.median(curves[np.arange(len(curves)), first]))
    return LayerExit(float(np.nextafter(max(theta, 0.0), np.inf)), max_change)


def _winners(scores: npt.NDArray[np.float64], groups: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Row with the highest score of each group, the first of equals."""
    order = np.lexsort((np.arange(len(scores)), -scores, groups))
    firsts = np.unique(groups[order], return_index=True)[1]
    return np.asarray(order[firsts])


def _candidates(curves: npt.NDArray[np.float64], num_steps: int) -> Iterator[LayerExit]:
    """Rules whose theta and epsilon lie just above quantiles of the entropies and of their changes."""
    shares = np.linspace(0.0, 1.0, num_steps)
    thetas, epsilons = (
        np.nextafter(np.unique(np.quantile(values, shares)), np.inf)
        for values in (curves, np.abs(np.diff(curves, axis=1)))
    )
    for theta, epsilon, layer in itertools.product(thetas, epsilons, range(2, curves.shape[1])):
        yield LayerExit(float(theta), float(epsilon), layer)
