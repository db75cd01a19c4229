"""The benchmark of AutoTTS: votes of 64 recorded Qwen3 chains, rules that stop them, and controllers of intervals.

    python -m benchmarks.studies.autotts --data FOLDER --json

Protocol of the paper (Zheng et al., arXiv:2605.08083): 30 questions of AIME25 and of HMMT25, 128 chains a question of
four models; 64 of them, 100 shuffles; an answer is right if it is the target's text, and "no answer" counts as an
answer. Probes cost nothing there, so they cost nothing here.

A chain's time is its number of tokens, as if all chains of a vote were written at one speed: a round waits for its
longest chain. Votes are those of `tune`'s replay. *Chains*: one chain that ends after k equal answers in a row, asked
every 500 tokens as DynasorCoT asks, beside the cut that decodes as much; of AIME24 too.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._lib.command import benchmark, plotted, recorded, size, track
from benchmarks._lib.drawing import Figures, coloured, of
from benchmarks._lib.interval_controllers import INTERVAL, Chain, Played, confidence_momentum
from benchmarks._lib.report import Report
from benchmarks._lib.stops import Ended, right_of_as_many
from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import BetaConsistency
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling, EarlyStoppingWindow
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.value_of_vote import ValueOfVote
from scaffolding_ext.controllers.vote.draws import Order
from scaffolding_ext.evaluation.drawing import below, drawing, point
from scaffolding_ext.evaluation.logs.samples import Bools, Floats, RecordedQuestion, Recording
from scaffolding_ext.evaluation.tune.costs import whole_samples
from scaffolding_ext.evaluation.tune.orders import OrderedVotes
from scaffolding_ext.evaluation.tune.rolling import ReplayedFlight
from scaffolding_ext.evaluation.tune.votes import ReplayResult, play

QWEN3 = "qwen3_chains.jsonl.gz"
CHOOSES, MODELS, LARGE = "aime24", ("0.6B", "1.7B", "4B", "8B"), ("4B", "8B")
TITLE = "AIME25 and HMMT25"
FULL, DEFAULT, SHORTNESS, PLAIN = "all chains", "ours, default", "ours by length", "plain vote of as many tokens"
CMC, CMC_CHEAPER = "CMC, beta .5", "CMC, beta .3"
AC, AC_IN_LEAPS = "Adaptive-Consistency .95", "Adaptive-Consistency .85 in leaps"
ITS_HUB = "Adaptive-Consistency .95, all at once (its_hub's Beta)"
AT_ONCE = {number: f"ours, {number} of {number} at once" for number in (20, 24)}
VALUE, VALUE_OF_VOTE, VALUE_WIDTH = "value of a vote, 22 of 22 at once", ValueOfVote(price=0.02), 22
WIDTHS = (4, 8, 16)
AGREEING = (2, 3, 5, 8, 10, 20)  # equal answers in a row that end a chain
PLOTTED = (
    *(FULL, DEFAULT, AC_IN_LEAPS, "Adaptive-Consistency .95 in leaps", "first 8 to finish"),
    *(CMC, CMC_CHEAPER, "ours, 4 in flight by tokens", "ours, 16 in flight by tokens", *AT_ONCE.values(), VALUE),
)
BARS = (
    (DEFAULT, "tokens, share of all", "<=", 0.3),
    (DEFAULT, "points", ">=", -0.5),
    ("ours, 16 in flight by tokens", "tokens, share of all", "<=", 0.38),
    ("ours, 16 in flight by tokens", "longest path, share of all", "<=", 0.85),
    (SHORTNESS, "points over CMC", ">=", 0.0),
    (SHORTNESS, "tokens, share of all", "<=", 0.28),
    (AT_ONCE[20], "tokens, share of all", "<=", 0.245),
    (AT_ONCE[20], "longest path, share of all", "<=", 0.48),
    (VALUE, "tokens, share of all", "<=", 0.255),
    (VALUE, "longest path, share of all", "<=", 0.43),
)
# The paper's table: right (%) and thousands of tokens a question, on AIME25 and on HMMT25 of each model.
PAPER: Mapping[str, Mapping[str, tuple[tuple[float, float], tuple[float, float]]]] = {
    FULL: {
        "0.6B": ((28.9, 891), (18.1, 938)),
        "1.7B": ((44.4, 1054), (24.2, 1133)),
        "4B": ((76.6, 1088), (43.6, 1168)),
        "8B": ((76.7, 1124), (48.9, 1267)),
    },
    "Adaptive-Consistency .95": {
        "0.6B": ((28.9, 654), (18.1, 581)),
        "1.7B": ((44.4, 601), (24.2, 586)),
        "4B": ((76.6, 325), (43.6, 487)),
        "8B": ((76.7, 406), (48.8, 565)),
    },
    CMC: {
        "0.6B": ((28.6, 250), (14.9, 258)),
        "1.7B": ((46.7, 328), (30.5, 359)),
        "4B": ((73.8, 332), (45.7, 365)),
        "8B": ((74.1, 361), (48.1, 397)),
    },
}


class Asked(NamedTuple):
    """A question of a run: the class of its target (-2 if no chain gives it), its chains, the class of no answer."""

    model: str
    task: str
    question: str
    target: int
    chains: Sequence[Chain]
    no_answer: int = -1


def read_chains(data: Path) -> Iterator[Asked]:
    """The questions of the recorded chains, one a line; answers are compared as texts, as the paper does."""
    with gzip.open(data / QWEN3, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            classes: dict[str | None, int] = {}

            def class_of(answer: str | None, classes: dict[str | None, int] = classes) -> int:
                return classes.setdefault(answer, len(classes))

            chains = [
                Chain(
                    class_of(each["answer"]),
                    each["output_tokens"],
                    tuple(class_of(probe["answer"]) for probe in each["probes"]),
                )
                for each in row["samples"]
            ]
            target, no_answer = classes.get(row["target"], -2), classes.get(None, -1)
            yield Asked(row["run"].removeprefix("Qwen3-"), row["task"], row["question"], target, chains, no_answer)


class Row(NamedTuple):
    """Means over the shuffles of each question, shape [num_questions]."""

    right: Floats
    tokens: Floats
    path: Floats

    @classmethod
    def of(cls, played: ReplayResult) -> Row:
        return cls(played.right, played.costs["decoded"], played.costs["critical"])


class Shuffled:
    """The votes of all questions in the paper's shuffles, the same for each question.

    Args:
        num_chains: Chains of a vote, the first of a shuffle.
        seed: 0 repeats the paper's table, by its generator.
    """

    def __init__(self, asked: Sequence[Asked], num_chains: int, num_shuffles: int, seed: int) -> None:
        self.asked, self.num_chains = asked, num_chains
        orders = [list(range(len(asked[0].chains))) for _ in range(num_shuffles)]
        for number, order in enumerate(orders):
            random.Random(seed + number).shuffle(order)
        self._orders = [order[:num_chains] for order in orders]
        samples = whole_samples(Recording(list(map(question_of, asked)), ["AutoTTS"], ""))
        shape = num_shuffles, len(asked), num_chains
        self.votes = OrderedVotes(samples, np.broadcast_to(np.array(self._orders)[:, None], shape))
        self._full_right = self.votes.right[:, -1].astype(float)

    def in_rounds(self, rule: AllocationRule, weight: str | None = None) -> Row:
        """Votes that draw as many chains at once as the rule says."""
        votes = dataclasses.replace(self.votes, weight=weight) if weight else self.votes
        return Row.of(play(votes, rule, self.num_chains, self._full_right))

    def in_flight(
        self, rule: AllocationRule, in_flight: int, order: Order = "tokens", num_chains: int | None = None
    ) -> Row:
        """Votes of which so many chains always run; the rule is asked at each that counts."""
        flight = ReplayedFlight(self.votes, num_chains or self.num_chains, in_flight, order)
        return Row.of(flight.play(flight.sizes(rule), self._full_right))

    def at_once(self, rule: AllocationRule, num_chains: int) -> Row:
        """Votes of few chains, which all begin at once."""
        return self.in_flight(rule, num_chains, num_chains=num_chains)

    def first_to_finish(self, num_first: int) -> Row:
        """Votes of the chains that end first; all begin at once, and the others are stopped there."""
        flight = ReplayedFlight(self.votes, self.num_chains, self.num_chains, "tokens")
        return Row.of(flight.play(np.full(len(self._full_right), num_first), self._full_right))

    def by(self, controller: Callable[[Sequence[Chain]], Played]) -> Row:
        """Return a controller's result on each shuffle."""
        found = []
        for asked in track(self.asked, "controller of intervals"):
            played = [controller([asked.chains[index] for index in order]) for order in self._orders]
            found.append(np.mean([(one.answer == asked.target, one.num_tokens, one.path) for one in played], axis=0))
        return Row(*np.array(found).T)

    def plain(self, tokens: float) -> Row:
        """The plain votes whose tokens a question come nearest to so many."""
        rows = [self.in_rounds(Even(num_samples=number)) for number in range(1, self.num_chains + 1)]
        return min(rows, key=lambda each: abs(float(each.tokens.mean()) - tokens))


def question_of(asked: Asked) -> RecordedQuestion:
    """The chains of a question as samples of a vote; no answer is a class of its own."""
    classes = np.array([chain.answer for chain in asked.chains])
    tokens = np.array([chain.num_tokens for chain in asked.chains])
    return RecordedQuestion(
        asked.question,
        asked.model,
        asked.task,
        classes,
        classes == asked.target,
        asked.target,
        tokens,
        missing=frozenset({"seconds", "logprobs", "rewards", "probes"}),
    )


def ways(plays: Shuffled) -> dict[str, Row]:
    """Every way to answer, on the same shuffles."""
    found = {
        FULL: plays.in_rounds(Even(num_samples=plays.num_chains)),
        "one chain": plays.in_rounds(Even(num_samples=1)),
        AC: plays.in_rounds(BetaConsistency(confidence=0.95, min_samples=2)),
        AC_IN_LEAPS: plays.in_rounds(BetaConsistency(confidence=0.85, leap=1.0)),
        "Adaptive-Consistency .95 in leaps": plays.in_rounds(BetaConsistency(confidence=0.95, leap=1.0)),
        ITS_HUB: plays.in_flight(BetaConsistency(confidence=0.95, min_samples=2), plays.num_chains),
        "early-stopping windows of 8": plays.in_rounds(EarlyStoppingWindow(window=8)),
        "doubling until .75 agree (its_hub)": plays.in_rounds(AgreementDoubling()),
        "first 8 to finish": plays.first_to_finish(8),
        CMC_CHEAPER: plays.by(functools.partial(confidence_momentum, beta=0.3)),
        CMC: plays.by(functools.partial(confidence_momentum, beta=0.5)),
        DEFAULT: plays.in_rounds(LeaderChange()),
        SHORTNESS: plays.in_rounds(LeaderChange(), "shortness"),
        **{f"ours, {width} in flight by tokens": plays.in_flight(LeaderChange(), width) for width in WIDTHS},
        f"ours, {WIDTHS[-1]} in flight by index": plays.in_flight(LeaderChange(), WIDTHS[-1], "index"),
        **{name: plays.at_once(LeaderChange(), number) for number, name in AT_ONCE.items()},
        VALUE: plays.at_once(VALUE_OF_VOTE, VALUE_WIDTH),
    }
    return found | {PLAIN: plays.plain(float(found[DEFAULT].tokens.mean()))}


class Judged:
    """Rows on some of the questions; a question is resampled with all models that were asked it."""

    def __init__(self, report: Report, title: str, plays: Shuffled, rows: Mapping[str, Row], where: Bools) -> None:
        self._report, self._title, self._rows, self._where = report, title, rows, where
        self._questions = [each.question for each, chosen in zip(plays.asked, where, strict=True) if chosen]

    def add(self, name: str) -> None:
        """Add right answers, and what the vote of all chains has more."""
        report, said = self._report, f"{self._title}: {name}"
        ours, full = (Row(*(column[self._where] for column in self._rows[each])) for each in (name, FULL))
        report.difference(f"{said}: right", ours.right, questions=self._questions, scale=100)
        if name != FULL:
            report.difference(f"{said}: points", ours.right, full.right, self._questions, scale=100)
            report.ratio(f"{said}: tokens, share of all", ours.tokens, full.tokens, self._questions)
            report.ratio(f"{said}: longest path, share of all", ours.path, full.path, self._questions)

    def over(self, name: str, other: str, said: str) -> float:
        """Add the points of one way over another; return the lower end."""
        ours, theirs = (self._rows[each].right[self._where] for each in (name, other))
        said = f"{self._title}: {name}: points over {said}"
        return self._report.difference(said, ours, theirs, self._questions, scale=100).low


def ended(asked: Sequence[Asked], end: Callable[[Chain, int], tuple[int, int]]) -> Ended:
    """End every chain; `end` takes the chain and the class of no answer, and returns its answer and its tokens."""
    found = []
    for question in asked:
        ends = [end(chain, question.no_answer) for chain in question.chains]
        found.append(np.mean([(answer == question.target, tokens) for answer, tokens in ends], axis=0))
    return Ended(*np.array(found).T)


def agreeing(num_equal: int) -> Callable[[Chain, int], tuple[int, int]]:
    """Stop once so many answers in a row are equal: the rule `consecutive` of DynasorCoT."""

    def end(chain: Chain, no_answer: int) -> tuple[int, int]:
        num_alike = 0
        for number, answer in enumerate(chain.probes):
            num_alike = num_alike + 1 if number and answer == chain.probes[number - 1] else 1
            if num_alike >= num_equal and answer != no_answer:
                return answer, INTERVAL * (number + 1)
        return chain.answer, chain.num_tokens

    return end


def cut(num_probes: int) -> Callable[[Chain, int], tuple[int, int]]:
    """Stop after so many intervals with the answer asked for there."""

    def end(chain: Chain, no_answer: int) -> tuple[int, int]:
        if chain.num_tokens <= INTERVAL * num_probes or not chain.probes:
            return chain.answer, chain.num_tokens
        return chain.probes[min(num_probes, len(chain.probes)) - 1], INTERVAL * num_probes

    return end


def add_chains(report: Report, title: str, asked: Sequence[Asked]) -> None:
    """Add one chain under each k beside the whole chain and the cuts that decode as much, mixed of two lengths."""
    questions = [each.question for each in asked]
    whole = ended(asked, lambda chain, no_answer: (chain.answer, chain.num_tokens))
    most = max(len(chain.probes) for each in asked for chain in each.chains)
    cuts = [ended(asked, cut(number)) for number in range(1, most + 2)]
    report.difference(f"{title}: whole chain: right", whole.right, questions=questions, scale=100)
    for num_equal in AGREEING:
        stopped, name = ended(asked, agreeing(num_equal)), f"{title}: {num_equal} equal answers"
        of_a_cut = right_of_as_many(cuts, float(stopped.decoded.mean()))
        report.difference(f"{name}: right", stopped.right, questions=questions, scale=100)
        report.ratio(f"{name}: tokens, share of the whole chain", stopped.decoded, whole.decoded, questions)
        report.difference(f"{name}: points", stopped.right, whole.right, questions, scale=100)
        report.difference(f"{name}: points over a cut of as many tokens", stopped.right, of_a_cut, questions, scale=100)


def add_repeated(report: Report, plays: Shuffled, rows: Mapping[str, Row]) -> None:
    """Hold ways of the paper against its table: the largest gap of its eight cells."""
    for name, cells in PAPER.items():
        points, shares = [], []
        for model, row in cells.items():
            for task, (right, tokens) in zip(("aime25", "hmmt25"), row, strict=True):
                own = np.array([(each.model, each.task) == (model, task) for each in plays.asked])
                points.append(100 * rows[name].right[own].mean() - right)
                shares.append(rows[name].tokens[own].mean() / (1e3 * tokens) - 1)
        report.bar(f"{name}: most points from the paper's cells", np.abs(points).max(), "<=", 0.3)
        report.bar(f"{name}: largest share of tokens from the paper's cells", np.abs(shares).max(), "<=", 0.02)


def plot(figures: Figures, names: Sequence[str], path: Path) -> None:
    """Tokens against the longest path, both as shares of all chains at once: a dot a way."""
    with drawing(path, figsize=(9, 5)) as (figure, axes):
        for number, name in enumerate(names):
            tokens = of(figures, f"{TITLE}: {name}: tokens, share of all", 100)
            longest = of(figures, f"{TITLE}: {name}: longest path, share of all")
            lost = of(figures, f"{TITLE}: {name}: points")
            if tokens is not None and longest is not None and lost is not None:
                said = f"{name} ({lost.value:+.1f} points)"
                point(axes, tokens, longest, said, is_default=name == DEFAULT, **coloured(number))
        axes.set(xlabel="decoded tokens, % of all chains", ylabel="longest path, all chains at once = 1")
        axes.set_yscale("log")
        axes.set_xlim(0, None)
        axes.set_title(TITLE)
        below(figure, axes, 2)


@benchmark("studies.autotts --data FOLDER")
@recorded
@size("--num_shuffles", 100, quick=2, help="Orders of each question's chains.")
@size("--num_chains", 64, quick=24, help="Chains of a vote.", least=24)
@plotted
def main(
    report: Report,
    data: Path,
    num_shuffles: int,
    num_chains: int,
    plot_path: Path | None,
) -> None:
    """Votes of recorded Qwen3 chains by the protocol of AutoTTS, beside its peers."""
    asked = list(read_chains(data))
    plays = Shuffled([each for each in asked if each.task != CHOOSES], num_chains, num_shuffles, report.seed)
    rows = ways(plays)

    def judged(title: str, models: Sequence[str]) -> Judged:
        return Judged(report, title, plays, rows, np.array([each.model in models for each in plays.asked]))

    four, large = judged(TITLE, MODELS), judged(f"{TITLE}, 4B and 8B", LARGE)
    for part in (four, large):
        for name in rows:
            part.add(name)
        part.over(DEFAULT, AC_IN_LEAPS, AC_IN_LEAPS)
    for model in MODELS:
        for name in (FULL, CMC, DEFAULT):
            judged(f"{TITLE}, {model}", [model]).add(name)
    add_chains(report, "one chain, 4B and 8B", [each for each in asked if each.model in LARGE])
    lows = {name: four.over(name, CMC, "CMC") for name in (SHORTNESS, *AT_ONCE.values(), VALUE)}
    report.bar(f"{VALUE}: points over CMC, lower end", lows[VALUE], ">=", -1.1)
    if num_chains == 64:
        add_repeated(report, plays, rows)
    for name, figure, sign, bar in BARS:
        report.bar(f"{name}: {figure}", report.figures[f"{TITLE}: {name}: {figure}"]["value"], sign, bar)
    if plot_path is not None:
        plot(report.figures, PLOTTED, plot_path)


if __name__ == "__main__":
    main()
