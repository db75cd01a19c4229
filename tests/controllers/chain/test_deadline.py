"""Chains that end in time for their request's deadline, on a clock that the worker moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.chain import ANSWER_LEN, DEADLINE, LOOP_STEP
from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.stream_chain import StreamChain
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.request.program import Program
from scaffolding_ext.testing import ScriptedWorker

SECONDS_PER_TOKEN = 0.01
NEEDED = (LOOP_STEP + ANSWER_LEN) * SECONDS_PER_TOKEN


class Clock:
    """Moves with the tokens that are written."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(ScriptedWorker):
    """Takes so many seconds for each token of its endless chains; an answer that it is asked for is 7."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lambda task: "7}" if str(task.input_str).endswith("boxed{") else "x" * 5000)
        self.clock = clock

    def _write(self, task: Any, generation: Any, num_tokens: int) -> Any:
        before = len(task.output_tokens or ())
        written = super()._write(task, generation, num_tokens)
        self.clock.now += SECONDS_PER_TOKEN * (len(task.output_tokens or ()) - before)
        return written


def program(clock: Clock, deadline: float | None) -> Program:
    made = Program(seed=1, clock=clock)
    made.lifetime.answer_by = deadline
    return made


@pytest.mark.parametrize("kind", [ChunkChain, StreamChain])
@pytest.mark.parametrize("deadline", [5.0, 20.0])
def test_a_chain_ends_while_there_is_time_for_its_answer(
    kind: Any, deadline: float, prompt: Callable[..., Any], grow: Any, inside: Any
) -> None:
    clock = Clock()
    made = program(clock, deadline)

    def written() -> Any:
        chain = kind(prompt(), 4000, {})
        grow(chain, Timed(clock), 4000)
        return chain

    chain = inside(made, written)
    assert (chain.ended, chain.finish_reason) == (True, DEADLINE)
    left = made.lifetime.left
    assert left is not None
    assert 0 < left < NEEDED  # so late, and no later
    assert [event["event"] for event in made.trace] == [DEADLINE]


@pytest.mark.parametrize("kind", [ChunkChain, StreamChain])
def test_without_a_deadline_or_with_a_far_one_a_chain_has_its_budget(
    kind: Any, prompt: Callable[..., Any], grow: Any, inside: Any
) -> None:
    for deadline in (None, 1000.0):
        clock = Clock()

        def written(clock: Clock = clock) -> Any:
            chain = kind(prompt(), 300, {})
            grow(chain, Timed(clock), 300)
            return chain

        chain = inside(program(clock, deadline), written)
        assert (chain.num_tokens, chain.finish_reason) == (300, "length")


@pytest.mark.parametrize(
    "controller",
    [
        NativeGenerationController({"max_tokens": 4000}),
        BudgetForcingController(4000),
        DynasorCoTController(4000, 1000, mode="chunk", family="deepseek_r1"),
        DynasorCoTController(4000, 1000, family="deepseek_r1"),
    ],
    ids=["plain", "budget", "probes in chunks", "probes of a stream"],
)
def test_controllers_of_chains_ask_for_the_answer_in_time(controller: BaseController, run: Any, inside: Any) -> None:
    clock = Clock()
    made = program(clock, 5.0)
    worker = Timed(clock)
    controller.bind({"generation": worker})
    task = GenerationTask(input_str="2+5? ", input_tokens=[7, 8, 9])

    def answered() -> None:
        run(worker, made.meter.watch(controller.clone().process([task])))

    inside(made, answered)
    fields = task.customized_result_fields
    assert (fields["answer"], fields["exit_reason"]) == ("7", DEADLINE)
    assert clock.now <= 5.0


def test_exact_thinking_is_not_cut(run: Any, inside: Any) -> None:
    clock = Clock()
    worker = Timed(clock)
    controller = BudgetForcingController(900, exact=True)
    controller.bind({"generation": worker})
    task = GenerationTask(input_str="2+5? ", input_tokens=[7, 8, 9])
    inside(program(clock, 5.0), lambda: run(worker, controller.clone().process([task])))
    assert clock.now > 5.0
