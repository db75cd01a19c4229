"""The figures of a draft/target study: those that A1 draws, from what the systems did."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._lib.draft_target import Answered
from benchmarks._lib.drawing import drawing

CHAIN_COUNTS = (1, 2, 4, 8, 16)
NUM_DRAWS = 50
SHOWN_DECISIONS = 100  # of a turn
COLOURS = {
    "conformal": "C0",
    "coin": "C1",
    "ranking": "C2",
    "conditional": "C9",
    "reflection words": "C4",
    "draft only": "0.6",
    "target only": "0.0",
}
OTHER_COLOUR = "C5"
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


def plot(found: list[Found], path: Path, title: str) -> None:
    """Draw accuracy against the target's tokens, budget accuracy, and perplexity and take-overs by turn."""
    with drawing(path, 2, 2, figsize=(12, 8)) as (figure, axes):
        _curve(axes[0, 0], found)
        _budget(axes[0, 1], found)
        conformal = [one for one in found if one.family == "conformal"]
        _perplexity(axes[1, 0], conformal)
        _take_overs(axes[1, 1], conformal)
        figure.suptitle(title)


def _curve(axes: Any, found: list[Found]) -> None:
    for family in dict.fromkeys(one.family for one in found):
        points = [
            (float(np.mean([a.target_tokens for a in one.answers])), [a.vote for a in one.answers])
            for one in found
            if one.family == family
        ]
        tokens, votes = zip(*sorted(points, key=lambda point: point[0]), strict=True)
        errors = [1.96 * float(np.std(values)) / len(values) ** 0.5 for values in votes]
        axes.errorbar(
            tokens,
            [np.mean(values) for values in votes],
            errors,
            marker="o",
            capsize=2,
            color=COLOURS.get(family, OTHER_COLOUR),
            label=family,
        )
    axes.set(xlabel="tokens the target decoded, a question", ylabel="accuracy of the vote")
    axes.set_title("accuracy against the target's tokens (bars: 95 %)", fontsize="medium")
    axes.legend(fontsize="small")


def _budget(axes: Any, found: list[Found]) -> None:
    for one in found:
        counts = [count for count in CHAIN_COUNTS if count <= len(one.answers[0].right)]
        line = LINES.get(one.alpha or 0.25, "-")
        colour = COLOURS.get(one.family, OTHER_COLOUR)
        axes.plot(counts, [one.vote_of(count) for count in counts], "o" + line, ms=3, color=colour, label=one.label)
    axes.set(xlabel="chains", ylabel="accuracy of their vote", xscale="log")
    axes.set_xticks(CHAIN_COUNTS, [str(count) for count in CHAIN_COUNTS])
    axes.set_xticks([], minor=True)
    axes.set_title("budget accuracy", fontsize="medium")
    axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _perplexity(axes: Any, found: list[Found]) -> None:
    for one in found:
        quartiles = np.array([np.exp(np.quantile(scores, [0.25, 0.5, 0.75])) for scores, _ in one.by_turn()])
        if len(quartiles):
            (line,) = axes.plot(quartiles[:, 1], "o-", ms=3, label=one.label)
            axes.fill_between(
                range(len(quartiles)), quartiles[:, 0], quartiles[:, 2], alpha=0.12, color=line.get_color()
            )
    axes.set(xlabel="turn", ylabel="perplexity of a drafted chunk under the target")
    axes.set_title("perplexity by turn (median and quartiles)", fontsize="medium")
    axes.legend(fontsize="small")


def _take_overs(axes: Any, found: list[Found]) -> None:
    for one in found:
        rates = [float(np.mean(fired)) for _, fired in one.by_turn()]
        (line,) = axes.plot(rates, "o-", ms=3, label=one.label)
        axes.axhline(one.alpha, color=line.get_color(), lw=0.7, ls=":")
    axes.set(xlabel="turn", ylabel="share of chunks taken over", ylim=(0, 1))
    axes.set_title("take-overs by turn (dotted: alpha)", fontsize="medium")
    axes.legend(fontsize="small")
