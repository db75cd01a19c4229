"""Dynasor's factorial of scheduling, live: order of requests, eviction of KV, and stopping, on an embedded model.

    python -m benchmarks.studies.orders --json > orders.json

Appendix G.2 of the certaindex paper compares its scheduler with the longest-prefix-match order of SGLang; D.3.2 evicts
the KV of idle programs first. Here programs are REBASE searches. They arrive by a Poisson process at a worker with few
places and a small cache, at a share of the rate that it serves in a crowd without a stop. All cells have the same
questions, seed and arrivals. A program is in time within `SLO` times the mean of a program that runs alone and never
stops. Time is counted in passes of the engine, each with `TOKEN` more for each of its tokens, read or written: what
other work on the machine takes does not count. Intervals resample blocks of consecutive arrivals, since neighbours in a
queue are alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks._lib.simulator import arrival_times
from benchmarks.engines.eviction import TOKENS_PER_BLOCK, Order, worker
from scaffolding_ext import HuggingFaceWorker, Prompting, ScaffoldingLlm, SearchController
from scaffolding_ext.controllers.tree.stops import Certaindex, Unchanged
from scaffolding_ext.evaluation.logs.samples import Floats
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, load_dataset
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.scheduling import Fifo, Gang, LongestPrefix, Policy, ShortestRemaining
from scaffolding_ext.workers.huggingface.worker import EvictionPolicy

MODEL, PLACES, NUM_CACHED = "tinylm/draft", 16, 48  # blocks
SHARE = 1.2  # of the rate at which a crowd is served; its end is slow, so 1 is no full load
SLO = 3.0
TOKEN = 0.02  # of a pass; a pass over 64 chains takes 2.3 times one over a single chain
STEP_LEN, MOST_OF_PROMPT = 96, 80  # tokens
NUM_GROUPS = 12  # of arrivals that are resampled together
TICK = 0.005  # seconds between two looks at the clock
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


def search(stopping: str, max_tokens: int) -> SearchController:
    stop = Unchanged(rounds=10**6) if stopping == NO_STOP else Certaindex("rebase_math", every=4)
    strategy = {"type": "Rebase", "args": {"width": 8, "max_depth": max_tokens // STEP_LEN}}
    return SearchController(strategy, steps=STEP_LEN, max_tokens=max_tokens, budget=10_000, stop=stop)


class PassClock:
    """Time in passes of an engine: each counts 1, and each of its tokens `token` more. No other work delays it."""

    def __init__(self, engine: HuggingFaceWorker, token: float) -> None:
        self._engine, self._token, self._skipped = engine, token, 0.0

    def now(self) -> float:
        metrics = self._engine.metrics
        return self._skipped + metrics.num_steps + self._token * (metrics.num_decoded + metrics.num_prefilled)

    def jump(self, to: float) -> None:
        """Put the clock forward while nothing runs."""
        self._skipped += max(0.0, to - self.now())


async def asked_when_due(
    llm: ScaffoldingLlm, questions: Sequence[Example], arrivals: Floats, clock: PassClock
) -> list[float]:
    """Ask each question when it arrives; return the time from its arrival to its answer, waiting included."""
    open_tasks, asked = set[asyncio.Task[float]](), []

    async def ask(sample: Example, at: float) -> float:
        await llm.generate_async(sample.prompt, sample_id=sample.id)
        return clock.now() - at

    for sample, at in zip(questions, arrivals.tolist(), strict=True):
        while clock.now() < at:
            if not open_tasks:
                clock.jump(at)
            else:
                await asyncio.sleep(TICK)
        asked.append(asyncio.create_task(ask(sample, at)))
        open_tasks.add(asked[-1])
        asked[-1].add_done_callback(open_tasks.discard)
    return await asyncio.gather(*asked)


class Cell(NamedTuple):
    """The passes of each program, in the order of their arrival, and the tokens that all of them read."""

    passes: Floats
    prefilled: int


class Load(NamedTuple):
    """Questions for the search, and when they arrive."""

    questions: Sequence[Example]
    arrivals: Floats
    max_tokens: int
    seed: int

    def served(self, stopping: str, eviction: EvictionPolicy, order: Policy) -> Cell:
        """Serve the questions with a new worker, whose cache is empty."""
        longest = self.max_tokens + MOST_OF_PROMPT
        sizes = {"all_blocks": PLACES * longest // TOKENS_PER_BLOCK, "max_seq_len": longest}
        engine = worker(MODEL, Order(eviction, True), NUM_CACHED, max_batch_size=PLACES, **sizes)
        program, workers = search(stopping, self.max_tokens), {"generation": engine}
        program.prompting = Prompting(tokenizer=engine.chat_tokenizer())
        with engine, ScaffoldingLlm(program, workers, 256, seed=self.seed, scheduling=order) as llm:
            clock = PassClock(engine, TOKEN)
            passes = asyncio.run(asked_when_due(llm, self.questions, self.arrivals, clock))
            return Cell(np.array(passes), engine.metrics.num_prefilled)


@benchmark("studies.orders")
@size("--num_programs", 12, quick=2, help="Programs of a cell.", least=2)
@size("--max_tokens", 720, quick=192, help="Tokens of a search.", least=STEP_LEN)
def main(report: Report, num_programs: int, max_tokens: int) -> None:
    """Mean time, answers in time and prefilled tokens of searches by order, eviction and stopping."""
    questions = load_dataset(EMBEDDED, num_samples=num_programs, seed=report.seed)
    few = questions[: max(2, num_programs // 4)]
    crowd = Load(questions, np.zeros(num_programs), max_tokens, report.seed).served(NO_STOP, "lru", Fifo())
    apart = Load(few, 1e6 * np.arange(len(few)), max_tokens, report.seed).served(NO_STOP, "lru", Fifo())
    arrivals = arrival_times(SHARE * num_programs / crowd.passes.max(), num_programs, report.rng)
    load, limit = Load(questions, arrivals, max_tokens, report.seed), SLO * apart.passes.mean()
    groups = NUM_GROUPS * np.arange(num_programs) // num_programs
    cells = [(stopping, order, eviction) for stopping in STOPPINGS for order in ORDERS for eviction in EVICTIONS]
    found: dict[tuple[str, str, EvictionPolicy], Cell] = {}
    for stopping, order, eviction in track(cells, "cells"):
        own = found[stopping, order, eviction] = load.served(stopping, eviction, ORDERS[order]())
        said = f"searches, {stopping}, {order}, {eviction}"
        baseline = found[stopping, BASELINE, "lru"]
        report.ratio(f"{said}: passes, times the baseline", own.passes, baseline.passes, groups)
        if eviction == "lru":
            report.difference(f"{said}: mean passes", own.passes, questions=groups)
            report.difference(f"{said}: in time", own.passes <= limit, questions=groups)
            report.figure(f"{said}: prefilled tokens", own.prefilled)


if __name__ == "__main__":
    main()
