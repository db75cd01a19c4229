"""Questions that arrive at a stack: all are asked, as of their type, and come back in the order of arrival."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from benchmarks._lib.served_queue import CpuClock, PassClock, poisson, serve
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queue_aware_budget import QueueAwareBudgetController
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PROBE, purpose_of
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

TYPES = tuple(TaskType(name, 0.5, A=0.5, b=0.1, D=0.3, t0=0.2, c=0.01) for name in ("sums", "proofs"))


@pytest.mark.parametrize("at_once", [1, 4])
def test_each_question_is_asked_as_of_its_type(at_once: int) -> None:
    plan = PlannedBudgets(demand=Demand(TYPES, 1.0, 10, 50), budgets={"sums": 5, "proofs": 9}, mixture_budget=7)
    controller = QueueAwareBudgetController(plan, generation_controller=BudgetForcingController(50, family="tinylm"))
    worker = ScriptedWorker(lambda task: "4}" if purpose_of(task) == PROBE else "thinking " * 9)
    samples = [
        Example("a", "What?", "4", "sums"),
        Example("b", "Why?", "5", "proofs"),
        Example("c", "How?", "4", "sums"),
    ]
    with ScaffoldingLlm(controller, {"generation": worker}, max_parallel_requests=at_once) as llm:
        served = serve(llm, samples, np.zeros(3))
    assert served.correct.tolist() == [1, 0, 1]
    assert (served.seconds > 0).all()
    asked = [task.max_tokens for task in worker.tasks if purpose_of(task) != PROBE]  # type: ignore[attr-defined]
    assert sorted(asked) == [5, 5, 9]


def test_arrivals_are_poisson() -> None:
    rng = np.random.default_rng(0)
    numbers = [len(poisson(2.0, 50, rng)) for _ in range(200)]
    assert np.mean(numbers) == pytest.approx(100, abs=3)  # four standard errors
    assert np.var(numbers) == pytest.approx(100, rel=0.4)
    times = poisson(2.0, 50, rng)
    assert (np.diff(times) >= 0).all()
    assert times[-1] <= 50


def test_the_clock_stands_still_and_jumps() -> None:
    clock = CpuClock()
    clock.jump(5.0)
    assert 5.0 <= clock.now() < 6.0
    clock.jump(2.0)  # never back
    assert clock.now() >= 5.0


def test_the_clock_of_passes_counts_what_the_engine_computes_and_jumps() -> None:
    with HuggingFaceWorker("tinylm/draft", seed=0) as worker:
        clock = PassClock(worker, 0.5)
        assert clock.now() == 0
        asyncio.run(worker.run_task(GenerationTask(input_tokens=[5, 6, 7], max_tokens=4, ignore_eos=True)))
        # one pass reads three tokens and writes the first, and each of three passes writes another one
        assert clock.now() == 4 + 0.5 * (3 + 3)
        clock.jump(100.0)
        clock.jump(50.0)
        assert clock.now() == 100
