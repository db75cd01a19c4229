"""Tasks for branches on one prefix, and the formulas that controllers and workers share about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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


def break_even_branches(whole: float, prefix: float, suffix: float) -> float:
    """B*, the number of branches from which sharing pays: B T_whole = T_prefix + B T_suffix, in seconds; or infinite.

    Reference: RKSC, table 9; the formula is that of the released notebook.
    """
    saved = whole - suffix
    return prefix / saved if saved > 0 else math.inf


class BranchWork(NamedTuple):
    """One problem: branches on one prefix, and the verdicts on them.

    Attributes:
        verdict_len: Tokens of the question that asks for a verdict; 0 asks for none.
        asked: Cost of verdicts that is left, in [0, 1]: the share not skipped, times the share of the layers read
            (equations 9 and 10).
    """

    num_branches: int
    prefix_len: int
    num_decoded: int
    verdict_len: int = 0
    asked: float = 1.0


class LatencyModel(NamedTuple):
    """Seconds per forward pass, per token, and per pair of a token and one that it attends to.

    Branches that share a prefix save all but one reading of it, and pay for one more pass.

    Reference: RKSC, equations 6 to 10. Deviation: the paper counts layers; here the three constants are measured.
    """

    per_pass: float
    per_token: float
    per_pair: float

    def seconds(self, work: BranchWork, *, shares_prefix: bool = True, keeps_kv: bool = True) -> float:
        """Seconds of one problem: its prefix read, its branches decoded together, and their verdicts read.

        Args:
            shares_prefix: Read the prefix once, not once per branch (equation 7 instead of 6).
            keeps_kv: Read only the question of a verdict, not its branch again.
        """
        n, t, rows = work.prefix_len, work.num_decoded, work.num_branches
        reading = self._reading(n, 0, 1 if shares_prefix else rows)
        decoding = sum(self._reading(1, n + step, rows) for step in range(t))
        if not work.verdict_len or not work.asked:
            return reading + decoding
        new, old = (work.verdict_len, n + t) if keeps_kv else (n + t + work.verdict_len, 0)
        return reading + decoding + work.asked * self._reading(new, old, rows)

    def _reading(self, num_tokens: int, num_cached: int, rows: int) -> float:
        """Seconds of one pass over `rows` sequences of so many new tokens behind cached ones."""
        tokens = rows * num_tokens
        return self.per_pass + self.per_token * tokens + self.per_pair * tokens * (num_cached + (num_tokens + 1) / 2)

    def break_even_branches(self, prefix_len: int) -> float:
        reading = self.per_token * prefix_len + self.per_pair * prefix_len * (prefix_len + 1) / 2
        return 1 + self.per_pass / reading if reading else math.inf

    def break_even_len(self, num_branches: int) -> float:
        """n*, in tokens: with the given branches, sharing pays for longer prefixes; infinite if it never does."""
        if num_branches < 2 or not (self.per_token or self.per_pair):
            return math.inf
        saved = self.per_pass / (num_branches - 1)
        if not self.per_pair:
            return saved / self.per_token
        linear = self.per_token + self.per_pair / 2
        return (math.sqrt(linear * linear + 2 * self.per_pair * saved) - linear) / self.per_pair
