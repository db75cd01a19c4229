"""Replays the policies of certaindex's paper (figure 7, table 4) on recorded votes: certaindex against need.

    python -m benchmarks.studies.certaindex --data FOLDER --json

FOLDER holds the recordings (`sets` names their files). Every question is answered by votes of up to 20 samples, in
several random orders, and intervals resample questions.

*policies*: the static threshold at five samples, looks every five samples and after each, both fitted curves, on the
questions that they were fitted to (the paper's skylines) and on others, the length threshold that stops as many votes,
fewer samples for all, and our default. *need*: the correlation, over the questions that a vote of all samples answers,
of 1 - certaindex after a few samples with the samples needed; beside it that of their mean length (figures 8, 9, 21).

Reference: Fu et al., arXiv 2412.20993, section 4, appendices B and C.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks._lib.command import benchmark, recorded, size, track
from benchmarks._lib.report import Report
from benchmarks.studies.autotts import QWEN3, question_of, read_chains
from benchmarks.studies.real import CONSOL, R1, is_kept_back, of_questions
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even, LengthThreshold
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.skyline import DynamicSkyline, InitialStepSkyline, fit_curve
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.evaluation.logs.graded import recording_of
from scaffolding_ext.evaluation.logs.read import read_log, read_recording
from scaffolding_ext.evaluation.logs.samples import NO_ANSWER, Floats, Ints, Recording
from scaffolding_ext.evaluation.tune.costs import whole_samples
from scaffolding_ext.evaluation.tune.orders import OrderedVotes
from scaffolding_ext.evaluation.tune.space import labelled_votes
from scaffolding_ext.evaluation.tune.votes import ReplayResult, assembled, play

CAP, KNOB, THRESHOLD = 20, 5, 0.7  # the paper's table 3: self-consistency on MATH and GSM8K
CAPS = (5, 10)
QUANTILE = 0.95  # of the fitted curves
SIGNALS = ("certaindex at 5", "certaindex at 20", "mean length at 20")
NUM_RESAMPLES = 2000
MODELS = ("0.6B", "8B")  # of Qwen3


def sets(data: Path) -> Iterator[tuple[str, Recording]]:
    """The recordings by name."""
    yield "gpt-4o-mini, GSM8K", read_recording([data / CONSOL], task="gsm")
    yield "R1-Distill-8B, MATH-500", read_recording([data / R1])
    asked = [each for each in read_log(data / CONSOL).questions if each.task == "aime24"]  # at both efforts, in turn
    for effort, own in (("high", asked[: len(asked) // 2]), ("low", asked[len(asked) // 2 :])):
        yield f"o3-mini, {effort}, AIME24", recording_of(own, [CONSOL], effort)
    chains = list(read_chains(data))
    for model in MODELS:
        questions = []
        for each in chains:
            if each.model == model:
                question = question_of(each)
                classes = np.where(question.classes == each.no_answer, NO_ANSWER, question.classes)
                questions.append(dataclasses.replace(question, id=f"{each.task} {each.question}", classes=classes))
        yield f"Qwen3-{model}, AIME24, AIME25, HMMT25", Recording(questions, [QWEN3], model)


class Orders:
    """Votes of 20 of each question's samples, in random orders.

    Args:
        orders: Samples of each vote, shape [num_orders, num_questions, CAP].
    """

    def __init__(self, recording: Recording, orders: Ints) -> None:
        self.recording, self._orders = recording, orders
        self.votes = OrderedVotes(whole_samples(recording), orders)
        self._full_right = self.votes.right[:, -1].astype(float)

    def played(self, rule: AllocationRule | None) -> ReplayResult:
        return play(self.votes, rule, CAP, self._full_right)

    def labelled(self) -> list[LabelledVote]:
        """Every vote, to fit a rule to."""
        questions = labelled_votes(self.recording)
        return [
            vote.reordered(order)
            for orders in self._orders.tolist()
            for vote, order in zip(questions, orders, strict=True)
        ]

    def of(self, questions: Ints) -> Orders:
        return Orders(of_questions(self.recording, questions), self._orders[:, questions])

    def as_long_as_many(self) -> LengthThreshold:
        """The length threshold at which as many votes stop as at the static threshold."""
        share = 2 - self.played(StaticThreshold(knob=KNOB, threshold=THRESHOLD)).rounds.mean()
        means = self.votes.ordered(self.votes.samples.tokens)[:, :KNOB].mean(axis=1)
        return LengthThreshold(knob=KNOB, max_mean_length=max(1.0, float(np.quantile(means, share))))


Fit = Callable[[Sequence[LabelledVote]], AllocationRule]


def initial(votes: Sequence[LabelledVote]) -> AllocationRule:
    """The curve at the first look, fitted to the votes."""
    return InitialStepSkyline(knob=KNOB, curve=fit_curve(votes, KNOB, QUANTILE))


def dynamic(votes: Sequence[LabelledVote]) -> AllocationRule:
    """A curve at each look, fitted to the votes."""
    knobs = tuple(range(1, CAP))
    return DynamicSkyline(knobs=knobs, curves=tuple(fit_curve(votes, knob, QUANTILE) for knob in knobs))


def fitted_on_others(orders: Orders, fit: Fit) -> ReplayResult:
    """Each half of the questions under the curves of the other half."""
    fold = np.array([int(is_kept_back(each.id)) for each in orders.recording.questions])
    halves = [orders.of(np.flatnonzero(fold == number)) for number in (0, 1)]
    rules = [fit(half.labelled()) for half in halves]
    return assembled([orders.played(rules[1]), orders.played(rules[0])], fold)


def add_policies(report: Report, name: str, orders: Orders) -> None:
    """Every policy on one set: its tokens, and its points over the vote of 20."""
    rules: dict[str, AllocationRule] = {
        "static threshold": StaticThreshold(knob=KNOB, threshold=THRESHOLD),
        "length threshold": orders.as_long_as_many(),
        "threshold every 5": ThresholdEvery(step=5, threshold=THRESHOLD),
        "threshold every sample": ThresholdEvery(step=1, threshold=THRESHOLD),
        "LeaderChange": LeaderChange(),
        **{f"vote of {cap}": Even(num_samples=cap) for cap in CAPS},
    }
    rows = {label: orders.played(rule) for label, rule in rules.items()}
    fits: dict[str, Fit] = {"curve at the first look": initial, "curve at each look": dynamic}
    for label, fit in fits.items():
        rows[f"{label}, {QUANTILE:g}"] = orders.played(fit(orders.labelled()))
        rows[f"{label}, {QUANTILE:g}, fitted on others"] = fitted_on_others(orders, fit)
    full = orders.played(None)
    for label, row in rows.items():
        share = f"{name}: {label}: tokens, share of a vote of 20"
        report.ratio(share, row.costs["decoded"], full.costs["decoded"])
        report.difference(f"{name}: {label}: points", row.right, full.right, scale=100)


def add_need(report: Report, name: str, votes: Sequence[LabelledVote], num_orders: int) -> None:
    """Correlations over the questions that all samples answer in some order; each is a mean over its orders."""
    rows = []  # the samples needed, and the signals
    for vote in votes:
        found = []
        for _ in range(num_orders):
            own = vote.reordered(report.rng.permutation(len(vote.classes)))
            if (needed := own.samples_needed()) is not None:
                unsure = [1 - entropy_certaindex(own.classes[:knob]) for knob in (KNOB, CAP)]
                found.append((needed, *unsure, np.mean(own.lengths[:CAP])))
        if found:
            rows.append(np.mean(found, axis=0))
    columns = np.array(rows)
    resamples = [columns[report.rng.integers(0, len(columns), len(columns))] for _ in range(NUM_RESAMPLES)]
    report.figure(f"{name}: questions that all samples answer", len(columns))
    for place, signal in enumerate(SIGNALS, 1):
        drawn = [correlation(each[:, 0], each[:, place]) for each in resamples]
        low, high = np.nanquantile(drawn, (0.025, 0.975)).tolist()
        report.figure(
            f"{name}: correlation of {signal} with need", correlation(columns[:, 0], columns[:, place]), low, high
        )


def correlation(first: Floats, second: Floats) -> float:
    """Pearson's; nan if one of them is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


@benchmark("studies.certaindex --data FOLDER")
@recorded
@size("--num_orders", 10, quick=2, help="Random orders of the samples of a question.")
def main(report: Report, data: Path, num_orders: int) -> None:
    """Measure the paper's policies of certaindex on recorded votes."""
    for name, recording in track(sets(data), "sets"):
        shape = num_orders, len(recording.questions), recording.num_samples
        add_policies(report, name, Orders(recording, np.argsort(report.rng.random(shape), axis=-1)[..., :CAP]))
        add_need(report, name, labelled_votes(recording), 2 * num_orders)


if __name__ == "__main__":
    main()
