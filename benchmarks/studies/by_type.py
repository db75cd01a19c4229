"""Settings by type of question, chosen together by `tune --plan`, against one setting and against budgets alone.

    python -m benchmarks.studies.by_type --store runs/by_type --json > by_type.json

Samples of each kind of problem are recorded once, with looks at their chains. Chains that run alone tell the seconds of
a token, and a crowd tells how fast the full engine is. For each load three plans are made: the best setting for all,
the best budget of one chain by type, and the best setting by type. For each seed all three serve the same new
questions, which arrive by chance; which plan is first is by chance.

Seconds are CPU seconds of the process, so that other work on the machine delays nothing. The load is the share of the
engine's capacity that one whole chain a question would use. The objective is told in points: 100 for a right answer,
less 100 times the seconds over those that a right answer is worth. Intervals resample blocks of arrivals, since
neighbours in a queue are alike.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, progress, size, stored
from benchmarks._lib.report import Report
from benchmarks._lib.runs import recorded_samples
from benchmarks._lib.served_queue import Served, hosted, poisson, serve
from benchmarks._lib.store import kept
from scaffolding_ext import HuggingFaceWorker, Prompting
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.evaluation.run.rows import Example
from scaffolding_ext.evaluation.tune.plays import Plays
from scaffolding_ext.evaluation.tune.queue import (
    BUDGETS,
    FAMILIES,
    SINGLE,
    TOGETHER,
    QueuedPlays,
    QueueGoal,
    ServiceLine,
)
from scaffolding_ext.evaluation.tune.stack_file import controller_of, limit_of, typed_controller_of
from scaffolding_ext.registry import controllers
from scaffolding_ext.scheduling import Fifo
from scaffolding_ext.stack.config import ComponentConfig, StackConfig

PLACES = 16
LOOK_EVERY = 32
CROWD = 6  # chains a place that come at once
BLOCK = 20  # arrivals that are drawn together, since neighbours in a queue are alike
SERVED_SEED, ALONE_SEED, FULL_SEED = 1000, 2000, 3000  # of questions, beside those of the recording
CHAIN = {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 0.7, "max_tokens": 512}}}


def recorded(store: Path, model: str, num_questions: int, num_samples: int, seed: int) -> Plays:
    """Every setting, played on samples that are drawn where the folder lacks them."""
    stack = {
        "controller": CHAIN,
        "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": model}}},
        "seed": 0,
        "dataset": {"source": "tinylm:held_out", "num_samples": num_questions, "seed": seed},
    }
    shape = {"num_samples": num_samples, "look_every": LOOK_EVERY, "num_logprobs": 1}
    trial = Plays(recorded_samples(StackConfig.model_validate(stack), store, **shape), seed=seed)
    trial.try_all()
    return trial


class Engine:
    """The engine, with so many places, and the questions that it serves."""

    def __init__(self, worker: HuggingFaceWorker, prompting: Prompting, seed: int) -> None:
        self._worker, self._prompting, self.seed = worker, prompting, seed

    def questions(self, number: int, seed: int) -> list[Example]:
        """New questions of all kinds."""
        return load_dataset("tinylm:held_out", num_samples=number, seed=self.seed + seed)

    def serve(self, controller: BaseController, asked: Sequence[Example], at: npt.NDArray[np.float64]) -> Served:
        """Ask questions at their times."""
        with hosted(controller, self._worker, self._prompting, 256, self.seed, Fifo()) as llm:
            return serve(llm, asked, at)

    def line(self, number: int) -> ServiceLine:
        """Seconds of a chain that runs alone."""
        tokens, seconds = [], []
        with hosted(controllers.obtain(CHAIN), self._worker, self._prompting, 1, self.seed) as llm:
            for sample in self.questions(number, ALONE_SEED):
                started = time.process_time()
                ledger = llm.generate(sample.prompt, sample_id=sample.id).program.ledger
                seconds.append(time.process_time() - started)
                tokens.append(ledger.num_decoded)
        slope, start = np.polyfit(tokens, seconds, 1)
        mean = float(np.sum(seconds) / np.sum(tokens))
        return ServiceLine(float(start), float(slope)) if start > 0 and slope > 0 else ServiceLine(0.0, mean)

    def queue(self, line: ServiceLine, mean_tokens: float) -> Queue:
        """The batching queue whose full engine is as fast as this one: the middle half of a crowd tells."""
        asked = self.questions(CROWD * PLACES, FULL_SEED)
        ended = np.sort(self.serve(controllers.obtain(CHAIN), asked, np.zeros(len(asked))).seconds)
        first, last = len(ended) // 4, 3 * len(ended) // 4
        rate = (last - first) / (ended[last] - ended[first])
        return Queue.of_capacity(PLACES, max(1.0, rate * (line.at_once + line.a_token * mean_tokens)))


def planned(trial: Plays, goal: QueueGoal, line: ServiceLine) -> dict[str, dict[str, Any]]:
    """The controller of each family as a stack file has it, and what the simulation says of it."""
    queued, base = QueuedPlays(trial, goal, line), ComponentConfig.model_validate(CHAIN)
    max_tokens = limit_of(trial.recording, None)
    plans = {}
    for family in FAMILIES:
        alpha = queued.leaning(family)
        if family == SINGLE:
            setting = queued.single(alpha)
            controller, named = controller_of(setting, base, max_tokens), {"all types": str(setting)}
        else:
            typed = queued.plan(family, alpha)
            controller, named = typed_controller_of(typed, base, max_tokens), typed.named()
        row = queued.judged(family, alpha)
        figures = {"accuracy": row.accuracy, "seconds": row.seconds, "formula": row.formula_seconds}
        plans[family] = {"controller": controller, "settings": named, **figures}
    return plans


def served(engine: Engine, plans: Mapping[str, Any], arrival_rate: float, seconds: float) -> dict[str, Any]:
    """Serve every plan, as JSON holds it."""
    rng = np.random.default_rng([engine.seed, round(1e6 * arrival_rate)])
    arrivals = poisson(arrival_rate, seconds, rng)
    asked = engine.questions(len(arrivals), SERVED_SEED)
    arms = {}
    for family in rng.permutation(FAMILIES).tolist():
        found = engine.serve(controllers.obtain(plans[family]["controller"]), asked, arrivals)
        arms[family] = {"correct": found.correct.tolist(), "seconds": found.seconds.tolist()}
    return arms


def blocks_of(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """The block of each arrival; no block lies in two seeds, and each seed has two at least."""
    parts, first = [], 0
    for number in sizes:
        parts.append(first + np.arange(number) // max(1, min(BLOCK, number // 2)))
        first = int(parts[-1][-1]) + 1
    return np.concatenate(parts)


def study_plans(report: Report, name: str, plans: Mapping[str, Any], alpha: float) -> None:
    """Simulate every plan, each question under the choice of the others."""
    for family, plan in plans.items():
        for key in ("accuracy", "seconds", "formula"):
            report.figure(f"{name}, {family}, simulated: {key}", plan[key])
        told = 100 * (plan["accuracy"] - plan["seconds"] / alpha)
        report.figure(f"{name}, {family}, simulated: objective, points", told)


def study_load(report: Report, name: str, runs: Mapping[int, Mapping[str, Any]], alpha: float) -> None:
    """Every served arm at one load, and the joint plan over the two others."""
    sizes = [len(arms[TOGETHER]["correct"]) for arms in runs.values()]
    blocks, ends, objective = blocks_of(sizes), np.cumsum(sizes)[:-1], {}
    for family in FAMILIES:
        correct, seconds = (
            np.concatenate([arms[family][key] for arms in runs.values()]) for key in ("correct", "seconds")
        )
        objective[family] = 100 * (correct - seconds / alpha)
        report.difference(f"{name}, {family}: accuracy", correct, questions=blocks)
        report.difference(f"{name}, {family}: system time", seconds, questions=blocks)
        report.figure(f"{name}, {family}: p90 of system time", float(np.percentile(seconds, 90)))
        report.difference(f"{name}, {family}: objective, points", objective[family], questions=blocks)
    for other in (SINGLE, BUDGETS):
        gain = report.difference(f"{name}: over {other}, points", objective[TOGETHER], objective[other], blocks)
        report.bar(f"{name}: over {other}, lower end", gain.low, ">", 0)
        parts = zip(runs, np.split(objective[TOGETHER] - objective[other], ends), np.split(blocks, ends), strict=True)
        for seed, own, their_blocks in parts:
            report.difference(f"{name}, seed {seed}: over {other}, points", own, questions=their_blocks)
    report.figure(f"{name}: questions an arm", len(blocks))


@benchmark("studies.by_type --store runs/by_type")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model, or a folder.")
@click.option("--worth", default=20.0, show_default=True, help="A right answer, in services of a whole chain.")
@click.option(
    "--load",
    "loads",
    multiple=True,
    type=float,
    default=(0.4, 0.7, 1.0),
    show_default=True,
    help="Share of the capacity that one whole chain a question would use.",
)
@size("--num_seeds", 5, quick=1, help="From --seed on; 0 serves nothing: plans are simulated alone.", least=0)
@size("--num_questions", 150, quick=60, help="That are recorded.")
@size("--num_samples", 8, quick=2, help="Of each question that is recorded.", least=2)
@size("--num_alone", 12, quick=6, help="Chains that are timed alone.", least=2)
@size("--seconds", 5, quick=2, help="Of arrivals, for each arm.")
@stored
def main(
    report: Report,
    model: str,
    worth: float,
    loads: tuple[float, ...],
    num_seeds: int,
    num_questions: int,
    num_samples: int,
    num_alone: int,
    seconds: int,
    store: Path | None,
) -> None:
    """One setting, budgets by type, and settings by type, served at several loads."""
    prompting = Prompting.for_model(model)
    with tempfile.TemporaryDirectory() as folder, HuggingFaceWorker(model, max_batch_size=PLACES) as worker:
        place = store or Path(folder)
        trial = functools.cache(lambda: recorded(place / "recording", model, num_questions, num_samples, report.seed))

        def measured() -> list[float]:
            engine = Engine(worker, prompting, report.seed)
            mean, line = (
                float(np.mean([each.tokens.mean() for each in trial().recording.questions])),
                engine.line(num_alone),
            )
            return [*line, engine.queue(line, mean).capacity, line.at_once + line.a_token * mean]

        *fitted, capacity, service = kept(place, "engine", measured)
        line, queue, alpha = ServiceLine(*fitted), Queue.of_capacity(PLACES, capacity), worth * service
        report.figure("engine: seconds without tokens", line.at_once)
        report.figure("engine: seconds a token", line.a_token)
        report.figure("engine: capacity", capacity)
        rates = {load: load * capacity / service for load in loads}
        plans = {
            load: kept(
                place,
                f"planned_{load:g}",
                lambda rate=rate: planned(trial(), QueueGoal(rate, queue, alpha=alpha), line),  # type: ignore[misc]
            )
            for load, rate in rates.items()
        }
        runs: dict[float, dict[int, Any]] = {load: {} for load in loads}
        with progress() as bars:
            bar = bars.add_task("seeds and loads", total=num_seeds * len(loads))
            for seed in range(report.seed, report.seed + num_seeds):
                engine = Engine(worker, prompting, seed)
                for load, rate in rates.items():
                    serving = functools.partial(served, engine, plans[load], rate, seconds)
                    runs[load][seed] = kept(place, f"served_{load:g}_{seed}", serving)
                    bars.advance(bar)
        for load in loads:
            name = f"load {load:g}"
            report.figure(f"{name}: arrivals a second", rates[load])
            study_plans(report, name, plans[load], alpha)
            if num_seeds:
                study_load(report, name, runs[load], alpha)


if __name__ == "__main__":
    main()
