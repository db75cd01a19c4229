"""Who is served first: each policy against first come, first served, simulated on recorded programs and served live.

    python -m benchmarks.studies.scheduling --model tinylm/target --store runs/scheduling --json

Single chains and votes of 16 that stop early arrive by Poisson at one engine. They are recorded once, so that every
policy is simulated on the same programs and arrivals, at any rate. Then they arrive at the real engine. A program is
late where it takes longer than `--slack` times what its kind takes alone. Beside the policies stand a random order, and
in the simulation the shortest remaining by the true lengths, which no one knows: the best that an estimate could do.

The live rounds take turns: a round serves every policy at every load, in an order by chance, on programs and arrivals
of its own that all policies share. Right before it a crowd of programs tells how many the engine ends in a second while
it never runs out of them; the load is a share of that. So what else the machine does slows all alike.

`--samples` simulates on samples of a real model instead (a file that `scaffolding-ext tune` reads), on
an engine that is made up: its places, and `SECONDS` a token of a chain alone.

Intervals are 95 %, from resampling blocks of programs that arrived one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from benchmarks._lib.command import benchmark, plotted, progress, size, stored
from benchmarks._lib.drawing import Figures, below, drawing, of, points
from benchmarks._lib.lab import Lab
from benchmarks._lib.orders import BASE, KNOWN, POLICIES, policy_of
from benchmarks._lib.programs import CHAIN, VOTE, Floats, Problem, programs_a_second, recorded, served
from benchmarks._lib.provenance import DATA
from benchmarks._lib.recorded_programs import RecordedProgram, replayed_vote
from benchmarks._lib.report import Report
from benchmarks._lib.workload import Workload, with_deadlines
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.recordings.read import read_recording
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.evaluation.trial.space import labelled_votes
from scaffolding_ext.scheduling import ShortestRemaining

SECONDS, SLOWDOWN = 0.02, 0.02  # of an engine that is made up: a token alone, and what each further chain adds
ORDERS = 10  # of each question's samples
LOADS = (0.5, 0.8, 0.95)
LIVE_LOADS = (0.8, 0.95)
CROWD = 80  # programs that come at once, to tell how many the engine ends in a second
BLOCKS, LIVE_BLOCKS = 40, 5  # the latter a round
RESAMPLES = 1000
IN_TIME = 0.95  # share of programs
WARM_UP = 0.1  # share of a block's programs that arrive first and are not counted


Run = dict[str, list[float]]  # a live one: seconds that programs took, and within which they were wanted
STATISTICS: dict[str, Callable[[Floats, Floats], float]] = {
    "mean": lambda times, within: float(times.mean()),
    "p50": lambda times, within: float(np.percentile(times, 50)),
    "p95": lambda times, within: float(np.percentile(times, 95)),
    "in time": lambda times, within: float((times <= within).mean()),
}


def compared(figure: str, ours: Floats, theirs: Floats) -> tuple[str, Floats]:
    """A figure beside that of first come, first served: a share by its difference, seconds by their ratio."""
    if figure == "in time":
        return "in time, points more", 100 * (ours - theirs)
    return f"{figure}, times first come", ours / theirs


def study_simulated(report: Report, load: Workload, num_programs: int) -> None:
    """Every policy at every load, on the same programs and arrivals."""
    for at in LOADS:
        seeds = range(report.seed, report.seed + BLOCKS)
        drawn = [load.drawn(num_programs // BLOCKS, at, np.random.default_rng(seed)) for seed in seeds]
        first = int(WARM_UP * (num_programs // BLOCKS))
        base: dict[str, Floats] = {}
        for name in (*POLICIES, KNOWN):
            blocks = [
                (load.times(chosen, arrivals, policy_of(name, load.of(chosen)))[first:], load.deadlines(chosen)[first:])
                for chosen, arrivals in drawn
            ]
            for figure, statistic in STATISTICS.items():
                values = np.array([statistic(*block) for block in blocks])
                report.difference(f"simulated, load {at:g}, {name}: {figure}", values)
                if name == BASE:
                    base[figure] = values
                elif figure == "in time":
                    named = f"simulated, load {at:g}, {name}: in time, points more"
                    report.difference(named, values, base[figure], scale=100)
                else:
                    report.ratio(f"simulated, load {at:g}, {name}: {figure}, times first come", values, base[figure])


def largest_load(load: Workload, name: str, num_programs: int, rng: np.random.Generator) -> float:
    """The largest load at which enough programs are in time, by halving; their arrivals differ in pace alone."""
    chosen, at_one = load.drawn(num_programs, 1.0, rng)
    within = load.deadlines(chosen)
    low, high = 0.0, 3.0
    for _ in range(10):
        middle = (low + high) / 2
        is_enough = (
            float((load.times(chosen, at_one / middle, policy_of(name, load.of(chosen))) <= within).mean()) >= IN_TIME
        )
        low, high = (middle, high) if is_enough else (low, middle)
    return low


def study_rates(report: Report, load: Workload, num_programs: int) -> None:
    """How many arrivals a second each policy bears with 95 % in time."""
    base: list[float] = []
    for name in (*POLICIES, KNOWN):
        found = [
            largest_load(load, name, num_programs // BLOCKS, np.random.default_rng(report.seed + block))
            for block in range(BLOCKS)
        ]
        base = base or found
        report.difference(f"largest load with 95 % in time, {name}", found)
        if found is not base:
            report.ratio(f"largest arrival rate with 95 % in time, {name}, times first come", found, base)


def study_live(report: Report, load: Workload, lab: Lab, num_rounds: int, seconds: float, max_tokens: int) -> None:
    """Every policy at every load, on the engine, in rounds."""

    def times_of(seed: int) -> dict[str, Run]:
        found = {}
        for at in LIVE_LOADS:
            rng = np.random.default_rng([seed, round(100 * at)])
            crowd = [load.problems[number] for number in rng.integers(len(load.problems), size=CROWD)]
            slower = load.rate_at(1.0) / programs_a_second(lab, crowd, max_tokens)
            num_programs = max(2 * LIVE_BLOCKS, int(load.rate_at(at) * seconds / slower))
            chosen, arrivals = load.drawn(num_programs, at, rng)
            problems, within = [load.problems[number] for number in chosen], slower * load.deadlines(chosen)
            for name in rng.permutation(list(POLICIES)).tolist():
                times = served(lab, problems, slower * arrivals, within, POLICIES[name](), max_tokens)
                until_last = float((slower * arrivals + times).max())
                found[f"load {at:g}, {name}"] = {
                    "times": times.tolist(),
                    "within": within.tolist(),
                    "until last": [until_last],
                    "slower": [slower],
                }
                bars.advance(bar)
        return found

    with progress() as bars:
        bar = bars.add_task("live", total=num_rounds * len(LIVE_LOADS) * len(POLICIES))
        seeds = range(report.seed, report.seed + num_rounds)
        rounds = [lab.stored(f"round_{seed}", lambda seed=seed: times_of(seed)) for seed in seeds]
    for at in LIVE_LOADS:
        for name in POLICIES:
            runs, bases = ([found[f"load {at:g}, {each}"] for found in rounds] for each in (name, BASE))
            add_live(report, f"live, load {at:g}, {name}", runs, bases)
        report.figure(f"live, load {at:g}: programs", sum(len(run["times"]) for run in runs))
        pace = [run["slower"][0] for run in runs]
        report.figure(f"live, load {at:g}: seconds by those when recorded", float(np.mean(pace)), min(pace), max(pace))


def add_live(report: Report, name: str, runs: list[Run], bases: list[Run]) -> None:
    """What a policy came to in all rounds, beside first come, first served; parts of rounds are resampled whole."""
    times, theirs, within = (
        [part for run in of for part in np.array_split(np.array(run[key]), LIVE_BLOCKS)]
        for of, key in ((runs, "times"), (bases, "times"), (runs, "within"))
    )
    draws = [range(len(times)), *report.rng.integers(len(times), size=(RESAMPLES, len(times)))]
    for figure, statistic in STATISTICS.items():
        ours, base = (
            np.array(
                [statistic(*(np.concatenate([part[i] for i in drawn]) for part in (of, within))) for drawn in draws]
            )
            for of in (times, theirs)
        )
        for what, values in ((figure, ours), compared(figure, ours, base)):
            report.figure(f"{name}: {what}", values[0], *np.percentile(values[1:], (2.5, 97.5)).tolist())
    seconds, base_seconds = ([run["until last"][0] for run in of] for of in (runs, bases))
    report.ratio(f"{name}: throughput, times first come", base_seconds, seconds)


def plot(figures: Figures, path: Path) -> None:
    """Mean time, and share in time, by policy and load: lines are simulated, points with intervals are live."""
    panels = {
        "mean, times first come": (
            "mean time, that of first come = 1",
            1,
            "Mean time: what lies below 1 is sooner done",
        ),
        "in time": ("programs in time, %", 100, "In time: what lies higher keeps more deadlines"),
    }
    with drawing(path, 1, 2, figsize=(12, 5)) as (figure, axes):
        for axis, (name, (label, scale, title)) in zip(axes, panels.items(), strict=True):
            for place, policy in enumerate((*POLICIES, KNOWN)):
                for source in ("simulated", "live"):
                    found = {at: of(figures, f"{source}, load {at:g}, {policy}: {name}", scale) for at in LOADS}
                    values = {at: each for at, each in found.items() if each is not None}
                    if not values:
                        continue
                    named = f"{policy} (the default), {source}" if policy == BASE else f"{policy}, {source}"
                    if source == "simulated":
                        points(axis, [*values], [*values.values()], named, fmt="-", color=f"C{place}", lw=1)
                    else:
                        apart = [at + 0.006 * (place - len(POLICIES) / 2) for at in values]  # side by side
                        points(axis, apart, [*values.values()], named, fmt="o", color=f"C{place}")
            axis.set(xlabel="load: share of what the engine can bear", ylabel=label, title=title)
            axis.set_xticks(LOADS, [f"{at:g}" for at in LOADS])
        below(figure, axes[1], 4)


@benchmark("studies.scheduling --model tinylm/target --store runs/scheduling")
@size("--num_problems", 120, quick=3, help="Recorded programs of each kind.", least=2)
@size(
    "--max_steps", 6, quick=4, help="Steps of a problem at most: short ones leave more programs to a minute.", least=3
)
@size("--num_programs", 80_000, quick=2_000, help="Simulated programs, a policy and load.", least=2 * BLOCKS)
@size("--num_rate_programs", 40_000, quick=400, help="Simulated programs, a policy and step.", least=2 * BLOCKS)
@size("--num_timed", 1_000_000, quick=2_000, help="Requests whose simulation is timed.")
@size("--num_rounds", 5, quick=0, help="Rounds on the engine; 0 leaves them out.", least=0)
@size("--seconds", 16, quick=1, help="Of arrivals, in a round, by a policy and load.")
@size("--max_tokens", 1200, quick=60, help="Budget of a chain.")
@click.option("--max_batch_size", type=click.IntRange(2), default=16, show_default=True, help="Places of the engine.")
@click.option("--slack", default=5.0, show_default=True, help="Times alone that a program may take.")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model or folder.")
@click.option("--samples", type=DATA, help="JSONL file of a real model's samples; the embedded model's if left out.")
@stored
@plotted
def main(
    report: Report,
    num_problems: int,
    max_steps: int,
    num_programs: int,
    num_rate_programs: int,
    num_timed: int,
    num_rounds: int,
    seconds: int,
    max_tokens: int,
    max_batch_size: int,
    slack: float,
    model: str,
    samples: Path | None,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """Times and deadlines of single chains and votes under each policy, against first come, first served."""
    if num_rounds == 1:
        raise click.BadParameter("1 round has no interval: take 0 for none, or at least 2.", param_hint="--num_rounds")
    if samples is not None:
        problems, programs = replayed(samples, report.rng)
        load = Workload(problems, programs, Queue(max_batch_size, SLOWDOWN), SECONDS)
        simulate(report, with_deadlines(load, slack), num_programs, num_rate_programs, num_timed)
    else:
        drawn = load_dataset("tinylm:held_out", num_samples=10 * num_problems, seed=report.seed)
        short = [sample.prompt for sample in drawn if sample.prompt.count(",") < max_steps][:num_problems]
        problems = [Problem(prompt, kind) for prompt in short for kind in (CHAIN, VOTE)]
        with Lab({"generation": model}, seed=report.seed, store=store, max_batch_size=max_batch_size) as lab:
            recording = recorded(lab, problems, max_tokens, max_batch_size)
            slowdown = max(0.0, (recording.full / recording.alone - 1) / (max_batch_size - 1))
            report.figure("tokens a second, a chain alone", 1 / recording.alone)
            report.figure("tokens a second, a full batch", max_batch_size / recording.full)
            report.figure("cost of a program, times that of its tokens", recording.overhead)
            queue = Queue(max_batch_size, slowdown)
            load = Workload(problems, recording.programs, queue, recording.alone * recording.overhead)
            load = with_deadlines(load, slack)
            if num_rounds:
                study_live(report, load, lab, num_rounds, seconds, max_tokens)
        simulate(report, load, num_programs, num_rate_programs, num_timed)
    if plot_path is not None:
        plot(report.figures, plot_path)


def replayed(path: Path, rng: np.random.Generator) -> tuple[list[Problem], list[RecordedProgram]]:
    """Chains and votes over recorded samples, in several orders of each question's."""
    problems, programs = [], []
    for vote in labelled_votes(read_recording([path])):
        for _ in range(ORDERS):
            drawn = vote.reordered(rng.permutation(len(vote.classes)).tolist())
            problems += [Problem(vote.id, CHAIN), Problem(vote.id, VOTE)]
            programs.append(replayed_vote(LeaderChange(miss=0.1, leap=2.0), drawn.classes[:1], drawn.lengths[:1]))
            programs.append(replayed_vote(LeaderChange(miss=0.1, leap=2.0), drawn.classes, drawn.lengths))
    return problems, programs


def simulate(report: Report, load: Workload, num_programs: int, num_rate_programs: int, num_timed: int) -> None:
    """All that needs no engine."""
    for kind, name in ((CHAIN, "chain"), (VOTE, "vote")):
        of = [program for program, each in zip(load.programs, load.problems, strict=True) if each.num_samples == kind]
        report.figure(f"{name}: tokens", float(np.mean([program.num_tokens for program in of])))
        report.figure(f"{name}: rounds", float(np.mean([len(program.rounds) for program in of])))
        report.figure(f"{name}: deadline, seconds", of[0].deadline or 0.0)
    study_simulated(report, load, num_programs)
    study_rates(report, load, num_rate_programs)
    time_simulation(report, load, num_timed)


def time_simulation(report: Report, load: Workload, num_requests: int) -> None:
    """How long it takes to simulate so many requests."""
    requests = float(np.mean([sum(len(each.num_tokens) for each in program.rounds) for program in load.programs]))
    chosen, arrivals = load.drawn(max(2, int(num_requests / requests)), LOADS[-1], report.rng)
    started = time.perf_counter()
    load.times(chosen, arrivals, ShortestRemaining())
    report.bar(f"seconds to simulate {num_requests:,} requests", time.perf_counter() - started, "<=", 120)


if __name__ == "__main__":
    main()
