"""Types of questions on an embedded model: what they gain by budgets, and how long these take."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks._lib.report import Report
from scaffolding_ext import BudgetForcingController, HuggingFaceWorker, Prompting, ScaffoldingLlm
from scaffolding_ext.cli.main import main as scaffolding_ext
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType
from scaffolding_ext.evaluation.calibrate.budget_sweep import Swept
from scaffolding_ext.evaluation.run.datasets import Sample, load_dataset
from scaffolding_ext.tinylm.grammar import KINDS

BUDGETS = (0, 32, 64, 96, 128, 192, 256, 384)
PLANNED = BUDGETS[:-1]  # chains seldom end before these, so that seconds are a line in the budget
AT_ONCE = 32  # where nothing is timed
ANSWER_TOKENS = 32
DRAWN = {"temperature": 0.7}
TIMED_SEED = 4000  # of questions, beside those of the sweep


def questions(number: int, seed: int, kinds: Sequence[str] = KINDS) -> list[Sample]:
    """So many of each kind, the kinds in turn."""
    drawn = [load_dataset("tinylm:held_out", num_samples=number, seed=seed, kind=kind) for kind in kinds]
    return [sample._replace(id=f"{sample.id}-{sample.kind}") for turn in zip(*drawn, strict=True) for sample in turn]


def sweep(store: Path, model: str, samples: Sequence[Sample]) -> list[Path]:
    """Run `scaffolding-ext eval` at every budget, into a folder each; what is there stays."""
    store.mkdir(parents=True, exist_ok=True)
    data = store / "swept.jsonl"
    rows = [{"id": s.id, "prompt": s.prompt, "target": s.target, "kind": s.kind} for s in samples]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    folders = []
    for budget in BUDGETS:
        folders.append(store / f"swept_{budget}")
        if (folders[-1] / "summary.json").exists():
            continue
        settings = {
            "controller.args.thinking_tokens": budget,
            "workers.generation.args.model": model,
            "max_parallel_requests": AT_ONCE,
            "dataset": json.dumps({"source": str(data)}),
        }
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        arguments = ["eval", "--config", "configs:budget_forcing", *sets, "--output_path", str(folders[-1])]
        with contextlib.redirect_stdout(sys.stderr):
            scaffolding_ext(arguments, standalone_mode=False)
    return folders


def timed(
    report: Report, name: str, worker: HuggingFaceWorker, prompting: Prompting, swept: Swept, rounds: int
) -> tuple[MeasuredType, ...]:
    """The types, with accuracies that were swept and seconds by a line: those of their tokens, whatever the type."""
    num_before = len(report.figures)  # questions are new ones at each call
    samples = iter(questions(rounds * len(PLANNED), report.seed + TIMED_SEED + num_before))
    tokens: list[int] = []
    seconds: list[float] = []
    for turn in range(rounds):
        for budget in np.random.default_rng([report.seed, turn]).permutation(PLANNED):
            forcing = BudgetForcingController(int(budget), max_answer_tokens=ANSWER_TOKENS, sampling_params=DRAWN)
            with hosted(forcing, worker, prompting, 1, report.seed) as llm:
                for sample in itertools.islice(samples, len(KINDS)):
                    started = time.perf_counter()
                    llm.generate(sample.prompt, sample_id=sample.id)
                    seconds.append(time.perf_counter() - started)
                    tokens.append(int(budget))
    thought, took = np.array(tokens), np.array(seconds)
    at_once = report.difference(f"{name}: seconds without thinking", took[thought == 0]).value
    beyond, length = (took - at_once)[thought > 0], thought[thought > 0]
    a_token = report.ratio(f"{name}: seconds a token", beyond, length).value
    variation = float(np.sqrt(np.mean((took / (at_once + a_token * thought) - 1) ** 2)))
    report.figure(f"{name}: coefficient of variation of the seconds at a budget", variation)
    mean = tuple(at_once + a_token * budget for budget in PLANNED)
    spread = tuple(variation * each for each in mean)
    return tuple(
        MeasuredType(kind.kind, kind.share, PLANNED, kind.measured().accuracies[: len(PLANNED)], mean, spread)
        for kind in swept.kinds
    )


@contextlib.contextmanager
def hosted(
    controller: BaseController, worker: HuggingFaceWorker, prompting: Prompting, at_once: int, seed: int
) -> Iterator[ScaffoldingLlm]:
    """A host on the worker, which stays."""
    controller.prompting = prompting
    with ScaffoldingLlm(controller, {"generation": worker}, seed=seed, max_parallel_requests=at_once) as llm:
        yield llm
