"""Dynasor's factorial of scheduling, live: order of requests, eviction of KV, and stopping, on an embedded model.

    python -m benchmarks.studies.orders --json > orders.json

Appendix G.2 of the certaindex paper compares its scheduler with the longest-prefix-match order of SGLang; D.3.2 evicts
the KV of idle programs first. Here programs are votes of 8 and REBASE searches. They arrive by a Poisson process at a
worker with few places and a small cache, at a share of the rate that it serves in a crowd without a stop. All cells of
a workload have the same questions, seeds and arrivals. A program is in time within `SLO` times the mean of a program
that runs alone and never stops. Seconds are CPU seconds of the process. Intervals resample blocks of consecutive
arrivals, since neighbours in a queue are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks._lib.served_queue import hosted, serve
from benchmarks.engines.eviction import TOKENS_PER_BLOCK, Order, worker
from scaffolding_ext import MajorityVoteController, NativeGenerationController, Prompting, SearchController
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.tree.stops import Certaindex, Unchanged
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, load_dataset
from scaffolding_ext.evaluation.run.rows import Example
from scaffolding_ext.evaluation.traffic.arrivals import arrival_times
from scaffolding_ext.scheduling import Fifo, Gang, LongestPrefix, Policy, ShortestRemaining
from scaffolding_ext.workers.huggingface.worker import EvictionPolicy

SLO = 3.0
NUM_BLOCKS = 12  # of arrivals that are resampled together
NO_STOP, CERTAINDEX = "no stop", "certaindex"
STOPPINGS = (NO_STOP, CERTAINDEX)
EVICTIONS: tuple[EvictionPolicy, ...] = ("lru", "idle_first")
BASELINE = "longest prefix"
ORDERS: Mapping[str, Callable[[], Policy]] = {
    BASELINE: LongestPrefix,
    "first come": Fifo,
    "gang": Gang,
    "shortest remaining": ShortestRemaining,
}


def vote(stopping: str) -> BaseController:
    rule = Even() if stopping == NO_STOP else StaticThreshold(threshold=0.7, knob=3)
    chain = NativeGenerationController(sampling_params={"temperature": 0.7, "max_tokens": 256})
    return MajorityVoteController(chain, default_sample_num=8, allocation=rule)


def search(stopping: str) -> BaseController:
    stop = Unchanged(rounds=10**6) if stopping == NO_STOP else Certaindex("rebase_math", every=4)
    strategy = {"type": "Rebase", "args": {"width": 8, "max_depth": 6}}
    return SearchController(strategy, steps=16, max_tokens=240, budget=96, stop=stop)


WORKLOADS = {"votes": vote, "searches": search}


class Cell(NamedTuple):
    """Served programs of a cell, in the order of their arrival; and tokens of the whole run."""

    seconds: npt.NDArray[np.float64]
    right: npt.NDArray[np.float64]
    prefilled: int
    evicted: int


class Load(NamedTuple):
    """Questions and the worker that serves them."""

    model: str
    questions: Sequence[Example]
    places: int
    num_blocks: int
    seed: int

    def served(
        self, program: BaseController, at: npt.NDArray[np.float64], eviction: EvictionPolicy, order: Policy
    ) -> Cell:
        """Serve the questions with a new worker, whose cache is empty."""
        engine = worker(self.model, Order(eviction, True), self.num_blocks, max_batch_size=self.places)
        prompting = Prompting(tokenizer=engine.chat_tokenizer())
        with engine, hosted(program, engine, prompting, 256, self.seed, order) as llm:
            served = serve(llm, self.questions[: len(at)], at)
            return Cell(served.seconds, served.correct, engine.metrics.num_prefilled, engine.metrics.num_evicted)


def add_workload(report: Report, name: str, load: Load, share: float) -> None:
    """Each cell of the factorial, and its seconds against those of the paper's baseline."""
    make, num = WORKLOADS[name], len(load.questions)
    crowd = load.served(make(NO_STOP), np.zeros(num), "lru", Fifo())
    apart = load.served(make(NO_STOP), 1e4 * np.arange(max(2, num // 4)), "lru", Fifo())
    rate = share * num / crowd.seconds.max()
    limit = SLO * apart.seconds.mean()
    report.figure(f"{name}: arrivals per second", float(rate))
    report.figure(f"{name}: seconds alone", float(apart.seconds.mean()))
    arrivals, blocks = arrival_times(rate, num, report.rng), NUM_BLOCKS * np.arange(num) // num
    cells = [(stopping, order, eviction) for stopping in STOPPINGS for order in ORDERS for eviction in EVICTIONS]
    found = {cell: load.served(make(cell[0]), arrivals, cell[2], ORDERS[cell[1]]()) for cell in track(cells, name)}
    for (stopping, order, eviction), own in found.items():
        said = f"{name}, {stopping}, {order}, {eviction}"
        baseline = found[stopping, BASELINE, "lru"]
        report.difference(f"{said}: mean seconds", own.seconds, questions=blocks)
        report.figure(f"{said}: p90", float(np.quantile(own.seconds, 0.9)))
        report.difference(f"{said}: in time", own.seconds <= limit, questions=blocks)
        report.difference(f"{said}: right", own.right, questions=blocks)
        report.figure(f"{said}: prefilled tokens", own.prefilled)
        report.figure(f"{said}: evicted blocks", own.evicted)
        report.ratio(f"{said}: seconds, times the baseline", own.seconds, baseline.seconds, blocks)
        report.ratio(f"{said}: seconds, times no stop", own.seconds, found[NO_STOP, order, eviction].seconds, blocks)


@benchmark("studies.orders")
@click.option("--model", default="tinylm/draft", show_default=True, help="The model.")
@size("--num_programs", 80, quick=6, help="Programs of a cell.", least=6)
@size("--places", 16, quick=16, help="Requests that a step computes.")
@size("--num_blocks", 48, quick=48, help=f"Blocks of the cache, {TOKENS_PER_BLOCK} tokens each.")
@click.option("--share", default=0.8, show_default=True, help="Share of the rate of a crowd.")
@click.option("--workload", type=click.Choice(list(WORKLOADS)), multiple=True, default=list(WORKLOADS))
def main(
    report: Report,
    model: str,
    num_programs: int,
    places: int,
    num_blocks: int,
    share: float,
    workload: tuple[str, ...],
) -> None:
    """Mean seconds, answers in time and prefilled tokens by order, eviction and stopping, on an embedded model."""
    questions = load_dataset(EMBEDDED, num_samples=num_programs, seed=report.seed)
    for name in workload:
        add_workload(report, name, Load(model, questions, places, num_blocks, report.seed), share)


if __name__ == "__main__":
    main()
