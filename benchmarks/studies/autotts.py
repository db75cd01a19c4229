"""The benchmark of AutoTTS: votes of 64 recorded Qwen3 chains, rules that stop them, and controllers of intervals.

    python -m benchmarks.studies.autotts --chains qwen3_chains.jsonl.gz --json

Protocol of the paper (Zheng et al., arXiv:2605.08083): 30 questions of AIME24, AIME25 and HMMT25 each, 128 chains a
question of four models; 64 of them, 100 shuffles; an answer is right if it is the target's text, and "no answer" counts
as an answer. AIME24 chooses settings, AIME25 and HMMT25 judge. Probes cost nothing there, so they cost nothing here.

A chain's time is its number of tokens, as if all chains of a vote were written at one speed: a round waits for its
longest chain. *Rolling* votes are those of `tune`'s replay. *Chains*: one chain that ends after k equal answers in a
row, asked every 500 tokens as DynasorCoT asks, beside the cut that decodes as much.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, plotted, size, track
from benchmarks._lib.drawing import Figures, below, coloured, drawing, of, point
from benchmarks._lib.interval_controllers import INTERVAL, Chain, Played, confidence_momentum, parallel_probe
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import BetaConsistency
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling, EarlyStoppingWindow
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, SequentialRule, Votes
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.leader_change import MISSES, LeaderChange
from scaffolding_ext.controllers.vote.allocation.value_of_vote import ValueOfVote
from scaffolding_ext.controllers.vote.draws import Order
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.evaluation.tune.rolling import schedule

Vote = Sequence[Chain]
Way = Callable[[Sequence[Vote]], Sequence[Played]]  # plays all shuffles of a question
Weigh = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]

CHOOSES, MODELS = "aime24", ("0.6B", "1.7B", "4B", "8B")
FULL, DEFAULT, CHOSEN, PLAIN = "all chains", "ours, default", "ours, chosen on AIME24", "plain vote of as many tokens"
CMC, CMC_CHEAPER = "CMC, beta .5", "CMC, beta .3"
AC_IN_LEAPS = "Adaptive-Consistency .85 in leaps"
AT_ONCE = {number: f"ours, {number} of {number} at once" for number in (20, 24)}
VALUE = "value of a vote, chosen on AIME24"
VALUE_WIDTHS, VALUE_PRICES = (12, 16, 20, 22, 24, 28), (0.01, 0.02, 0.03, 0.05, 0.1)
MOST_TOKENS, LONGEST = 0.25, 0.5  # on AIME24, shares of all chains at once, for what `VALUE` may take
BY_LENGTH, SHORTNESS = "ours by length, chosen on AIME24", "ours by length, default"
MISSES_BY_LENGTH = (0.1, 0.2, 0.3)
WIDTHS = (4, 8, 16)
AGREEING = (2, 3, 5, 8, 10, 20)  # equal answers in a row that end a chain
MOST_LOST = 0.003  # on AIME24, by what is chosen there
PLOTTED = (
    *(FULL, DEFAULT, AC_IN_LEAPS, "Adaptive-Consistency .95 in leaps", "Parallel-Probe", "first 8 to finish"),
    *(CMC, CMC_CHEAPER, "ours, 4 in flight by tokens", "ours, 16 in flight by tokens", *AT_ONCE.values(), VALUE),
)
BARS = (
    (DEFAULT, "tokens, share of all", "<=", 0.3),
    (DEFAULT, "points", ">=", -0.5),
    ("ours, 16 in flight by tokens", "tokens, share of all", "<=", 0.38),
    ("ours, 16 in flight by tokens", "longest path, share of all", "<=", 0.85),
    *((name, "points over CMC", ">=", 0.0) for name in (BY_LENGTH, SHORTNESS)),
    *((name, "tokens, share of all", "<=", 0.28) for name in (BY_LENGTH, SHORTNESS)),
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
    chains: Vote
    no_answer: int = -1


def read_chains(path: Path) -> Iterator[Asked]:
    """The questions of a file of recorded chains, one a line; answers are compared as texts, as the paper does."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
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


def simulated(num_questions: int, rng: np.random.Generator, num_chains: int = 128) -> Iterator[Asked]:
    """Questions whose chains are right with a chance of .2 to .9, and more often so after each interval."""
    for model in MODELS:
        for task in (CHOOSES, "aime25", "hmmt25"):
            for number in range(num_questions):
                chance, chains = rng.uniform(0.2, 0.9), []
                for length in rng.integers(1_000, 6_000, num_chains).tolist():
                    num_probes = length // INTERVAL
                    chances = np.append(chance * np.arange(1, num_probes + 1) / num_probes, chance)
                    answers = np.where(rng.random(num_probes + 1) < chances, 0, rng.integers(1, 5, num_probes + 1))
                    *probes, answer = answers.tolist()
                    chains.append(Chain(answer, length, tuple(probes)))
                yield Asked(model, task, f"{task} {number}", 0, chains)


def each(play: Callable[[Vote], Played]) -> Way:
    """Play the shuffles one by one."""
    return lambda votes: [play(chains) for chains in votes]


def in_rounds(rule: AllocationRule, weigh: Weigh | None = None) -> Way:
    """Play votes as `MajorityVoteController` does: the rule says how many more to draw, and a round waits for all."""
    num_more = functools.lru_cache(1 << 16)(lambda classes, most: rule.num_more(Votes(classes, most)))

    def play(chains: Vote) -> Played:
        classes, num_drawn, path = _renumbered([chain.answer for chain in chains]), 0, 0
        lengths = np.array([chain.num_tokens for chain in chains], dtype=float)
        weights: list[float] | None = None
        while num_drawn < len(chains):
            if weigh is None:
                more = num_more(classes[:num_drawn], len(chains))
            else:
                weights = weigh(lengths[:num_drawn]).tolist() if num_drawn else []
                more = rule.num_more(Votes(classes[:num_drawn], len(chains), weights=weights))
            if not more:
                break
            path += int(lengths[num_drawn : num_drawn + more].max())
            num_drawn += more
        answers = [chain.answer for chain in chains[:num_drawn]]
        weights = None if weigh is None else weigh(lengths[:num_drawn]).tolist()
        return Played(vote(answers, weights), int(lengths[:num_drawn].sum()), path)

    return each(play)


def rolling(rule: SequentialRule, in_flight: int, order: Order) -> Way:
    """Play votes that roll, on the schedule of `tune`'s replay; the rule is asked at each sample that counts."""
    sequential = dataclasses.replace(rule, leap=0.0)
    reads_lengths = "lengths" in rule.inputs

    @functools.lru_cache(1 << 16)
    def goes_on(classes: tuple[int, ...], most: int, lengths: tuple[int, ...] = (), running: int = 0) -> int:
        return sequential.num_more(Votes(classes, most, lengths=lengths, running_tokens=running))

    def play(votes: Sequence[Vote]) -> list[Played]:
        lengths = np.array([[chain.num_tokens for chain in chains] for chains in votes], dtype=float)
        flight, found = schedule(lengths, in_flight, order), []
        for row, chains in enumerate(votes):
            counted = [chains[number] for number in flight.order[row].tolist()]
            answers, most = [chain.answer for chain in counted], len(chains)
            classes, num = _renumbered(answers), 0
            written = np.zeros(most)
            while num < most:
                num += 1
                path = flight.counts[row, num - 1]
                written = np.clip(path - flight.began[row], 0, lengths[row, flight.order[row]])
                read: tuple[Any, ...] = ()
                if reads_lengths:
                    own = tuple(chain.num_tokens for chain in counted[:num])
                    left = written[num:].sum() if order == "tokens" else max(own) * min(in_flight, most - num)
                    read = own, int(left)
                if not goes_on(classes[:num], most, *read):
                    break
            found.append(Played(vote(answers[:num]), int(written.sum()), int(path)))
        return found

    return play


def at_once(rule: SequentialRule, num_chains: int, order: Order = "tokens") -> Way:
    """Play votes of the first chains, which all begin at once."""
    way = rolling(rule, num_chains, order)
    return lambda votes: way([chains[:num_chains] for chains in votes])


def inverse(lengths: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The weight `shortness` of the package."""
    weights: npt.NDArray[np.float64] = 1 / lengths
    return weights


def inverse_square(lengths: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Inverse squares, capped at four times the mean of the vote's."""
    weights = lengths**-2
    capped: npt.NDArray[np.float64] = np.minimum(weights, 4 * weights.mean())
    return capped


WEIGHTS: Mapping[str, Weigh] = {"1 / length": inverse, "1 / length squared, capped": inverse_square}


def first_to_finish(num_first: int) -> Way:
    """Start all chains, and vote once so many have ended; the others are stopped there."""

    def play(chains: Vote) -> Played:
        ended = sorted(chains, key=lambda chain: chain.num_tokens)[:num_first]
        path = ended[-1].num_tokens
        tokens = sum(min(chain.num_tokens, path) for chain in chains)
        return Played(vote([chain.answer for chain in ended]), tokens, path)

    return each(play)


def _shuffled(num_chains: int, seed: int) -> list[int]:
    """Return an order of chains by the paper's generator, so that seed 0 repeats its table."""
    order = list(range(num_chains))
    random.Random(seed).shuffle(order)
    return order


def _renumbered(classes: Sequence[int]) -> tuple[int, ...]:
    """Number classes by their first appearance, so that equal votes are equal."""
    known: dict[int, int] = {}
    return tuple(known.setdefault(number, len(known)) for number in classes)


class Replay:
    """Ways to answer, each played on the same shuffles of every question.

    Attributes:
        right: Share of the shuffles whose answer is right, by way, shape [num_questions].
    """

    def __init__(self, asked: Sequence[Asked], num_chains: int, num_shuffles: int, seed: int) -> None:
        self.asked = asked
        self._orders = [_shuffled(len(asked[0].chains), seed + number)[:num_chains] for number in range(num_shuffles)]
        self.right: dict[str, npt.NDArray[np.float64]] = {}
        self.tokens: dict[str, npt.NDArray[np.float64]] = {}
        self.path: dict[str, npt.NDArray[np.float64]] = {}

    def play(self, name: str, way: Way, where: npt.NDArray[np.bool_] | None = None) -> None:
        """Play a way on all questions, or on those of a mask."""
        found = np.full((len(self.asked), 3), np.nan)
        for number, asked in enumerate(track(self.asked, name)):
            if where is not None and not where[number]:
                continue
            played = way([[asked.chains[index] for index in order] for order in self._orders])
            found[number] = np.mean([(one.answer == asked.target, one.num_tokens, one.path) for one in played], axis=0)
        self.right[name], self.tokens[name], self.path[name] = found.T

    def of(self, *, models: Sequence[str] = MODELS, tasks: Sequence[str] | None = None) -> npt.NDArray[np.bool_]:
        """Return the mask of questions of these models and tasks; None takes all tasks."""
        return np.array([each.model in models and (tasks is None or each.task in tasks) for each in self.asked])

    def lost(self, name: str, where: npt.NDArray[np.bool_]) -> float:
        return float((self.right[FULL] - self.right[name])[where].mean())


def choose(plays: Replay, where: npt.NDArray[np.bool_]) -> LeaderChange:
    """The cheapest `LeaderChange` that loses at most 0.3 points on the questions that choose."""
    rules = [LeaderChange(miss=miss, leap=leap) for miss in MISSES for leap in (1.0, 2.0)]
    for rule in rules:
        plays.play(str(rule), in_rounds(rule), where)
    kept = [rule for rule in rules if plays.lost(str(rule), where) <= MOST_LOST]
    return min(kept or rules[:1], key=lambda rule: plays.tokens[str(rule)][where].sum())


def choose_by_length(plays: Replay) -> tuple[LeaderChange, str]:
    """The rule and the weight with most right answers at no more tokens than CMC."""
    rules = [LeaderChange(miss=miss) for miss in MISSES_BY_LENGTH]
    tried = {f"{rule} {name}": (rule, name) for rule in rules for name in WEIGHTS}
    for title, (rule, name) in tried.items():
        plays.play(title, in_rounds(rule, WEIGHTS[name]))
    most = plays.tokens[CMC].sum()
    kept = [title for title in tried if plays.tokens[title].sum() <= most] or list(tried)
    return tried[max(kept, key=lambda title: plays.right[title].sum())]


def choose_value(plays: Replay, where: npt.NDArray[np.bool_]) -> tuple[ValueOfVote, int]:
    """The price and the number of chains at once with most right answers in the tokens and the time allowed."""
    tried = {f"{price} of {num}": (ValueOfVote(price=price), num) for num in VALUE_WIDTHS for price in VALUE_PRICES}
    kept = []
    for title, (rule, num) in tried.items():
        plays.play(title, at_once(rule, num), where)
        tokens, path = (values[title][where].sum() / values[FULL][where].sum() for values in (plays.tokens, plays.path))
        kept += [title] * bool(tokens <= MOST_TOKENS and path <= LONGEST)
    return tried[max(kept or tried, key=lambda title: plays.right[title][where].sum())]


class EndedChain(NamedTuple):
    """Means over the chains of each question that end in one way, shape [num_questions]."""

    right: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.float64]

    def mixed(self, other: EndedChain, share: float) -> EndedChain:
        """Take the other way with a probability of `share`."""
        return EndedChain(*((1 - share) * mine + share * own for mine, own in zip(self, other, strict=True)))


def ended(asked: Sequence[Asked], end: Callable[[Chain, int], tuple[int, int]]) -> EndedChain:
    """End every chain; `end` takes the chain and the class of no answer, and returns its answer and its tokens."""
    found = []
    for question in asked:
        ends = [end(chain, question.no_answer) for chain in question.chains]
        found.append(np.mean([(answer == question.target, tokens) for answer, tokens in ends], axis=0))
    return EndedChain(*np.array(found).T)


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
    totals = np.array([each.tokens.sum() for each in cuts])
    report.difference(f"{title}: whole chain: right", whole.right, questions=questions, scale=100)
    for num_equal in AGREEING:
        stopped = ended(asked, agreeing(num_equal))
        place = int(np.clip(np.searchsorted(totals, stopped.tokens.sum()), 1, len(cuts) - 1))
        step = totals[place] - totals[place - 1]
        share = float(np.clip((stopped.tokens.sum() - totals[place - 1]) / step, 0, 1)) if step else 0.0
        as_much, name = cuts[place - 1].mixed(cuts[place], share), f"{title}: {num_equal} equal answers"
        report.difference(f"{name}: right", stopped.right, questions=questions, scale=100)
        report.ratio(f"{name}: tokens, share of the whole chain", stopped.tokens, whole.tokens, questions)
        report.difference(f"{name}: points", stopped.right, whole.right, questions, scale=100)
        report.difference(
            f"{name}: points over a cut of as many tokens", stopped.right, as_much.right, questions, scale=100
        )


def add_set(report: Report, title: str, plays: Replay, names: Sequence[str], where: npt.NDArray[np.bool_]) -> None:
    """Add each way's figures on some questions; a question is resampled with all models that were asked it."""
    questions = [each.question for each, chosen in zip(plays.asked, where, strict=True) if chosen]
    full = {key: values[FULL][where] for key, values in vars(plays).items() if key in ("right", "tokens", "path")}
    for name in names:
        right, tokens, path = (values[name][where] for values in (plays.right, plays.tokens, plays.path))
        report.difference(f"{title}: {name}: right", right, questions=questions, scale=100)
        report.difference(f"{title}: {name}: thousands of tokens", tokens, questions=questions, scale=1e-3)
        if name != FULL:
            report.difference(f"{title}: {name}: points", right, full["right"], questions, scale=100)
            report.ratio(f"{title}: {name}: tokens, share of all", tokens, full["tokens"], questions)
            report.ratio(f"{title}: {name}: longest path, share of all", path, full["path"], questions)


def add_repeated(report: Report, plays: Replay) -> None:
    """Hold ways of the paper against its table: the largest gap of its eight cells."""
    for name, cells in PAPER.items():
        points, shares = [], []
        for model, row in cells.items():
            for task, (right, tokens) in zip(("aime25", "hmmt25"), row, strict=True):
                where = plays.of(models=[model], tasks=[task])
                points.append(100 * plays.right[name][where].mean() - right)
                shares.append(plays.tokens[name][where].mean() / (1e3 * tokens) - 1)
        report.bar(f"{name}: most points from the paper's cells", np.abs(points).max(), "<=", 0.3)
        report.bar(f"{name}: largest share of tokens from the paper's cells", np.abs(shares).max(), "<=", 0.02)


def plot(figures: Figures, title: str, names: Sequence[str], path: Path) -> None:
    """Tokens against the longest path, both as shares of all chains at once: a dot a way."""
    with drawing(path, figsize=(9, 5)) as (figure, axes):
        for number, name in enumerate(names):
            tokens = of(figures, f"{title}: {name}: tokens, share of all", 100)
            longest = of(figures, f"{title}: {name}: longest path, share of all")
            lost = of(figures, f"{title}: {name}: points")
            if tokens is not None and longest is not None and lost is not None:
                said = f"{name} ({lost.value:+.1f} points)"
                point(axes, tokens, longest, said, is_default=name == DEFAULT, **coloured(number))
        axes.set(xlabel="decoded tokens, % of all chains", ylabel="longest path, all chains at once = 1")
        axes.set_yscale("log")
        axes.set_xlim(0, None)
        axes.set_title(title)
        below(figure, axes, 2)


@benchmark("studies.autotts --chains qwen3_chains.jsonl.gz")
@click.option("--chains", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Recorded chains.")
@size("--num_shuffles", 100, quick=4, help="Orders of each question's chains.")
@size("--num_chains", 64, quick=16, help="Chains of a vote.", least=8)
@size("--num_simulated", 30, quick=4, help="Questions a set that are simulated without a file.", least=2)
@plotted
def main(
    report: Report,
    path: Path | None,
    num_shuffles: int,
    num_chains: int,
    num_simulated: int,
    plot_path: Path | None,
) -> None:
    """Votes of recorded Qwen3 chains by the protocol of AutoTTS, beside its peers."""
    asked = list(simulated(num_simulated, report.rng) if path is None else read_chains(path))
    plays = Replay(asked, num_chains, num_shuffles, report.seed)
    chooses, judges = plays.of(tasks=[CHOOSES]), plays.of(tasks=["aime25", "hmmt25"])
    ways: dict[str, Way] = {
        FULL: in_rounds(Even(num_samples=num_chains)),
        "one chain": in_rounds(Even(num_samples=1)),
        "Adaptive-Consistency .95": in_rounds(BetaConsistency(confidence=0.95, min_samples=2)),
        "Adaptive-Consistency .90": in_rounds(BetaConsistency(confidence=0.9, min_samples=2)),
        AC_IN_LEAPS: in_rounds(BetaConsistency(confidence=0.85, leap=1.0)),
        "Adaptive-Consistency .95 in leaps": in_rounds(BetaConsistency(confidence=0.95, leap=1.0)),
        "Adaptive-Consistency .95, all at once (its_hub's Beta)": rolling(
            BetaConsistency(confidence=0.95, min_samples=2), num_chains, "tokens"
        ),
        "early-stopping windows of 8": in_rounds(EarlyStoppingWindow(window=8)),
        "doubling until .75 agree (its_hub)": in_rounds(AgreementDoubling()),
        "first 8 to finish": first_to_finish(8),
        "Parallel-Probe": each(parallel_probe),
        CMC_CHEAPER: each(functools.partial(confidence_momentum, beta=0.3)),
        CMC: each(functools.partial(confidence_momentum, beta=0.5)),
        DEFAULT: in_rounds(LeaderChange()),
        SHORTNESS: in_rounds(LeaderChange(), inverse),
        **{
            f"ours, {width} in flight by {order}": rolling(LeaderChange(), width, order)
            for order in ("tokens", "index")
            for width in WIDTHS
        },
        **{name: at_once(LeaderChange(), number) for number, name in AT_ONCE.items()},
    }
    for name, way in ways.items():
        plays.play(name, way)
    rule = choose(plays, chooses)
    report.setting["chosen"] = str(rule)
    plays.play(CHOSEN, in_rounds(rule))
    few = Replay([each for each in asked if each.task == CHOOSES], num_chains, -(-num_shuffles // 4), report.seed)
    few.play(CMC, ways[CMC])
    rule, weight = choose_by_length(few)
    report.setting["chosen by length"] = f"{rule}, {weight}"
    plays.play(BY_LENGTH, in_rounds(rule, WEIGHTS[weight]))
    value, number = choose_value(plays, chooses)
    report.setting["chosen value"] = f"{value}, {number} at once"
    plays.play(VALUE, at_once(value, number))
    share = plays.tokens[DEFAULT][chooses].sum() / plays.tokens[FULL][chooses].sum()
    plays.play(PLAIN, in_rounds(Even(num_samples=max(1, round(num_chains * share)))))
    names, title = [*ways, CHOSEN, BY_LENGTH, VALUE, PLAIN], "AIME25 and HMMT25"
    add_set(report, title, plays, names, judges)
    add_set(report, "AIME24", plays, names, chooses)
    add_set(report, f"{title}, 4B and 8B", plays, names, judges & plays.of(models=["4B", "8B"]))
    for model in MODELS:
        add_set(report, f"{title}, {model}", plays, names, judges & plays.of(models=[model]))
    for models, said in ((MODELS, "one chain"), (("4B", "8B"), "one chain, 4B and 8B")):
        add_chains(report, said, [each for each, taken in zip(asked, plays.of(models=models), strict=True) if taken])
    groups = [each.question for each, judged in zip(asked, judges, strict=True) if judged]
    for name in (BY_LENGTH, SHORTNESS, *AT_ONCE.values(), VALUE):
        ours, theirs = (plays.right[each][judges] for each in (name, CMC))
        over = report.difference(f"{title}: {name}: points over CMC", ours, theirs, groups, scale=100)
        if name == VALUE:
            report.bar(f"{name}: points over CMC, lower end", over.low, ">=", -1.1)
    for models in (MODELS, ("4B", "8B")):
        where = judges & plays.of(models=models)
        ours, theirs = (plays.right[each][where] for each in (DEFAULT, AC_IN_LEAPS))
        groups = [each.question for each, judged in zip(asked, where, strict=True) if judged]
        said = title if models == MODELS else f"{title}, 4B and 8B"
        report.difference(f"{said}: {DEFAULT}: points over {AC_IN_LEAPS}", ours, theirs, groups, scale=100)
    if path is not None and num_chains == 64:
        add_repeated(report, plays)
    for name, figure, sign, bar in BARS:
        report.bar(f"{name}: {figure}", report.figures[f"{title}: {name}: {figure}"]["value"], sign, bar)
    if plot_path is not None:
        plot(report.figures, title, PLOTTED, plot_path)


if __name__ == "__main__":
    main()
