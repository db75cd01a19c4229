"""Replays the policies of certaindex's paper (figure 7, table 4) on recorded votes: certaindex against need.

    python -m benchmarks.studies.certaindex --data FOLDER --json

FOLDER holds the recordings (`SETS` names their files). Without it, samples are simulated. Every question is answered by
votes of up to 20 samples, in several random orders, and intervals resample questions.

*policies*: the static threshold at five samples, looks every five samples and after each, both fitted curves, on the
questions that they were fitted to (the paper's skylines) and on others, the length threshold that stops as many votes,
fewer samples for all, and our default. *need*: the correlation, over the questions that a vote of all samples answers,
of 1 - certaindex after a few samples with the samples needed; beside it that of their mean length (figures 8, 9, 21).

Reference: Fu et al., arXiv 2412.20993, section 4, appendices B and C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks.studies.autotts import Asked, read_chains
from benchmarks.studies.real import CONSOL, R1, is_kept_back, simulated_recording
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.baselines import Even, LengthThreshold
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.skyline import DynamicSkyline, InitialStepSkyline, fit_curve
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.evaluation.logs.graded import recording_of
from scaffolding_ext.evaluation.logs.read import read_log, read_recording
from scaffolding_ext.evaluation.logs.samples import Floats
from scaffolding_ext.evaluation.tune.space import labelled_votes

CAP, KNOB, THRESHOLD = 20, 5, 0.7  # the paper's table 3: self-consistency on MATH and GSM8K
CAPS = (5, 10)
QUANTILE = 0.95  # of the fitted curves
KNOBS = (5, 20)  # of the correlations
NUM_RESAMPLES = 2000
QWEN3 = "qwen3_chains.jsonl.gz"
GSM8K, MATH500 = "gpt-4o-mini, GSM8K", "R1-Distill-8B, MATH-500"

Policy = Callable[[Sequence[LabelledVote]], Callable[[LabelledVote], AllocationRule]]
"""By the votes of an order, a rule for each of them."""


class Outcome(NamedTuple):
    """A vote: 1 if it is right, its tokens, and its rounds."""

    right: float
    tokens: float
    rounds: float


class Row(NamedTuple):
    """Means over the orders of a question."""

    right: Floats
    tokens: Floats
    rounds: Floats


def sets(data: Path | None, num_simulated: int, rng: np.random.Generator) -> Iterator[tuple[str, list[LabelledVote]]]:
    """The recorded votes by name; simulated ones without a folder."""
    if data is None:
        yield "simulated", labelled_votes(simulated_recording(num_simulated, rng, 32))
        return
    yield GSM8K, labelled_votes(read_recording([data / CONSOL], task="gsm"))
    yield MATH500, labelled_votes(read_recording([data / R1]))
    asked = [each for each in read_log(data / CONSOL).questions if each.task == "aime24"]  # at both efforts, in turn
    for effort, own in (("high", asked[: len(asked) // 2]), ("low", asked[len(asked) // 2 :])):
        yield f"o3-mini, {effort}, AIME24", labelled_votes(recording_of(own, [CONSOL], effort))
    for name, questions in chains_of(data).items():
        yield name, [vote_of(asked) for asked in questions]


def chains_of(data: Path) -> dict[str, list[Asked]]:
    """The questions of each Qwen3 model."""
    found: dict[str, list[Asked]] = {}
    for asked in read_chains(data / QWEN3):
        found.setdefault(f"Qwen3-{asked.model}, AIME24, AIME25, HMMT25", []).append(asked)
    return found


def vote_of(asked: Asked) -> LabelledVote:
    """The chains of a question as samples of a vote."""
    classes = [-1 if chain.answer == asked.no_answer else chain.answer for chain in asked.chains]
    correct = [answer == asked.target for answer in classes]
    return LabelledVote(
        f"{asked.task} {asked.question}", classes, correct, [chain.num_tokens for chain in asked.chains]
    )


def played(vote: LabelledVote, rule: AllocationRule, cap: int = CAP) -> Outcome:
    """Play a rule on one order of a question's samples."""
    num = rounds = 0
    while num < cap and (more := rule.num_more(Votes(vote.classes[:num], cap, lengths=vote.lengths[:num]))):
        num, rounds = min(cap, num + more), rounds + 1
    return Outcome(float(vote.is_right(num)), float(sum(vote.lengths[:num])), float(rounds))


def fixed(rule: AllocationRule) -> Policy:
    """The same rule for all votes."""
    return lambda votes: lambda vote: rule


def as_long_as_many(votes: Sequence[LabelledVote]) -> Callable[[LabelledVote], AllocationRule]:
    """The length threshold at which as many votes stop as at the static threshold."""
    static = StaticThreshold(knob=KNOB, threshold=THRESHOLD)
    share = np.mean([played(vote, static).rounds == 1 for vote in votes])
    means = [float(np.mean(vote.lengths[:KNOB])) for vote in votes]
    rule = LengthThreshold(knob=KNOB, max_mean_length=max(1.0, float(np.quantile(means, share))))
    return lambda vote: rule


def initial(votes: Sequence[LabelledVote]) -> AllocationRule:
    """The curve at the first look, fitted to the votes."""
    return InitialStepSkyline(knob=KNOB, curve=fit_curve(votes, KNOB, QUANTILE))


def dynamic(votes: Sequence[LabelledVote]) -> AllocationRule:
    """A curve at each look, fitted to the votes."""
    knobs = tuple(range(1, CAP))
    return DynamicSkyline(knobs=knobs, curves=tuple(fit_curve(votes, knob, QUANTILE) for knob in knobs))


def fitted(fit: Callable[[Sequence[LabelledVote]], AllocationRule], in_place: bool) -> Policy:
    """Curves fitted to all votes, or for each half of the questions to the other half."""

    def policy(votes: Sequence[LabelledVote]) -> Callable[[LabelledVote], AllocationRule]:
        if in_place:
            rule = fit(votes)
            return lambda vote: rule
        rules = {half: fit([vote for vote in votes if is_kept_back(vote.id) != half]) for half in (True, False)}
        return lambda vote: rules[is_kept_back(vote.id)]

    return policy


def policies() -> dict[str, Policy]:
    """The paper's policies and baselines, and our default."""
    found: dict[str, Policy] = {
        "static threshold": fixed(StaticThreshold(knob=KNOB, threshold=THRESHOLD)),
        "length threshold": as_long_as_many,
        "threshold every 5": fixed(ThresholdEvery(step=5, threshold=THRESHOLD)),
        "threshold every sample": fixed(ThresholdEvery(step=1, threshold=THRESHOLD)),
        "LeaderChange": fixed(LeaderChange()),
    }
    for name, fit in (("curve at the first look", initial), ("curve at each look", dynamic)):
        found[f"{name}, {QUANTILE:g}"] = fitted(fit, in_place=True)
        found[f"{name}, {QUANTILE:g}, fitted on others"] = fitted(fit, in_place=False)
    return found


def row_of(orders: Sequence[Sequence[LabelledVote]], policy: Policy, cap: int = CAP) -> Row:
    """Play a policy on every order of every question."""
    results = []
    for order in orders:
        votes = [vote.reordered(range(cap)) for vote in order]
        rule_of = policy(votes)
        results.append([played(vote, rule_of(vote), cap) for vote in votes])
    return Row(*np.moveaxis(np.mean(results, axis=0), -1, 0))


def add_row(report: Report, name: str, row: Row, full: Row) -> None:
    """Tokens and points of a policy over the vote of 20."""
    report.ratio(f"{name}: tokens, share of a vote of 20", row.tokens, full.tokens)
    report.difference(f"{name}: points", row.right, full.right, scale=100)
    report.figure(f"{name}: rounds", float(row.rounds.mean()))


def add_policies(report: Report, name: str, votes: Sequence[LabelledVote], num_orders: int) -> None:
    """Every policy on one set."""
    orders = [[vote.reordered(report.rng.permutation(len(vote.classes))) for vote in votes] for _ in range(num_orders)]
    full = row_of(orders, fixed(Even(num_samples=CAP)))
    report.figure(f"{name}: questions", len(votes))
    report.difference(f"{name}: vote of 20: right, %", full.right, scale=100)
    for label, policy in track(policies().items(), name):
        add_row(report, f"{name}: {label}", row_of(orders, policy), full)
    for cap in CAPS:
        add_row(report, f"{name}: vote of {cap}", row_of(orders, fixed(Even(num_samples=cap)), cap), full)


def add_need(report: Report, name: str, votes: Sequence[LabelledVote], num_orders: int) -> None:
    """Correlations over the questions that all samples answer in some order; each is a mean over its orders."""
    needs: list[float] = []
    signals: list[list[list[float]]] = []  # by question, knob and signal
    for vote in votes:
        found = []
        for _ in range(num_orders):
            own = vote.reordered(report.rng.permutation(len(vote.classes)))
            needed = own.samples_needed()
            if needed is not None:
                at = [(1 - entropy_certaindex(own.classes[:knob]), np.mean(own.lengths[:knob])) for knob in KNOBS]
                found.append((needed, at))
        if found:
            needs.append(float(np.mean([needed for needed, _ in found])))
            signals.append(np.mean([at for _, at in found], axis=0).tolist())
    columns = np.column_stack([needs, np.reshape(signals, (len(needs), -1))])
    resamples = [columns[report.rng.integers(0, len(columns), len(columns))] for _ in range(NUM_RESAMPLES)]
    report.figure(f"{name}: questions that all samples answer", len(columns))
    for number, knob in enumerate(KNOBS):
        for offset, signal in enumerate(("certaindex", "mean length")):
            place = 1 + 2 * number + offset
            drawn = [correlation(each[:, 0], each[:, place]) for each in resamples]
            low, high = np.nanquantile(drawn, (0.025, 0.975))
            value = correlation(columns[:, 0], columns[:, place])
            report.figure(f"{name}: correlation of {signal} at {knob} with need", value, float(low), float(high))


def correlation(first: Floats, second: Floats) -> float:
    """Pearson's; nan if one of them is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


@benchmark("studies.certaindex --data FOLDER")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the recordings.")
@size("--num_orders", 10, quick=2, help="Random orders of the samples of a question.")
@size("--num_simulated", 200, quick=30, help="Questions that are simulated where there is no folder.", least=8)
def main(report: Report, data: Path | None, num_orders: int, num_simulated: int) -> None:
    """Measure the paper's policies of certaindex on recorded votes."""
    report.setting["data"] = None if data is None else "recorded"
    for name, votes in sets(data, num_simulated, report.rng):
        add_policies(report, name, votes, num_orders)
        add_need(report, name, votes, 2 * num_orders)


if __name__ == "__main__":
    main()
