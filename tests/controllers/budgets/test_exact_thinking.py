"""Thinking that is exact to the token, and thinking that another controller writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol.meta import PROBE, Purpose, purpose_of
from scaffolding_ext.testing import ScriptedWorker

THINKING = "Okay, let me work step by step. "
CLOSED = THINKING + "</think>\nThe answer is \\boxed{9}."


@pytest.fixture(scope="module")
def prompting() -> Prompting:
    return Prompting.for_model("tinylm/target")


class Speaking(ScriptedWorker):
    """Says its pieces in turn, in the model's tokens, the last of them again and again; 4 where it is asked."""

    def __init__(self, prompting: Prompting, pieces: Sequence[str], ends_with: Sequence[int] = ()) -> None:
        self._prompting = prompting
        self.said = 0

        def reply(task: Any) -> list[int]:
            if purpose_of(task) == PROBE:
                return prompting.encode("4}.")
            piece = pieces[min(self.said, len(pieces) - 1)]
            self.said += 1
            return [*prompting.encode(piece), *ends_with]

        super().__init__(reply)

    def _write(self, task: Any, generation: Any, num_tokens: int) -> None:
        super()._write(task, generation, num_tokens)
        task.output_str = self._prompting.decode(task.output_tokens)


def answered(prompting: Prompting, controller: BaseController, worker: ScriptedWorker, **kwargs: Any) -> Any:
    controller.prompting = prompting
    with ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm:
        return llm.generate("What is 2+2?", **kwargs)


def event(result: Any) -> dict[str, Any]:
    (found,) = (event for event in result.program.trace if event["event"] == "thinking_budget")
    return found  # type: ignore[no-any-return]


def thinking(prompting: Prompting, result: Any) -> list[int]:
    """The ids before the closing text that the controller puts."""
    ids, close = result.outputs[0].token_ids, prompting.encode(prompting.family.close)
    (at,) = (n for n in range(len(ids)) if ids[n : n + len(close)] == close)
    return ids[:at]  # type: ignore[no-any-return]


@pytest.mark.parametrize("budget", [0, 7, 31, 100])
@pytest.mark.parametrize("pieces", [[CLOSED], [THINKING], ["</think>"], [CLOSED, THINKING * 20]])
def test_thinking_is_exact_to_the_token(prompting: Prompting, budget: int, pieces: list[str]) -> None:
    result = answered(prompting, BudgetForcingController(budget, exact=True), Speaking(prompting, pieces))
    assert len(thinking(prompting, result)) == budget
    assert event(result)["num_thinking"] == budget
    assert result.answer == "4"
    assert result.outputs[0].text == prompting.decode(result.outputs[0].token_ids)


def test_thinking_goes_on_behind_wait_and_what_closed_it_is_discarded(prompting: Prompting) -> None:
    open_len = len(prompting.encode(THINKING))
    worker = Speaking(prompting, [CLOSED, THINKING * 20])
    result = answered(prompting, BudgetForcingController(open_len + 20, exact=True), worker)
    assert result.outputs[0].text.startswith(THINKING + "\nWait" + THINKING[:5])
    assert event(result)["num_waits"] == 1
    chain, discarded = (result.program.ledger.by_purpose[kind].decoded for kind in (Purpose.CHAIN, Purpose.DISCARDED))
    num_wait = len(prompting.encode("\nWait"))
    assert chain == open_len + 20 - num_wait
    assert discarded == min(len(prompting.encode(CLOSED)), open_len + 20) - open_len


def test_the_token_that_ends_a_chain_is_no_thinking(prompting: Prompting) -> None:
    end = next(n for n in range(1, 64) if prompting.decode([n]) == "")
    worker = Speaking(prompting, [THINKING], ends_with=[end])
    result = answered(prompting, BudgetForcingController(60, exact=True), worker)
    assert len(thinking(prompting, result)) == 60
    assert end not in thinking(prompting, result)


def test_a_chain_that_ended_by_itself_keeps_all_that_it_thought(prompting: Prompting) -> None:
    num, wait = len(prompting.encode(THINKING)), prompting.encode("\nWait")
    worker = Speaking(prompting, [THINKING, THINKING * 20])  # the first piece ends without a closing mark
    result = answered(prompting, BudgetForcingController(60, exact=True), worker)
    assert thinking(prompting, result)[: num + len(wait)] == prompting.encode(THINKING) + wait


def test_where_tokens_cannot_be_counted_thinking_stays_as_it_is_and_the_trace_says_so() -> None:
    controller = BudgetForcingController(500, exact=True, family="tinylm")
    with ScaffoldingLlm(controller, {"generation": ScriptedWorker(CLOSED)}) as llm:
        result = llm.generate("What is 2+2?")
    assert result.outputs[0].text == CLOSED
    assert result.program.trace[0] == result.program.trace[0] | {"event": "fallback", "what": "exact thinking"}


class Careless(BaseController):
    """Writes more than its task's `max_tokens`, or nothing at all."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def run(self, task: Any, **_: Any) -> Any:
        yield []
        assert task.max_tokens is not None
        encode: Callable[[str], list[int]] = Prompting.for_model("tinylm/target").encode
        finish(task, self.text, encode(self.text))


@pytest.mark.parametrize(
    ("writer", "num_thinking"),
    [
        (NativeGenerationController({"temperature": 0.7}), 45),
        (DynasorCoTController(chunk_size=16, certainty_threshold=99), 45),
        (DynasorCoTController(10, 99, 8), 10),
        (Careless(THINKING * 30), 45),
        (Careless(""), 0),
    ],
    ids=["plain", "probed", "of a budget of its own", "too long", "empty"],
)
@pytest.mark.parametrize("exact", [False, True])
def test_a_controller_writes_the_thinking(
    prompting: Prompting, writer: BaseController, num_thinking: int, exact: bool
) -> None:
    controller = BudgetForcingController(45, writer, exact=exact)
    result = answered(prompting, controller, Speaking(prompting, [THINKING * 20]))
    assert event(result)["num_thinking"] == (45 if exact else num_thinking)
    assert result.answer == "4"


def test_a_controller_may_end_the_chain_with_an_answer(prompting: Prompting) -> None:
    writer = DynasorCoTController(chunk_size=8, certainty_threshold=2)
    result = answered(prompting, BudgetForcingController(200, writer), Speaking(prompting, [THINKING * 40]))
    assert result.answer == "4"
    assert event(result)["num_thinking"] < 200
    assert result.exit_reason == "end"


def test_a_request_s_own_budget_is_the_exact_one_where_it_is_smaller(prompting: Prompting) -> None:
    worker = Speaking(prompting, [CLOSED])
    result = answered(prompting, BudgetForcingController(100, exact=True), worker, thinking_budget=40)
    assert len(thinking(prompting, result)) == 40
