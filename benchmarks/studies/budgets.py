"""Budgets of thinking by type of question: swept on an embedded model, planned, and served under Poisson arrivals.

    python -m benchmarks.studies.budgets --store runs/budgets --json > budgets.json

Runs of `scaffolding-ext eval` at several budgets tell what each type gains. Seconds are those of other questions, one
at a time, the budgets in turns of random order: a machine that gets slower slows all of them. The plan for an arrival
rate and the best single budget for all types then serve the same arrivals, in turn (plan, uniform, uniform, plan), one
request at a time and in a batch. All questions but those of the two arms are different ones.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from benchmarks._lib.budget_types import ANSWER_TOKENS, DRAWN, PLANNED, hosted, questions, sweep, timed
from benchmarks._lib.command import benchmark, plotted, size, stored
from benchmarks._lib.drawing import Figures, beside, drawing, of, point, points
from benchmarks._lib.report import Report
from benchmarks._lib.served_queue import Served, poisson, serve
from scaffolding_ext import (
    BudgetForcingController,
    HuggingFaceWorker,
    Prompting,
    QueueAwareBudgetController,
)
from scaffolding_ext.controllers.budgets.plan_file import PlannedBudgets
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.simulation import serve_in_batch, summarized
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.evaluation.calibrate.budget_sweep import Swept, read_sweep
from scaffolding_ext.evaluation.run.datasets import Sample
from scaffolding_ext.stats.intervals import Estimate, wilson_interval
from scaffolding_ext.tinylm.grammar import KINDS

BLOCK = 20  # arrivals that are drawn together, since neighbours in a queue are alike
TURNS = (("plan", 0), ("uniform", 0), ("uniform", 1), ("plan", 1))  # and the stretch of arrivals that both meet
SERVED_SEED, FULL_SEED = 1000, 2000  # of questions, beside those of the sweep
Budgets = Sequence[int]


class Server:
    """The engine under a load, with budgets by type.

    Args:
        worker: The engine.
        prompting: Of its model.
        at_once: Requests at once.
        seed: Of what is answered.
    """

    def __init__(self, worker: HuggingFaceWorker, prompting: Prompting, at_once: int, seed: int) -> None:
        self._worker, self._prompting, self._at_once, self._seed = worker, prompting, at_once, seed

    def serve(self, demand: Demand, budgets: Budgets, samples: Sequence[Sample], arrivals: Floats) -> Served:
        """Serve arrivals, a budget for each of the demand's types."""
        plan = PlannedBudgets(demand, dict(zip(demand.names, budgets, strict=True)), 0, "")
        forcing = BudgetForcingController(max(budgets), max_answer_tokens=ANSWER_TOKENS, sampling_params=DRAWN)
        controller = QueueAwareBudgetController(plan, generation_controller=forcing)
        with hosted(controller, self._worker, self._prompting, self._at_once, self._seed) as llm:
            return serve(llm, samples, arrivals)

    def queue(self, demand: Demand, budget: int, number: int) -> Queue:
        """The batching queue whose full engine is as fast as this one: everything arrives at once."""
        samples = questions(number, self._seed + FULL_SEED)
        budgets = [budget] * len(demand.types)
        started = time.perf_counter()
        self.serve(demand, budgets, samples, np.zeros(len(samples)))
        seconds = time.perf_counter() - started
        alone = demand.forecast(budgets)  # of one server, whose load tells its mean service
        return Queue.of_capacity(self._at_once, len(samples) * float(alone.load) / demand.arrival_rate / seconds)


def simulated(demand: Demand, budgets: Budgets, num_queries: int, seed: int) -> tuple[float, float]:
    """Mean seconds in the simulated queue, with services as they scattered, and the standard error."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.standard_exponential(num_queries)) / demand.arrival_rate
    kinds = rng.choice(len(demand.types), num_queries, p=[each.probability for each in demand.types])
    given = [each.given(tokens) for each, tokens in zip(demand.types, budgets, strict=True)]
    means = np.array([float(each.seconds) for each in given])
    spreads = np.sqrt([max(float(each.square - each.seconds**2), 0.0) for each in given])
    services = np.maximum(means[kinds] + spreads[kinds] * rng.standard_normal(num_queries), 1e-3)
    departures = serve_in_batch(arrivals, services, demand.queue.places, demand.queue.speed)
    found = summarized(arrivals, services, departures).system_time
    return found.value, (found.high - found.low) / 3.92


def study_simulated(
    report: Report, name: str, demand: Demand, swept: Swept, arms: dict[str, Budgets], num_queries: int
) -> None:
    """What the plan gains in the simulated queue; intervals are of the answers that were measured and of the queue."""
    times = {arm: simulated(demand, budgets, num_queries, report.seed) for arm, budgets in arms.items()}
    rights = {}
    for arm, budgets in arms.items():
        report.figure(f"{name}, simulated, {arm}: system time", times[arm][0])
        formula = float(demand.forecast(budgets).system_time)
        report.figure(f"{name}, {arm}: formula by simulated time", formula / times[arm][0])
        rights[arm] = np.zeros(2000)
        for number, (kind, budget) in enumerate(zip(swept.kinds, budgets, strict=True)):
            at = kind.budgets.index(budget)
            draws = np.random.default_rng([report.seed, at, number])  # one for arms with the same budget
            share = kind.num_correct[at] / kind.num_answers[at]
            rights[arm] += kind.share * draws.binomial(kind.num_answers[at], share, 2000) / kind.num_answers[at]
    error = np.hypot(times["plan"][1], times["uniform"][1])
    waits = times["plan"][0] - times["uniform"][0] + error * report.rng.standard_normal(2000)
    gains = demand.alpha * (rights["plan"] - rights["uniform"]) - waits
    report.figure(f"{name}, simulated: objective gained", float(gains.mean()), *np.quantile(gains, [0.025, 0.975]))


def study_served(
    report: Report, name: str, demand: Demand, server: Server, arms: dict[str, Budgets], seconds: float
) -> None:
    """What the plan gains in the served queue, and how far the forecasts were off."""
    found: dict[str, Served] = {}
    for arm, stretch in TURNS:
        rng = np.random.default_rng([report.seed, stretch])
        arrivals = poisson(demand.arrival_rate, seconds, rng)
        drawn = questions(-(-len(arrivals) // len(KINDS)), report.seed + SERVED_SEED + stretch)
        mixed = [drawn[n] for n in rng.permutation(len(drawn))[: len(arrivals)]]
        served = server.serve(demand, arms[arm], mixed, arrivals)
        found[arm] = found[arm].joined(served) if arm in found else served
    number = len(found["plan"].seconds)
    blocks = np.arange(number) // max(1, min(BLOCK, number // 4))
    worth = {}
    for arm, served in found.items():
        forecast = demand.forecast(arms[arm])
        report.figure(f"{name}, served, {arm}: questions", len(served.seconds))
        right = report.difference(f"{name}, served, {arm}: accuracy", served.correct, questions=blocks)
        system = report.difference(f"{name}, served, {arm}: system time", served.seconds, questions=blocks)
        report.figure(f"{name}, {arm}: p95 of system time", float(np.quantile(served.seconds, 0.95)))
        report.figure(f"{name}, {arm}: forecast accuracy less served, points", 100 * (forecast.accuracy - right.value))
        report.figure(f"{name}, {arm}: forecast by served system time", float(forecast.system_time) / system.value)
        worth[arm] = demand.alpha * served.correct - served.seconds
    gain = report.difference(f"{name}, served: objective gained", worth["plan"], worth["uniform"], blocks)
    report.bar(f"{name}, served: objective gained", gain.value, ">", 0)


def plot(figures: Figures, swept: Swept, queues: Sequence[str], path: Path) -> None:
    """Draw what thinking is worth to each type, and how right and how fast the plan and the single budget were."""
    with drawing(path, 1, 1 + len(queues), figsize=(5 * (1 + len(queues)), 4.6)) as (_, (gains, *panels)):
        for kind in swept.kinds:
            counts = zip(kind.num_correct.tolist(), kind.num_answers.tolist(), strict=True)
            shares = [Estimate(num / total, *wilson_interval(num, total)) for num, total in counts]
            points(gains, kind.budgets, [Estimate(*(100 * end for end in share)) for share in shares], kind.kind)
        gains.set(xlabel="budget of thinking, tokens", ylabel="accuracy, % (95 %)")
        gains.set_title("What more thinking is worth\nto each type of question")
        beside(gains)
        for panel, queue in zip(panels, queues, strict=True):
            for number, arm in enumerate(("plan", "uniform")):
                seconds, right = (
                    of(figures, f"{queue}, served, {arm}: {what}", scale)
                    for what, scale in (("system time", 1), ("accuracy", 100))
                )
                if seconds is not None and right is not None:
                    name = f"{arm}, served"
                    point(panel, seconds, right, name, color=f"C{number}", is_default=arm == "plan")
                    tail = of(figures, f"{queue}, {arm}: p95 of system time")
                    if tail is not None:
                        panel.plot(tail.value, right.value, "|", ms=12, color=f"C{number}", label=f"{arm}, p95 of time")
                told = [of(figures, f"{queue}, forecast, {arm}: {what}") for what in ("system time", "accuracy")]
                if told[0] is not None and told[1] is not None:
                    panel.plot(told[0].value, 100 * told[1].value, "x", color=f"C{number}", label=f"{arm}, forecast")
            panel.set(xlabel="seconds from arrival to answer", ylabel="accuracy, % (95 %)")
            panel.set_title(f"{queue}: further left is sooner,\nhigher is right more often")
        beside(panels[-1])


@benchmark("studies.budgets --store runs/budgets")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model, or a folder.")
@click.option("--worth", default=20.0, show_default=True, help="A right answer, in services of --middle tokens.")
@click.option("--load", default=0.6, show_default=True, help="Share of the capacity that --middle for all would use.")
@click.option("--middle", default=96, show_default=True, help="Tokens.")
@size("--num_swept", 80, quick=2, help="Questions a type that are swept.")
@size("--num_timed", 6, quick=1, help="Questions a type and budget that are timed alone.")
@size("--seconds", 150, quick=4, help="Of each of the four stretches of arrivals of a queue.")
@size("--num_queries", 50_000, quick=2_000, help="Queries simulated.", least=1000)
@click.option("--places", "queues", multiple=True, type=int, default=(1, 16), show_default=True, help="At once.")
@stored
@plotted
def main(
    report: Report,
    model: str,
    worth: float,
    load: float,
    middle: int,
    num_swept: int,
    num_timed: int,
    seconds: int,
    num_queries: int,
    queues: tuple[int, ...],
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """A plan of budgets against the best single budget, in simulated and in served queues."""
    with tempfile.TemporaryDirectory() as folder:
        place = store or Path(folder)
        swept = read_sweep(sweep(place, model, questions(num_swept, report.seed)), seed=report.seed)
    for kind in swept.kinds:
        report.figure(f"{kind.kind}: largest miss of the saturating curve, points", 100 * kind.accuracy.largest_miss)
    prompting = Prompting.for_model(model)
    with HuggingFaceWorker(model) as worker:
        for places in queues:
            types = timed(report, f"{places} at once", worker, prompting, swept, num_timed)
            alone = Demand(types, 1.0, 1.0, max(PLANNED))
            service = float(alone.forecast([middle] * len(types)).load)
            server = Server(worker, prompting, places, report.seed)
            queue = Queue() if places == 1 else server.queue(alone, middle, 3 * places)
            rate = load * queue.capacity / service
            demand = replace(alone, arrival_rate=rate, alpha=worth * service, queue=queue)
            study_queue(report, server, f"{places} at once", demand, swept, seconds, num_queries)
    if plot_path is not None:
        plot(report.figures, swept, [f"{places} at once" for places in queues], plot_path)


def study_queue(
    report: Report, server: Server, name: str, demand: Demand, swept: Swept, seconds: int, num_queries: int
) -> None:
    """One queue: planned, simulated and served."""
    arms: dict[str, Budgets] = {"plan": demand.best(), "uniform": [demand.best_uniform()] * len(demand.types)}
    report.figure(f"{name}: capacity", demand.queue.capacity)
    report.figure(f"{name}: arrivals a second", demand.arrival_rate)
    report.figure(f"{name}: seconds that a right answer is worth", demand.alpha)
    for arm, budgets in arms.items():
        for kind, budget in zip(demand.names, budgets, strict=True):
            report.figure(f"{name}, {arm}: tokens of {kind}", budget)
        forecast = demand.forecast(budgets)
        report.figure(f"{name}, forecast, {arm}: accuracy", float(forecast.accuracy))
        report.figure(f"{name}, forecast, {arm}: system time", float(forecast.system_time))
        report.figure(f"{name}, forecast, {arm}: objective", float(forecast.objective))
    study_simulated(report, name, demand, swept, arms, num_queries)
    study_served(report, name, demand, server, arms, seconds)


if __name__ == "__main__":
    main()
