"""Measures orders of eviction in prefilled tokens: the paper's, least recent use, and need.

    python -m benchmarks.engines.eviction

Loads meet a cache that holds a part of their KV: searches of three strategies, branching with verdicts, and a plain
prompt that comes again between branches. `branch_score` is the order of RKSC (algorithm 4), `lru` evicts what was used
longest ago, and with `frontier` a search also says before each round which nodes it can still grow, and the worker
frees its other KV. Each order answers the same questions with the same seeds. The stress test is RKSC's (table 11): of
2,080 scored blocks, the 80 that a cache of 2,000 drops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, load_dataset
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller, GenerationTask
from scaffolding_ext.protocol.branching import BranchTask, block_score
from scaffolding_ext.protocol.meta import TokenCounts, token_counts_of
from scaffolding_ext.protocol.tasks import KeepKVTask
from scaffolding_ext.workers.huggingface.block_pool import BlockPool, BlockPriority, TokenSequence
from scaffolding_ext.workers.huggingface.worker import EvictionPolicy, HuggingFaceWorker

TOKENS_PER_BLOCK = 16
PLAIN = "a plain prompt between branches"
MOST_TO_LRU = 1.1
SEARCHES = {
    "beam": {"type": "Beam", "args": {"width": 6, "keep": 3}},
    "rebase": {"type": "Rebase", "args": {"width": 6}},
    "mcts": {"type": "MCTS", "args": {"branching": 3}},
}


class Order(NamedTuple):
    """An order of eviction, and whether searches say what they can still use."""

    policy: EvictionPolicy
    says: bool


ORDERS = {"branch_score": Order("branch_score", False), "lru": Order("lru", False), "frontier": Order("lru", True)}


def worker(
    model: str, order: Order, num_blocks: int, all_blocks: int | None = None, **options: Any
) -> HuggingFaceWorker:
    """A worker whose cache has so many blocks; its running requests hold at most `all_blocks` less those cached."""
    probe = HuggingFaceWorker(model, tokens_per_block=TOKENS_PER_BLOCK, max_seq_len=512)
    kv = probe._engine._batch._runner.kv
    block_bytes = kv.num_bytes // kv.num_blocks
    probe.shutdown()
    made = HuggingFaceWorker(
        model,
        tokens_per_block=TOKENS_PER_BLOCK,
        prefix_cache_bytes=num_blocks * block_bytes,
        kv_cache_bytes=all_blocks and all_blocks * block_bytes,
        eviction_policy=order.policy,
        seed=0,
        **options,
    )
    if not order.says:
        made.task_handlers = {kind: serve for kind, serve in made.task_handlers.items() if kind is not KeepKVTask}
    return made


def searched(engine: HuggingFaceWorker, controller: Controller, questions: list[str]) -> int:
    """Prefilled tokens of questions asked one after the other: what is evicted then does not depend on time."""
    with ScaffoldingLlm(controller, {"generation": engine}, seed=0) as llm:
        for number, question in enumerate(questions):
            llm.generate(question, sample_id=str(number))
        return engine.metrics.num_prefilled


def search(strategy: str) -> SearchController:
    """A search of a strategy, with steps of the embedded models."""
    return SearchController(SEARCHES[strategy], steps=16, max_tokens=240, budget=48, insist_on_answer=False)


def shared(engine: HuggingFaceWorker, num_times: int) -> int:
    """Prefilled tokens of a plain prompt that comes again and again, between the branches of others."""
    prompt = [5 + 37 * place % 400 for place in range(183)]

    async def run() -> int:
        prefilled = 0
        for number in range(num_times):
            prefix = [5 + (number + 13 * place) % 400 for place in range(64)]
            branches = BranchTask(prefix_tokens=prefix, suffixes=[[9 + n] for n in range(6)], max_tokens=40)
            branches.seeds = list(range(6))
            await engine.run_task(branches)
            plain = GenerationTask(input_tokens=prompt, max_tokens=4, temperature=0.0)
            await engine.run_task(plain)
            prefilled += (token_counts_of(plain) or TokenCounts()).prefilled
        return prefilled

    with engine:
        return asyncio.run(run())


def stressed(rng: np.random.Generator, max_cached: int = 2000, num_evicted: int = 80) -> int:
    """Number of blocks evicted from a full cache that were of the lowest score by depth."""
    pool = BlockPool(max_cached + num_evicted, TOKENS_PER_BLOCK, max_cached)
    scores, depths = rng.random(pool.num_blocks), rng.integers(0, 4, pool.num_blocks)
    omegas = [block_score(score, int(depth)) for score, depth in zip(scores, depths, strict=True)]
    blocks = [TokenSequence([number] * TOKENS_PER_BLOCK) for number in range(pool.num_blocks)]
    for block, omega in zip(blocks, omegas, strict=True):
        pool.begin(block, [], announces=False)
        pool.advance([(block, TOKENS_PER_BLOCK)])
        pool.free(block, keep=True, priority=BlockPriority(0, omega))
    return sum(not pool.find(blocks[lowest], TOKENS_PER_BLOCK) for lowest in np.argsort(omegas)[:num_evicted])


@benchmark("engines.eviction")
@click.option("--model", default="tinylm/target", show_default=True, help="The model.")
@size("--num_questions", 12, quick=1, help="Questions of each load.")
@size("--num_blocks", 20, quick=20, help="Blocks of the cache; twice as many for plain prompts between branches.")
def main(report: Report, model: str, num_questions: int, num_blocks: int) -> None:
    """Prefilled tokens by the order of eviction, and what the frontier of a search is worth beside least recent use."""
    questions = [sample.prompt for sample in load_dataset(EMBEDDED, num_samples=num_questions, seed=report.seed)]
    judge = {"type": "verdict", "args": {"weighs_confidence": True}}
    branching = SearchController(Beam(4, 2, 3), judge, selector="vote", steps=24, max_tokens=240)
    loads: dict[str, Callable[[HuggingFaceWorker], int]] = {
        **{f"searches, {name}": partial(searched, controller=search(name), questions=questions) for name in SEARCHES},
        "branching with verdicts": partial(searched, controller=branching, questions=questions),
        PLAIN: partial(shared, num_times=num_questions),
    }
    report.share("stress test: evicted blocks of the lowest score", stressed(report.rng), 80)
    num_fewer = 0
    for load, run in track(loads.items(), "loads"):
        room = 2 * num_blocks if load == PLAIN else num_blocks
        prefilled = {name: run(worker(model, order, room)) for name, order in ORDERS.items()}
        to_lru = prefilled["branch_score"] / prefilled["lru"]
        report.figure(f"{load}: branch_score to lru", to_lru)
        report.bar(f"{load}: prefilled tokens of branch_score to lru", to_lru, "<=", MOST_TO_LRU)
        num_fewer += load.startswith("searches") and prefilled["frontier"] < prefilled["lru"]
    report.bar("searches in which the frontier prefills less than lru", num_fewer, ">=", 1)


if __name__ == "__main__":
    main()
