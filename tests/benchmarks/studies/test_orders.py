"""Questions that arrive at a stack on the clock of an engine's passes."""

from __future__ import annotations

import asyncio

import numpy as np

from benchmarks.studies.orders import PassClock, asked_when_due
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker


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


def test_a_question_is_asked_when_it_is_due_and_waits_for_nothing_where_nothing_runs() -> None:
    controller = NativeGenerationController({"max_tokens": 4, "temperature": 0.0})
    samples = [Example(str(number), "Start with 4. Find the total.", "4") for number in range(2)]
    worker = HuggingFaceWorker("tinylm/draft", seed=0)
    with worker, ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm:
        clock = PassClock(worker, 0.0)
        passes = asyncio.run(asked_when_due(llm, samples, np.array([0.0, 1e6]), clock))
    assert passes == [4.0, 4.0]
    assert clock.now() == 1e6 + 4
