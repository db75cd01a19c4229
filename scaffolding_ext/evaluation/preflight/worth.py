"""The findings of a pre-flight: what scores and verdicts know, who decides by coin, what each arm gives and costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.controllers.draft_target.p_values import p_values
from scaffolding_ext.controllers.tree.gates.confidence import fit_gate
from scaffolding_ext.evaluation.preflight.arms import (
    DRAFT_ALONE,
    TARGET_ALONE,
    Arm,
    ComparedChain,
    Floats,
    SecondsPerToken,
)
from scaffolding_ext.evaluation.preflight.schedule import Latency, ScheduledChunk, scheduled_ends
from scaffolding_ext.protocol.meta import TokenCounts
from scaffolding_ext.stats.intervals import Estimate, paired_bootstrap
from scaffolding_ext.stats.separation import auc_over_all, auc_within

MIN_QUESTIONS = 8  # of a turn, before a growing pool ranks
NUM_SPLITS = 200
SHARES = (0.25, 0.5)  # of the questions that a router sends to the target
_DECIDED = npt.NDArray[np.bool_]


class SignalQuality(NamedTuple):
    """How well a signal tells right chains from wrong ones, as AUC.

    Attributes:
        within: Among the chains of one question: what a take-over or a choice can use.
        across: Over all chains: what a router can use, too.
        num_mixed: Questions with right and wrong chains, which `within` is a mean over.
    """

    within: Estimate
    across: Estimate
    num_mixed: int


class ArmForecast(NamedTuple):
    """What a way to answer would give.

    Attributes:
        accuracy: In [0, 1].
        cost: Of a question, in the unit of the prices.
        gain: Accuracy less that of the target's votes at the same cost; None where the target was not run alone, and
            for the target itself.
    """

    name: str
    num_chains: int
    accuracy: Estimate
    cost: float
    target_tokens: float
    gain: Estimate | None

    @property
    def pays(self) -> bool | None:
        """Whether the gain is above 0, its whole interval; None where there is no gain."""
        return None if self.gain is None else self.gain.low > 0


class OneCalibration(NamedTuple):
    """The rate of a single calibration on questions that it has not seen.

    Attributes:
        rate: The mean over random halves of the questions, and where 95 % of the single halves lie.
    """

    alpha: float
    rate: Estimate


class CompletionTimes(NamedTuple):
    """Seconds until a question's last chain ends, if calls overlap and nothing else takes time."""

    asynchronous: float
    in_step: float
    target_alone: float


class SkipGate(NamedTuple):
    """What a skip gate would do: rounds that need no verdict, by the confidence of the chains.

    Attributes:
        passes: Share of the questions where it passes.
        loss: Accuracy that choosing by confidence loses there, against choosing by verdict.
    """

    passes: float
    loss: Estimate


class PreflightFindings(NamedTuple):
    """All that a pre-flight finds.

    Attributes:
        coins: Share of the decisions that a coin makes, by the pools: `"calibrated"` on half of the questions, pools
            that grow (`"growing"`), and the first turn's (`"first_turn"`).
    """

    arms: Sequence[Arm]
    price: SecondsPerToken
    score: SignalQuality | None
    first_score: SignalQuality | None
    verdict: SignalQuality | None
    coins: dict[str, float]
    calibrations: Sequence[OneCalibration]
    forecasts: Sequence[ArmForecast]
    completion: CompletionTimes | None
    skip_gate: SkipGate | None


def find(arms: Sequence[Arm], price: SecondsPerToken, alphas: Sequence[float]) -> PreflightFindings:
    """Judge the arms.

    Args:
        alphas: Levels of the single calibrations.
    """
    drafted = next((arm for arm in arms if arm.name != TARGET_ALONE and _scores(arm.chains)), None)
    judged = next((arm for arm in arms if arm.chains[0].verdict is not None), None)
    target = next((arm for arm in arms if arm.name == TARGET_ALONE), None)
    mixed = next((arm for arm in reversed(arms) if arm.alpha and arm is not target), None)
    return PreflightFindings(
        arms,
        price,
        None if drafted is None else signal_quality(drafted, "score", sign=-1.0),
        None if drafted is None else signal_quality(drafted, "first_score", sign=-1.0),
        None if judged is None else signal_quality(judged, "verdict"),
        {} if drafted is None else coin_shares(drafted.chains),
        [] if drafted is None else [one_calibration(drafted.chains, alpha) for alpha in alphas],
        _forecasts(arms, price, target),
        None if mixed is None or target is None else completion(mixed, target, price),
        None if judged is None else skip_gate(judged),
    )


def signal_quality(arm: Arm, signal: str, sign: float = 1.0) -> SignalQuality:
    """What a signal of the chains knows of their answers; `sign` is -1 where a high value speaks against a chain."""
    told = [chain for chain in arm.chains if getattr(chain, signal) is not None]
    values = np.array([sign * getattr(chain, signal) for chain in told])
    labels = np.array([chain.is_right for chain in told])
    questions = np.array([chain.question for chain in told])
    mixed = sum(len(set(labels[questions == number])) == 2 for number in np.unique(questions))
    return SignalQuality(auc_within(values, labels, questions), auc_over_all(values, labels, questions), mixed)


def coin_shares(chains: Sequence[ComparedChain]) -> dict[str, float]:
    """The share of the decisions that a coin would make, by the pools that chunks are ranked among."""
    reached = sorted({(chain.question, chunk.turn) for chain in chains for chunk in chain.chunks})
    decisions = [(chain.question, chunk.turn) for chain in chains for chunk in chain.chunks]
    rng = np.random.default_rng(0)
    questions = np.unique([question for question, _ in reached])
    calibrated = []
    for _ in range(NUM_SPLITS):
        seen = set(rng.permutation(questions)[: len(questions) // 2].tolist())
        turns = {turn for question, turn in reached if question in seen}
        calibrated.append(np.mean([turn not in turns for question, turn in decisions if question not in seen]))
    before = {(question, turn): sum(q < question and t == turn for q, t in reached) for question, turn in reached}
    return {
        "calibrated": float(np.mean(calibrated)),
        "growing": float(np.mean([before[each] < MIN_QUESTIONS for each in decisions])),
        "first_turn": 1 / len(decisions),
    }


def one_calibration(chains: Sequence[ComparedChain], alpha: float) -> OneCalibration:
    """The take-over rate on half of the questions where a pool for each turn is of the other half, once per split."""
    rng = np.random.default_rng(0)
    rows = [(c.question, k.turn, k.score) for c in chains for k in c.chunks if k.score is not None]
    questions, turns = (np.array(column) for column in list(zip(*rows, strict=True))[:2])
    scores = np.array([score for *_, score in rows])
    known = np.unique(questions)
    rates = []
    for _ in range(NUM_SPLITS):
        is_seen = np.isin(questions, rng.permutation(known)[: len(known) // 2])
        fired: list[_DECIDED] = []
        for turn in np.unique(turns[~is_seen]):
            pool, new = scores[is_seen & (turns == turn)], scores[~is_seen & (turns == turn)]
            values = p_values(pool, new, "random", rng) if len(pool) else rng.random(len(new))
            fired.append(values <= alpha)
        rates.append(float(np.concatenate(fired).mean()))
    low, high = np.quantile(rates, (0.025, 0.975))
    return OneCalibration(alpha, Estimate(float(np.mean(rates)), float(low), float(high)))


def completion(mixed: Arm, target: Arm, price: SecondsPerToken) -> CompletionTimes:
    """When the last chain of a question ends by arithmetic from the seconds of a token: alone, and in step."""
    draft, large = Latency(price.draft, 0.0), Latency(price.target, price.scored)
    ends: dict[bool, list[float]] = {False: [], True: []}
    for chains in mixed.by_question:
        chunks = [
            ScheduledChunk(number, chunk.turn, chunk.num_draft_tokens, chunk.num_target_tokens, 0.0)
            for number, chain in enumerate(chains)
            for chunk in chain.chunks
        ]
        for in_step, found in ends.items():
            found.append(max(scheduled_ends(chunks, draft, large, in_step=in_step), default=0.0))
    alone = [max(large.of(TokenCounts(chain.num_target)) for chain in chains) for chains in target.by_question]
    return CompletionTimes(*(float(np.mean(each)) for each in (ends[False], ends[True], alone)))


def skip_gate(judged: Arm) -> SkipGate | None:
    """The fitted skip gate on the judged chains; None where their confidences are not known."""
    confidences = [[chain.confidence for chain in chains] for chains in judged.by_question]
    if any(value is None for own in confidences for value in own):
        return None
    known = [[value or 0.0 for value in own] for own in confidences]
    gate = fit_gate(known)
    passed = [number for number, own in enumerate(known) if gate.leader(own) is not None]
    n = judged.num_chains
    by_confidence, by_verdict = judged.best_by("confidence", n)[passed], judged.best_by("verdict", n)[passed]
    lost = _mean(by_verdict - by_confidence) if len(passed) > 1 else Estimate(0.0, -1.0, 1.0)
    return SkipGate(len(passed) / len(known), lost)


def _forecasts(arms: Sequence[Arm], price: SecondsPerToken, target: Arm | None) -> list[ArmForecast]:
    found = []
    for arm in arms:
        for n in _sizes(arm.num_chains):
            right = arm.right(n)
            found.append(_forecast(arm.name, n, right, arm.cost(n, price), _target_tokens(arm, n), target, price))
            if arm.chains[0].verdict is not None and n > 1:
                for name, values in (
                    ("weighted by verdict", arm.right(n, "verdict")),
                    ("best by verdict", arm.best_by("verdict", n)),
                ):
                    base = target or arm
                    made = f"{arm.name}, {name}"
                    found.append(_forecast(made, n, values, arm.cost(n, price), _target_tokens(arm, n), base, price))
    draft = next((arm for arm in arms if arm.name == DRAFT_ALONE), None)
    if draft is not None and target is not None:
        for share in SHARES:
            found += [_routed(draft, target, n, share, price) for n in _sizes(draft.num_chains)]
    return found


def _routed(draft: Arm, target: Arm, n: int, share: float, price: SecondsPerToken) -> ArmForecast:
    """A router by question: the share with the strangest first chunks is the target's."""
    firsts = [
        float(np.mean([chain.first_score or 0.0 for chain in chains if chain.chunks] or [0.0]))
        for chains in draft.by_question
    ]
    is_routed = np.argsort(np.argsort(firsts)) >= round((1 - share) * len(firsts))
    right = np.where(is_routed, target.right(n), draft.right(n))
    first = n * np.mean(
        [c.chunks[0].num_draft_tokens * (price.draft + price.scored) if c.chunks else 0.0 for c in draft.chains]
    )
    whole = np.array([n * np.mean([price.draft * chain.num_draft for chain in chains]) for chains in draft.by_question])
    large = np.array([n * np.mean([price.of(chain) for chain in chains]) for chains in target.by_question])
    tokens = np.array([n * np.mean([chain.num_target for chain in chains]) for chains in target.by_question])
    scored = n * np.mean([c.chunks[0].num_draft_tokens * price.scored if c.chunks else 0.0 for c in draft.chains])
    cost = float(np.mean(np.where(is_routed, large + first, whole + scored)))
    name = f"router, {share:.0%} to the target"
    return _forecast(name, n, right, cost, float(np.mean(np.where(is_routed, tokens, 0.0))), target, price)


def _forecast(
    name: str, n: int, right: Floats, cost: float, target_tokens: float, base: Arm | None, price: SecondsPerToken
) -> ArmForecast:
    gain = None
    if base is not None and name != base.name:
        gain = _mean(right - _at(base, cost, price))
    return ArmForecast(name, n, _mean(right), cost, target_tokens, gain)


def _at(base: Arm, cost: float, price: SecondsPerToken) -> Floats:
    """How often the votes of an arm are right at a cost, for each question, between its whole numbers of chains.

    Below one chain's cost it is one chain's, and beyond all chains' cost that of all.
    """
    sizes = range(1, base.num_chains + 1)
    curve = np.stack([base.right(n) for n in sizes])
    place = np.interp(cost, [base.cost(n, price) for n in sizes], np.arange(base.num_chains))
    low = int(place)
    high = min(low + 1, base.num_chains - 1)
    return np.asarray(curve[low] + (place - low) * (curve[high] - curve[low]))


def _sizes(most: int) -> list[int]:
    return [n for n in (1, 4) if n < most // 2 + 1] + [most] if most > 1 else [1]


def _target_tokens(arm: Arm, n: int) -> float:
    return n * float(np.mean([chain.num_target for chain in arm.chains]))


def _scores(chains: Sequence[ComparedChain]) -> bool:
    return any(chain.score is not None for chain in chains)


def _mean(values: Floats) -> Estimate:
    return paired_bootstrap(values, np.zeros_like(values), rng=np.random.default_rng(0), num_resamples=2_000)
