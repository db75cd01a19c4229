"""Stopping, order and deadlines together: what arrivals an engine bears with answers in time, on recorded lengths.

    python -m benchmarks.studies.deadlines --data FOLDER --part recordings --json > deadlines_recordings.json

Recorded programs arrive by Poisson at a simulated engine that batches. A program is due at `SLO` times what its full
vote takes alone, by thirds of the questions' lengths. *recordings*: five stoppings (none; certaindex, .7 at every fifth
sample; LeaderChange; the rule that loses at most 0.5 points on other questions for the fewest tokens; LeaderChange that
knows its deadline) on four recordings, of which the first one also has other widenings of a round where time is short.
*orders*: each stopping under five orders, for votes, for chains and votes mixed, and for searches (REBASE of 16 leaves
of an embedded model, `--store` keeps them). *definitions*: three definitions of a deadline, on all questions and on
those on whose answer the samples agree most.

The rate is that of the arrivals by that at which full votes keep the engine busy. *In time* counts answers; *right ones
in time* counts right ones, as a share of those that full votes give at any time. Each seed has questions, orders of
samples, and arrivals of its own, and all cells of a seed have the same. Intervals are Student's over the seeds. *Seen*
is the least difference of two cells that so many seeds show with probability .9.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from scipy.optimize import brentq
from scipy.stats import nct
from scipy.stats import t as student

from benchmarks._lib.command import benchmark, plotted, size, stored, track
from benchmarks._lib.drawing import Figures, below, drawing, of, points
from benchmarks._lib.lab import Lab
from benchmarks._lib.load_programs import (
    CHOOSING,
    IN_TIME,
    RECORDINGS,
    Recorded,
    RecordedSearch,
    RecordedVote,
    program_of,
    read_questions,
    votes_of,
)
from benchmarks._lib.report import Report
from benchmarks._lib.searching import RememberingWorker, draw_problems
from benchmarks._lib.store import kept
from benchmarks.studies.real import SIMULATED, simulated_recording
from benchmarks.studies.search import LEVELS, WIDTHS, run_lots
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.controllers.tree.score import LogprobScorer
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.threshold import ThresholdEvery
from scaffolding_ext.controllers.vote.deadline import WIDENING, SampleTimes
from scaffolding_ext.evaluation.logs.samples import RecordedQuestion
from scaffolding_ext.evaluation.traffic.arrivals import arrival_times
from scaffolding_ext.evaluation.traffic.programs import Program, chain_program
from scaffolding_ext.evaluation.traffic.simulator import serve_programs
from scaffolding_ext.scheduling import EarliestDeadline, Fifo, Gang, Policy, ShortestRemaining

SLOS = (1.2, 1.5, 2.0, 3.0, 5.0)
CLAIMED = (1.5, 2.0, 3.0)  # SLOs that a widening is chosen for, and about which something is claimed
ORDERED = (3.0,)  # SLO at which orders are compared, where an order or a program knows the deadline
RATES = (0.2, 0.35, 0.5, 0.8, 1.1, 1.5, 2.0, 3.0)
MOST_QUESTIONS = 100  # of a seed, in each half
SHOWN = 0.8  # the rate at which times are told
ENOUGH = (0.9, 0.95)
POWER = 0.9
MAX_LOSS = 0.005
NO_AGEING = 1e9  # seconds for a token
ORDERS: Mapping[str, Callable[[], Policy]] = {
    "first come": Fifo,
    "shortest remaining": lambda: ShortestRemaining(NO_AGEING),
    "gang": Gang,
    "earliest deadline": EarliestDeadline,
    "ageing": ShortestRemaining,
}
STOPPINGS = ("none", "certaindex", "LeaderChange", "tuned", IN_TIME)
WIDENINGS = (1, 2, 4)
WORKLOADS = ("votes", "mixed", "searches")
DEFINITIONS = ("equal", "by thirds", "by question")
COMPARED = (*((each, "first come") for each in STOPPINGS if each != "tuned"), ("none", "earliest deadline"))
PARTS = ("recordings", "orders", "definitions")


class Engine(NamedTuple):
    """What serves the programs."""

    queue: Queue
    seconds_per_token: float

    def departures(self, programs: Sequence[Program]) -> tuple[Floats, Floats, list[Sequence[int]]]:
        """Seconds, tokens and votes of programs that are served one at a time."""
        apart = 1e7 * np.arange(len(programs), dtype=np.float64)
        alone = serve_programs(programs, apart, *self)
        return alone.departures - apart, alone.num_tokens, alone.answers


class Remembered(AllocationRule):
    """A rule on counts that is asked once about the same samples."""

    def __init__(self, rule: AllocationRule) -> None:
        self._rule = rule
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}

    def _num_more(self, votes: Votes) -> int:
        key = votes.max_samples, tuple(votes.classes)
        if key not in self._known:
            self._known[key] = self._rule.num_more(votes)
        return self._known[key]


class Outcome(NamedTuple):
    """Programs behind the first tenth: seconds, whether each is right, tokens."""

    seconds: Floats
    right: Floats
    tokens: Floats


def tuned_rule(programs: Sequence[Recorded]) -> AllocationRule:
    """The rule with the fewest tokens among those that lose little against all samples."""
    full = np.mean([each.is_right(range(each.max_samples)) for each in programs])
    played: list[tuple[float, float, int, AllocationRule]] = []
    for kind in (LeaderChange, ThresholdEvery):
        for settings in kind.settings_to_try().values():
            for each in settings:
                rule = kind(**each)
                stopped = [one.stopped(rule) for one in programs]
                right = np.mean([one.is_right(voted) for one, (voted, _) in zip(programs, stopped, strict=True)])
                tokens = sum(tokens for _, tokens in stopped)
                played.append((max(0.0, float(full - right) - MAX_LOSS), tokens, len(played), rule))
    return min(played)[-1]


class Cells:
    """All cells of a workload on one seed: programs and arrivals are the same in each.

    Args:
        programs: They are drawn from these.
        others: Of other questions, on which a rule is tuned.
        has_chains: Whether half of the programs are the first sample alone.
        definition: Of a deadline.
    """

    def __init__(
        self,
        programs: Sequence[Recorded],
        others: Sequence[Recorded],
        engine: Engine,
        num: int,
        rng: np.random.Generator,
        *,
        has_chains: bool = False,
        definition: str = "by thirds",
    ) -> None:
        self.engine = engine
        self._others = others
        self._rules: dict[str, AllocationRule] = {}
        self.programs = [programs[number] for number in rng.integers(len(programs), size=num)]
        self.is_chain = (rng.random(num) < 0.5) & has_chains
        self.gaps = arrival_times(1.0, num, rng)
        self.first = num // 10
        seconds, tokens, answers = engine.departures(self._programs("none", WIDENING))
        self.full_rate = engine.queue.capacity / (tokens.mean() * engine.seconds_per_token)
        self.full_right = float(self._right(answers)[self.first :].mean())
        self.alone = self._alone(seconds, definition)

    def _alone(self, seconds: Floats, definition: str) -> Floats:
        if definition == "by question":
            return seconds
        sizes = np.array([one.size for one in self.programs])
        third = np.searchsorted(np.quantile(sizes, (1 / 3, 2 / 3)), sizes) * (definition == "by thirds")
        groups, members = np.unique(3 * self.is_chain + third, return_inverse=True)
        return np.array([seconds[members == group].mean() for group in range(len(groups))])[members]

    def _programs(self, stopping: str, widening: int) -> list[Program]:
        engine, rule = self.engine, self._rule(stopping)
        mean = float(np.mean([one.size for one in self.programs])) * engine.seconds_per_token
        times = SampleTimes(mean / engine.queue.speed(engine.queue.places))
        return [
            chain_program(one.lengths[0], [0])
            if is_chain and isinstance(one, RecordedVote)
            else program_of(one, stopping, rule, times, widening)
            for one, is_chain in zip(self.programs, self.is_chain, strict=True)
        ]

    def _rule(self, stopping: str) -> AllocationRule:
        if stopping not in self._rules:
            rules: dict[str, Callable[[], AllocationRule]] = {
                "none": Even,
                "certaindex": lambda: ThresholdEvery(threshold=0.7, step=5),
                "tuned": lambda: tuned_rule(self._others),
            }
            self._rules[stopping] = Remembered(rules.get(stopping, LeaderChange)())
        return self._rules[stopping]

    def _right(self, answers: Sequence[Sequence[int]]) -> Floats:
        return np.array([one.is_right(voted) for one, voted in zip(self.programs, answers, strict=True)], float)

    def served(self, stopping: str, order: str, rate: float, slo: float, widening: int = WIDENING) -> Outcome:
        """Serve the programs."""
        arrivals, programs = self.gaps / (rate * self.full_rate), self._programs(stopping, widening)
        served = serve_programs(programs, arrivals, *self.engine, ORDERS[order](), slo * self.alone)
        columns = served.departures - arrivals, self._right(served.answers), served.num_tokens
        return Outcome(*(column[self.first :] for column in columns))

    def grid(
        self, stopping: str, order: str, slos: Sequence[float], widening: int = WIDENING
    ) -> dict[tuple[float, float], Outcome]:
        """The outcome by rate and SLO. Where neither program nor order knows the deadline, one serves for all SLOs."""
        if stopping == IN_TIME or order == "earliest deadline":
            return {(rate, slo): self.served(stopping, order, rate, slo, widening) for rate in RATES for slo in slos}
        blind = {rate: self.served(stopping, order, rate, SLOS[-1]) for rate in RATES}
        return {(rate, slo): blind[rate] for rate in RATES for slo in SLOS}

    def in_time(self, outcome: Outcome, slo: float) -> tuple[float, float]:
        """The share in time; right ones in time, as a share of those that full votes give."""
        is_in_time = outcome.seconds <= slo * self.alone[self.first :]
        return float(is_in_time.mean()), float((outcome.right * is_in_time).mean()) / max(self.full_right, 1e-9)


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


def least_seen(differences: Sequence[float]) -> float:
    """The least mean difference that a paired t-test at 5 % shows with probability `POWER` on so many seeds."""
    num, deviation = len(differences), float(np.std(differences, ddof=1))
    critical = student.ppf(0.975, num - 1)
    shift = brentq(lambda value: nct.sf(critical, num - 1, value) - POWER, 0.0, 100.0)
    return float(shift * deviation / np.sqrt(num))


RIGHT = "rate with 90% of the right ones in time"
GOALS = {
    **{f"rate with {enough:.0%} in time": (0, enough) for enough in ENOUGH},
    RIGHT: (1, 0.9),
}


def played(
    cells: Sequence[Cells], stopping: str, order: str, slos: Sequence[float], widening: int
) -> dict[str, list[float]]:
    """The figures of one cell, each on all seeds."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        grid = cell.grid(stopping, order, slos, widening)
        for slo in sorted({slo for _, slo in grid}):
            shares = [cell.in_time(grid[rate, slo], slo) for rate in RATES]
            for goal, (which, enough) in GOALS.items():
                rate = largest_rate([each[which] for each in shares], enough)
                found.setdefault(f"{goal}, SLO {slo:g}", []).append(rate)
            right = cell.full_right * shares[RATES.index(SHOWN)][1]
            found.setdefault(f"right in time at {SHOWN:g}, SLO {slo:g}", []).append(right)
        seconds, _, tokens = grid[SHOWN, 3.0]
        shown = {
            "mean": seconds.mean(),
            "p90": np.quantile(seconds, 0.9),
            "p99": np.quantile(seconds, 0.99),
            "seconds a token, p90": np.quantile(seconds / np.maximum(1, tokens), 0.9),
        }
        for what, value in shown.items():
            found.setdefault(f"{what} at {SHOWN:g}", []).append(float(value))
    return found


class Workload:
    """The cells of a workload, made where one of them is not in the store.

    Args:
        name: Of its figures.
        make: Makes the cells of all seeds.
    """

    def __init__(self, report: Report, store: Path | None, name: str, make: Callable[[], Sequence[Cells]]) -> None:
        self.name, self._report, self._store, self._cells = name, report, store, functools.cache(make)

    def study(
        self,
        stopping: str,
        order: str = "first come",
        slos: Sequence[float] = SLOS,
        widening: int = WIDENING,
        label: str | None = None,
    ) -> dict[str, list[float]]:
        """One cell, on all seeds."""
        name = f"{self.name}, {label or f'{stopping}, {order}'}"
        file = "deadlines_" + "".join(each if each.isalnum() else "_" for each in name)
        found = kept(self._store, file, lambda: played(self._cells(), stopping, order, slos, widening))
        for what, values in found.items():
            of_seeds(self._report, f"{name}: {what}", values)
        return found


def claim(report: Report, name: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
    """A difference paired by seed, with its interval and what such a difference must be to be seen."""
    differences = np.subtract(ours, theirs).tolist()
    of_seeds(report, name, differences)
    report.figure(f"{name}, seen from", least_seen(differences))


def halves(
    questions: Sequence[RecordedQuestion], rng: np.random.Generator
) -> tuple[list[RecordedQuestion], list[RecordedQuestion]]:
    """The questions in two halves by chance; a question of several runs is in one of them."""
    ids = rng.permutation(sorted({each.id for each in questions}))
    chosen = set(ids[: len(ids) // 2].tolist())
    mixed = [questions[at] for at in rng.permutation(len(questions))]
    return [each for each in mixed if each.id in chosen], [each for each in mixed if each.id not in chosen]


class Sizes(NamedTuple):
    """Programs of a cell and seed, seeds, and orders of each question's samples."""

    num_programs: int
    seeds: Sequence[int]
    orders: int


class Recording(NamedTuple):
    """Questions, and the samples of a vote."""

    questions: Sequence[RecordedQuestion]
    num_samples: int


def vote_cells(recording: Recording, engine: Engine, sizes: Sizes, **options: Any) -> list[Cells]:
    """Votes of each seed: half of the questions, in orders of their own; a rule is tuned on the other half."""
    cells = []
    for seed in sizes.seeds:
        rng = np.random.default_rng([seed, recording.num_samples])
        others, judged = (
            votes_of(each[:MOST_QUESTIONS], recording.num_samples, sizes.orders, rng)
            for each in halves(recording.questions, rng)
        )
        cells.append(Cells(judged, others, engine, sizes.num_programs, rng, **options))
    return cells


def search_cells(found: Callable[[], Sequence[RecordedSearch]], engine: Engine, sizes: Sizes) -> list[Cells]:
    """Searches of each seed: half of them; a rule is tuned on the other half."""
    cells = []
    searched = found()
    for seed in sizes.seeds:
        rng = np.random.default_rng([seed, len(searched)])
        order = rng.permutation(len(searched))
        others, judged = ([searched[at] for at in half] for half in np.array_split(order, 2))
        cells.append(Cells(judged, others, engine, sizes.num_programs, rng))
    return cells


def add_recordings(
    report: Report, recordings: Mapping[str, Recording], engine: Engine, sizes: Sizes, store: Path | None
) -> None:
    """Five stoppings, served as they come, on each recording."""
    for name, recording in recordings.items():
        workload = Workload(report, store, name, functools.partial(vote_cells, recording, engine, sizes))
        for widening in WIDENINGS if name in (CHOOSING, SIMULATED) else ():
            workload.study(IN_TIME, slos=CLAIMED, widening=widening, label=f"widening {widening}")
        found = {each: workload.study(each, label=each) for each in track(STOPPINGS, name)}
        for goal in (goal for goal in found[IN_TIME] if goal.startswith(("rate with 90%", "right in time"))):
            if float(goal.rpartition(" ")[2]) in CLAIMED:
                others = np.max([found[each][goal] for each in STOPPINGS[:-1]], axis=0)
                claim(report, f"{name}: in time over the best other, {goal}", found[IN_TIME][goal], others)


def add_orders(report: Report, workload: Workload) -> None:
    """Each stopping under each order."""
    pairs = [(stopping, order) for stopping in STOPPINGS for order in ORDERS]
    found = {pair: workload.study(*pair, ORDERED) for pair in track(pairs, workload.name)}
    for stopping, order in pairs:
        goal = f"rate with {ENOUGH[0]:.0%} in time, SLO {ORDERED[0]:g}"
        if order != "first come":
            name = f"{workload.name}, {stopping}, {order} over first come: {goal}"
            claim(report, name, found[stopping, order][goal], found[stopping, "first come"][goal])


def searches(model: str, num_questions: int, seed: int, store: Path | None) -> list[RecordedSearch]:
    """REBASE in one tree on problems of the embedded model."""
    problems = draw_problems(num_questions, 0)
    parts = {"scorer": LogprobScorer(), "budget": 10_000, "strategy": Rebase(WIDTHS[-1], max_depth=LEVELS)}
    with Lab({"generation": model}, seed=seed, store=store, worker=RememberingWorker, max_batch_size=64) as lab:
        return [RecordedSearch.of(each) for each in run_lots(lab, problems, "REBASE in one tree", **parts)]


def add_definitions(report: Report, recording: Recording, engine: Engine, sizes: Sizes, store: Path | None) -> None:
    """Deadlines that are equal, by thirds and by question; on all questions, and on those that samples agree on."""
    questions, num_samples = recording
    agreement = [np.bincount(each.classes + 1).max() / each.num_samples for each in questions]
    agreed = [each for each, share in zip(questions, agreement, strict=True) if share >= np.quantile(agreement, 1 / 3)]
    cases = {"all questions": (questions, DEFINITIONS), "those that agree": (agreed, DEFINITIONS[1:])}
    for label, (chosen, definitions) in cases.items():
        for definition in definitions:
            make = functools.partial(vote_cells, Recording(chosen, num_samples), engine, sizes, definition=definition)
            workload = Workload(report, store, f"{label}, {definition}", make)
            for stopping, order in track(COMPARED, workload.name):
                workload.study(stopping, order, CLAIMED)


def plot(figures: Figures, names: Sequence[str], path: Path) -> None:
    """Right answers in time by SLO, of votes that are served as they come, on each recording."""
    with drawing(path, 1, len(names), figsize=(3.6 * len(names), 4), squeeze=False, sharey=True) as (figure, axes):
        for axis, name in zip(axes[0], names, strict=True):
            for number, stopping in enumerate(STOPPINGS):
                what = f"{name}, {stopping}: right in time at {SHOWN:g}"
                named = [of(figures, f"{what}, SLO {slo:g}", 100) for slo in SLOS]
                values = [each for each in named if each is not None]
                points(axis, list(SLOS), values, stopping, color=f"C{number}")
            axis.set(title=name, xlabel="SLO: times what the full vote takes alone")
        axes[0][0].set_ylabel("right and in time, %")
        below(figure, axes[0][0], len(STOPPINGS))


@benchmark("studies.deadlines --data FOLDER")
@size("--num_programs", 300, quick=40, help="Simulated programs of a cell and seed.", least=40)
@size("--num_seeds", 5, quick=2, help="Seeds.", least=2)
@size("--orders", 2, quick=1, help="Orders of each question's samples.")
@size("--num_questions", 100, quick=20, help="Questions that are searched, or simulated where no data is given.")
@click.option("--places", type=click.IntRange(1), default=64, show_default=True, help="Places of the engine.")
@click.option("--slowdown", default=0.02, show_default=True, help="What each further chain adds to a token's time.")
@click.option("--seconds", default=0.0075, show_default=True, help="Of a token of a chain alone.")
@click.option("--part", type=click.Choice(PARTS), multiple=True, default=PARTS, show_default=True)
@click.option("--workload", type=click.Choice(WORKLOADS), multiple=True, default=WORKLOADS, show_default=True)
@click.option("--model", default="tinylm/target", show_default=True, help="Model whose searches are served.")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the recordings.")
@stored
@plotted
def main(
    report: Report,
    num_programs: int,
    num_seeds: int,
    orders: int,
    num_questions: int,
    places: int,
    slowdown: float,
    seconds: float,
    part: tuple[str, ...],
    workload: tuple[str, ...],
    model: str,
    data: Path | None,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """Rates, times and right answers of every stopping under every order."""
    engine = Engine(Queue(places, slowdown), seconds)
    sizes = Sizes(num_programs, range(report.seed, report.seed + num_seeds), orders)
    names = list(RECORDINGS) if data is not None else [SIMULATED]

    def recording(name: str) -> Recording:
        if data is None:
            return Recording(simulated_recording(num_questions, report.rng).questions, 16)
        return Recording(read_questions(data, RECORDINGS[name]), RECORDINGS[name].num_samples)

    own = store and store / f"deadlines_{num_programs}_{num_seeds}_{orders}_{places}_{report.seed}"
    if "recordings" in part:
        add_recordings(report, {name: recording(name) for name in names}, engine, sizes, own)
    first = recording(names[0]) if {"orders", "definitions"} & set(part) else Recording([], 0)
    for kind in workload if "orders" in part else ():
        make: Callable[[], list[Cells]] = functools.partial(
            vote_cells, first, engine, sizes, has_chains=kind == "mixed"
        )
        if kind == "searches":
            found = functools.partial(searches, model, num_questions, report.seed, store)
            make = functools.partial(search_cells, found, engine, sizes)
        add_orders(report, Workload(report, own, kind, make))
    if "definitions" in part:
        add_definitions(report, first, engine, sizes, own)
    if plot_path is not None:
        plot(report.figures, names, plot_path)


if __name__ == "__main__":
    main()
