"""A host finds its model's prompting by itself, also inside a worker; where it cannot, it says so or refuses."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import Worker
from scaffolding_ext.protocol.worker import BaseWorker, WorkerTag
from scaffolding_ext.testing import ScriptedWorker

TARGET = "tinylm/target"
TEMPLATED = "<|user|>Hi<|assistant|><think>\n"


class Serving(ScriptedWorker):
    """A scripted worker that says it serves a model."""

    model: str | None = None  # type: ignore[assignment]

    def __init__(self, model: str | None = TARGET) -> None:
        super().__init__("fine")
        self.model = model


class Around(BaseWorker):
    """Hands on to other workers, and says nothing itself."""

    def __init__(self, *workers: Worker) -> None:
        for index, worker in enumerate(workers):
            setattr(self, f"worker_{index}", worker)
        self.task_handlers = dict.fromkeys(workers[0].task_handlers if workers else {}, Around._hand_on)  # type: ignore[misc]

    async def _hand_on(self, task: Any) -> Any:
        return await vars(self)["worker_0"].run_task(task)


def asked(worker: Worker, leaf: ScriptedWorker, controller: NativeGenerationController | None = None) -> str | None:
    """Return the prompt that reaches the innermost worker for the question "Hi"."""
    with ScaffoldingLlm(controller or NativeGenerationController(), {WorkerTag.GENERATION: worker}) as llm:
        llm.generate("Hi")
    return leaf.tasks[0].input_str  # type: ignore[attr-defined]


def test_prompting_is_that_of_the_workers_model() -> None:
    worker = Serving()
    assert asked(worker, worker) == TEMPLATED


def test_prompting_is_that_of_a_worker_inside_workers() -> None:
    leaf = Serving()
    assert asked(Around(Around(leaf)), leaf) == TEMPLATED


def test_the_controller_that_was_given_stays_as_it_was() -> None:
    controller = NativeGenerationController()
    for _ in range(2):
        worker = Serving()
        assert asked(worker, worker, controller) == TEMPLATED
    scripted = ScriptedWorker("fine")
    assert asked(scripted, scripted, controller) == "Hi"  # another host, another model
    assert controller.prompting is None


def test_a_controllers_own_prompting_wins() -> None:
    controller, worker = NativeGenerationController(), Serving("/no/such/folder")
    controller.prompting = Prompting.for_model(TARGET, system_prompt="Be brief.")
    assert "Be brief." in str(asked(worker, worker, controller))


def test_none_by_choice_warns_once_a_host_and_sends_prompts_as_they_are() -> None:
    controller, worker = NativeGenerationController(), Serving()
    controller.prompting = None
    with pytest.warns(
        UserWarning, match=r"controller.prompting is None, so prompts reach 'tinylm/target' unchanged"
    ) as told:
        assert asked(worker, worker, controller) == "Hi"
    assert len(told) == 1


def test_a_worker_that_does_not_say_is_told_of_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "scaffolding_ext"),
        ScaffoldingLlm(NativeGenerationController(), {"generation": Around()}) as llm,
    ):
        assert llm.prototype_controller.prompting is None  # type: ignore[attr-defined]
    assert "Around does not declare its model" in caplog.text


def test_workers_of_several_models_in_one_are_refused() -> None:
    two = Around(Serving("tinylm/draft"), Serving(TARGET))
    with pytest.raises(ConfigError, match=r"Around holds workers of several models \(tinylm/draft, tinylm/target\)"):
        ScaffoldingLlm(NativeGenerationController(), {"generation": two})
    two.model = TARGET  # type: ignore[attr-defined]
    with ScaffoldingLlm(NativeGenerationController(), {"generation": two}) as llm:
        assert llm.prototype_controller.prompting.family is family_named("tinylm")  # type: ignore[attr-defined]


def test_a_model_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"Serving serves '/no/such/folder', but the tokenizer .* set controller.prompting"
    ):
        ScaffoldingLlm(NativeGenerationController(), {"generation": Serving("/no/such/folder")})
