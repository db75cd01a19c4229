"""The figures of a draft/target study: those that A1 draws, from what the systems did."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._lib.draft_target import Answered
from benchmarks._lib.drawing import Figures, beside, drawing, of, point, points, ring
from benchmarks._lib.runs import GREEDY
from scaffolding_ext.stats.intervals import Estimate, wilson_interval

CHAIN_COUNTS = (1, 2, 4, 8, 16)
NUM_DRAWS = 50
SHOWN_DECISIONS = 100  # of a turn
COLOURS = {
    "conformal": "C0",
    "coin": "C1",
    "ranking": "C2",
    "conditional": "C3",
    "reflection words": "C4",
    "growing": "C5",
    "coin as growing": "C6",
    "growing side by side": "C7",
    "draft only": "0.6",
    "target only": "0.0",
}
COLOURS |= {f"{name}{GREEDY}": COLOURS[name] for name in ("draft only", "target only")}
OTHER_COLOUR = "0.4"
DEFAULT = ("conformal", 0.4)  # family and alpha of configs:conformal_draft_target
LINES = {0.1: ":", 0.25: "-", 0.4: "--", 0.6: "-."}


class Found(NamedTuple):
    """What a system did.

    Attributes:
        family: Its rule.
        alpha: Its level; None for a system without one.
        answers: What it did on each question.
    """

    family: str
    alpha: float | None
    answers: list[Answered]

    @property
    def label(self) -> str:
        """Its name in a legend."""
        return self.family if self.alpha is None else f"{self.family} {self.alpha:g}"

    @property
    def name(self) -> str:
        """How its figures begin."""
        return self.family if self.alpha is None else f"{self.family}, alpha {self.alpha}"

    def vote_of(self, num_chains: int) -> float:
        """Accuracy of the vote of so many of the chains, the mean over random choices of them."""
        if num_chains == len(self.answers[0].right):  # in their order, by which ties are broken
            return float(np.mean([answered.vote for answered in self.answers]))
        rng = np.random.default_rng(num_chains)
        votes = [
            answered.vote_of(rng.permutation(len(answered.right))[:num_chains].tolist())
            for answered in self.answers
            for _ in range(NUM_DRAWS)
        ]
        return float(np.mean(votes))

    def by_turn(self) -> list[tuple[list[float], list[bool]]]:
        """Scores and take-overs of each turn that has enough of them."""
        turns: list[tuple[list[float], list[bool]]] = []
        for turn in range(1 + max(turn for a in self.answers for _, turn, *_ in a.chunks)):
            rows = [(score, fired) for a in self.answers for _, t, score, fired, _ in a.chunks if t == turn]
            if len(rows) < SHOWN_DECISIONS:
                break
            turns.append(([score for score, _ in rows if score is not None], [fired for _, fired in rows]))
        return turns


def plot(found: list[Found], figures: Figures, path: Path, title: str) -> None:
    """Draw accuracy against the target's tokens, budget accuracy, and perplexity and take-overs by turn."""
    with drawing(path, 2, 2, figsize=(14, 9)) as (figure, axes):
        _curve(axes[0, 0], found, figures)
        _budget(axes[0, 1], found)
        conformal = [one for one in found if one.family == "conformal"]
        _perplexity(axes[1, 0], conformal)
        _take_overs(axes[1, 1], conformal)
        for each in axes.flat:
            beside(each)
        figure.suptitle(title)


def _curve(axes: Any, found: list[Found], figures: Figures) -> None:
    for family in dict.fromkeys(one.family for one in found):
        own = [(one, _place(figures, one.name)) for one in found if one.family == family]
        own.sort(key=lambda pair: pair[1][0].value)
        xs, ys = zip(*(place for _, place in own), strict=True)
        colour = COLOURS.get(family, OTHER_COLOUR)
        axes.plot([x.value for x in xs], [y.value for y in ys], color=colour, lw=1)
        for number, (one, (x, y)) in enumerate(own):
            point(axes, x, y, family if not number else "_", color=colour, ms=4)
            if (one.family, one.alpha) == DEFAULT:
                ring(axes, x.value, y.value)
    for family in (f"{name}{GREEDY}" for name in ("draft only", "target only")):
        if f"{family}: vote" in figures:
            point(axes, *_place(figures, family), f"{family}, one chain", color=COLOURS[family], fmt="s", mfc="white")
    axes.set(xlabel="tokens the target decoded, a question", ylabel="accuracy of the vote, %")
    axes.set_title("Take-over pays where it lies above a coin's line,\nand left of the target alone")


def _place(figures: Figures, name: str) -> tuple[Estimate, Estimate]:
    """Tokens that the target decoded, and accuracy in per cent, of a system."""
    tokens, votes = of(figures, f"{name}: target_tokens"), of(figures, f"{name}: vote", 100)
    assert tokens is not None
    assert votes is not None
    return tokens, votes


def _budget(axes: Any, found: list[Found]) -> None:
    for one in found:
        counts = [count for count in CHAIN_COUNTS if count <= len(one.answers[0].right)]
        line = LINES.get(one.alpha or 0.25, "-")
        colour = COLOURS.get(one.family, OTHER_COLOUR)
        votes = [100 * one.vote_of(count) for count in counts]
        axes.plot(counts, votes, "o" + line, ms=3, color=colour, label=one.label)
    axes.set(xlabel="chains", ylabel="accuracy of their vote, %", xscale="log")
    axes.set_xticks(CHAIN_COUNTS, [str(count) for count in CHAIN_COUNTS])
    axes.set_xticks([], minor=True)
    axes.set_title("What more chains add to each system's vote")


def _perplexity(axes: Any, found: list[Found]) -> None:
    for one in found:
        quartiles = np.array([np.exp(np.quantile(scores, [0.25, 0.5, 0.75])) for scores, _ in one.by_turn()])
        if len(quartiles):
            (line,) = axes.plot(quartiles[:, 1], "o-", ms=3, label=one.label)
            axes.fill_between(
                range(len(quartiles)), quartiles[:, 0], quartiles[:, 2], alpha=0.12, color=line.get_color()
            )
    axes.set(xlabel="turn", ylabel="perplexity of a drafted chunk under the target")
    axes.set_title("How surprised the target is, by turn (median and quartiles)")


def _take_overs(axes: Any, found: list[Found]) -> None:
    for one in found:
        turns = [fired for _, fired in one.by_turn()]
        rates = [Estimate(float(np.mean(fired)), *wilson_interval(sum(fired), len(fired))) for fired in turns]
        colour = points(axes, range(len(rates)), rates, one.label)
        axes.axhline(one.alpha, color=colour, lw=0.7, ls=":")
    axes.set(xlabel="turn", ylabel="share of chunks taken over", ylim=(0, 1))
    axes.set_title("Take-overs by turn: each line should keep to its alpha (dotted)")
