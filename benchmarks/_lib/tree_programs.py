"""Trees of many programs at once: seconds, blocks that they hold, and whether each is the tree that it is alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._lib.lab import Lab
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.tree.score import LogprobScorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Task, TaskStatus
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

AT_ONCE = 16
NUM_TIMED = 16  # programs
STEP_LEN = 48  # tokens


class CountingWorker(HuggingFaceWorker):
    """Knows the most blocks that its requests held together, and the distinct tokens that they held then.

    A look is taken whenever a task has been handed over and whenever one ends.
    """

    def __init__(self, model: str, **engine: Any) -> None:
        super().__init__(model, **engine)
        self.most_blocks = 0

    async def run_task(self, task: Task) -> TaskStatus:
        running = asyncio.ensure_future(super().run_task(task))
        while not running.done():
            self.most_blocks = max(self.most_blocks, self.metrics.num_held_blocks)
            await asyncio.wait([running], timeout=0.02)
        return running.result()


def run_trees(
    model: str, problems: Sequence[Any], width: int, at_once: int, seed: int, **engine: Any
) -> dict[str, Any]:
    """REBASE on problems: seconds, most blocks, most distinct tokens of each tree, and every tree."""
    worker_type: type[HuggingFaceWorker] = CountingWorker
    with Lab({"generation": model}, seed=seed, worker=worker_type, max_batch_size=64, **engine) as lab:
        controller = SearchController(
            Rebase(width),
            LogprobScorer(),
            steps=STEP_LEN,
            max_tokens=1000,
            budget=100 * width,
            sampling_params={"temperature": 0.8},
        )
        controller.prompting = lab.prompting
        began = time.perf_counter()
        with ScaffoldingLlm(controller, dict(lab.workers), seed=seed, max_parallel_requests=at_once) as llm:
            results = [llm.generate_async(problem.question, sample_id=problem.question) for problem in problems]
            done = [result.result() for result in results]
        seconds = time.perf_counter() - began
        most_blocks = lab.workers["generation"].most_blocks  # type: ignore[attr-defined]
    trees = [
        [
            [event["paths"], event["num_tokens"], event["answers"]]
            for event in each.program.trace
            if event["event"] == "branches"
        ]
        for each in done
    ]
    held = [
        next(event["most_tokens_held"] for event in each.program.trace if event["event"] == "tree") for each in done
    ]
    answers = [each.outputs[0].text for each in done]
    return {"seconds": seconds, "most_blocks": most_blocks, "held": held, "trees": trees, "answers": answers}


def add_programs(report: Report, model: str, problems: Sequence[Any], width: int, store: Path | None) -> None:
    """Seconds at 1 and 16 programs, blocks with and without sharing, and trees alone and among 16."""
    block = 32  # tokens, the engine's
    timed = problems[:NUM_TIMED]
    runs = {
        "1 program at once": run_trees(model, timed, width, 1, report.seed),
        "16 programs at once": run_trees(model, timed, width, AT_ONCE, report.seed),
        "16 programs at once, without sharing": run_trees(
            model, timed, width, AT_ONCE, report.seed, enable_block_reuse=False
        ),
    }
    for name, run in runs.items():
        report.figure(f"{name}: seconds for {len(timed)} programs", run["seconds"])
        report.figure(f"{name}: most blocks held", run["most_blocks"])
    together, apart = runs["16 programs at once"], runs["16 programs at once, without sharing"]
    distinct = sum(together["held"]) / block
    report.figure("16 programs at once: blocks of their trees' distinct tokens", distinct)
    report.figure("without sharing, blocks in ratio to sharing", apart["most_blocks"] / together["most_blocks"])
    report.bar(
        "most blocks held, in ratio to those of the distinct tokens", together["most_blocks"] / distinct, "<=", 1.3
    )
    among = run_trees(model, problems, width, AT_ONCE, report.seed)
    alone = run_trees(model, problems, width, 1, report.seed)
    same = sum(
        (one, other) == (two, another)
        for one, two, other, another in zip(
            alone["trees"], among["trees"], alone["answers"], among["answers"], strict=True
        )
    )
    report.share("trees that are the same alone and among 16", same, len(problems))
    report.bar("trees that are the same alone and among 16", same / len(problems), ">=", 1.0)
