"""Measures what a shared prefix's KV saves, and what skipped or early verdicts save on top of it.

    python -m benchmarks.studies.kv_sharing --store runs/kv_sharing --plot_path runs/kv_sharing.png

Branches are written on one prefix and judged, by switches of the same worker:

- no KV: nothing is reused; every branch and every verdict reads all of its tokens.
- shared prefix: branches share the prefix; a verdict reads problem and branch again (RKSC's token-exact baseline).
- cached blocks: what engines do, generated tokens cached too, in whole blocks; a verdict reads the tokens behind the
  last whole block of its branch, and its question. The honest baseline.
- gates: cached blocks, with a skip gate and a layer exit that were fitted to other prefixes of the cell.
- no verdicts: cached blocks without any verdict. The ceiling of what gates can save.

A figure is the median over prefixes of the ratio of CPU seconds (on a GPU of seconds) within one round, in which each
switch comes once, in another order each time; intervals are 95 %, by bootstrap. Wall-clock stands beside it. Short
branches flatter sharing: at 8 tokens nearly all of the work is reading the prefix.

`--shape 30m` takes a randomly initialised model in the place of a trained one: for the time of sharing alone, since its
confidences and verdicts mean nothing. On a GPU: `--device cuda --shape 7b`, with 40 GB of memory.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import bootstrap
from transformers import AutoModelForCausalLM

from benchmarks._lib.command import benchmark, plotted, size, stored, track
from benchmarks._lib.decode_rate import SHAPES, random_model
from benchmarks._lib.drawing import Figures, beside, drawing, of, points
from benchmarks._lib.report import Report
from benchmarks._lib.store import kept
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate, fit_gate
from scaffolding_ext.controllers.tree.gates.layer_exit import fit_layer_exit
from scaffolding_ext.evaluation.run.datasets import embedded_problems
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.protocol.branching import BranchTask, LayerExit, VerifyTask
from scaffolding_ext.protocol.lowering import lower_branch, write_back_branch
from scaffolding_ext.stats.intervals import Estimate
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

NUM_BRANCHES = 8
NO_KV, SHARED, BLOCKS = "no KV", "shared prefix", "cached blocks"
GATES, CEILING = "gates", "no verdicts"
PUBLISHED = {NO_KV: 3.0, SHARED: 1.66}  # what the paper saves against these
Floats = npt.NDArray[np.float64]
LEAST_CLOSED, LEAST_SKIPPED, LEAST_EXITS, MOST_CHANGED = 0.6, 0.4, 0.5, 0.005


class Gates(NamedTuple):
    """The gates that were fitted to prefixes of a cell.

    Attributes:
        skip: When no verdict is asked for.
        leave: When a verdict is read early; None where no rule leaves enough choices as they are.
        num_layers: Of the model.
    """

    skip: ConfidenceGate
    leave: LayerExit | None
    num_layers: int


class Round(NamedTuple):
    """The result of one switch on one prefix, and its cost.

    Attributes:
        choice: The branch that is selected: by score times the square root of its confidence, or by the gate.
        surest: The branch of the highest confidence, which a skip at random would select.
        skipped: Whether no verdict was asked for.
        exits: Share of the verdicts that were read before the last layer.
        cpu_s: CPU seconds of this process; on a GPU seconds.
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
        options: Of the workers, with the loaded model; every switch of every round gets workers that have seen nothing.
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
        self._clock = time.process_time if options["model"].device.type == "cpu" else time.perf_counter

    def fitted(self, prefixes: Sequence[list[int]]) -> Gates:
        """Gates for prefixes like these."""
        confidences, curves = [], []
        with self._worker(BLOCKS) as worker:
            for seed, prefix in enumerate(prefixes):
                task = asyncio.run(self._written(worker, prefix, seed))
                confidences.append(task.confidences or [])
                yes, no = self._verdicts
                asked = VerifyTask(branches=self._questioned(task), yes_token=yes, no_token=no, every_layer=True)
                asyncio.run(worker.run_task(asked))
                curves += asked.curves or []
        weights = np.sqrt([value for each in confidences for value in each])[:, None]
        entropies, scores = np.moveaxis(np.array(curves), -1, 0)
        groups = np.repeat(np.arange(len(prefixes)), NUM_BRANCHES)
        rule = fit_layer_exit(entropies, scores * weights, groups).rule
        return Gates(fit_gate(confidences), rule, entropies.shape[1])

    def run(self, switch: str, prefix: list[int], seed: int, gates: Gates | None) -> Round:
        """Write branches and judge them, by one of the switches; without gates there is nothing to skip."""
        own = gates if switch == GATES else None
        with self._worker(switch) as writer, self._judge(switch, writer) as judge:
            wall, cpu = time.perf_counter(), self._clock()
            task = asyncio.run(self._written(writer, prefix, seed))
            confidences = task.confidences or []
            leader = own.skip.leader(confidences) if own else None
            yes, no = self._verdicts
            verify = VerifyTask(branches=self._questioned(task), yes_token=yes, no_token=no)
            verify.layer_exit = own.leave if own else None
            if leader is None and switch != CEILING:
                asyncio.run(judge.run_task(verify))
            wall, cpu = time.perf_counter() - wall, self._clock() - cpu
        surest = int(np.argmax(confidences))
        if verify.scores is None:
            return Round(surest if leader is None else leader, surest, leader is not None, 0.0, cpu, wall)
        choice = int(np.argmax(np.array(verify.scores) * np.sqrt(confidences)))
        early = [layer < own.num_layers for layer in verify.exit_layers or ()] if own else []
        return Round(choice, surest, False, float(np.mean(early or [False])), cpu, wall)

    def _worker(self, switch: str) -> HuggingFaceWorker:
        return HuggingFaceWorker(**self._options, enable_block_reuse=switch != NO_KV)

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


def prefixes_of(model: str, num: int, length: int, seed: int) -> list[list[int]]:
    """Prompts of exactly so many tokens: worked problems, and the beginning of one more's thinking."""
    tokenizer = load_tokenizer(model)
    texts = iter(embedded_problems(num * (2 + length // 16), seed))
    found = []
    for _ in range(num):
        ids: list[int] = []
        while len(ids) < length:
            ids += tokenizer.encode(f"<|user|>{next(texts).prompt}<|assistant|><think>\n", add_special_tokens=False)
        found.append(ids[-length:])
    return found


def network_of(model: str, shape: str | None, device: str, seed: int) -> Any:
    """The model on its device, loaded once, or a random one of that shape."""
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    if shape is not None:
        return random_model(SHAPES[shape], device, str(dtype).removeprefix("torch."), seed)
    return AutoModelForCausalLM.from_pretrained(model_folder(model), dtype=dtype).to(device)


def median(name: str, values: Sequence[float], report: Report) -> Estimate:
    """Add a median with its bootstrap interval."""
    middle = float(np.median(values))
    found = bootstrap((values,), np.median, method="percentile", rng=report.rng).confidence_interval
    report.figure(name, middle, float(found.low), float(found.high))
    return Estimate(middle, float(found.low), float(found.high))


@benchmark("studies.kv_sharing --store runs/kv_sharing --plot_path runs/kv_sharing.png")
@click.option("--model", default="tinylm/target", show_default=True, help="The model.")
@click.option("--shape", type=click.Choice(list(SHAPES)), help="A random model of this size in its place.")
@click.option("--device", default="cpu", show_default=True, help="A torch device.")
@click.option(
    "--prefix_len", "lengths", type=int, multiple=True, help="Tokens of the prefix.  [default: 128, 256, 512, 1024]"
)
@click.option("--num_tokens", "sizes", type=int, multiple=True, help="Tokens of a branch.  [default: 8, 32, 128, 256]")
@size("--num_prefixes", 12, quick=2, help="Prefixes of a cell, a round each.", least=2)
@size("--num_fitted", 16, quick=2, help="Further prefixes that the gates are fitted to.")
@stored
@plotted
def main(
    report: Report,
    model: str,
    shape: str | None,
    device: str,
    lengths: tuple[int, ...],
    sizes: tuple[int, ...],
    num_prefixes: int,
    num_fitted: int,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """CPU seconds of branches and their verdicts: without KV, with shared prefixes, with cached blocks, with gates."""
    lengths = lengths or ((128,) if report.setting["quick"] else (128, 256, 512, 1024))
    sizes = sizes or ((8,) if report.setting["quick"] else (8, 32, 128, 256))
    report.setting |= {"prefix_len": lengths, "num_tokens": sizes, "num_branches": NUM_BRANCHES, "threads": 1}
    switches = [NO_KV, SHARED, BLOCKS, *([] if shape else [GATES]), CEILING]
    rounds: dict[tuple[int, int], dict[str, list[Round]]] = {}
    named = "tinylm/target" if shape else model
    tokenizer = load_tokenizer(named)
    question = tokenizer.encode("\n\nIs this answer correct? Reply with YES or NO.\n", add_special_tokens=False)
    verdicts = [tokenizer.encode(word, add_special_tokens=False)[0] for word in ("YES", "NO")]
    options = {"model": network_of(model, shape, device, report.seed), "tokenizer": tokenizer, "threads": 1}
    for length, num_tokens in track([(n, t) for n in lengths for t in sizes], "cells"):
        cell = Cell(options, question, (verdicts[0], verdicts[1]), num_tokens)
        prefixes = prefixes_of(named, num_prefixes + num_fitted, length, report.seed)
        run = partial(run_cell, cell, prefixes[:num_prefixes], prefixes[num_prefixes:], switches)
        found = kept(store, f"{shape or 'trained'}_{length}_{num_tokens}", run)
        rounds[length, num_tokens] = {switch: [Round(*row) for row in rows] for switch, rows in found.items()}
    _figures(report, rounds, plot_path)


def _figures(report: Report, rounds: dict[tuple[int, int], dict[str, list[Round]]], plot_path: Path | None) -> None:
    """Ratios of every cell, the bars over all, and the picture."""
    ratios: dict[str, dict[tuple[int, int], Estimate]] = {}
    for cell, done in rounds.items():
        name = "n {}, t {}: ".format(*cell)
        base = done[BLOCKS]
        for switch, others in done.items():
            if switch != BLOCKS:
                found = [other.cpu_s / own.cpu_s for other, own in zip(others, base, strict=True)]
                wall = [other.wall_s / own.wall_s for other, own in zip(others, base, strict=True)]
                ratios.setdefault(switch, {})[cell] = median(f"{name}{switch} to {BLOCKS}", found, report)
                median(f"{name}{switch} to {BLOCKS}, wall-clock", wall, report)
    for switch, published in PUBLISHED.items():
        least = min(estimate.value for estimate in ratios[switch].values())
        report.bar(f"{switch} to {BLOCKS}, the smallest of the cells", least, ">=", published)
    if GATES in ratios:
        _gates(report, rounds)
    if plot_path is not None:
        plot(report.figures, plot_path)


def gap_closed(name: str, gained: Floats, gap: Floats, report: Report) -> Estimate | None:
    """Add the share of a gap that is closed; None, and no interval, where the gap is within the noise of the times."""
    draws = report.rng.integers(len(gap), size=(2000, len(gap)))
    gained_of, gap_of = gained[draws].sum(1), gap[draws].sum(1)
    value = float(gained.sum() / gap.sum())
    report.figure(f"{name}: resamples with a gap", float((gap_of > 0).mean()))
    if gap_of.min() <= 0:
        report.figure(name, value)
        return None
    low, high = np.percentile(gained_of / gap_of, (2.5, 97.5)).tolist()
    report.figure(name, value, low, high)
    return Estimate(value, low, high)


def _gates(report: Report, rounds: dict[tuple[int, int], dict[str, list[Round]]]) -> None:
    """Report the gap between cached blocks and the ceiling that skip gate and layer exit close, and their price."""
    for chosen in [None, *rounds]:
        cells = [done for cell, done in rounds.items() if chosen in (None, cell)]
        name = "all cells: " if chosen is None else "n {}, t {}: ".format(*chosen)
        base, gated, free = (
            np.array([each.cpu_s for done in cells for each in done[switch]]) for switch in (BLOCKS, GATES, CEILING)
        )
        closed = gap_closed(f"{name}share of the gap closed", base - gated, base - free, report)
        taken = [each for done in cells for each in done[GATES]]
        asked = [each.exits for each in taken if not each.skipped]
        changed = [
            own.choice != full.choice for done in cells for own, full in zip(done[GATES], done[BLOCKS], strict=True)
        ]
        skip_rate = report.share(f"{name}skip rate", sum(each.skipped for each in taken), len(taken))
        exit_rate = float(np.mean(asked)) if asked else 0.0
        report.figure(f"{name}exit rate of the verdicts asked for", exit_rate)
        share = report.share(f"{name}choices changed", sum(changed), len(changed))
        unlike = [each.surest != each.choice for done in cells for each in done[BLOCKS]]
        report.figure(f"{name}choices changed by a skip at random, as often", skip_rate * float(np.mean(unlike)))
        if chosen is None:
            report.bar("is there a gap", float(closed is not None), ">=", 1.0)
            if closed is not None:
                report.bar("gap closed", closed.value, ">=", LEAST_CLOSED)
                report.bar("lower end of its interval", closed.low, ">", 0.0)
            report.bar("skip rate", skip_rate, ">=", LEAST_SKIPPED)
            report.bar("exit rate", exit_rate, ">=", LEAST_EXITS)
            report.bar("choices changed", share, "<=", MOST_CHANGED)


def plot(figures: Figures, path: Path) -> None:
    """Draw the CPU seconds of every switch in ratio to cached blocks, cell by cell."""
    found = [re.fullmatch(rf"n (\d+), t (\d+): (.+) to {BLOCKS}", name) for name in figures]
    matches = [match for match in found if match is not None]
    cells = list(dict.fromkeys((match[1], match[2]) for match in matches))
    switches = list(dict.fromkeys(match[3] for match in matches))
    with drawing(path, figsize=(11, 4.8)) as (_, axes):
        for number, switch in enumerate(switches):
            ratios = {
                place: of(figures, f"n {length}, t {size}: {switch} to {BLOCKS}")
                for place, (length, size) in enumerate(cells)
            }
            drawn = {place + 0.1 * (number - len(switches) // 2): each for place, each in ratios.items() if each}
            points(axes, list(drawn), list(drawn.values()), switch, fmt="o")
        axes.axhline(1.0, color="black", linewidth=1.0, label=f"{BLOCKS} (what engines do)")
        axes.set_xticks(np.arange(len(cells)), [f"{length}\n{size}" for length, size in cells])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set(xlabel="tokens of the prefix, and of a branch", ylabel=f"CPU seconds, {BLOCKS} = 1 (log)")
        axes.set_title(f"Above the line {BLOCKS} save; below it something saves on top of them")
        beside(axes)


if __name__ == "__main__":
    main()
