"""Budgets by type: where the type comes from, who keeps the budget, and plans that follow the arrivals."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queue_aware_budget import (
    QueueAwareBudgetController,
)
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType
from scaffolding_ext.controllers.calibration_file import CalibrationWarning
from scaffolding_ext.controllers.reward import RewardController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.meta import PROBE, purpose_of
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.tinylm.grammar import KINDS

TYPES = (
    TaskType("sums", 0.7, A=0.55, b=0.2, D=0.30, t0=0.2, c=0.1),
    TaskType("proofs", 0.3, A=0.60, b=0.04, D=0.10, t0=0.4, c=0.1),
)
PLAN = PlannedBudgets.of(Demand(TYPES, 0.3, 30, 400))
SUMS, PROOFS, MIXTURE = PLAN.budgets["sums"], PLAN.budgets["proofs"], PLAN.mixture_budget


def worker() -> ScriptedWorker:
    return ScriptedWorker(lambda task: "4}" if purpose_of(task) == PROBE else "thinking " * 200)


def controller(**arguments: Any) -> QueueAwareBudgetController:
    return QueueAwareBudgetController(
        PLAN, generation_controller=BudgetForcingController(400, family="tinylm"), **arguments
    )


def events(result: Any, name: str) -> list[dict[str, Any]]:
    return [event for event in result.program.trace if event["event"] == name]


def thought(result: Any) -> int:
    return len(result.outputs[0].text.partition("</think>")[0])


def by_length(prompt: str) -> str | None:
    """A classifier that stack files can name."""
    return {"short": "sums", "a much longer question": "proofs"}.get(prompt)


def test_the_plan_has_three_different_budgets() -> None:
    assert len({SUMS, PROOFS, MIXTURE, 0}) == 4


def test_the_type_is_a_keyword() -> None:
    with ScaffoldingLlm(controller(), {"generation": worker()}) as llm:
        results = [llm.generate("What?", task_type=name) for name in ("sums", "proofs")]
    assert [thought(result) for result in results] == [SUMS, PROOFS]
    assert events(results[0], "queue_budget")[0].items() >= {"task_type": "sums", "known": True, "given": SUMS}.items()
    assert [result.answer for result in results] == ["4", "4"]


@pytest.mark.parametrize("classifier", [by_length, f"{__name__}:by_length"])
def test_a_classifier_names_the_type_and_a_keyword_goes_before_it(classifier: Any, monkeypatch: Any) -> None:
    if isinstance(classifier, str):
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        classifier = "test_queue_aware_budget:by_length"
    with ScaffoldingLlm(controller(classifier=classifier), {"generation": worker()}) as llm:
        short, long, told = (
            llm.generate(prompt, **kwargs)
            for prompt, kwargs in (("short", {}), ("a much longer question", {}), ("short", {"task_type": "proofs"}))
        )
    assert [thought(result) for result in (short, long, told)] == [SUMS, PROOFS, PROOFS]


def test_the_type_is_a_field_of_the_dataset() -> None:
    samples = [Example("1", "What?", "4", "sums"), Example("2", "Why?", "4", "proofs"), Example("3", "How?", "4", None)]
    with ScaffoldingLlm(controller(), {"generation": worker()}) as llm:
        records = evaluate(llm, samples)
    assert [len((record.output or "").partition("</think>")[0]) for record in records] == [SUMS, PROOFS, MIXTURE]
    assert all(record.correct for record in records)


def test_an_unknown_type_has_the_mixture_s_budget_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), ScaffoldingLlm(controller(), {"generation": worker()}) as llm:
        results = [llm.generate("What?", task_type="riddles"), llm.generate("What?")]
    assert [thought(result) for result in results] == [MIXTURE, MIXTURE]
    (said,) = [entry.getMessage() for entry in caplog.records if "no type of the plan" in entry.getMessage()]
    assert f"{MIXTURE} tokens" in said
    warned = [events(result, "warning")[0] for result in results]
    assert [(each["what"], "'riddles'" in each["reason"]) for each in warned] == [
        ("task_type", True),
        ("task_type", False),
    ]
    assert not any(events(result, "queue_budget")[0]["known"] for result in results)


def test_a_request_s_own_budget_goes_before_where_it_is_smaller() -> None:
    with ScaffoldingLlm(controller(), {"generation": worker()}) as llm:
        assert thought(llm.generate("What?", task_type="proofs", thinking_budget=5)) == 5
        assert thought(llm.generate("What?", task_type="sums", thinking_budget=399)) == SUMS


def test_any_controller_that_honours_budgets_keeps_them() -> None:
    plain = NativeGenerationController({"max_tokens": 300, "temperature": 0.7})
    asked = QueueAwareBudgetController(PLAN, generation_controller=MajorityVoteController(plain, 2, allocation=None))
    assert {"task_type", "thinking_budget"} <= asked.needs.fields
    with ScaffoldingLlm(asked, {"generation": worker()}) as llm:
        result = llm.generate("What?", task_type="sums")
    assert result.outputs[0].text.startswith(("thinking " * 9)[:SUMS] + "\n\n...</think>")  # of another family
    assert [event["asked"] for event in events(result, "thinking_budget")] == [SUMS, SUMS]
    with pytest.raises(ConfigError, match="keeps no thinking_budget") as caught:
        QueueAwareBudgetController(PLAN, generation_controller=RewardController())
    assert caught.value.key == "generation_controller"


def test_a_vote_over_a_plan_has_its_types_too() -> None:
    assert MajorityVoteController(controller(), 2).task_types() == ("sums", "proofs")
    assert MajorityVoteController(NativeGenerationController(), 2).task_types() == ()


def test_a_plan_of_another_model_is_warned_of() -> None:
    plan = PlannedBudgets.of(PLAN.demand, model="another/model")
    asked = QueueAwareBudgetController(plan, generation_controller=BudgetForcingController(9, family="tinylm"))

    class Named(ScriptedWorker):
        model = "this/model"  # type: ignore[assignment, misc]

    with pytest.warns(CalibrationWarning, match="made for 'another/model' and is used with 'this/model'"):
        asked.bind({"generation": Named("x")})


def test_the_plan_may_be_a_file(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    assert QueueAwareBudgetController(str(tmp_path / "plan.json")).plan == PLAN
    assert QueueAwareBudgetController(tmp_path / "plan.json").generation_controller.thinking_tokens == 400  # type: ignore[attr-defined]


def test_the_packaged_stack_is_planned_for_its_model_and_all_kinds_of_its_questions() -> None:
    config = load_config("configs:queue_aware_budget")
    asked = check_stack(config)
    model = config.workers["generation"].args["model"]
    assert asked.plan.model == model
    asked.bind({"generation": type("Named", (ScriptedWorker,), {"model": model})("x")})  # without a warning
    assert model == "tinylm/target"
    budgets, demand = asked.plan.budgets, asked.plan.demand
    assert set(budgets) == set(KINDS)
    assert demand.measured
    assert tuple(budgets.values()) == demand.best()
    assert demand.forecast(list(budgets.values())).load < 1


@pytest.mark.parametrize(
    ("arguments", "key", "says"),
    [
        ({"plan": "nowhere.json"}, "plan", "cannot read"),
        ({"plan": PLAN, "classifier": "os:nothing"}, "classifier", "cannot import"),
    ],
)
def test_bad_arguments_name_their_key(arguments: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        QueueAwareBudgetController(**arguments)
    assert caught.value.key == key
