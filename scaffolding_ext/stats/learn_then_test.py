"""Learn then test: settings whose risk is at most a given level, with a given confidence, for any distribution.

Each setting is a hypothesis, "its risk is above the level", which its mean loss on exchangeable questions may reject.
All rejections hold simultaneously with the confidence, so the cheapest of these settings may be chosen.

Reference: Angelopoulos, Bates, Candès, Jordan & Lei, "Learn then Test: Calibrating Predictive Algorithms to Achieve
Risk Control", arXiv 2110.01052.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import rel_entr
from scipy.stats import binom

from scaffolding_ext import require

ORDERING_SHARE = 0.3  # share of the questions that order the settings; the others test them
Floats = npt.NDArray[np.float64]
_ROUNDING = 1e-9  # tolerance for a mean of 0/1 losses


class Tested(NamedTuple):
    """Result of a test over settings.

    Attributes:
        passed: Indices of the settings that pass, in the order tested.
        chosen: The cheapest of them; None if none passes.
        p_values: P-value of each setting on the testing questions, shape [num_settings].
        num_questions: Number of testing questions.
    """

    passed: list[int]
    chosen: int | None
    p_values: Floats
    num_questions: int


def hoeffding_bentkus(mean_loss: npt.ArrayLike, num_questions: int, level: float) -> Floats:
    """P-values of "the risk is above the level".

    Args:
        mean_loss: Mean of losses in [0, 1], any shape.
        num_questions: Number of losses in each mean.
        level: The largest risk allowed, in (0, 1).

    Reference: Learn then Test, proposition 2 (Bates et al. 2021, theorem 3): the smaller of Hoeffding's tail
        exp(-n h(min(R, a), a)), h the binary relative entropy, and Bentkus' e P(Bin(n, a) <= ceil(n R)).
    """
    require.whole("num_questions", num_questions)
    require.number("level", level, above=0, below=1)
    means = _losses(mean_loss)
    low = np.minimum(means, level)
    hoeffding = np.exp(-num_questions * (rel_entr(low, level) + rel_entr(1 - low, 1 - level)))
    bentkus = np.e * binom.cdf(np.ceil(num_questions * means - _ROUNDING), num_questions, level)
    p_values: Floats = np.minimum(np.minimum(hoeffding, bentkus), 1.0)
    return p_values


def fixed_sequence(p_values: npt.ArrayLike, delta: float) -> int:
    """Number of hypotheses rejected in sequence: those before the first whose p-value is above `delta`.

    The order must not depend on the data behind the p-values. Reference: Learn then Test, section 3.1.
    """
    above = np.asarray(p_values, dtype=np.float64) > require.number("delta", delta, above=0, below=1)
    return int(np.argmax(above)) if above.any() else len(above)


def pareto_sequence(risk: npt.ArrayLike, cost: npt.ArrayLike) -> list[int]:
    """The settings that no other beats in both cost and risk; the safest first, the cheapest last.

    Reference: Laufer-Goldshtein, Fisch, Barzilay & Jaakkola, "Efficiently Controlling Multiple Risks with Pareto
        Testing", arXiv 2210.07913.
    """
    risks, costs = np.asarray(risk, dtype=np.float64), np.asarray(cost, dtype=np.float64)
    sequence: list[int] = []
    for index in np.lexsort((costs, risks)):
        if not sequence or costs[index] < costs[sequence[-1]]:
            sequence.append(int(index))
    return sequence


def questions_needed(level: float, delta: float) -> int:
    """Fewest questions with which `learn_then_test` can choose; with fewer, even a setting without loss cannot pass."""
    num_tests = math.ceil(math.log(delta) / math.log1p(-level) - _ROUNDING)
    num = math.ceil(num_tests / (1 - ORDERING_SHARE)) - 2
    while num - _num_ordering(num) < num_tests:
        num += 1
    return max(2, num)


def _num_ordering(num_questions: int) -> int:
    return max(1, round(ORDERING_SHARE * num_questions))


def learn_then_test(
    losses: npt.ArrayLike, costs: npt.ArrayLike, level: float, delta: float, rng: np.random.Generator
) -> Tested:
    """Choose the cheapest setting such that P(risk > level) <= delta over draws of the questions.

    Some questions order the settings (`pareto_sequence`); the rest test them in turn.

    Args:
        losses: Loss of each question under each setting, in [0, 1], shape [num_questions, num_settings].
        costs: Cost of each question under each setting, same shape.
        level: The largest risk allowed, in (0, 1).
        delta: Probability that a setting of higher risk is chosen, in (0, 1).
    """
    lost, paid = _losses(losses), np.asarray(costs, dtype=np.float64)
    if lost.ndim != 2 or lost.shape != paid.shape or len(lost) < 2:
        raise ValueError(
            f"losses have shape {lost.shape} and costs {paid.shape}; give [num_questions, num_settings] twice, with "
            "at least 2 questions"
        )
    orders, tests = np.split(rng.permutation(len(lost)), [_num_ordering(len(lost))])
    sequence = pareto_sequence(lost[orders].mean(axis=0), paid[orders].mean(axis=0))
    p_values = hoeffding_bentkus(lost[tests].mean(axis=0), len(tests), level)
    passed = sequence[: fixed_sequence(p_values[sequence], delta)]
    cost = paid.mean(axis=0)
    return Tested(passed, min(passed, key=lambda index: cost[index], default=None), p_values, len(tests))


def _losses(values: npt.ArrayLike) -> Floats:
    losses = np.asarray(values, dtype=np.float64)
    if not ((losses >= 0) & (losses <= 1)).all():
        raise ValueError(f"losses are {losses.min():g} to {losses.max():g}; scale them to [0, 1]")
    return losses
