"""Dynasor's factorial of scheduling, live: order of requests, eviction of KV, and stopping, on an embedded model.

    python -m benchmarks.studies.orders --json > orders.json

Appendix G.2 of the certaindex paper compares its scheduler with the longest-prefix-match order of SGLang; D.3.2 evicts
the KV of idle programs first. Here programs are votes of 8 and REBASE searches. They arrive by a Poisson process at a
worker with few places and a small cache, at a share of the rate that it serves in a crowd without a stop. All cells of
a workload have the same questions, seeds and arrivals. A program is in time within `SLO` times the mean of a program
that runs alone and never stops. Time is counted in passes of the engine, each with `TOKEN` more for each of its tokens,
read or written: what other work on the machine takes does not count. Intervals resample blocks of consecutive arrivals,
since neighbours in a queue are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks._lib.served_queue import PassClock, hosted, serve
from benchmarks._lib.traffic.arrivals import arrival_times
from benchmarks.engines.eviction import TOKENS_PER_BLOCK, Order, worker
from scaffolding_ext import MajorityVoteController, NativeGenerationController, Prompting, SearchController
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.tree.stops import Certaindex, Unchanged
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, load_dataset
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.scheduling import Fifo, Gang, LongestPrefix, Policy, ShortestRemaining
from scaffolding_ext.workers.huggingface.worker import EvictionPolicy

SLO = 3.0
TOKEN = 0.02  # of a pass; a pass over 64 chains takes 2.3 times one over a single chain
MAX_TOKENS, STEP_LEN, LONGEST = 720, 96, 800  # the last one with its prompt
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
    chain = NativeGenerationController(sampling_params={"temperature": 0.7, "max_tokens": MAX_TOKENS})
    return MajorityVoteController(chain, default_sample_num=8, allocation=rule)


def search(stopping: str) -> BaseController:
    stop = Unchanged(rounds=10**6) if stopping == NO_STOP else Certaindex("rebase_math", every=4)
    strategy = {"type": "Rebase", "args": {"width": 8, "max_depth": MAX_TOKENS // STEP_LEN}}
    return SearchController(strategy, steps=STEP_LEN, max_tokens=MAX_TOKENS, budget=10_000, stop=stop)


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
        sizes = {"all_blocks": self.places * LONGEST // TOKENS_PER_BLOCK, "max_seq_len": LONGEST}
        engine = worker(self.model, Order(eviction, True), self.num_blocks, max_batch_size=self.places, **sizes)
        prompting = Prompting(tokenizer=engine.chat_tokenizer())
        with engine, hosted(program, engine, prompting, 256, self.seed, order) as llm:
            served = serve(llm, self.questions[: len(at)], at, partial(PassClock, engine, TOKEN))
            return Cell(served.seconds, served.correct, engine.metrics.num_prefilled, engine.metrics.num_evicted)


def joined(cells: Sequence[Cell]) -> Cell:
    """All rounds of a cell."""
    seconds, right, prefilled, evicted = zip(*cells, strict=True)
    return Cell(np.concatenate(seconds), np.concatenate(right), sum(prefilled), sum(evicted))


def add_workload(report: Report, name: str, loads: Sequence[Load], share: float) -> None:
    """Each cell of the factorial, and its seconds against those of the paper's baseline; a load is a round."""
    make, num = WORKLOADS[name], len(loads[0].questions)
    crowd = loads[0].served(make(NO_STOP), np.zeros(num), "lru", Fifo())
    apart = loads[0].served(make(NO_STOP), 1e6 * np.arange(max(2, num // 4)), "lru", Fifo())
    rate = share * num / crowd.seconds.max()
    limit = SLO * apart.seconds.mean()
    report.figure(f"{name}: arrivals per 1,000 passes", 1000 * float(rate))
    report.figure(f"{name}: passes alone", float(apart.seconds.mean()))
    cells = [(stopping, order, eviction) for stopping in STOPPINGS for order in ORDERS for eviction in EVICTIONS]
    rounds: dict[tuple[str, str, EvictionPolicy], list[Cell]] = {cell: [] for cell in cells}
    for load in loads:
        arrivals = arrival_times(rate, num, report.rng)
        for at in track(report.rng.permutation(len(cells)).tolist(), name):
            stopping, order, eviction = cells[at]
            rounds[cells[at]].append(load.served(make(stopping), arrivals, eviction, ORDERS[order]()))
    found = {cell: joined(each) for cell, each in rounds.items()}
    blocks = NUM_BLOCKS * np.arange(num * len(loads)) // num
    for (stopping, order, eviction), own in found.items():
        said = f"{name}, {stopping}, {order}, {eviction}"
        baseline = found[stopping, BASELINE, "lru"]
        report.difference(f"{said}: mean passes", own.seconds, questions=blocks)
        report.figure(f"{said}: p90", float(np.quantile(own.seconds, 0.9)))
        report.difference(f"{said}: in time", own.seconds <= limit, questions=blocks)
        report.difference(f"{said}: right", own.right, questions=blocks)
        report.figure(f"{said}: prefilled tokens", own.prefilled)
        report.figure(f"{said}: evicted blocks", own.evicted)
        report.ratio(f"{said}: passes, times the baseline", own.seconds, baseline.seconds, blocks)
        report.ratio(f"{said}: passes, times no stop", own.seconds, found[NO_STOP, order, eviction].seconds, blocks)


@benchmark("studies.orders")
@click.option("--model", default="tinylm/draft", show_default=True, help="The model.")
@size("--num_programs", 12, quick=6, help="Programs of a cell and round.", least=6)
@size("--num_rounds", 1, quick=1, help="Rounds, each with its own questions, arrivals and order of the cells.")
@size("--places", 16, quick=16, help="Requests that a step computes.")
@size("--num_blocks", 48, quick=48, help=f"Blocks of the cache, {TOKENS_PER_BLOCK} tokens each.")
@click.option(
    "--share",
    default=1.2,
    show_default=True,
    help="Arrivals by the rate at which a crowd is served; its end is slow, so 1 is no full load.",
)
@click.option("--workload", type=click.Choice(list(WORKLOADS)), multiple=True, default=list(WORKLOADS))
def main(
    report: Report,
    model: str,
    num_programs: int,
    num_rounds: int,
    places: int,
    num_blocks: int,
    share: float,
    workload: tuple[str, ...],
) -> None:
    """Mean time, answers in time and prefilled tokens by order, eviction and stopping, on an embedded model."""
    questions = load_dataset(EMBEDDED, num_samples=num_rounds * num_programs, seed=report.seed)
    loads = [
        Load(model, questions[number::num_rounds], places, num_blocks, report.seed + number)
        for number in range(num_rounds)
    ]
    for name in workload:
        add_workload(report, name, loads, share)


if __name__ == "__main__":
    main()
