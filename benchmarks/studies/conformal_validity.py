"""Monte-Carlo study of the conformal guarantee: how often `p <= alpha` where it is promised, and where it is not.

    python -m benchmarks.studies.conformal_validity --seed 0

1. One new score among exchangeable ones, of several laws, marginal (a pool) and conditional (16 drafts of one question,
   each among the others): the rate is at most alpha, and with random ties equal to it, within four standard errors.
2. Chains whose later scores depend on earlier decisions: pools a turn of chains that ran the same rule, against the
   pool of turn 0 and pools a turn of chains that nobody ever took over.
3. Scores that drift: a fixed level against an adaptive one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.draft_target.adaptive import AdaptiveLevel
from scaffolding_ext.controllers.draft_target.p_values import leave_one_out_p_values, p_values
from scaffolding_ext.controllers.draft_target.scores import ScorePool

Floats = npt.NDArray[np.float64]
Law = Callable[[np.random.Generator, int], Floats]

ALPHAS = (0.05, 0.1, 0.25, 0.4, 0.5, 0.6)
NUM_CALIBRATION = 99
NUM_DRAFTS = 16
NUM_TURNS = 5
NUM_STANDARD_ERRORS = 4.0
DRIFT_STEP = 0.02

LAWS: dict[str, Law] = {
    "continuous": lambda rng, n: rng.gamma(2.0, 0.3, n),
    "40 % tied": lambda rng, n: np.where(rng.random(n) < 0.4, 0.5, rng.gamma(2.0, 0.3, n)),
    "discrete": lambda rng, n: rng.poisson(1.5, n).astype(float),
    "of one question": lambda rng, n: rng.normal() + rng.gamma(2.0, 0.3, n),
    "heavy-tailed": lambda rng, n: rng.standard_cauchy(n),
}


def study_laws(report: Report, num_repetitions: int, rng: np.random.Generator) -> None:
    """A calibration set and one new score a repetition, so that rates are binomial."""
    for law_name, law in LAWS.items():
        for ties in ("conservative", "random"):
            marginal, conditional = np.empty(num_repetitions), np.empty(num_repetitions)
            for repetition in range(num_repetitions):
                scores = law(rng, NUM_CALIBRATION + 1)
                marginal[repetition] = p_values(scores[1:], scores[:1], ties, rng)[0]
                conditional[repetition] = leave_one_out_p_values(law(rng, NUM_DRAFTS), ties, rng)[0]
            for kind, drawn in (("marginal", marginal), ("conditional", conditional)):
                report_rates(report, f"{law_name}, {kind}, {ties} ties", drawn, exact=ties == "random")


def report_rates(report: Report, name: str, drawn: Floats, *, exact: bool) -> None:
    """The rate at every level, and how far the worst is from its promise in standard errors."""
    worst = -math.inf
    for alpha in ALPHAS:
        num_fired = int(np.sum(drawn <= alpha))
        rate = report.share(f"{name}, alpha {alpha}", num_fired, len(drawn))
        errors = (rate - alpha) / math.sqrt(alpha * (1 - alpha) / len(drawn))
        worst = max(worst, abs(errors) if exact else errors)
    promise = "distance from alpha" if exact else "excess over alpha"
    report.bar(f"{name}: {promise}, standard errors", worst, "<=", NUM_STANDARD_ERRORS)


class Chains:
    """Chains that get worse from turn to turn, and better where the target takes over.

    Args:
        num_chains: Chains, each of a question of its own.
        rng: Source of everything random.
    """

    def __init__(self, num_chains: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._trouble = rng.normal(0, 0.5, num_chains)

    def scores(self) -> Floats:
        """Scores of the next chunks."""
        return self._trouble + self._rng.normal(0, 0.3, len(self._trouble))

    def go_on(self, taken_over: npt.NDArray[np.bool_]) -> None:
        """What the decisions make of the chains."""
        self._trouble = np.where(taken_over, 0.3 * self._trouble, 1.1 * self._trouble + 0.1)


def study_turns(report: Report, num_repetitions: int, rng: np.random.Generator) -> None:
    """One test chain a repetition, which lives under the rule with pools of the same policy; the others look on."""
    for alpha in (0.25, 0.4):
        fired = {
            kind: np.zeros(NUM_TURNS, dtype=int)
            for kind in ("pool of turn 0", "pool of another policy", "a pool a turn")
        }
        for _ in range(num_repetitions):
            same, untouched, test = Chains(NUM_CALIBRATION, rng), Chains(NUM_CALIBRATION, rng), Chains(1, rng)
            first: Floats | None = None
            for turn in range(NUM_TURNS):
                pool, other, score = same.scores(), untouched.scores(), test.scores()
                first = pool if first is None else first
                for kind, calibration in (
                    ("pool of turn 0", first),
                    ("pool of another policy", other),
                    ("a pool a turn", pool),
                ):
                    decision = p_values(calibration, score) <= alpha
                    fired[kind][turn] += int(decision[0])
                test.go_on(decision)  # the last of the three
                same.go_on(leave_one_out_p_values(pool) <= alpha)
                untouched.go_on(np.zeros(NUM_CALIBRATION, dtype=bool))
        for kind, numbers in fired.items():
            for turn, number in enumerate(numbers.tolist()):
                report.share(f"{kind}, alpha {alpha}, turn {turn}", number, num_repetitions)
        excess = fired["a pool a turn"] / num_repetitions - alpha
        error = math.sqrt(alpha * (1 - alpha) / num_repetitions)
        worst = float(np.abs(excess).max() / error)
        report.bar(f"a pool a turn, alpha {alpha}: distance, standard errors", worst, "<=", NUM_STANDARD_ERRORS)


def study_drift(report: Report, num_decisions: int, rng: np.random.Generator) -> None:
    """Scores that leave their calibration set for good."""
    for alpha in (0.1, 0.25, 0.4):
        pool = ScorePool(rng.normal(size=499))
        adaptive = AdaptiveLevel(alpha, DRIFT_STEP)
        num_fixed = 0
        for decision in range(num_decisions):
            p_value = pool.p_value(rng.normal(2 * decision / num_decisions), "random", rng)
            num_fixed += p_value <= alpha
            adaptive.decide(p_value)
        report.figure(f"drift, alpha {alpha}: rate at a fixed level", num_fixed / num_decisions)
        report.figure(f"drift, alpha {alpha}: rate at the adaptive level", adaptive.rate)
        report.figure(f"drift, alpha {alpha}: regret a decision", adaptive.regret() / num_decisions)
        distance = abs(adaptive.rate - alpha)
        report.bar(f"drift, alpha {alpha}: distance of the adaptive rate", distance, "<=", adaptive.rate_bound)


@benchmark("studies.conformal_validity --seed 0")
@size("--repetitions", 2_000, quick=500, help="Calibration sets drawn.")
def main(report: Report, repetitions: int) -> None:
    """P(p <= alpha) by simulation, where the guarantee holds and where it does not."""
    report.setting |= {"calibration": NUM_CALIBRATION, "drafts": NUM_DRAFTS}
    study_laws(report, repetitions, report.rng)
    study_turns(report, repetitions, report.rng)
    study_drift(report, 5 * repetitions, report.rng)


if __name__ == "__main__":
    main()
