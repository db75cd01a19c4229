"""Types of questions over HTTP: the plan is used, and the ledger and the metrics show it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queue_aware_budget import QueueAwareBudgetController
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType
from scaffolding_ext.protocol.meta import PROBE, purpose_of

TYPES = (
    TaskType("sums", 0.7, A=0.55, b=0.2, D=0.30, t0=0.2, c=0.1),
    TaskType("proofs", 0.3, A=0.60, b=0.04, D=0.10, t0=0.4, c=0.1),
)
PLAN = PlannedBudgets.of(Demand(TYPES, 0.3, 30, 400))
ASK: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}]}


@pytest.fixture
def planned(serve: Any) -> Any:
    forcing = BudgetForcingController(400, family="tinylm")
    controller = QueueAwareBudgetController(PLAN, generation_controller=forcing)
    return serve(lambda task: "4}" if purpose_of(task) == PROBE else "thinking " * 200, controller)


def thought(choice: Any) -> int:
    return next(each["given"] for each in choice["trace"] if each["event"] == "queue_budget")


def test_the_openai_client_names_a_type_and_a_deadline(planned: Any) -> None:
    ways = (
        {"extra_body": {"scaffolding": {"task_type": "proofs", "deadline": 60, "trace": True}}},
        {"metadata": {"task_type": "proofs"}, "extra_body": {"scaffolding": {"trace": True}}},
        {"extra_body": {"scaffolding": {"task_type": "sums", "trace": True}}},
    )
    with planned.client() as client:
        found = [client.chat.completions.create(**ASK, **way).choices[0].scaffolding for way in ways]
    assert [each["ledger"]["task_type"] for each in found] == ["proofs", "proofs", "sums"]
    assert [thought(each) for each in found] == [PLAN.budgets[name] for name in ("proofs", "proofs", "sums")]
    decoded = [each["ledger"]["total"]["decoded"] for each in found]
    assert decoded[0] == decoded[1]
    assert decoded[0] - decoded[2] == PLAN.budgets["proofs"] - PLAN.budgets["sums"]
    assert planned.metric("scaffolding_typed_choices_total", model="model", task_type="proofs") == 2
    assert planned.metric("scaffolding_typed_decoded_tokens_total", task_type="sums") == decoded[2]


def test_an_unknown_type_is_refused_with_the_types_that_there_are(planned: Any) -> None:
    with planned.client() as client:
        for way in ({"extra_body": {"scaffolding": {"task_type": "riddles"}}}, {"metadata": {"task_type": "riddles"}}):
            with pytest.raises(openai.BadRequestError, match="the plan has the types sums, proofs"):
                client.chat.completions.create(**ASK, **way)  # type: ignore[call-overload]
        with pytest.raises(openai.BadRequestError, match="should be a valid string"):
            client.chat.completions.create(**ASK, extra_body={"scaffolding": {"task_type": 3}})
        with pytest.raises(openai.BadRequestError, match="give one of them"):
            client.chat.completions.create(
                **ASK, metadata={"task_type": "sums"}, extra_body={"scaffolding": {"task_type": "proofs"}}
            )


def test_a_request_without_a_type_gets_the_budget_of_the_mixture(planned: Any) -> None:
    with planned.client() as client:
        choice = client.chat.completions.create(**ASK, extra_body={"scaffolding": {"trace": True}}).choices[0]
        (model,) = client.models.list().data
    assert thought(choice.scaffolding) == PLAN.mixture_budget
    assert "task_type" not in choice.scaffolding["ledger"]
    assert model.scaffolding["task_types"] == ["sums", "proofs"]  # type: ignore[attr-defined]


def test_a_stack_without_a_plan_refuses_a_type_and_reads_no_metadata(serve: Any) -> None:
    with serve().client() as client:
        with pytest.raises(openai.BadRequestError, match="NativeGenerationController has no plan for types"):
            client.chat.completions.create(**ASK, extra_body={"scaffolding": {"task_type": "sums"}})
        client.chat.completions.create(**ASK, metadata={"task_type": "anything"})
