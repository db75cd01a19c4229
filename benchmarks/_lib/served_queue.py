"""Questions that arrive at a running stack by a Poisson process, and how long each was there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from scaffolding_ext import HuggingFaceWorker, Prompting
from scaffolding_ext.controllers.base import BaseController, honoured_by
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.evaluation.run.rows import Example
from scaffolding_ext.evaluation.run.scoring import score
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.scheduling import Policy


class Served(NamedTuple):
    """What became of questions, in the order of their arrival.

    Attributes:
        correct: 1 where the answer was right, else 0.
        seconds: From its arrival to its answer, waiting included.
    """

    correct: Floats
    seconds: Floats


@contextlib.contextmanager
def hosted(
    controller: BaseController,
    worker: HuggingFaceWorker,
    prompting: Prompting,
    at_once: int,
    seed: int,
    scheduling: Policy | None = None,
) -> Iterator[ScaffoldingLlm]:
    """A host on the worker, which stays."""
    controller.prompting = prompting
    workers = {"generation": worker}
    with ScaffoldingLlm(controller, workers, seed=seed, max_parallel_requests=at_once, scheduling=scheduling) as llm:
        yield llm


def poisson(arrival_rate: float, seconds: float, rng: np.random.Generator) -> Floats:
    """Times of arrivals within so many seconds, two at least."""
    number = max(2, rng.poisson(arrival_rate * seconds))
    return np.sort(rng.uniform(0, seconds, number))


def serve(llm: ScaffoldingLlm, questions: Sequence[Example], arrivals: Floats) -> Served:
    """Ask each question when it arrives, and wait for all answers; each is asked as of its `kind`."""

    has_types = "task_type" in honoured_by(llm.prototype_controller)

    async def ask(sample: Example, at: float, origin: float) -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(origin + at - loop.time())
        named = {"task_type": sample.kind} if has_types else {}
        result = llm.generate_async(sample.prompt, sample_id=sample.id, **named)
        await result
        seconds = loop.time() - origin - at
        return float(score(result.answer, sample.target).correct), seconds

    async def ask_all() -> list[tuple[float, float]]:
        origin = asyncio.get_running_loop().time()
        return await asyncio.gather(
            *(ask(sample, at, origin) for sample, at in zip(questions, arrivals.tolist(), strict=True))
        )

    correct, seconds = zip(*asyncio.run(ask_all()), strict=True)
    return Served(np.array(correct), np.array(seconds))
