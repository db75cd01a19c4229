"""Stopping, order and deadlines under load: recorded votes at a simulated engine that batches.

    python -m benchmarks.studies.deadlines --data FOLDER --part recordings --json > deadlines_recordings.json

Votes arrive by a Poisson process. A vote is due at SLO times what its full vote takes without load, by thirds of the
questions' lengths. *recordings*: ways to stop on four recordings, first come, first served. *orders*: the same under
five orders, for votes and for votes mixed with single chains.

A rate is that of the arrivals, divided by the rate at which votes of all samples keep the engine busy. Each seed has
half of the questions, and its own orders of samples and arrivals, the same for every row. A rule is tuned on the other
half. Intervals resample seeds and questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, plotted, size, track
from benchmarks._lib.drawing import Figures, below, drawing, of, points
from benchmarks._lib.load_programs import (
    RECORDINGS,
    NumMore,
    asked_once,
    num_drawn,
    read_questions,
    vote_program,
    votes_of,
)
from benchmarks._lib.report import Report
from benchmarks._lib.traffic.arrivals import arrival_times
from benchmarks._lib.traffic.programs import Program
from benchmarks._lib.traffic.simulator import serve_programs
from benchmarks.studies.real import SIMULATED, simulated_recording
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.evaluation.logs.samples import RecordedQuestion
from scaffolding_ext.scheduling import EarliestDeadline, Fifo, Gang, Policy, ShortestRemaining

Floats = npt.NDArray[np.float64]
SLOS = (1.5, 2.0, 3.0, 5.0)
CLAIMED = (1.5, 2.0, 3.0)
RATES = (0.2, 0.35, 0.5, 0.65, 0.8, 1.1, 1.5, 2.0, 3.0)
SHOWN = 0.8  # rate at which times and right answers are told
BUSY = 1.5  # rate at which votes that stop early wait, too
ENOUGH = 0.9
MAX_LOSS = 0.005  # of the tuned rule, against all samples
MOST_QUESTIONS = 100  # of a seed
NUM_ORDERS = 8  # of each question's samples
NUM_RESAMPLES = 1000
NO_AGEING = 1e9  # seconds per token
SECONDS, SLOWDOWN = 0.0075, 0.02  # of a token of a chain by itself, and what each further chain adds to it
ALL, STATIC, DEFAULT, TUNED, IN_TIME = "all samples", "static threshold", "LeaderChange", "tuned", "in time"
EVERY = "certaindex every 5"
STOPPINGS = (ALL, EVERY, STATIC, DEFAULT, TUNED, IN_TIME)
FIRST_COME, EARLIEST = "first come", "earliest deadline"
ORDERS: Mapping[str, Callable[[], Policy]] = {
    FIRST_COME: Fifo,
    "shortest remaining": lambda: ShortestRemaining(NO_AGEING),
    "gang": Gang,
    EARLIEST: EarliestDeadline,
    "ageing": ShortestRemaining,
}
PARTS = ("recordings", "orders")


class Engine(NamedTuple):
    """The engine that serves the votes."""

    queue: Queue
    seconds_per_token: float


def rule_of(stopping: str, num_samples: int, others: Sequence[LabelledVote]) -> AllocationRule:
    """The rule of a way to stop; the certaindex thresholds and knobs are the paper's (3 for votes of 8)."""
    rules: dict[str, Callable[[], AllocationRule]] = {
        ALL: Even,
        EVERY: lambda: ThresholdEvery(threshold=0.7, step=5),
        STATIC: lambda: StaticThreshold(threshold=0.7, knob=5 if num_samples > 8 else 3),
        TUNED: lambda: tuned_rule(others),
    }
    return rules.get(stopping, LeaderChange)()


def tuned_rule(votes: Sequence[LabelledVote]) -> AllocationRule:
    """The rule with the fewest tokens of those that lose little against all samples."""
    full = np.mean([vote.is_right(len(vote.classes)) for vote in votes])
    played: list[tuple[float, float, int, AllocationRule]] = []
    for kind in (LeaderChange, ThresholdEvery, StaticThreshold):
        for settings in (each for listed in kind.search_space(votes).values() for each in listed):
            rule = kind(**settings)
            num_more = asked_once(rule)
            drawn = [num_drawn(vote, num_more) for vote in votes]
            right = np.mean([vote.is_right(number) for vote, number in zip(votes, drawn, strict=True)])
            tokens = sum(sum(vote.lengths[:number]) for vote, number in zip(votes, drawn, strict=True))
            played.append((max(0.0, float(full - right) - MAX_LOSS), tokens, len(played), rule))
    return min(played)[-1]


class Outcome(NamedTuple):
    """Served votes, without the first tenth of each seed; each array has shape [num_votes]."""

    seconds: Floats
    right: Floats
    drawn: Floats
    tokens: Floats


class Load:
    """The votes and arrivals of one seed, the same in each row.

    Args:
        others: Votes on other questions, on which a rule is tuned.
        has_chains: Half of the votes are a single sample.
    """

    def __init__(
        self,
        votes: Sequence[LabelledVote],
        others: Sequence[LabelledVote],
        engine: Engine,
        num: int,
        rng: np.random.Generator,
        *,
        has_chains: bool = False,
    ) -> None:
        drawn = [votes[number] for number in rng.integers(len(votes), size=num)]
        is_chain = (rng.random(num) < 0.5) & has_chains
        self.votes = [vote.reordered([0]) if chain else vote for vote, chain in zip(drawn, is_chain, strict=True)]
        self.engine, self.others, self.num_samples = engine, others, len(votes[0].classes)
        self.counted = slice(num // 10, num)
        full = [vote_program(vote, asked_once(Even())) for vote in self.votes]
        apart = 1e7 * np.arange(num, dtype=float)
        alone = serve_programs(full, apart, *engine)
        self.full_rate = engine.queue.capacity / (alone.num_tokens.mean() * engine.seconds_per_token)
        self.arrivals = arrival_times(self.full_rate, num, rng)  # at a rate of 1
        sizes = np.array([np.mean(vote.lengths) for vote in drawn])
        third = np.searchsorted(np.quantile(sizes, (1 / 3, 2 / 3)), sizes)
        seconds, (_, members) = alone.departures - apart, np.unique(3 * is_chain + third, return_inverse=True)
        self.alone = (np.bincount(members, seconds) / np.bincount(members))[members]

    def num_more(self, stopping: str) -> NumMore:
        return asked_once(rule_of(stopping, self.num_samples, self.others))

    def served(self, stopping: str, num_more: NumMore, order: str, rate: float, slo: float) -> Outcome:
        programs: list[Program] = [vote_program(vote, num_more, stopping == IN_TIME) for vote in self.votes]
        arrivals = self.arrivals / rate
        done = serve_programs(programs, arrivals, *self.engine, ORDERS[order](), slo * self.alone)
        right = [v.reordered(a.voted).is_right(len(a.voted)) for v, a in zip(self.votes, done.answers, strict=True)]
        columns = done.departures - arrivals, right, [each.num_drawn for each in done.answers], done.num_tokens
        return Outcome(*(np.asarray(column, float)[self.counted] for column in columns))


class Workload:
    """Loads of all seeds, and the weights of their votes if seeds and questions are resampled."""

    def __init__(self, name: str, loads: Sequence[Load], report: Report) -> None:
        self.name, self.report, self._loads = name, report, loads
        votes = [(seed, vote.id) for seed, load in enumerate(loads) for vote in load.votes[load.counted]]
        weights: Floats = np.ones((NUM_RESAMPLES + 1, len(votes)))  # the first row is the sample itself
        for labels in zip(*votes, strict=True):
            _, members = np.unique(labels, return_inverse=True)
            num = members.max() + 1
            weights[1:] *= report.rng.multinomial(num, np.full(num, 1 / num), NUM_RESAMPLES)[:, members]
        self._weights = weights[weights.sum(axis=1) > 0]
        self._alone = np.concatenate([load.alone[load.counted] for load in loads])

    def mean(self, values: npt.ArrayLike) -> Floats:
        """Means of values of the votes: of the sample, then of each resample."""
        found: Floats = self._weights @ np.asarray(values, float) / self._weights.sum(axis=1)
        return found

    def figure(self, name: str, values: Floats) -> None:
        self.report.figure(
            f"{self.name}, {name}", float(values[0]), *map(float, np.quantile(values[1:], (0.025, 0.975)))
        )

    def add(
        self, stopping: str, order: str = FIRST_COME, slos: Sequence[float] = SLOS, label: str | None = None
    ) -> dict[str, Floats]:
        """Serve a row, add its figures, and return them with their resamples."""
        rules = [load.num_more(stopping) for load in self._loads]
        knows = stopping == IN_TIME or order == EARLIEST

        def serve(rate: float, slo: float) -> Outcome:
            pairs = zip(self._loads, rules, strict=True)
            done = [load.served(stopping, rule, order, rate, slo) for load, rule in pairs]
            return Outcome(*(np.concatenate(column) for column in zip(*done, strict=True)))

        grid = {(rate, slo): serve(rate, slo) for rate in RATES for slo in (slos if knows else slos[-1:])}
        found: dict[str, Floats] = {}
        for slo in slos:
            row = [grid[rate, slo if knows else slos[-1]] for rate in RATES]
            is_in_time = [each.seconds <= slo * self._alone for each in row]
            right = [self.mean(each.right * own) for each, own in zip(row, is_in_time, strict=True)]
            found[f"rate with 90% in time, SLO {slo:g}"] = largest_rate([self.mean(own) for own in is_in_time])
            found[f"right in time at {SHOWN:g}, SLO {slo:g}"] = right[RATES.index(SHOWN)]
        shown = grid[SHOWN, 3.0 if knows else slos[-1]]
        busy = grid[BUSY, 3.0 if knows else slos[-1]]
        found |= {"samples drawn": self.mean(shown.drawn), f"mean at {SHOWN:g}": self.mean(shown.seconds)}
        found[f"mean at {BUSY:g}"] = self.mean(busy.seconds)
        for what, values in found.items():
            self.figure(f"{label or f'{stopping}, {order}'}: {what}", values)
        return found

    def over(self, name: str, ours: Mapping[str, Floats], theirs: Mapping[str, Floats], goals: Sequence[str]) -> None:
        """Add differences of two rows on the same resamples, and ratios if the other row is never 0."""
        for goal in goals:
            self.figure(f"{name}: {goal}, more", ours[goal] - theirs[goal])
            if theirs[goal].min() > 0:
                self.figure(f"{name}: {goal}, times", ours[goal] / theirs[goal])


def largest_rate(shares: Sequence[Floats] | Floats) -> Floats:
    """The rate up to which a share is enough, between the rates that were tried; shape [num_resamples]."""
    table = np.vstack([np.full_like(shares[0], np.inf), *shares, np.full_like(shares[0], -np.inf)])
    last = (table < ENOUGH).argmax(axis=0) - 1  # of the rates in a row that are enough
    columns = np.arange(table.shape[1])
    before, after = table[last, columns], table[last + 1, columns]
    at, within = np.clip(last - 1, 0, None), (last > 0) & (last < len(RATES))
    steps = np.diff(np.array(RATES), append=RATES[-1])[at]
    share = np.divide(before - ENOUGH, before - after, out=np.zeros_like(before), where=within)
    return np.where(last == 0, 0.0, np.array(RATES)[at] + steps * share)


def loads_of(
    questions: Sequence[RecordedQuestion],
    num_samples: int,
    engine: Engine,
    num: int,
    seeds: Sequence[int],
    **options: Any,
) -> list[Load]:
    """Loads of half of the questions each; a question of several runs is in one half."""
    loads = []
    for seed in seeds:
        rng = np.random.default_rng([seed, num_samples])
        ids = rng.permutation(sorted({each.id for each in questions})).tolist()
        chosen, mixed = set(ids[: len(ids) // 2]), [questions[at] for at in rng.permutation(len(questions))]
        votes, others = (
            votes_of([q for q in mixed if (q.id in chosen) is own][:MOST_QUESTIONS], num_samples, NUM_ORDERS, rng)
            for own in (False, True)
        )
        loads.append(Load(votes, others, engine, num, rng, **options))
    return loads


def add_recording(workload: Workload) -> None:
    """All ways to stop, as they come; the static threshold beside its peers, and a known deadline over the others."""
    found = {each: workload.add(each, label=each) for each in track(STOPPINGS, workload.name)}
    rates = [f"rate with 90% in time, SLO {slo:g}" for slo in SLOS]
    rights = [f"right in time at {SHOWN:g}, SLO {slo:g}" for slo in CLAIMED]
    for ours, theirs in ((STATIC, ALL), (DEFAULT, STATIC), (IN_TIME, DEFAULT)):
        workload.over(f"{ours} over {theirs}", found[ours], found[theirs], [*rates, *rights])


def add_orders(workload: Workload) -> None:
    """Each way to stop under each order."""
    for stopping in track([each for each in STOPPINGS if each != EVERY], workload.name):
        found = {order: workload.add(stopping, order, (3.0,)) for order in ORDERS}
        for order in list(ORDERS)[1:]:
            goals = ["rate with 90% in time, SLO 3", f"mean at {SHOWN:g}", f"mean at {BUSY:g}"]
            workload.over(f"{stopping}, {order} over first come", found[order], found[FIRST_COME], goals)


def plot(figures: Figures, names: Sequence[str], path: Path) -> None:
    """Right answers in time by SLO, first come, first served, on each recording."""
    with drawing(path, 1, len(names), figsize=(3.6 * len(names), 4), squeeze=False, sharey=True) as (figure, axes):
        for axis, name in zip(axes[0], names, strict=True):
            for number, stopping in enumerate(STOPPINGS):
                named = [
                    of(figures, f"{name}, {stopping}: right in time at {SHOWN:g}, SLO {slo:g}", 100) for slo in SLOS
                ]
                points(axis, list(SLOS), [each for each in named if each], stopping, color=f"C{number}")
            axis.set(title=name, xlabel="SLO: times what the full vote takes alone")
        axes[0][0].set_ylabel("right and in time, %")
        below(figure, axes[0][0], len(STOPPINGS))


@benchmark("studies.deadlines --data FOLDER")
@size("--num_votes", 150, quick=40, help="Votes of a seed.", least=40)
@size("--num_seeds", 8, quick=2, help="Seeds.", least=2)
@click.option("--places", type=click.IntRange(1), default=64, show_default=True, help="Places of the engine.")
@click.option("--part", type=click.Choice(PARTS), multiple=True, default=PARTS, show_default=True)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the recordings.")
@plotted
def main(
    report: Report,
    num_votes: int,
    num_seeds: int,
    places: int,
    part: tuple[str, ...],
    data: Path | None,
    plot_path: Path | None,
) -> None:
    """Arrivals that an engine bears with answers in time, and right answers in time, by stopping and order."""
    engine, seeds = Engine(Queue(places, SLOWDOWN), SECONDS), range(report.seed, report.seed + num_seeds)
    recordings = {SIMULATED: (simulated_recording(20, report.rng).questions, 16)}
    if data is not None:
        recordings = {name: (read_questions(data, each), each.num_samples) for name, each in RECORDINGS.items()}

    def workload(name: str, chosen: Sequence[RecordedQuestion], num_samples: int, **options: Any) -> Workload:
        return Workload(name, loads_of(chosen, num_samples, engine, num_votes, seeds, **options), report)

    if "recordings" in part:
        for name, recording in recordings.items():
            report.figure(f"{name}: questions", len({each.id for each in recording[0]}))
            own = workload(name, *recording)
            add_recording(own)
        if plot_path is not None:
            plot(report.figures, list(recordings), plot_path)
    questions, num_samples = next(iter(recordings.values()))
    for kind in ("votes", "mixed") if "orders" in part else ():
        add_orders(workload(kind, questions, num_samples, has_chains=kind == "mixed"))


if __name__ == "__main__":
    main()
