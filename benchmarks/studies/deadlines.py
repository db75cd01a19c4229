"""Stopping, order and deadlines together: what arrivals an engine bears with answers in time, on recorded lengths.

    python -m benchmarks.studies.deadlines --samples r1.jsonl.gz --json > deadlines.json

Votes of 16 over recorded samples, chains and votes mixed, and searches (16 branches that grow side by side, a round for
each 512 tokens) arrive by Poisson at a simulated engine that batches. A program is due at `SLO` times what its full
vote takes alone, by thirds of the questions' lengths. Five stoppings (none; certaindex, .7 at every fifth sample;
LeaderChange; the rule that loses at most 0.5 points on half of the questions for the fewest tokens; LeaderChange that
knows its deadline) meet five orders. All cells of a seed have the same programs and arrivals.

The rate is that of the arrivals by that at which full votes keep the engine busy. *In time* counts answers; *right in
time* counts right ones, so that an answer that is cut short counts for what it is worth. Intervals are Student's over
the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from scipy.stats import t as student

from benchmarks._lib.command import benchmark, plotted, size, track
from benchmarks._lib.drawing import Figures, below, drawing, of, points
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.simulation import NEVER
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.threshold import ThresholdEvery
from scaffolding_ext.controllers.vote.deadline import SampleTimes
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.evaluation.recordings.read import read_recording
from scaffolding_ext.evaluation.traffic.arrivals import arrival_times
from scaffolding_ext.evaluation.traffic.programs import (
    Program,
    RequestRound,
    Work,
    chain_program,
    vote_in_time_program,
    vote_program,
    vote_steps,
)
from scaffolding_ext.evaluation.traffic.simulator import Served, serve_programs
from scaffolding_ext.request.program import LAST_STEP
from scaffolding_ext.scheduling import EarliestDeadline, Fifo, Gang, Policy, ShortestRemaining

NUM_SAMPLES, STEP_LEN = 16, 512
SLOS = (1.2, 1.5, 2.0, 3.0, 5.0)
RATES = (0.35, 0.5, 0.65, 0.8, 1.0, 1.3, 1.7, 2.2)
SHOWN = 0.8  # the rate at which times are told
ENOUGH = (0.9, 0.95)
MAX_LOSS = 0.005
NO_AGEING = 1e9  # seconds for a token
ORDERS: Mapping[str, Callable[[], Policy]] = {
    "first come": Fifo,
    "shortest remaining": lambda: ShortestRemaining(NO_AGEING),
    "gang": Gang,
    "earliest deadline": EarliestDeadline,
    "ageing": ShortestRemaining,
}
STOPPINGS = ("none", "certaindex", "LeaderChange", "tuned", "in time")
WORKLOADS = ("votes", "mixed", "searches")


class RecordedVote(NamedTuple):
    """Recorded samples of a question: class, tokens and rightness of each."""

    classes: list[int]
    lengths: list[int]
    correct: list[bool]

    def is_right(self, voted: Sequence[int]) -> bool:
        """Whether the vote of these samples gives the right answer."""
        winner = vote([self.classes[index] for index in voted])
        return winner >= 0 and self.correct[self.classes.index(winner)]


def votes_of(path: Path, orders: int, rng: np.random.Generator) -> list[RecordedVote]:
    """Votes over the samples of each question, in random orders."""
    found = []
    questions = read_recording([path]).questions
    for number in rng.permutation(len(questions)):
        question = questions[number]
        for _ in range(orders):
            chosen = rng.permutation(question.num_samples)[:NUM_SAMPLES]
            columns = (question.classes[chosen], question.tokens[chosen], question.correct[chosen])
            found.append(RecordedVote(*(column.tolist() for column in columns)))
    return found


def tuned_rule(votes: Sequence[RecordedVote]) -> AllocationRule:
    """The rule with the fewest tokens among those that lose little against all samples."""
    full = np.mean([each.is_right(range(NUM_SAMPLES)) for each in votes])
    played = []
    for kind in (LeaderChange, ThresholdEvery):
        for settings in kind.settings_to_try().values():
            for each in settings:
                rule = kind(**each)
                drawn = [num_drawn(rule, one) for one in votes]
                right = np.mean([one.is_right(range(num)) for one, num in zip(votes, drawn, strict=True)])
                tokens = sum(sum(one.lengths[:num]) for one, num in zip(votes, drawn, strict=True))
                played.append((max(0.0, full - right - MAX_LOSS), tokens, len(played), rule))
    return min(played)[-1]


def num_drawn(rule: AllocationRule, one: RecordedVote) -> int:
    """Samples that a rule draws."""
    num = 0
    while more := rule.num_more(Votes(one.classes[:num], NUM_SAMPLES, lengths=one.lengths[:num])):
        num += more
    return num


def search_program(rule: AllocationRule, one: RecordedVote, in_time: bool) -> Program:
    """Branches that grow side by side, a round a step; the rule sees those that have ended."""

    def work(now: float, deadline: float) -> Work:
        until = deadline - LAST_STEP * (deadline - now) if in_time else NEVER
        grown, ended = 0, list[int]()
        while len(ended) < NUM_SAMPLES:
            going = [index for index in range(NUM_SAMPLES) if one.lengths[index] > grown]
            steps = vote_steps([one.classes[index] for index in ended], NUM_SAMPLES)
            end = yield RequestRound(
                tuple(min(STEP_LEN, one.lengths[index] - grown) for index in going), steps, until=until
            )
            is_cut = end.now >= until
            ended += [index for place in sorted(end.ended) if one.lengths[index := going[place]] <= grown + STEP_LEN]
            known = Votes([one.classes[index] for index in ended], NUM_SAMPLES)
            if ended and (is_cut or not rule.num_more(known)):
                break
            if is_cut:  # the answer is late: the step is written again, without an end
                until = NEVER
            else:
                grown += STEP_LEN
        return ended

    return work


def program_of(kind: str, stopping: str, rule: AllocationRule, one: RecordedVote, times: SampleTimes) -> Program:
    """A program of a workload."""
    if kind == "chain":
        return chain_program(one.lengths[0], [0])
    if kind == "search":
        return search_program(rule, one, stopping == "in time")
    if stopping == "in time":
        return vote_in_time_program(rule, one.classes, one.lengths, times)
    return vote_program(rule, one.classes, one.lengths)


class Cells:
    """All cells of a workload on one seed: programs and arrivals are the same in each.

    Args:
        votes: Recorded questions.
        seconds_per_token: Of a chain alone.
    """

    def __init__(
        self, votes: Sequence[RecordedVote], workload: str, queue: Queue, seconds_per_token: float, num: int, seed: int
    ) -> None:
        rng = np.random.default_rng([seed, WORKLOADS.index(workload)])
        self.queue, self.seconds_per_token = queue, seconds_per_token
        self.votes = [votes[number] for number in rng.integers(len(votes), size=num)]
        singles = rng.random(num) < 0.5
        kinds = {"votes": ["vote"] * num, "searches": ["search"] * num}
        self.kinds = kinds.get(workload) or ["chain" if single else "vote" for single in singles]
        self.gaps = arrival_times(1.0, num, rng)
        self.first = num // 10
        rule = Even()
        works = [self._full(kind, rule, one) for kind, one in zip(self.kinds, self.votes, strict=True)]
        alone = serve_programs(works, 1e7 * np.arange(num), queue, seconds_per_token)
        seconds = alone.departures - 1e7 * np.arange(num)
        self.full_rate = queue.capacity / (alone.num_tokens.mean() * seconds_per_token)
        lengths = np.array([np.mean(one.lengths) for one in self.votes])
        third = np.searchsorted(np.quantile(lengths, (1 / 3, 2 / 3)), lengths)
        groups = 3 * np.array([kind == "chain" for kind in self.kinds]) + third
        self.alone = np.array([seconds[groups == group].mean() for group in range(6) if (groups == group).any()])[
            np.unique(groups, return_inverse=True)[1]
        ]
        self.full_right = float(
            np.mean([one.is_right(voted) for one, voted in zip(self.votes, alone.answers, strict=True)])
        )

    def _full(self, kind: str, rule: AllocationRule, one: RecordedVote) -> Program:
        return program_of(kind, "none", rule, one, SampleTimes())

    def served(self, stopping: str, rule: AllocationRule, order: str, rate: float, slo: float) -> Served:
        """Serve the programs."""
        mean = float(np.mean([np.mean(one.lengths) for one in self.votes])) * self.seconds_per_token
        times = SampleTimes(mean / self.queue.speed(self.queue.places))
        works = [program_of(kind, stopping, rule, one, times) for kind, one in zip(self.kinds, self.votes, strict=True)]
        arrivals = self.gaps / (rate * self.full_rate)
        return serve_programs(works, arrivals, self.queue, self.seconds_per_token, ORDERS[order](), slo * self.alone)

    def outcome(self, served: Served, rate: float) -> tuple[Floats, Floats, Floats]:
        """Seconds, rightness and tokens of each program behind the first tenth."""
        seconds = served.departures - self.gaps / (rate * self.full_rate)
        right = np.array([one.is_right(voted) for one, voted in zip(self.votes, served.answers, strict=True)], float)
        return seconds[self.first :], right[self.first :], served.num_tokens[self.first :]


def largest_rate(shares: Sequence[float], enough: float) -> float:
    """The rate up to which the share is enough, between the rates that were tried."""
    for number, share in enumerate(shares):
        if share < enough:
            if not number:
                return 0.0
            before = shares[number - 1]
            return RATES[number - 1] + (RATES[number] - RATES[number - 1]) * (before - enough) / (before - share)
    return RATES[-1]


def of_seeds(report: Report, name: str, values: Sequence[float]) -> None:
    """A mean over seeds, with Student's interval."""
    mean, num = float(np.mean(values)), len(values)
    half = float(student.ppf(0.975, num - 1) * np.std(values, ddof=1) / np.sqrt(num)) if num > 1 else 0.0
    report.figure(name, mean, mean - half, mean + half)


def study(
    report: Report, cells: Sequence[Cells], workload: str, stopping: str, rule: AllocationRule, order: str
) -> None:
    """One cell, on all seeds."""
    name = f"{workload}, {stopping}, {order}"
    knows = stopping == "in time" or order == "earliest deadline"
    found: dict[str, list[float]] = {}
    for cell in cells:
        runs = {
            (rate, slo): cell.outcome(cell.served(stopping, rule, order, rate, slo), rate)
            for rate in RATES
            for slo in (SLOS if knows else SLOS[-1:])
        }
        within = cell.alone[cell.first :]
        for slo in SLOS:
            at = [runs[rate, slo if knows else SLOS[-1]] for rate in RATES]
            in_time = [float((seconds <= slo * within).mean()) for seconds, _, _ in at]
            right = [float((right * (seconds <= slo * within)).mean()) / cell.full_right for seconds, right, _ in at]
            for enough in ENOUGH:
                found.setdefault(f"rate with {enough:.0%} in time, SLO {slo:g}", []).append(
                    largest_rate(in_time, enough)
                )
                goal = f"rate with {enough:.0%} of the full vote's right ones in time, SLO {slo:g}"
                found.setdefault(goal, []).append(largest_rate(right, enough))
            found.setdefault(f"right in time at {SHOWN:g}, SLO {slo:g}", []).append(
                cell.full_right * right[RATES.index(SHOWN)]
            )
        seconds, right, tokens = runs[SHOWN, 3.0 if knows else SLOS[-1]]
        per_token = seconds / np.maximum(1, tokens)
        told = {
            "right": right.mean(),
            "mean": seconds.mean(),
            "p90": np.quantile(seconds, 0.9),
            "p99": np.quantile(seconds, 0.99),
            "seconds a token, p90": np.quantile(per_token, 0.9),
            "tokens": tokens.mean(),
        }
        for what, value in told.items():
            found.setdefault(f"{what} at {SHOWN:g}", []).append(float(value))
    for what, values in found.items():
        of_seeds(report, f"{name}: {what}", values)


def plot(figures: Figures, path: Path) -> None:
    """Right answers in time by SLO, and the rates, of votes that are served as they come."""
    with drawing(path, 1, 2, figsize=(11, 4.5)) as (figure, axes):
        for axis, what, label in (
            (axes[0], f"right in time at {SHOWN:g}", "right and in time, %"),
            (axes[1], "rate with 90% in time", "arrivals with 90 % in time"),
        ):
            for number, stopping in enumerate(STOPPINGS):
                scale = 100 if "right" in what else 1
                named = [of(figures, f"votes, {stopping}, first come: {what}, SLO {slo:g}", scale) for slo in SLOS]
                values = [each for each in named if each is not None]
                if len(values) == len(SLOS):
                    points(axis, list(SLOS), values, stopping, color=f"C{number}")
            axis.set(xlabel="SLO: times what the full vote takes alone", ylabel=label)
        below(figure, axes[0], len(STOPPINGS))


@benchmark("studies.deadlines --samples r1.jsonl.gz")
@size("--num_programs", 1000, quick=60, help="Simulated programs of a cell and seed.", least=40)
@size("--num_seeds", 5, quick=2, help="Seeds.", least=2)
@size("--orders", 2, quick=1, help="Orders of each question's samples.")
@click.option("--places", type=click.IntRange(1), default=64, show_default=True, help="Places of the engine.")
@click.option("--slowdown", default=0.02, show_default=True, help="What each further chain adds to a token's time.")
@click.option("--seconds", default=0.0075, show_default=True, help="Of a token of a chain alone.")
@click.option("--workload", type=click.Choice(WORKLOADS), multiple=True, default=WORKLOADS, show_default=True)
@click.option("--stopping", type=click.Choice(STOPPINGS), multiple=True, default=STOPPINGS, show_default=True)
@click.option("--order", type=click.Choice([*ORDERS]), multiple=True, default=[*ORDERS], show_default=True)
@click.option("--samples", type=DATA, required=True, help="Log of a real model's samples, with their tokens.")
@plotted
def main(
    report: Report,
    num_programs: int,
    num_seeds: int,
    orders: int,
    places: int,
    slowdown: float,
    seconds: float,
    workload: tuple[str, ...],
    stopping: tuple[str, ...],
    order: tuple[str, ...],
    samples: Path,
    plot_path: Path | None,
) -> None:
    """Rates, times and right answers of every stopping under every order."""
    votes = votes_of(samples, orders, report.rng)
    choosing, judged = votes[: len(votes) // 2], votes[len(votes) // 2 :]  # of other questions
    rules: dict[str, AllocationRule] = {
        "none": Even(),
        "certaindex": ThresholdEvery(threshold=0.7, step=5),
        "LeaderChange": LeaderChange(),
        "tuned": tuned_rule(choosing),
        "in time": LeaderChange(),
    }
    queue = Queue(places, slowdown)
    for kind in workload:
        seeds = range(report.seed, report.seed + num_seeds)
        cells = [Cells(judged, kind, queue, seconds, num_programs, seed) for seed in seeds]
        of_seeds(report, f"{kind}: right with all samples", [cell.full_right for cell in cells])
        for one, other in track([(one, other) for one in stopping for other in order], kind):
            study(report, cells, kind, one, rules[one], other)
    report.closing.append(f"tuned: {rules['tuned']}")
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
