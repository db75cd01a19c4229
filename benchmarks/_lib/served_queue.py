"""Questions that arrive at a running stack by a Poisson process, and how long each was there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from scaffolding_ext import HuggingFaceWorker, Prompting
from scaffolding_ext.controllers.base import BaseController, honoured_by
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.evaluation.run.scoring import score
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.scheduling import Policy

_TICK = 0.005  # seconds between two looks at the clock


class Served(NamedTuple):
    """The fate of questions, in the order of their arrival.

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


class Clock(Protocol):
    """A clock that can be put forward while nothing runs."""

    def now(self) -> float: ...
    def jump(self, to: float) -> None: ...


class PassClock:
    """Time in passes of an engine: each counts 1, and each of its tokens `token` more. No other work delays it."""

    def __init__(self, worker: HuggingFaceWorker, token: float) -> None:
        self._worker, self._token, self._skipped = worker, token, 0.0

    def now(self) -> float:
        metrics = self._worker.metrics
        return self._skipped + metrics.num_steps + self._token * (metrics.num_decoded + metrics.num_prefilled)

    def jump(self, to: float) -> None:
        self._skipped += max(0.0, to - self.now())


class CpuClock:
    """CPU seconds of this process. They stand still while other work has the processor, and jump where nothing runs."""

    def __init__(self) -> None:
        self._origin = time.process_time()

    def now(self) -> float:
        return time.process_time() - self._origin

    def jump(self, to: float) -> None:
        self._origin -= max(0.0, to - self.now())


def serve(
    llm: ScaffoldingLlm, questions: Sequence[Example], arrivals: Floats, new_clock: Callable[[], Clock] = CpuClock
) -> Served:
    """Ask each question when it arrives, and wait for all answers; each is asked as of its `kind`."""
    has_types = "task_type" in honoured_by(llm.prototype_controller)

    async def ask_all() -> list[tuple[float, float]]:
        clock, open_tasks, asked = new_clock(), set[asyncio.Task[tuple[float, float]]](), []

        async def ask(sample: Example, at: float) -> tuple[float, float]:
            named: dict[str, Any] = {"task_type": sample.kind} if has_types else {}
            result = llm.generate_async(sample.prompt, sample_id=sample.id, **named)
            await result
            return float(score(result.answer, sample.target).correct), clock.now() - at

        for sample, at in zip(questions, arrivals.tolist(), strict=True):
            while clock.now() < at:
                if not open_tasks:
                    clock.jump(at)
                else:
                    await asyncio.sleep(_TICK)
            asked.append(asyncio.create_task(ask(sample, at)))
            open_tasks.add(asked[-1])
            asked[-1].add_done_callback(open_tasks.discard)
        return await asyncio.gather(*asked)

    correct, seconds = zip(*asyncio.run(ask_all()), strict=True)
    return Served(np.array(correct), np.array(seconds))
