"""After which layer a verdict may be read: where the distribution of the next token has settled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.protocol.branching import LayerExit


@dataclass(frozen=True)
class LayerExitFit:
    """How a rule does on the verdicts from which it was chosen.

    Attributes:
        rule: None where no rule agrees often enough; then the last layer is read.
        agreement: Share of the decisions that are equal to those at full depth.
        exit_share: Share of the verdicts that are read before the last layer.
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
    """The rule that saves the most layers, among the rules that agree with the full depth often enough.

    Args:
        entropies: After each layer, in nats, shape (branches, layers).
        scores: The score that would be read after each layer, shape (branches, layers).
        groups: The decision that each branch belongs to (its problem), shape (branches,). A decision is which branch
            of a group has the highest score, the first of equals.
        least_agreement: Least share of the decisions that agree with the last layer, in (0, 1].
        num_steps: Number of thetas and number of epsilons to try; they are quantiles of the data.

    Raises:
        ValueError: The shapes do not fit, or an argument is outside its range.

    Reference:
        RKSC takes the median entropy at the first stable point as theta. It does not look at decisions.
    """
    require.share("least_agreement", least_agreement)
    curves, read, members = np.asarray(entropies, dtype=float), np.asarray(scores, dtype=float), np.asarray(groups)
    if curves.ndim != 2 or curves.shape != read.shape or members.shape != curves.shape[:1] or not curves.size:
        raise ValueError(
            f"entropies has shape {curves.shape}, scores {read.shape} and groups {members.shape}; give "
            "(branches, layers) twice, and (branches,)"
        )
    num_layers = curves.shape[1]
    rows = np.arange(len(curves))
    full = _winners(read[:, -1], members)
    best = LayerExitFit(None, 1.0, 0.0, 1.0)
    for rule in _candidates(curves, num_steps):
        left = rule.layers(curves)
        depth = float(left.mean() / num_layers)
        if depth < best.depth:
            agreement = float(np.mean(_winners(read[rows, left - 1], members) == full))
            if agreement >= least_agreement:
                best = LayerExitFit(rule, agreement, float(np.mean(left < num_layers)), depth)
    return best


def _winners(scores: npt.NDArray[np.float64], groups: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """The row with the highest score of each group, the first of equals."""
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
