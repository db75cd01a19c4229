"""Types of questions on an embedded model: what they gain by budgets, and how long these take."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._lib.served_queue import hosted
from scaffolding_ext import BudgetForcingController, HuggingFaceWorker, Prompting
from scaffolding_ext.cli.main import main as scaffolding_ext
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType
from scaffolding_ext.evaluation.calibrate.budget_sweep import Swept
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.tinylm.grammar import KINDS

BUDGETS = (0, 32, 64, 96, 128, 192, 256, 384)
PLANNED = BUDGETS[:-1]  # chains seldom end before these, so that seconds are a line in the budget
AT_ONCE = 32  # where nothing is timed
ANSWER_TOKENS = 32
DRAWN = {"temperature": 0.7}


def questions(number: int, seed: int, kinds: Sequence[str] = KINDS) -> list[Example]:
    """So many of each kind, the kinds in turn."""
    drawn = [load_dataset("tinylm:held_out", num_samples=number, seed=seed, kind=kind) for kind in kinds]
    return [sample._replace(id=f"{sample.id}-{sample.kind}") for turn in zip(*drawn, strict=True) for sample in turn]


def sweep(store: Path, model: str, samples: Sequence[Example]) -> list[Path]:
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


class Seconds(NamedTuple):
    """How long a question takes that is alone with the engine: a line in its budget, whatever its type.

    Attributes:
        at_once: Seconds without thinking.
        a_token: Seconds a token of thinking.
        variation: Coefficient of variation of the seconds at a budget.
    """

    at_once: float
    a_token: float
    variation: float

    def of(self, swept: Swept) -> tuple[MeasuredType, ...]:
        """The types, with accuracies that were swept and these seconds."""
        mean = tuple(self.at_once + self.a_token * budget for budget in PLANNED)
        spread = tuple(self.variation * each for each in mean)
        return tuple(
            MeasuredType(kind.kind, kind.share, PLANNED, kind.measured().accuracies[: len(PLANNED)], mean, spread)
            for kind in swept.kinds
        )


def timed(worker: HuggingFaceWorker, prompting: Prompting, rounds: int, seed: int) -> Seconds:
    """Time questions that are no others', one after the other, the budgets of a round in an order by chance."""
    samples = iter(questions(rounds * len(PLANNED), seed))
    tokens: list[int] = []
    seconds: list[float] = []
    for turn in range(rounds):
        for budget in np.random.default_rng([seed, turn]).permutation(PLANNED):
            forcing = BudgetForcingController(int(budget), max_answer_tokens=ANSWER_TOKENS, sampling_params=DRAWN)
            with hosted(forcing, worker, prompting, 1, seed) as llm:
                for sample in itertools.islice(samples, len(KINDS)):
                    started = time.process_time()
                    llm.generate(sample.prompt, sample_id=sample.id)
                    seconds.append(time.process_time() - started)
                    tokens.append(int(budget))
    thought, took = np.array(tokens), np.array(seconds)
    at_once = float(took[thought == 0].mean())
    beyond = (took - at_once)[thought > 0].sum()
    a_token = float(beyond / thought.sum())
    return Seconds(at_once, a_token, float(np.sqrt(np.mean((took / (at_once + a_token * thought) - 1) ** 2))))
