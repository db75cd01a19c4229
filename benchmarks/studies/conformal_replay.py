"""Take-over rates on recorded draft/target runs: what each way of calibrating would have decided, chunk by chunk.

    python -m benchmarks.studies.conformal_replay --data FOLDER --plot_path rates.png

The file has a row a chain: `question`, `answer`, and `turns` of `draft` (the chunk), `ppl` (its perplexity under the
target; null where nothing was scored) and `target` (what the target appended, or null). The chains ran under one rule;
replaying another level says what would have been decided on these chunks, not what the chains would have become.
Pools that grow meet all questions, one after the other, in random orders and without a calibration; a coin stands
beside them. Ties are random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, plotted, recorded, size, track
from benchmarks._lib.drafts import ALONE, RUNS, DraftedQuestion, read_drafts
from benchmarks._lib.drawing import Figures, of, points
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.draft_target.adaptive import AdaptiveLevel
from scaffolding_ext.controllers.draft_target.growing_rule import GrowingPools
from scaffolding_ext.controllers.draft_target.p_values import leave_one_out_p_values, p_values
from scaffolding_ext.evaluation.drawing import below, drawing

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Decisions = tuple[npt.NDArray[np.bool_], Mapping[str, npt.NDArray[np.bool_]]]
"""Chunks that are decided on, shape [num_chunks], and by calibration the decisions, shape [num_decided, num_alphas]."""

ALPHAS = (0.1, 0.25, 0.4, 0.6)
SHOWN = ALPHAS.index(0.4)  # the level of the chains that were recorded
DRAWN = {
    "turn0": "pool of turn 0, used at every turn (as released)",
    "per_turn": "a pool a turn",
    "own_turn0": "the question's own first-turn scores (conditional)",
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


def scored_chunks(questions: Sequence[DraftedQuestion]) -> Chunks:
    """The scored chunks of recorded runs."""
    rows = [
        (number, turn, chunk.score, is_right)
        for number, question in enumerate(questions)
        for chunks, is_right in zip(question.chains, question.right, strict=True)
        for turn, chunk in enumerate(chunks)
        if chunk.score is not None
    ]
    question, turn, score, right = (np.array(column) for column in zip(*sorted(rows), strict=True))
    return Chunks(question, turn, score.astype(float), right.astype(float))


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


def halves(chunks: Chunks, num_splits: int, rng: np.random.Generator) -> Iterator[Decisions]:
    """Random halves of the questions, each half once tested and once calibrated on.

    `turn0` ranks all chunks among those of turn 0, `per_turn` among those of their turn, `own_turn0` and `own_per_turn`
    among the question's own, and adaptive ones move the level after each decision.
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


def growing(chunks: Chunks, num_orders: int, rng: np.random.Generator) -> Iterator[Decisions]:
    """The questions one after the other, in random orders, by the pools of those before; and a coin."""
    of_question = [np.flatnonzero(chunks.question == question) for question in np.unique(chunks.question)]
    num_chunks = len(chunks.score)
    for _ in track(range(num_orders), "orders"):
        pools = GrowingPools(len(of_question))
        p = np.empty(num_chunks)
        for question in rng.permutation(len(of_question)):
            own = of_question[question]
            for chunk in own:
                pool, num_questions = pools.at(int(chunks.turn[chunk]))
                is_ranked = num_questions >= MIN_QUESTIONS
                p[chunk] = pool.p_value(chunks.score[chunk], TIES, rng) if is_ranked else rng.random()
            pools.join(list(zip(chunks.turn[own].tolist(), chunks.score[own].tolist(), strict=True)))
        values = {"growing": p, "coin": rng.random(num_chunks)}
        yield np.ones(num_chunks, bool), {name: each[:, None] <= np.array(ALPHAS) for name, each in values.items()}


class Counts:
    """Decisions of one calibration over all splits, or all orders of the questions.

    Attributes:
        fired: How often each chunk was taken over, shape [num_chunks, num_alphas].
        num_tested: How often each chunk was decided on, shape [num_chunks].
        rates: Of every single split, each of shape [num_alphas].
    """

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        self.fired = np.zeros((len(chunks.score), len(ALPHAS)))
        self.num_tested = np.zeros(len(chunks.score))
        self.rates: list[Floats] = []

    def add(self, tested: npt.NDArray[np.bool_], decisions: npt.NDArray[np.bool_]) -> None:
        self.num_tested += tested
        self.fired[tested] += decisions
        self.rates.append(decisions.mean(axis=0))

    def add_rates(self, report: Report, name: str) -> list[float]:
        """Report the rate over all turns, and by turn where it is drawn; return the distance of the worst turn."""
        worst, drawn = [], range(max(self.chunks.turn) + 1 if name in DRAWN else 0)
        for column, alpha in enumerate(ALPHAS):
            title = f"{TIES} {name} alpha {alpha}"
            for turn in (None, *drawn):
                here = (self.num_tested > 0) & (True if turn is None else self.chunks.turn == turn)
                if len(np.unique(self.chunks.question[here])) > 1:
                    where = "all turns" if turn is None else f"turn {turn}"
                    counts = self.fired[here, column], self.num_tested[here]
                    report.ratio(f"{title} {where}", *counts, self.chunks.question[here])
            fired, tested = (np.bincount(self.chunks.turn, each) for each in (self.fired[:, column], self.num_tested))
            often = np.bincount(self.chunks.turn) >= ENOUGH_DECISIONS
            worst.append(float(np.abs(fired[often] / tested[often] - alpha).max(initial=0)))
        report.figure(f"{TIES} {name} alpha {ALPHAS[SHOWN]} worst turn, distance", worst[SHOWN])
        return worst

    def add_splits(self, report: Report, name: str) -> None:
        """Report the rate of single splits."""
        rates = np.array(self.rates)[:, SHOWN]
        ends = (float(end) for end in np.quantile(rates, (0.025, 0.975)))
        report.figure(f"{TIES} {name} alpha {ALPHAS[SHOWN]} single splits", float(rates.mean()), *ends)

    def add_gap(self, report: Report, name: str, values: Floats) -> None:
        """Report the mean of values of taken-over chunks less that of those that stand."""
        tested = self.num_tested > 0
        share = self.fired[tested, SHOWN] / self.num_tested[tested]
        gap = values[tested] * (share / share.mean() - (1 - share) / (1 - share).mean())
        report.difference(name, gap, questions=self.chunks.question[tested])


def plot(figures: Figures, path: Path) -> None:
    """Draw the rate by turn, a panel a level."""
    turns = [turn for turn in range(100) if f"decisions turn {turn}" in figures]
    few = [turn for turn in turns if (figures[f"decisions turn {turn}"]["value"] or 0) < ENOUGH_DECISIONS]
    with drawing(path, 1, len(ALPHAS), figsize=(15, 4), sharex=True) as (figure, panels):
        for panel, alpha in zip(panels, ALPHAS, strict=True):
            for name, label in DRAWN.items():
                rates = [(turn, of(figures, f"{TIES} {name} alpha {alpha} turn {turn}")) for turn in turns]
                drawn = [(turn, rate) for turn, rate in rates if rate is not None]
                points(panel, [turn for turn, _ in drawn], [rate for _, rate in drawn], label)
            panel.axhline(alpha, color="black", linewidth=1, linestyle="--")
            if few:
                panel.axvspan(min(few) - 0.5, max(turns) + 0.5, color="grey", alpha=0.1)
            panel.set(title=f"Should keep to {alpha} (dashed)", xlabel="turn", ylim=(0, 1))
        panels[0].set_ylabel("share of chunks taken over")
        below(figure, panels[0], 3)


@benchmark("studies.conformal_replay --data FOLDER")
@recorded
@size("--splits", 200, quick=4, help="Random halves of the questions.")
@plotted
def main(report: Report, data: Path, splits: int, plot_path: Path | None) -> None:
    """Take-over rate by turn and level, for each way of calibrating, on recorded runs."""
    helped, alone = (read_drafts(data / file) for file in (RUNS, ALONE))
    chunks = scored_chunks(helped)
    report.setting |= {"questions": int(chunks.question.max()) + 1, "decisions": len(chunks.score)}
    counts: dict[str, Counts] = {}
    for tested, decided in chain(halves(chunks, splits, report.rng), growing(chunks, splits, report.rng)):
        for name, decisions in decided.items():
            counts.setdefault(name, Counts(chunks)).add(tested, decisions)
    for turn, number in enumerate(np.bincount(chunks.turn)):
        report.figure(f"decisions turn {turn}", float(number))
    for name, each in counts.items():
        worst = each.add_rates(report, name)
        if name == "per_turn":
            for alpha, distance in zip(ALPHAS, worst, strict=True):
                rate = report.figures[f"{TIES} {name} alpha {alpha} all turns"]["value"]
                bar = f"{TIES}, a pool a turn, alpha {alpha}"
                report.bar(f"{bar}: overall", abs(rate - alpha), "<=", 0.01)
                report.bar(f"{bar}: worst turn of {ENOUGH_DECISIONS} decisions", distance, "<=", 0.02)
        if name.endswith("per_turn"):
            each.add_splits(report, name)
    level = f"alpha {ALPHAS[SHOWN]}"
    strange = chunks.score - (np.bincount(chunks.turn, chunks.score) / np.bincount(chunks.turn))[chunks.turn]
    for name in ("per_turn", "growing", "coin"):
        counts[name].add_gap(report, f"{name} {level} score of a chunk, taken over less accepted", strange)
    right = np.bincount(chunks.question, chunks.right) / np.bincount(chunks.question)
    title = f"per_turn {level} chains right, rejected less accepted, within a question"
    counts["per_turn"].add_gap(report, title, chunks.right - right[chunks.question])
    report_router(report, helped, alone)
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
