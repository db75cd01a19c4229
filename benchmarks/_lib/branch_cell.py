"""A cell of the KV study: branches on prefixes of one length, written and judged by switches of the same worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate, fit_gate
from scaffolding_ext.controllers.tree.gates.layer_exit import fit_layer_exit
from scaffolding_ext.protocol.branching import BranchTask, LayerExit, VerifyTask
from scaffolding_ext.protocol.lowering import lower_branch, write_back_branch
from scaffolding_ext.workers.huggingface.layer_lens import LayerLens
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

NUM_BRANCHES = 8
NO_KV, SHARED, BLOCKS, WHOLE = "no KV", "shared prefix", "cached blocks", "whole blocks"
GATES, CEILING = "gates", "no verdicts"
REUSE = {NO_KV: {"enable_block_reuse": False}, WHOLE: {"enable_partial_reuse": False}}  # the workers of the others: all


class Gates(NamedTuple):
    """What was fitted to prefixes of a cell.

    Attributes:
        skip: When no verdict is asked for.
        leave: When a verdict is read early; None where no rule leaves enough choices as they are.
        num_layers: Of the model.
    """

    skip: ConfidenceGate
    leave: LayerExit | None
    num_layers: int


class Round(NamedTuple):
    """What one switch gave on one prefix, and took.

    Attributes:
        choice: The branch that is selected: by score times the square root of its confidence, or by the gate.
        surest: The branch of the highest confidence, which a skip at random would select.
        skipped: Whether no verdict was asked for.
        exits: Share of the verdicts that were read before the last layer.
        cpu_s: CPU seconds of this process.
        wall_s: Seconds.
    """

    choice: int
    surest: int
    skipped: bool
    exits: float
    cpu_s: float
    wall_s: float


class Cell:
    """Branches of `num_tokens` tokens on prefixes of one length.

    Args:
        options: Of the workers; every switch of every round gets workers that have seen nothing.
        question: Token ids that ask for a verdict.
        verdicts: Ids of the two verdicts.
        num_tokens: Tokens of a branch.
    """

    def __init__(
        self, options: dict[str, Any], question: list[int], verdicts: tuple[int, int], num_tokens: int
    ) -> None:
        self._options = options
        self._question, self._verdicts = question, verdicts
        self._num_tokens = num_tokens

    def fitted(self, prefixes: Sequence[list[int]]) -> Gates:
        """Gates for prefixes like these."""
        lens = LayerLens(self._options["model"], self._options["dtype"], self._options["device"])
        confidences, curves = [], []
        with self._worker(BLOCKS) as worker:
            for seed, prefix in enumerate(prefixes):
                task = asyncio.run(self._written(worker, prefix, seed))
                confidences.append(task.confidences or [])
                curves += [lens.curve(branch, *self._verdicts) for branch in self._questioned(task)]
        weights = np.sqrt([value for each in confidences for value in each])[:, None]
        entropies, scores = (np.stack(values) for values in zip(*curves, strict=True))
        groups = np.repeat(np.arange(len(prefixes)), NUM_BRANCHES)
        rule = fit_layer_exit(entropies, scores * weights, groups).rule
        return Gates(fit_gate(confidences), rule, entropies.shape[1])

    def run(self, switch: str, prefix: list[int], seed: int, gates: Gates | None) -> Round:
        """Write branches and judge them, by one of the switches; without gates there is nothing to skip."""
        own = gates if switch == GATES else None
        with self._worker(switch) as writer, self._judge(switch, writer) as judge:
            wall, cpu = time.perf_counter(), time.process_time()
            task = asyncio.run(self._written(writer, prefix, seed))
            confidences = task.confidences or []
            leader = own.skip.leader(confidences) if own else None
            yes, no = self._verdicts
            verify = VerifyTask(branches=self._questioned(task), yes_token=yes, no_token=no)
            verify.layer_exit = own.leave if own else None
            if leader is None and switch != CEILING:
                asyncio.run(judge.run_task(verify))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        surest = int(np.argmax(confidences))
        if verify.scores is None:
            return Round(surest if leader is None else leader, surest, leader is not None, 0.0, cpu, wall)
        choice = int(np.argmax(np.array(verify.scores) * np.sqrt(confidences)))
        early = [layer < own.num_layers for layer in verify.exit_layers or ()] if own else []
        return Round(choice, surest, False, float(np.mean(early or [False])), cpu, wall)

    def _worker(self, switch: str) -> HuggingFaceWorker:
        return HuggingFaceWorker(**self._options, **REUSE.get(switch, {}))

    def _judge(self, switch: str, writer: HuggingFaceWorker) -> Any:
        return self._worker(NO_KV) if switch == SHARED else nullcontext(writer)

    def _questioned(self, task: BranchTask) -> list[list[int]]:
        return [[*task.prefix_tokens, *ids, *self._question] for ids in task.output_tokens or ()]

    async def _written(self, worker: HuggingFaceWorker, prefix: list[int], seed: int) -> BranchTask:
        seeds = [seed * NUM_BRANCHES + number for number in range(NUM_BRANCHES)]
        suffixes: list[list[int]] = [[] for _ in seeds]
        task = BranchTask(prefix_tokens=prefix, suffixes=suffixes, max_tokens=self._num_tokens, seeds=seeds)
        task.temperature = 0.7
        if BranchTask in worker.task_handlers:
            await worker.run_task(task)
        else:
            lowered = lower_branch(task)
            await asyncio.gather(*[worker.run_task(each) for each in lowered])
            write_back_branch(task, lowered)
        return task


def run_cell(
    cell: Cell, prefixes: Sequence[list[int]], others: Sequence[list[int]], switches: Sequence[str]
) -> dict[str, list[Round]]:
    """Rounds of every switch on prefixes, in turns; the gates are fitted to the others."""
    gates = cell.fitted(others) if GATES in switches else None
    cell.run(BLOCKS, others[-1], 0, None)  # the first run of a shape is slow
    done: dict[str, list[Round]] = {switch: [] for switch in switches}
    for number, prefix in enumerate(prefixes):
        turn = number % len(switches)
        for switch in (*switches[turn:], *switches[:turn]):
            done[switch].append(cell.run(switch, prefix, 1000 + number, gates))
    return done
