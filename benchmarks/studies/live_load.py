"""Votes that arrive at a real engine and at the simulated one: do they take as long, and what does a deadline give?

    python -m benchmarks.studies.live_load --store runs/live_load --json > live_load.json

Votes of 8 arrive by Poisson at an embedded model, as `eval --arrival_rate` has them arrive. Right before, a crowd tells
the engine's speed, and votes one by one tell what a full vote takes alone. The first cell has full votes and records
all samples. A sample's seed does not depend on what runs beside it, so each further cell draws from the same samples.

Beside each live cell the simulator serves the same arrivals over the recorded samples. Its engine has the speed of that
cell's own run: looks at the engine tell seconds by steps, by decoded tokens and by prompt tokens (least squares). The
prompt tokens are spread over the decoded ones. A machine that does other work, too, changes its pace within a run, so
each cell is simulated twice: at the mean speed, and on a clock that runs as the steps of each two seconds ran.

A rate is told by that at which full votes keep the engine busy, or, for cells of their *own* load, by that at which the
cell's own votes do. All cells of one rate have the same questions and arrivals. Intervals are 95 %, from resampling
twenty blocks of votes that arrived one after the other.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from scipy.optimize import nnls

from benchmarks._lib.command import benchmark, size, stored, track
from benchmarks._lib.lab import Lab
from benchmarks._lib.load_programs import RecordedVote, program_of
from benchmarks._lib.report import Report
from benchmarks.studies.deadlines import ORDERS
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.threshold import ThresholdEvery
from scaffolding_ext.controllers.vote.deadline import SampleTimes
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, Example, load_dataset
from scaffolding_ext.evaluation.run.load_test import run_arrivals
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.runner import EvaluationJob, LocalEngine
from scaffolding_ext.evaluation.run.scoring import score
from scaffolding_ext.evaluation.traffic.arrivals import arrival_times
from scaffolding_ext.evaluation.traffic.served_requests import block_estimate
from scaffolding_ext.evaluation.traffic.simulator import serve_programs
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.stats.power import bootstrap_power
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

NUM_SAMPLES = 8
SLOS = (3.0, 2.0, 1.5)
CERTAINDEX = ThresholdEvery(threshold=0.7, step=5)
RULES: Mapping[str, AllocationRule | None] = {
    "none": None,
    "certaindex": CERTAINDEX,
    "LeaderChange": LeaderChange(),
    "in time": LeaderChange(),
}
LOOK_EVERY = 0.1  # seconds
PACE_LOOKS = 20  # in which the machine's pace counts as one
FEW_TOKENS = 200  # of these looks: too few to tell a pace
NUM_BLOCKS = 20
FIGURES = {"mean": np.mean, "p90": functools.partial(np.quantile, q=0.9)}


class Cell(NamedTuple):
    """Votes of one kind that arrive at one rate.

    Attributes:
        load: Times the arrivals at which full votes keep the engine busy, or, with `own`, these votes.
        share: Of all questions.
        slo: Of votes that know their deadline: times what a full vote takes alone.
    """

    stopping: str
    load: float
    own: bool = False
    order: str = "first come"
    share: float = 1.0
    slo: float | None = None

    @property
    def name(self) -> str:
        """As figures have it."""
        slo = "" if self.slo is None else f", SLO {self.slo:g}"
        return f"{self.stopping}, {self.order}, {'own ' if self.own else ''}load {self.load:g}{slo}"


BUSY, CALM = 0.9, 0.5
FULL = Cell("none", BUSY)
AGAINST = [FULL, Cell("certaindex", BUSY), Cell("LeaderChange", BUSY)]
IN_TIME = [Cell("in time", BUSY, slo=slo) for slo in SLOS]
CELLS = [
    FULL,
    Cell("none", CALM, share=0.5),
    Cell("LeaderChange", BUSY, own=True),
    Cell("LeaderChange", CALM, own=True, share=0.5),
    Cell("LeaderChange", BUSY, own=True, order="shortest remaining"),
    Cell("LeaderChange", BUSY, own=True, order="gang"),
    *AGAINST[1:],
    *IN_TIME,
]
JUDGED = 4  # cells whose simulated times must lie within the live intervals


class Speed(NamedTuple):
    """An engine's speed: a step takes `step` seconds, and each token that it decodes adds `token`."""

    step: float
    token: float

    @classmethod
    def of(cls, looks: Sequence[Sequence[float]]) -> Speed:
        """From looks at an engine: steps, decoded tokens, prompt tokens and busy seconds since its start."""
        more = np.diff(np.array(looks, dtype=np.float64), axis=0)
        more = more[more[:, 0] > 0]
        (step, decoded, read), _ = nnls(more[:, :3], more[:, 3])
        num_decoded, num_read = more[:, 1:3].sum(axis=0)
        return cls(float(step), float(decoded + read * num_read / num_decoded))

    @property
    def alone(self) -> float:
        """Seconds of a token of a chain alone."""
        return self.step + self.token

    def queue(self, places: int) -> Queue:
        """The simulated engine."""
        return Queue(places, self.token / self.alone)

    def tokens_a_second(self, places: int) -> float:
        """Of the full engine."""
        return self.queue(places).capacity / self.alone


class Pace(NamedTuple):
    """How fast a machine went, beside its mean: `work[i]` seconds at the mean speed were done by `times[i]`."""

    times: Floats
    work: Floats

    @classmethod
    def of(cls, run: Mapping[str, Any], speed: Speed) -> Pace:
        """Of a run, whose looks are evenly spaced until its last vote has ended."""
        more = np.diff(np.array(run["looks"], dtype=np.float64), axis=0)
        ended = max(at + vote["seconds"] for at, vote in zip(run["arrivals"], run["votes"], strict=True))
        parts = [more[first : first + PACE_LOOKS] for first in range(0, len(more), PACE_LOOKS)]
        seconds = np.array([len(part) for part in parts]) * ended / len(more)
        steps, tokens, _, busy = np.array([part.sum(axis=0) for part in parts]).T
        expected = speed.step * steps + speed.token * tokens
        slower = np.where(tokens >= FEW_TOKENS, busy / np.maximum(expected, 1e-9), 1.0)
        times, work = ([0.0, *np.cumsum(each)] for each in (seconds, seconds / slower))
        return cls(np.array(times), np.array(work))

    def done_by(self, times: Floats) -> Floats:
        """Seconds of work that were done by these times."""
        return np.interp(times, self.times, self.work) + np.maximum(0.0, times - self.times[-1])

    def times_of(self, work: Floats) -> Floats:
        """When so much work was done."""
        return np.interp(work, self.work, self.times) + np.maximum(0.0, work - self.work[-1])


EVEN = Pace(np.zeros(1), np.zeros(1))


class Bench:
    """The engine, the questions, and how votes over them are run.

    Args:
        sample_seconds: Expected seconds of a sample; known once the crowd has run.
    """

    def __init__(self, lab: Lab, max_tokens: int, num: int) -> None:
        self.lab, self._max_tokens = lab, max_tokens
        self.questions = load_dataset(EMBEDDED, num_samples=num, seed=lab.seed)
        self.sample_seconds: float | None = None

    def run(
        self, cell: Cell, questions: Sequence[Example], arrivals: Floats, within: float | None = None
    ) -> dict[str, Any]:
        """Votes that arrive at their times, as JSON holds them."""
        worker = self.lab.workers["generation"]
        assert isinstance(worker, HuggingFaceWorker)
        chain = NativeGenerationController({"temperature": 1.0, "max_tokens": self._max_tokens})
        votes = MajorityVoteController(
            chain, NUM_SAMPLES, allocation=RULES[cell.stopping], sample_seconds=self.sample_seconds
        )
        votes.prompting = self.lab.prompting
        records, looks = list[Record](), list[list[float]]()

        def look() -> None:
            seen = worker.metrics
            looks.append([seen.num_steps, seen.num_decoded, seen.num_prefilled, seen.busy_s])

        async def look_on() -> None:
            while True:
                look()
                await asyncio.sleep(LOOK_EVERY)

        async def go(llm: ScaffoldingLlm) -> None:
            looking = asyncio.create_task(look_on())
            await asyncio.sleep(0)  # the first look comes before the first vote
            jobs = [EvaluationJob(question, 0) for question in questions]
            await run_arrivals(LocalEngine(llm), jobs, arrivals.tolist(), records.append, lambda: False, 0)
            looking.cancel()
            look()  # a run may be shorter than the time between two looks

        settings = {"seed": self.lab.seed, "max_parallel_requests": len(questions), "deadline": within}
        with ScaffoldingLlm(votes, {"generation": worker}, scheduling=ORDERS[cell.order](), **settings) as llm:
            asyncio.run(go(llm))
        failed = [record.error for record in records if record.error is not None]
        if failed:
            raise click.ClickException(f"{len(failed)} of {len(questions)} votes failed; the first: {failed[0]}")
        by_id = {record.id: record for record in records}
        found = [vote_of(by_id[question.id], question) for question in questions]
        return {"votes": found, "looks": looks, "arrivals": arrivals.tolist()}

    def alone(self, num: int) -> float:
        """Mean seconds of a full vote that nothing runs beside."""
        runs = [self.run(FULL, [question], np.zeros(1)) for question in self.questions[:num]]
        return float(np.mean([run["votes"][0]["seconds"] for run in runs]))


def vote_of(record: Record, question: Example) -> dict[str, Any]:
    """What is kept of a vote."""
    vote = next(event for event in record.trace if event["event"] == "vote")
    right = {answer: score(answer, question.target).correct for answer in set(vote["answers"])}
    return {
        "seconds": record.seconds["total"],
        "correct": record.correct,
        "exit_reason": record.exit_reason,
        "classes": vote["classes"],
        "lengths": vote["num_decoded"],
        "right": [right[answer] for answer in vote["answers"]],
        "decoded": record.ledger["total"]["decoded"],
        "wide": sum(event["event"] == "round_in_time" and event["wide"] for event in record.trace),
    }


class Served(NamedTuple):
    """Seconds, rightness and tokens of votes in the order of arrival."""

    seconds: Floats
    correct: Floats
    decoded: Floats

    @classmethod
    def live(cls, run: Mapping[str, Any]) -> Served:
        """Of a run."""
        votes = run["votes"]
        return cls(*(np.array([vote[key] for vote in votes], float) for key in ("seconds", "correct", "decoded")))

    @classmethod
    def simulated(
        cls,
        cell: Cell,
        run: Mapping[str, Any],
        votes: Sequence[RecordedVote],
        places: int,
        within: float | None,
        is_paced: bool = False,
    ) -> Served:
        """The same votes and arrivals by the simulator, on an engine of that run's mean speed, or of its pace."""
        speed, arrivals = Speed.of(run["looks"]), np.array(run["arrivals"])
        pace = Pace.of(run, speed) if is_paced else EVEN
        begins = pace.done_by(arrivals)
        rule = RULES[cell.stopping] or Even()
        queue = speed.queue(places)
        mean = float(np.mean([np.mean(vote.lengths) for vote in votes]))
        times = SampleTimes(mean * speed.alone / queue.speed(places))
        works = [program_of(vote, cell.stopping, rule, times) for vote in votes]
        deadlines = None if within is None else pace.done_by(arrivals + within) - begins
        ended = serve_programs(works, begins, queue, speed.alone, ORDERS[cell.order](), deadlines)
        right = [vote.is_right(voted) for vote, voted in zip(votes, ended.answers, strict=True)]
        return cls(pace.times_of(ended.departures) - arrivals, np.array(right, float), ended.num_tokens)


def tokens_of(stopping: str, votes: Sequence[RecordedVote]) -> float:
    """Mean tokens of a vote, by the recorded samples."""
    rule = RULES[stopping] or Even()
    works = [program_of(vote, stopping, rule, SampleTimes()) for vote in votes]
    return float(serve_programs(works, np.zeros(len(votes)), Queue(1), 1.0).num_tokens.mean())


def study_times(report: Report, cell: Cell, live: Served, simulated: Served, paced: Served, is_judged: bool) -> float:
    """Times of a cell, live and simulated at the mean speed and at the machine's pace.

    Returns:
        The correlation of the votes' seconds, live and at the machine's pace.
    """
    for name, figure in FIGURES.items():
        found, expected = block_estimate(live.seconds, figure), float(figure(simulated.seconds))
        report.figure(f"{cell.name}: {name}", *found)
        report.figure(f"{cell.name}: {name}, simulated", expected)
        report.figure(f"{cell.name}: {name}, simulated at the machine's pace", float(figure(paced.seconds)))
        if is_judged:
            outside = max(0.0, expected - found.high, found.low - expected)
            report.bar(f"{cell.name}: simulated {name}, seconds outside the live interval", outside, "<=", 0)
    for name, served in (("", live), (", simulated", simulated)):
        report.figure(f"{cell.name}: right{name}", *block_estimate(served.correct, np.mean))
        report.figure(f"{cell.name}: tokens{name}", float(served.decoded.mean()))
    return float(np.corrcoef(live.seconds, paced.seconds)[0, 1])


def study_deadline(report: Report, slo: float, within: float, live: Mapping[Cell, Served], own: Cell) -> None:
    """Votes that know their deadline against each of the others, at one SLO."""
    in_time = {cell: served.seconds <= within for cell, served in live.items()}
    right = {cell: in_time[cell] * served.correct for cell, served in live.items()}
    num = len(in_time[own])
    blocks = np.arange(num) * NUM_BLOCKS // num
    for cell in live:
        name = f"{cell.stopping}, SLO {slo:g}"
        report.figure(f"{name}: in time", *block_estimate(in_time[cell].astype(float), np.mean))
        report.figure(f"{name}: right in time", *block_estimate(right[cell], np.mean))
        if cell == own:
            continue
        for what, values in (("in time", in_time), ("right in time", right)):
            more = values[own].astype(float) - values[cell].astype(float)
            said = f"in time, SLO {slo:g}: {what}, points more than {cell.stopping}"
            report.difference(said, more, questions=blocks, scale=100)
            if len(np.unique(more)) > 1:
                power = bootstrap_power(more, blocks, num_questions=NUM_BLOCKS, bar=0.0, rng=report.rng)
                report.figure(f"{said}: power", power)


@benchmark("studies.live_load --store runs/live_load")
@size("--num_programs", 250, quick=4, help="Votes of a cell; cells at half of the load have half of them.", least=4)
@size("--num_crowd", 40, quick=4, help="Full votes at once, for the engine's speed.", least=2)
@size("--num_alone", 6, quick=1, help="Full votes one by one.")
@size("--max_tokens", 800, quick=12, help="Budget of a chain.")
@click.option("--places", type=click.IntRange(2), default=32, show_default=True, help="Places of the engine.")
@click.option("--model", default="tinylm/draft", show_default=True, help="Embedded model or folder.")
@click.option("--minutes", type=float, help="Begin no further cell after so many; call again to go on.")
@stored
def main(
    report: Report,
    num_programs: int,
    num_crowd: int,
    num_alone: int,
    max_tokens: int,
    places: int,
    model: str,
    minutes: float | None,
    store: Path | None,
) -> None:
    """Times, shares in time and right answers of votes under load, live and simulated."""
    with Lab({"generation": model}, seed=report.seed, store=store, max_batch_size=places) as lab:
        bench = Bench(lab, max_tokens, num_programs)
        crowd = lab.stored("crowd", lambda: bench.run(FULL, bench.questions[:num_crowd], np.zeros(num_crowd)))
        speed = Speed.of(crowd["looks"])
        alone = lab.stored("alone", lambda: bench.alone(num_alone))
        mean = float(np.mean([np.mean(vote["lengths"]) for vote in crowd["votes"]]))
        bench.sample_seconds = mean * speed.alone / speed.queue(places).speed(places)
        gaps = arrival_times(1.0, num_programs, np.random.default_rng(report.seed))
        full_tokens = NUM_SAMPLES * mean
        votes: list[RecordedVote] = []
        runs: dict[Cell, dict[str, Any]] = {}
        began = time.monotonic()
        for cell in track(CELLS, "cells"):
            if minutes is not None and time.monotonic() > began + 60 * minutes:
                raise click.ClickException(f"{len(CELLS) - len(runs)} cells are left: call again with the same --store")
            num = max(4, round(cell.share * num_programs))
            tokens = tokens_of(cell.stopping, votes) if cell.own else full_tokens
            arrivals = gaps[:num] * tokens / (cell.load * speed.tokens_a_second(places))
            within = None if cell.slo is None else cell.slo * alone
            asked = bench.questions[:num]
            kept = cell.name.replace(",", "").replace(" ", "_")
            runs[cell] = lab.stored(kept, functools.partial(bench.run, cell, asked, arrivals, within))
            if cell == FULL:
                recorded = runs[cell]["votes"]
                votes = [RecordedVote(vote["classes"], vote["lengths"], vote["right"]) for vote in recorded]
    report.figure("tokens a second of the full engine", speed.tokens_a_second(places))
    report.figure("seconds of a full vote alone", alone)
    live = {cell: Served.live(run) for cell, run in runs.items()}
    correlations = []
    for number, cell in enumerate(CELLS):
        num = len(live[cell].seconds)
        within = None if cell.slo is None else cell.slo * alone
        simulated, paced = (
            Served.simulated(cell, runs[cell], votes[:num], places, within, is_paced) for is_paced in (False, True)
        )
        correlations.append(study_times(report, cell, live[cell], simulated, paced, number < JUDGED))
        report.figure(f"{cell.name}: votes", num)
        pace = speed.tokens_a_second(places) / Speed.of(runs[cell]["looks"]).tokens_a_second(places)
        report.figure(f"{cell.name}: seconds, times those of the crowd", pace)
        if cell.slo is not None:
            for name, served in (("simulated", simulated), ("simulated at the machine's pace", paced)):
                report.figure(f"{cell.name}: in time, {name}", float((served.seconds <= within).mean()))
            wide = [bool(vote["wide"]) for vote in runs[cell]["votes"]]
            report.share(f"{cell.name}: votes with a wide round", sum(wide), num)
            is_cut = [vote["exit_reason"] == "deadline" for vote in runs[cell]["votes"]]
            report.share(f"{cell.name}: votes that were cut", sum(is_cut), num)
        elif cell != FULL:
            pairs = zip(runs[cell]["votes"], votes, strict=False)
            same = sum(vote["lengths"] == known.lengths[: len(vote["lengths"])] for vote, known in pairs)
            report.share(f"{cell.name}: votes with the recorded samples", same, num)
    report.figure("least correlation of the votes' seconds, live and at the machine's pace", min(correlations))
    even = {"looks": crowd["looks"], "arrivals": runs[FULL]["arrivals"]}
    for cell in IN_TIME:
        assert cell.slo is not None
        within, arms = cell.slo * alone, (*AGAINST, cell)
        study_deadline(report, cell.slo, within, {arm: live[arm] for arm in arms}, cell)
        for arm in arms:
            served = Served.simulated(arm, even, votes, places, within if arm == cell else None)
            in_time, name = served.seconds <= within, f"{arm.stopping}, SLO {cell.slo:g}"
            report.figure(f"{name}: in time, all at the crowd's speed", float(in_time.mean()))
            report.figure(f"{name}: right in time, all at the crowd's speed", float((in_time * served.correct).mean()))


if __name__ == "__main__":
    main()
