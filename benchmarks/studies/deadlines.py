"""Stopping, order and deadlines under load: recorded votes at a simulated engine that batches.

    python -m benchmarks.studies.deadlines --data FOLDER --json > deadlines.json

Votes arrive by a Poisson process. A vote is due at SLO times what its full vote takes without load, by thirds of the
questions' lengths. Ways to stop are played on four recordings, first come, first served; and under four orders on the
first of them, for votes and for votes mixed with single chains.

A rate is that of the arrivals, divided by the rate at which votes of all samples keep the engine busy. Each seed has
half of the questions, and its own orders of samples and arrivals, the same for every row. Intervals resample seeds and
questions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, recorded, size, track
from benchmarks._lib.report import Report
from benchmarks._lib.simulator import NEVER, Program, RequestRound, Work, arrival_times, serve_programs
from benchmarks.studies.real import CONSOL, EPOCH, R1
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import Floats
from scaffolding_ext.evaluation.tune.space import labelled_votes
from scaffolding_ext.request.program import LAST_STEP, StepCounts
from scaffolding_ext.scheduling import EarliestDeadline, Fifo, Gang, Policy, ShortestRemaining

SLOS = (1.5, 2.0, 3.0, 5.0)
SLO = 3.0  # of the orders
RATES = (0.2, 0.35, 0.5, 0.65, 0.8, 1.1, 1.5, 2.0, 3.0)
SHOWN = 0.8  # rate at which times and right answers are told
ENOUGH = 0.9
MOST_QUESTIONS = 100  # of a seed
NUM_ORDERS = 8  # of each question's samples
NUM_RESAMPLES = 1000
NO_AGEING = 1e9  # seconds per token
PLACES = 64  # of the engine
SECONDS, SLOWDOWN = 0.0075, 0.02  # of a token of a chain by itself, and what each further chain adds to it
ALL, STATIC, DEFAULT, IN_TIME = "all samples", "static threshold", "LeaderChange", "in time"
EVERY = "certaindex every 5"
STOPPINGS = (ALL, EVERY, STATIC, DEFAULT, IN_TIME)
FIRST_COME, EARLIEST = "first come", "earliest deadline"
ORDERS: Mapping[str, Callable[[], Policy]] = {
    FIRST_COME: Fifo,
    "shortest remaining": lambda: ShortestRemaining(NO_AGEING),
    "gang": Gang,
    EARLIEST: EarliestDeadline,
}
RECORDINGS = {  # files, part of their tasks' names, samples of a vote, and samples read (None: as many as most have)
    "R1-8B, MATH-500": (R1, None, 16, None),
    "Epoch, AIME": (EPOCH, "OTIS", 8, 8),
    "Epoch, GPQA": (EPOCH, "GPQA", 8, 8),
    "o3-mini, AIME24": (CONSOL, "aime24", 16, None),
}

NumMore = Callable[[tuple[int, ...], int], int]
"""Samples to draw next, given the classes so far and the most that a vote may have."""


def asked_once(rule: AllocationRule) -> NumMore:
    """Return a rule's decisions, each computed once."""
    return functools.lru_cache(1 << 18)(lambda classes, most: rule.num_more(Votes(classes, most)))


class Ballot(NamedTuple):
    """Answer of a served vote: the samples that voted, and the number of samples drawn."""

    voted: Sequence[int]
    num_drawn: int


def vote_program(vote: LabelledVote, num_more: NumMore, in_time: bool = False) -> Program:
    """Build the program of a vote that draws its samples in order, as its rule says; its answer is a `Ballot`.

    Args:
        in_time: True if the vote knows its deadline, as the controller does.
    """
    classes, lengths, most = vote.classes, vote.lengths, len(vote.classes)

    def work(now: float, deadline: float) -> Work:
        voted: list[int] = []
        drawn, until = 0, now + (1 - LAST_STEP) * (deadline - now) if in_time else NEVER
        while drawn < most and now < until:
            num = num_more(tuple(classes[index] for index in voted), most) or int(not drawn)
            if not num:
                break
            seen = entropy_certaindex([classes[index] for index in voted])
            steps = StepCounts("vote" if most > 1 else "chain", len(voted), most - len(voted), seen)
            end = yield RequestRound(tuple(lengths[drawn : drawn + num]), steps, until)
            voted += [drawn + index for index in sorted(end.ended)]
            now, drawn = end.now, drawn + num
        if not voted:  # the first to end answers late; here it begins again
            shortest = min(range(drawn), key=lengths.__getitem__)
            yield RequestRound((lengths[shortest],))
            voted = [shortest]
        return Ballot(voted, drawn)

    return work


class Engine(NamedTuple):
    """The engine that serves the votes."""

    queue: Queue
    seconds_per_token: float


def rule_of(stopping: str, num_samples: int) -> AllocationRule:
    """The rule of a way to stop; the certaindex thresholds and knobs are the paper's (3 for votes of 8)."""
    rules: dict[str, AllocationRule] = {
        ALL: Even(),
        EVERY: ThresholdEvery(threshold=0.7, step=5),
        STATIC: StaticThreshold(threshold=0.7, knob=5 if num_samples > 8 else 3),
    }
    return rules.get(stopping, LeaderChange())


class Outcome(NamedTuple):
    """Served votes, without the first tenth of each seed; each array has shape [num_votes]."""

    seconds: Floats
    right: Floats
    drawn: Floats


class Load:
    """The votes and arrivals of one seed, the same in each row.

    Args:
        has_chains: Half of the votes are a single sample.
    """

    def __init__(
        self,
        votes: Sequence[LabelledVote],
        engine: Engine,
        num: int,
        rng: np.random.Generator,
        *,
        has_chains: bool = False,
    ) -> None:
        drawn = [votes[number] for number in rng.integers(len(votes), size=num)]
        is_chain = (rng.random(num) < 0.5) & has_chains
        self.votes = [vote.reordered([0]) if chain else vote for vote, chain in zip(drawn, is_chain, strict=True)]
        self.engine, self.num_samples = engine, len(votes[0].classes)
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
        return asked_once(rule_of(stopping, self.num_samples))

    def served(self, stopping: str, num_more: NumMore, order: str, rate: float, slo: float) -> Outcome:
        programs: list[Program] = [vote_program(vote, num_more, stopping == IN_TIME) for vote in self.votes]
        arrivals = self.arrivals / rate
        done = serve_programs(programs, arrivals, *self.engine, ORDERS[order](), slo * self.alone)
        right = [v.reordered(a.voted).is_right(len(a.voted)) for v, a in zip(self.votes, done.answers, strict=True)]
        columns = done.departures - arrivals, right, [each.num_drawn for each in done.answers]
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

    def served(self, stopping: str, order: str, rates: Sequence[float], slo: float) -> list[Outcome]:
        """The votes of all seeds, served at each rate."""
        rules = [load.num_more(stopping) for load in self._loads]
        found = []
        for rate in rates:
            pairs = zip(self._loads, rules, strict=True)
            done = [load.served(stopping, rule, order, rate, slo) for load, rule in pairs]
            found.append(Outcome(*(np.concatenate(column) for column in zip(*done, strict=True))))
        return found

    def is_in_time(self, outcome: Outcome, slo: float) -> npt.NDArray[np.bool_]:
        return outcome.seconds <= slo * self._alone

    def rate_in_time(self, stopping: str, order: str, slo: float) -> Floats:
        """The rate with 90 % in time, of the sample and of each resample."""
        served = self.served(stopping, order, RATES, slo)
        return largest_rate([self.mean(self.is_in_time(each, slo)) for each in served])


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
    questions: Sequence[LabelledVote],
    num_samples: int,
    engine: Engine,
    num: int,
    seeds: Sequence[int],
    *,
    has_chains: bool = False,
) -> list[Load]:
    """Loads of half of the questions each, in random orders; a question of several runs is in one half."""
    loads = []
    for seed in seeds:
        rng = np.random.default_rng([seed, num_samples])
        ids = rng.permutation(sorted({each.id for each in questions})).tolist()
        others, mixed = set(ids[: len(ids) // 2]), [questions[at] for at in rng.permutation(len(questions))]
        own = [question for question in mixed if question.id not in others][:MOST_QUESTIONS]
        votes = [
            question.reordered(rng.permutation(len(question.classes))[:num_samples].tolist())
            for question in own
            for _ in range(NUM_ORDERS)
        ]
        loads.append(Load(votes, engine, num, rng, has_chains=has_chains))
    return loads


def add_recording(workload: Workload) -> None:
    """All ways to stop, as they come: right and in time at one rate; the rate that the static threshold bears."""
    right: dict[tuple[str, float], Floats] = {}
    for stopping in track(STOPPINGS, workload.name):
        for slo in SLOS:
            (served,) = workload.served(stopping, FIRST_COME, [SHOWN], slo)
            right[stopping, slo] = workload.mean(served.right * workload.is_in_time(served, slo))
            workload.figure(f"{stopping}: right in time at {SHOWN:g}, SLO {slo:g}", right[stopping, slo])
            if slo == SLO:
                workload.figure(f"{stopping}: samples drawn", workload.mean(served.drawn))
    for ours, theirs in ((STATIC, ALL), (DEFAULT, STATIC), (IN_TIME, DEFAULT)):
        for slo in SLOS:
            more = right[ours, slo] - right[theirs, slo]
            workload.figure(f"{ours} over {theirs}: right in time at {SHOWN:g}, SLO {slo:g}, more", more)
    for slo in SLOS[-2:]:
        ours, theirs = (workload.rate_in_time(stopping, FIRST_COME, slo) for stopping in (STATIC, ALL))
        workload.figure(f"{STATIC} over {ALL}: rate with 90% in time, SLO {slo:g}, times", ours / theirs)


def add_orders(workload: Workload) -> None:
    """The rate that each way to stop bears under each order."""
    for stopping in track([each for each in STOPPINGS if each != EVERY], workload.name):
        found = {order: workload.rate_in_time(stopping, order, SLO) for order in ORDERS}
        for order, rate in found.items():
            workload.figure(f"{stopping}, {order}: rate with 90% in time", rate)
        if stopping == ALL:
            more = found[EARLIEST] - found[FIRST_COME]
            workload.figure(f"{stopping}, {EARLIEST} over {FIRST_COME}: rate with 90% in time, more", more)


@benchmark("studies.deadlines --data FOLDER")
@size("--num_votes", 150, quick=20, help="Votes of a seed.", least=20)
@size("--num_seeds", 8, quick=2, help="Seeds.", least=2)
@recorded
def main(report: Report, num_votes: int, num_seeds: int, data: Path) -> None:
    """Right answers in time, and arrivals that an engine bears with answers in time, by stopping and order."""
    engine, seeds = Engine(Queue(PLACES, SLOWDOWN), SECONDS), range(report.seed, report.seed + num_seeds)
    recordings = {
        name: (labelled_votes(read_recording([data / file], task=task, num_samples=num_read)), num_samples)
        for name, (file, task, num_samples, num_read) in RECORDINGS.items()
    }
    for name, recording in recordings.items():
        report.figure(f"{name}: questions", len({each.id for each in recording[0]}))
        add_recording(Workload(name, loads_of(*recording, engine, num_votes, seeds), report))
    recording = next(iter(recordings.values()))
    for kind in ("votes", "mixed"):
        loads = loads_of(*recording, engine, num_votes, seeds, has_chains=kind == "mixed")
        add_orders(Workload(kind, loads, report))


if __name__ == "__main__":
    main()
