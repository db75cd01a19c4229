"""How similar two prompts are to a model: the cosine of their hidden states, with more weight on later layers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require

STEEPNESS = 1.5  # alpha, from the paper's grid


def layer_weights(num_layers: int, steepness: float = STEEPNESS) -> npt.NDArray[np.float64]:
    """The weight of each layer, shape (num_layers,), summing to 1: w_l is proportional to exp(alpha l / L).

    Args:
        num_layers: L, at least 1.
        steepness: Alpha; 0 weighs all layers alike.

    Raises:
        ValueError: An argument is outside its range.

    Reference:
        RKSC, equation 2.

    Deviation:
        The released code spaces the exponents from 0 to alpha (linspace), or gives all layers the same weight.
    """
    require.whole("num_layers", num_layers)
    require.number("steepness", steepness)
    weights = np.exp(steepness * (np.arange(1, num_layers + 1) / num_layers - 1.0))
    return np.asarray(weights / weights.sum())


def layer_weighted_similarity(
    hidden: npt.ArrayLike, root: npt.ArrayLike, steepness: float = STEEPNESS
) -> npt.NDArray[np.float64]:
    """The weighted mean over layers of the cosine of each branch's hidden state with the root's, in [-1, 1].

    Args:
        hidden: Last hidden state of each branch after each layer, shape (branches, layers, width).
        root: The root's last hidden state after each layer, shape (layers, width).
        steepness: Of `layer_weights`.

    Returns:
        One figure for each branch, shape (branches,). A state of length 0 is similar to no other: its cosine counts as
        0.

    Raises:
        ValueError: The shapes do not fit.

    Reference:
        RKSC, equation 2.
    """
    states, reference = np.asarray(hidden, dtype=float), np.asarray(root, dtype=float)
    if states.ndim != 3 or states.shape[1:] != reference.shape:
        raise ValueError(
            f"hidden has shape {states.shape} and root {reference.shape}; they must be (branches, layers, width) and "
            "(layers, width)"
        )
    lengths = np.linalg.norm(states, axis=2) * np.linalg.norm(reference, axis=1)
    products = (states * reference).sum(axis=2)
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return np.asarray(cosines @ layer_weights(reference.shape[0], steepness))
