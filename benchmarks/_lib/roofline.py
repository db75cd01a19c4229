"""What a step of an engine costs whatever its tokens, and what each token adds: measured, and fitted by two lines."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks._lib.lab import Lab
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.continuous_batch import EngineMetrics

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT_LEN = 200  # tokens: about the middle of an embedded model's chain
NUM_DECODED = 24
SETTLED_S = 0.05  # an engine tells of a step after the requests that end with it
NUM_TOKEN_IDS = 400  # the embedded vocabulary is a little larger


class Roofline(NamedTuple):
    """Seconds of a step: `step_s + decode_s * tokens decoded + read_s * tokens read`.

    Attributes:
        step_s: What a step costs whatever its tokens: the weights are read, and every layer is called once.
        decode_s: What a row that decodes adds.
        read_s: What a token adds that is read or scored.
        error: Median relative error of the fit over the measured runs.
    """

    step_s: float
    decode_s: float
    read_s: float
    error: float

    def compute_share(self, num_steps: float, num_decoded: float, num_read: float) -> float:
        """Share of the busy time that grows with the tokens; the rest is what the steps cost whatever their tokens.

        0 of an engine that did nothing.
        """
        compute = self.decode_s * num_decoded + self.read_s * num_read
        all_s = compute + self.step_s * num_steps
        return compute / all_s if all_s else 0.0

    def seconds(self, num_steps: float, num_decoded: float, num_read: float) -> float:
        """Busy time that the fit expects."""
        return self.step_s * num_steps + self.decode_s * num_decoded + self.read_s * num_read


def fit(runs: list[tuple[float, float, float, float]]) -> Roofline:
    """Least squares of relative errors, no coefficient below 0.

    Args:
        runs: Steps, tokens decoded, tokens read, and busy seconds of each run.
    """
    rows = np.array(runs, dtype=float)
    scaled = rows[:, :3] / rows[:, 3:]
    kept = [0, 1, 2]
    found = np.zeros(3)
    while kept:
        found = np.zeros(3)
        found[kept] = np.linalg.lstsq(scaled[:, kept], np.ones(len(rows)), rcond=None)[0]
        if found.min() >= 0:
            break
        kept.remove(int(found.argmin()))
    errors = np.abs(scaled @ found - 1)
    return Roofline(*found.tolist(), error=float(np.median(errors)))


def measured(lab: Lab, tag: str, rng: np.random.Generator, batch_sizes: Sequence[int]) -> Roofline:
    """Fit an engine's steps at some batch sizes, each with rows that decode and with prompts that are only read.

    Args:
        lab: Has the engine, idle, and the store from which the fit is taken where it is there.
        tag: Of the engine.
        rng: Draws the prompts.
        batch_sizes: Rows at once.
    """
    return Roofline(*lab.stored(f"roofline_{tag}", lambda: fit(_runs(lab, tag, rng, batch_sizes))))


def _runs(
    lab: Lab, tag: str, rng: np.random.Generator, batch_sizes: Sequence[int]
) -> list[tuple[float, float, float, float]]:
    runs = []
    for batch_size, num_tokens, _ in itertools.product(batch_sizes, (1, NUM_DECODED), range(2)):
        prompts = rng.integers(5, NUM_TOKEN_IDS, (batch_size, CONTEXT_LEN)).tolist()
        before = lab.workers[tag].metrics
        lab.ask(
            tag,
            [
                GenerationTask(input_tokens=prompt, max_tokens=num_tokens, ignore_eos=True, temperature=0.7, seed=i)
                for i, prompt in enumerate(prompts)
            ],
        )
        time.sleep(SETTLED_S)
        runs.append(_between(before, lab.workers[tag].metrics))
    return runs


def _between(before: EngineMetrics, after: EngineMetrics) -> tuple[float, float, float, float]:
    return (
        after.num_steps - before.num_steps,
        after.num_decoded - before.num_decoded,
        after.num_prefilled - before.num_prefilled,
        after.busy_s - before.busy_s,
    )
