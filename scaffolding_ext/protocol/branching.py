"""Tasks for branches on one prefix, and the formulas that controllers and workers share about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.protocol import Task

# In a worker's `refused`, beside the names of task types:
LAYER_EXIT = "layer exit"  # see `VerifyTask.layer_exit`
SIMILARITY_GATE = "similarity gate"  # see `BranchTask.least_similarity`

STEEPNESS = 1.5  # alpha, from the paper's grid


def entropy(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Entropy in nats, shape (...), of logits, shape (..., vocabulary), after the model's final norm.

    Reference: RKSC, equation 5. Deviation: the released code leaves the final norm out, so its scale differs.
    """
    values = np.asarray(logits, dtype=float)
    shifted = values - values.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=-1)
    return np.asarray(np.log(total) - (weights * shifted).sum(axis=-1) / total)


@dataclass(frozen=True)
class LayerExit:
    """Condition to read a verdict early: the entropy is low and no longer changes from layer to layer.

    Args:
        max_entropy: Theta, in nats; the entropy must be below it.
        max_change: Epsilon, in nats; the entropy must have changed by less since the previous layer.
        min_layer: First layer that may be read, counted from 1; at least 2.

    Reference: RKSC, equation 5 and the exit rule. The paper's 8.0 and 3.0 fire at the third or fourth layer;
        `fit_layer_exit` calibrates both.
    """

    max_entropy: float
    max_change: float
    min_layer: int = 2

    def __post_init__(self) -> None:
        require.number("max_entropy", self.max_entropy, above=0)
        require.number("max_change", self.max_change, above=0)
        require.whole("min_layer", self.min_layer, least=2)

    def settled(self, layer: int, entropies: npt.ArrayLike, entropies_before: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Mark the branches that may leave after a layer (counted from 1), by their entropies there and one before."""
        now, before = np.asarray(entropies, dtype=float), np.asarray(entropies_before, dtype=float)
        return np.asarray(
            (layer >= self.min_layer) & (now < self.max_entropy) & (np.abs(now - before) < self.max_change)
        )

    def layers(self, entropies: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return each branch's exit layer, counted from 1, by its entropies, shape (branches, layers)."""
        curves = np.asarray(entropies, dtype=float)
        num_branches, num_layers = curves.shape
        left = np.full(num_branches, num_layers)
        for layer in range(num_layers - 1, 1, -1):
            left[self.settled(layer, curves[:, layer - 1], curves[:, layer - 2])] = layer
        return left


@dataclass
class BranchTask(Task):
    """Many suffixes generated on one prefix, whose KV they share.

    A later task continues a branch: its suffix begins with the branch's tokens, whose KV is reused. A branch may read a
    different phrasing instead of the prefix, unless `least_similarity` makes it read the prefix after all.

    Attributes:
        suffixes: Token ids of each branch's suffix; the branch reads `prefix_tokens` and then its suffix.
        max_tokens: Maximum tokens decoded in each branch.
        branch_scores: Score of each branch so far, in [0, 1]; None is 1 each. Score and depth give the priority of its
            KV (`block_score`).
        phrasings: Token ids of each branch's wording of the prefix; None: all read the prefix itself.
        least_similarity: Tau, in [-1, 1]: a branch at least this similar reads the prefix instead of its phrasing. None
            has no gate. A worker that cannot compare hidden states refuses `SIMILARITY_GATE`.
        stop: Texts that end a branch; they are cut off its text, and their tokens may remain in `output_tokens`.
        confidences: Result: mean top-1 probability over the tokens that each branch decoded (RKSC, eq. 3).
        finish_reasons: Result: finish reason of each branch; `"length"` at `max_tokens`.
        similarities: Result: cosine of the hidden states of each branch's last token and the prefix's (RKSC, eq. 2), 1
            if the phrasing is the prefix; None without a gate.
        on_prefix: Result: True for branches written on the prefix, not on another phrasing.
    """

    prefix_tokens: list[int] = field(default_factory=list)
    suffixes: list[list[int]] = field(default_factory=list)
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seeds: list[int] | None = None
    branch_scores: list[float] | None = None
    depth: int = 1
    phrasings: list[list[int]] | None = None
    least_similarity: float | None = None
    stop: list[str] | None = None
    outputs: list[str] | None = None
    output_tokens: list[list[int]] | None = None
    confidences: list[float] | None = None
    logprobs: list[list[float]] | None = None
    finish_reasons: list[str | None] | None = None
    similarities: list[float] | None = None
    on_prefix: list[bool] | None = None


@dataclass
class VerifyTask(Task):
    """P(yes) for each branch: the probability of the first token of `yes` against that of `no` after a question.

    Attributes:
        layer_exit: Condition to read a verdict before the last layer; a worker that cannot do so refuses `LAYER_EXIT`.
        every_layer: Request `curves`; for workers that serve `layer_exit`.
        scores: Result: P(yes) / (P(yes) + P(no)) of each branch.
        curves: Result: entropy (nats) and score of each branch after each layer.
        exit_layers: Result: layer after which each verdict was read, counted from 1, if the worker reports it.
    """

    branches: list[list[int]] = field(default_factory=list)
    yes_token: int = 0
    no_token: int = 0
    layer_exit: LayerExit | None = None
    every_layer: bool = False
    depth: int = 1
    scores: list[float] | None = None
    exit_layers: list[int] | None = None
    curves: list[list[tuple[float, float]]] | None = None


def layer_weights(num_layers: int, steepness: float = STEEPNESS) -> npt.NDArray[np.float64]:
    """The weight of each layer, shape (num_layers,), summing to 1: w_l is proportional to exp(alpha l / L).

    Reference: RKSC, equation 2. Deviation: the released code spaces the exponents from 0 to alpha (linspace), or gives
        all layers the same weight.
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
        Shape (branches,). The cosine of a state of length 0 counts as 0.

    Reference: RKSC, equation 2.
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


def generation_confidence(top_probabilities: Sequence[float]) -> float:
    """Mean probability of the likeliest token over a branch's decoded steps; 0 if nothing was decoded.

    Reference: RKSC, equation 3. Deviation: the released code counts beyond the end of a branch.
    """
    return math.fsum(top_probabilities) / len(top_probabilities) if top_probabilities else 0.0


def block_score(score: float, depth: int) -> float:
    """Omega, the priority of a KV block, in [0, 1], by score (in [0, 1], else ValueError) and depth of its branch.

    A prefix that all branches share has score 1 and depth 0.
    Reference: RKSC, algorithm 4.
    """
    return require.number("score", score, least=0, most=1) / (require.whole("depth", depth, least=0) + 1)
