"""Take-over rates on recorded draft/target runs: what each way of calibrating would have decided, chunk by chunk.

    python -m benchmarks.studies.conformal_replay --runs FILE.jsonl.gz --plot_path rates.png

A file has a row a chain: `question`, `answer`, and `turns` of `draft` (the chunk), `ppl` (its perplexity under the
target; null where nothing was scored) and `target` (what the target appended, or null). The chains ran under one rule;
replaying another level says what would have been decided on these chunks, not what the chains would have become.
Pools that grow meet all questions, one after the other, in random orders and without a calibration; a coin stands
beside them. Ties are random.
Without a file, runs are simulated: chunks of one question are alike, and scores drift from turn to turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, plotted, size, track
from benchmarks._lib.drafts import DraftedQuestion, read_drafts
from benchmarks._lib.drawing import Figures, of, points
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.draft_target.adaptive import AdaptiveLevel
from scaffolding_ext.controllers.draft_target.growing_rule import GrowingPools
from scaffolding_ext.controllers.draft_target.p_values import leave_one_out_p_values, p_values
from scaffolding_ext.evaluation.drawing import below, drawing

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

ALPHAS = (0.1, 0.25, 0.4, 0.6)
CALIBRATIONS = {
    "turn0": "pool of turn 0, used at every turn (as released)",
    "per_turn": "a pool a turn",
    "own_turn0": "the question's own first-turn scores (conditional)",
    "own_per_turn": "the question's own scores of that turn, the chunk left out (conditional)",
    "adaptive": "pool of turn 0 with an adaptive level",
    "adaptive_per_turn": "a pool a turn with an adaptive level",
}
GROWING = {
    "growing": "pools that grow question by question, coins until there are enough",
    "coin": "a coin",
}
TIES: Literal["random"] = "random"
ENOUGH_DECISIONS = 300
MIN_QUESTIONS = 8  # of a turn, before pools that grow rank there
ADAPTIVE_STEP = 0.02
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)  # of the questions that a router sends to the target


class Chunks(NamedTuple):
    """Scored chunks, in order of question, turn and chain.

    Attributes:
        question: Number of its question, shape [num_chunks].
        turn: Chunks of its chain before it, shape [num_chunks].
        score: Mean negative log-likelihood under the target, shape [num_chunks].
        right: Whether its chain's answer was right, shape [num_chunks].
    """

    question: Integers
    turn: Integers
    score: Floats
    right: Floats

    @classmethod
    def of(cls, rows: list[tuple[int, int, float, bool]]) -> Chunks:
        """From (question, turn, score, right) of each chunk."""
        question, turn, score, right = (np.array(column) for column in zip(*sorted(rows), strict=True))
        return cls(question, turn, score.astype(float), right.astype(float))


def scored_chunks(questions: Sequence[DraftedQuestion]) -> Chunks:
    """The scored chunks of recorded runs."""
    return Chunks.of(
        [
            (number, turn, chunk.score, is_right)
            for number, question in enumerate(questions)
            for chunks, is_right in zip(question.chains, question.right, strict=True)
            for turn, chunk in enumerate(chunks)
            if chunk.score is not None
        ]
    )


def report_router(report: Report, helped: Sequence[DraftedQuestion], alone: Sequence[DraftedQuestion]) -> None:
    """A router by question: the questions with the strangest first chunks have the chains that the target helped.

    Beside it, as many questions that chance sends there. Without the target, other chains of the draft help.
    """
    chunks = [question.chains for question in helped]
    firsts = np.array([np.mean([own[0].score or 0.0 for own in each]) for each in chunks])
    hard = np.argsort(np.argsort(-firsts, kind="stable"), kind="stable")
    right = [np.array([np.mean(each.right) for each in arm]) for arm in (helped, alone)]
    tokens = np.array([sum(c.num_target_tokens for own in each for c in own) for each in chunks], dtype=float)
    for share in SHARES:
        routed = hard < round(share * len(hard))
        mean = routed.mean()
        name = f"router, {share:.0%} of the questions"
        report.difference(f"{name}: chains right, %", np.where(routed, *right), scale=100)
        report.difference(f"{name}: target tokens, share of all", np.where(routed, tokens, 0.0) / tokens.mean())
        by_chance = mean * right[0] + (1 - mean) * right[1]
        report.difference(f"{name}: points above chance", np.where(routed, *right), by_chance, scale=100)


def simulated_runs(rng: np.random.Generator, num_questions: int = 60, num_chains: int = 16) -> Chunks:
    """Chains: scores share their question's difficulty, drift upwards, and are higher where the answer is wrong."""
    chunks = []
    for question in range(num_questions):
        difficulty = rng.normal(0, 0.2)
        for _ in range(num_chains):
            right = bool(rng.random() < 0.8 - difficulty)
            for turn in range(min(15, rng.geometric(0.3))):
                score = 0.5 + difficulty + 0.05 * np.sqrt(turn) - 0.05 * right + rng.normal(0, 0.12)
                chunks.append((question, turn, float(score), right))
    return Chunks.of(chunks)


def own_p_values(chunks: Chunks, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """P-values among the question's own first-turn scores, and among its own scores of the same turn."""
    first, same = np.empty_like(chunks.score), np.empty_like(chunks.score)
    for question in np.unique(chunks.question):
        own = np.flatnonzero(chunks.question == question)
        calibration = chunks.score[own[chunks.turn[own] == 0]]
        for turn in np.unique(chunks.turn[own]):
            here = own[chunks.turn[own] == turn]
            same[here] = leave_one_out_p_values(chunks.score[here], TIES, rng)
            first[here] = p_values(calibration, chunks.score[here], TIES, rng) if turn else same[here]
    return first, same


def halves(
    chunks: Chunks, num_splits: int, rng: np.random.Generator
) -> Iterator[tuple[npt.NDArray[np.bool_], dict[str, npt.NDArray[np.bool_]]]]:
    """Random halves of the questions, each half once tested and once calibrated on, and what is decided on the chunks.

    Yields:
        Tested chunks, shape [num_chunks], and by calibration the decisions, shape [num_tested, num_alphas].
    """
    num_questions = int(chunks.question.max()) + 1
    is_test = np.zeros(num_questions, dtype=bool)
    for number in track(range(num_splits), "splits"):
        if number % 2:
            is_test = ~is_test
        else:
            is_test = np.isin(np.arange(num_questions), rng.permutation(num_questions)[: num_questions // 2])
        tested = is_test[chunks.question]
        for turn in np.unique(chunks.turn):  # where no calibration chain came that far there is nothing to decide by
            here = chunks.turn == turn
            if not np.any(here & ~tested):
                tested &= ~here
        p_by: dict[str, Floats] = dict(zip(("own_turn0", "own_per_turn"), own_p_values(chunks, rng), strict=True))
        p_by["turn0"] = np.ones_like(chunks.score)
        p_by["turn0"][tested] = p_values(
            chunks.score[~is_test[chunks.question] & (chunks.turn == 0)], chunks.score[tested], TIES, rng
        )
        p_by["per_turn"] = np.ones_like(chunks.score)
        for turn in np.unique(chunks.turn[tested]):
            here = tested & (chunks.turn == turn)
            pool = ~is_test[chunks.question] & (chunks.turn == turn)
            p_by["per_turn"][here] = p_values(chunks.score[pool], chunks.score[here], TIES, rng)
        decided = {name: p[tested][:, None] <= np.array(ALPHAS) for name, p in p_by.items()}
        order = np.argsort(rng.permutation(num_questions)[chunks.question[tested]], kind="stable")
        decided["adaptive"] = adaptive_decisions(p_by["turn0"][tested], order)
        decided["adaptive_per_turn"] = adaptive_decisions(p_by["per_turn"][tested], order)
        yield tested, decided


def adaptive_decisions(p: Floats, order: Integers) -> npt.NDArray[np.bool_]:
    """Decisions of adaptive levels that meet the chunks in an order."""
    decided = np.zeros((len(p), len(ALPHAS)), dtype=bool)
    for column, alpha in enumerate(ALPHAS):
        adaptive = AdaptiveLevel(alpha, ADAPTIVE_STEP)
        for index in order:
            decided[index, column] = adaptive.decide(float(p[index]))
    return decided


class Replay(NamedTuple):
    """Counts over all splits, or all orders of the questions.

    Attributes:
        fired: By calibration, how often each chunk was taken over, shape [num_chunks, num_alphas].
        num_tested: By calibration, how often each chunk was decided on, shape [num_chunks].
        split_rates: By calibration, the rate of every single split, shape [num_splits, num_alphas].
    """

    fired: dict[str, Floats]
    num_tested: dict[str, Floats]
    split_rates: dict[str, Floats]


def replay(chunks: Chunks, num_splits: int, rng: np.random.Generator) -> Replay:
    """Decide every split and count."""
    num_tested = np.zeros(len(chunks.score))
    fired = {name: np.zeros((len(chunks.score), len(ALPHAS))) for name in CALIBRATIONS}
    rates: dict[str, list[Floats]] = {name: [] for name in CALIBRATIONS}
    for tested, decided in halves(chunks, num_splits, rng):
        num_tested += tested
        for name, decisions in decided.items():
            fired[name][tested] += decisions
            rates[name].append(decisions.mean(axis=0))
    tested_by = dict.fromkeys(CALIBRATIONS, num_tested)
    return Replay(fired, tested_by, {name: np.array(of_splits) for name, of_splits in rates.items()})


def replay_growing(chunks: Chunks, num_orders: int, rng: np.random.Generator) -> Replay:
    """Decide the questions one after the other, in random orders, by the pools of those before; and by a coin."""
    shape = (len(chunks.score), len(ALPHAS))
    fired = {name: np.zeros(shape) for name in GROWING}
    num_tested = {name: np.zeros(len(chunks.score)) for name in GROWING}
    rates: dict[str, list[Floats]] = {name: [] for name in GROWING}
    of_question = [np.flatnonzero(chunks.question == question) for question in np.unique(chunks.question)]
    for _ in track(range(num_orders), "orders"):
        pools = GrowingPools(len(of_question))
        p = np.empty(shape[0])
        for question in rng.permutation(len(of_question)):
            for chunk in of_question[question]:
                pool, num_questions = pools.at(int(chunks.turn[chunk]))
                is_ranked = num_questions >= MIN_QUESTIONS
                p[chunk] = pool.p_value(chunks.score[chunk], TIES, rng) if is_ranked else rng.random()
            own = of_question[question]
            pools.join(list(zip(chunks.turn[own].tolist(), chunks.score[own].tolist(), strict=True)))
        for name, values in {"growing": p, "coin": rng.random(shape[0])}.items():
            decided = values[:, None] <= np.array(ALPHAS)
            fired[name] += decided
            num_tested[name] += 1
            rates[name].append(decided.mean(axis=0))
    return Replay(fired, num_tested, {name: np.array(of_orders) for name, of_orders in rates.items()})


def report_strangeness(report: Report, chunks: Chunks, replayed: Replay, names: Sequence[str]) -> None:
    """Report how much stranger to the target its taken-over chunks are than those that stand, turn for turn, in nats.

    Against the mean of their turn; a coin has 0 here.
    """
    strange = chunks.score - (np.bincount(chunks.turn, chunks.score) / np.bincount(chunks.turn))[chunks.turn]
    for name in names:
        tested = replayed.num_tested[name] > 0
        for column, alpha in enumerate(ALPHAS):
            share = replayed.fired[name][tested, column] / replayed.num_tested[name][tested]
            gap = strange[tested] * (share / share.mean() - (1 - share) / (1 - share).mean())
            title = f"{name} alpha {alpha} score of a chunk, taken over less accepted"
            report.difference(title, gap, questions=chunks.question[tested])


def report_rates(report: Report, chunks: Chunks, replayed: Replay) -> None:
    """Rates over all turns and by turn, each with its interval from resampling questions, and the bars."""
    num_decisions = np.bincount(chunks.turn)
    for turn, number in enumerate(num_decisions):
        report.figures.setdefault(f"decisions turn {turn}", {"value": float(number), "low": None, "high": None})
    for name in replayed.fired:
        for column, alpha in enumerate(ALPHAS):
            worst = 0.0
            for turn in (None, *range(len(num_decisions))):
                here = (replayed.num_tested[name] > 0) & (True if turn is None else chunks.turn == turn)
                if len(np.unique(chunks.question[here])) < 2:
                    continue
                counts = replayed.fired[name][here, column], replayed.num_tested[name][here]
                where = "all turns" if turn is None else f"turn {turn}"
                rate = report.ratio(f"{TIES} {name} alpha {alpha} {where}", *counts, chunks.question[here])
                if turn is None and name == "per_turn":
                    distance = abs(rate.value - alpha)
                    report.bar(f"{TIES}, a pool a turn, alpha {alpha}: overall", distance, "<=", 0.01)
                elif turn is not None and num_decisions[turn] >= ENOUGH_DECISIONS:
                    worst = max(worst, abs(rate.value - alpha))
            report.figure(f"{TIES} {name} alpha {alpha} worst turn, distance", worst)
            low, high = np.quantile(replayed.split_rates[name][:, column], (0.025, 0.975))
            mean = float(replayed.split_rates[name][:, column].mean())
            report.figure(f"{TIES} {name} alpha {alpha} single splits", mean, float(low), float(high))
            if name == "per_turn":
                bar = f"{TIES}, a pool a turn, alpha {alpha}: worst turn of {ENOUGH_DECISIONS} decisions"
                report.bar(bar, worst, "<=", 0.02)


def report_rejected(report: Report, chunks: Chunks, replayed: Replay) -> None:
    """Report the right chains among those with rejected chunks less the others, within a question."""
    question_mean = np.bincount(chunks.question, chunks.right) / np.bincount(chunks.question)
    within = chunks.right - question_mean[chunks.question]
    tested = replayed.num_tested["per_turn"] > 0
    for column, alpha in enumerate(ALPHAS):
        share = replayed.fired["per_turn"][tested, column] / replayed.num_tested["per_turn"][tested]
        gap = within[tested] * (share / share.mean() - (1 - share) / (1 - share).mean())
        title = f"per_turn alpha {alpha} chains right, rejected less accepted, within a question"
        report.difference(title, gap, questions=chunks.question[tested])


def plot(figures: Figures, path: Path) -> None:
    """Draw the rate by turn, a panel a level."""
    turns = [turn for turn in range(100) if f"decisions turn {turn}" in figures]
    few = [turn for turn in turns if (figures[f"decisions turn {turn}"]["value"] or 0) < ENOUGH_DECISIONS]
    with drawing(path, 1, len(ALPHAS), figsize=(15, 4), sharex=True) as (figure, panels):
        for panel, alpha in zip(panels, ALPHAS, strict=True):
            for name in ("turn0", "per_turn", "own_turn0"):
                rates = [(turn, of(figures, f"{TIES} {name} alpha {alpha} turn {turn}")) for turn in turns]
                drawn = [(turn, rate) for turn, rate in rates if rate is not None]
                points(panel, [turn for turn, _ in drawn], [rate for _, rate in drawn], CALIBRATIONS[name])
            panel.axhline(alpha, color="black", linewidth=1, linestyle="--")
            if few:
                panel.axvspan(min(few) - 0.5, max(turns) + 0.5, color="grey", alpha=0.1)
            panel.set(title=f"Should keep to {alpha} (dashed)", xlabel="turn", ylim=(0, 1))
        panels[0].set_ylabel("share of chunks taken over")
        below(figure, panels[0], 3)


@benchmark("studies.conformal_replay --runs FILE.jsonl.gz --plot_path rates.png")
@click.option("--runs", type=DATA, help="File of recorded runs.")
@click.option("--alone", type=DATA, help="The same questions without the target: a router by question is played.")
@size("--splits", 200, quick=10, help="Random halves of the questions.")
@plotted
def main(report: Report, runs: Path | None, alone: Path | None, splits: int, plot_path: Path | None) -> None:
    """Take-over rate by turn and level, for each way of calibrating, on recorded runs."""
    recorded = None if runs is None else read_drafts(runs)
    chunks = simulated_runs(report.rng) if recorded is None else scored_chunks(recorded)
    report.setting |= {"questions": int(chunks.question.max()) + 1, "decisions": len(chunks.score)}
    replayed = replay(chunks, splits, report.rng)
    report_rates(report, chunks, replayed)
    report_rejected(report, chunks, replayed)
    report_strangeness(report, chunks, replayed, ["per_turn"])
    grown = replay_growing(chunks, splits, report.rng)
    report_rates(report, chunks, grown)
    report_strangeness(report, chunks, grown, ["growing", "coin"])
    if recorded is not None and alone is not None:
        report_router(report, recorded, read_drafts(alone))
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
